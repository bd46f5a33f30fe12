"""The parts of a manifest besides its pointers: boundaries, epochs, the seal, the announcement of a collection."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import check_garbage_path, check_token
from wal3_core.model.position import FragmentSeqNo, LogPosition
from wal3_core.options import View

if TYPE_CHECKING:
    from wal3_core.model.strict_json import Fields, JsonObject

# The seal's reason in a log that is being destroyed.
BEING_DESTROYED = "being destroyed"
# The remedy in errors about such a log.
UNDO = "destroy it again to the end, or take that back (`wal3 destroy LOG --undo`, or undo_destroy)"

# The outcome of an unanswered commit of an older term is unknown.
EPOCHS_MAX = 16
# All tokens of a writer that appends begin with the same digits; the others are random, more than enough for its terms.
TAG_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary between fragments: the seq_no and the position that follow it."""

    seq_no: FragmentSeqNo
    position: LogPosition

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"seq_no": self.seq_no, "position": self.position.to_json()}

    @classmethod
    def from_json(cls, fields: Fields) -> Boundary:
        """Read from a JSON object."""
        place = cls(FragmentSeqNo(fields.integer("seq_no")), LogPosition.from_json(fields.object("position")))
        fields.finish()
        return place


@dataclass(frozen=True, slots=True)
class Epoch:
    """One writer's reign: it wrote the fragments from ``first_seq_no`` to the next epoch's."""

    epoch: int
    token: str
    first_seq_no: FragmentSeqNo

    @property
    def tag(self) -> str:
        """What the epochs of one writer have in common; by chance also those of two: no decision on data uses it."""
        return self.token[:TAG_DIGITS]

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"epoch": self.epoch, "writer": self.token, "first_seq_no": self.first_seq_no}

    @classmethod
    def from_json(cls, fields: Fields) -> Epoch:
        """Read from a JSON object."""
        token = check_token(fields.string("writer"), fields.what)
        epoch = cls(fields.integer("epoch"), token, FragmentSeqNo(fields.integer("first_seq_no")))
        fields.finish()
        return epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Why, when and by whom the log was sealed, and its successor's name."""

    reason: str
    sealed_by: str
    timestamp_us: int
    successor: str | None = None

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        successor: JsonObject = {} if self.successor is None else {"successor": self.successor}
        return {
            "reason": self.reason,
            "sealed_by": self.sealed_by,
            "timestamp_us": self.timestamp_us,
            **successor,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Seal:
        """Read from a JSON object."""
        seal = cls(
            reason=fields.string("reason"),
            sealed_by=fields.string("sealed_by"),
            timestamp_us=fields.integer("timestamp_us"),
            successor=fields.string("successor") if fields.has("successor") else None,
        )
        fields.finish()
        return seal


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announced collection: the path of its garbage document, and the boundary where the log will begin.

    It is part of the manifest, so that announcing, pruning and withdrawing have one order for every process:
    a cursor or pin below ``first`` comes too late. ``generation`` is that of the manifest that announced it, so
    an announcement that is withdrawn and made again is a different one.
    """

    garbage: str
    first: Boundary
    generation: int

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"garbage": self.garbage, "first": self.first.to_json(), "generation": self.generation}

    @classmethod
    def from_json(cls, fields: Fields) -> Announcement:
        """Read from a JSON object."""
        garbage, first = check_garbage_path(fields.string("garbage")), Boundary.from_json(fields.object("first"))
        announcement = cls(garbage, first, fields.integer("generation"))
        fields.finish()
        return announcement


class Durability(StrEnum):
    """Whether a fragment that was sent for commit is durable."""

    DURABLE = "durable"
    NOT_DURABLE = "not durable"
    UNKNOWN = "unknown"


def view_of(fields: Fields) -> View | None:
    """Read which view a document gives its log to; None when it leaves it out."""
    found = fields.string("view") if fields.has("view") else None
    if found is not None and found not in {*View}:
        message = f"{fields.what}: field view: expected one of {', '.join(View)}, found {ascii(found)[:80]}"
        raise CorruptError(message)
    return None if found is None else View(found)
