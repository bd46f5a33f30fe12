"""What a log owns, and what each operation does with it: docs/protocol/copies.md, "What a log owns"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from wal3_core.format.cursor import Owner
from wal3_core.format.policy import Policy


class Operation(StrEnum):
    """What is done to a log, or makes one."""

    CREATE = "create"
    OPEN_BY_OLDER = "open by an older writer"
    MIGRATE = "migrate"
    COPY = "copy"
    UPDATE = "update"
    COPY_FROM = "copy from an offset"
    RESTORE = "restore"
    RESTORE_ELSEWHERE = "restore under another name"
    BOOTSTRAP = "bootstrap"
    REPAIR = "repair"
    SEAL = "seal"
    DESTROY = "destroy"
    COMPACT = "key compaction"
    COLLECT = "collection"
    OLDER_MANIFEST = "an older manifest restored"


class Fate(StrEnum):
    """What becomes of a thing that a log owns, in the log that an operation leaves or makes."""

    KEPT = "kept"
    WITHOUT = "without"
    REFUSED = "refused"


class Thing(StrEnum):
    """What a log owns, besides its policy, each field of which is a thing of its own, and its cursors."""

    RECORDS = "records"
    POLICY = "policy"
    CONSUMER = "cursor of a consumer"
    KEYED_CONSUMER = "cursor of a consumer by key"
    SUBSCRIPTION = "cursor of a subscription"
    WRITER = "cursor of a writer, with its named appends"
    ROLLUP = "cursor of a roll-up"
    QUEUE = "cursor of a queue"
    PINS = "pins"
    CLEAN_MARKS = "clean prefixes"
    DROPPED = "lists of dropped records"
    FENCE = "fence"
    ANNOUNCEMENTS = "announcements"
    SEAL = "seal"


CURSORS = {
    Owner.CONSUMER: Thing.CONSUMER,
    Owner.KEYED_CONSUMER: Thing.KEYED_CONSUMER,
    Owner.SUBSCRIPTION: Thing.SUBSCRIPTION,
    Owner.WRITER: Thing.WRITER,
    Owner.ROLLUP: Thing.ROLLUP,
    Owner.QUEUE: Thing.QUEUE,
}
# What ``PolicyStore`` sets in each version is none of the policy's terms.
POLICY_FIELDS = tuple(each.name for each in fields(Policy) if each.name not in {"log_id", "generation", "writer"})


@dataclass(frozen=True, slots=True)
class Cell:
    """What becomes of one thing, and why."""

    fate: Fate
    why: str


_NOTHING = Cell(Fate.WITHOUT, "a new log owns nothing yet")
_STAYS = Cell(Fate.KEPT, "the log stays the same one")
_OLDER = Cell(
    Fate.KEPT, "it loads the manifest first, refuses one with a field that it does not know, and changes nothing"
)
_COPIED = Cell(Fate.KEPT, "the copy holds the same records, and keeps them by the same rules")
_NOT_MOVED = Cell(Fate.KEPT, "an update leaves it as the copy has it")
_NO_PINS = Cell(Fate.WITHOUT, "a pin keeps objects of its own log alone")
_NO_LISTS = Cell(Fate.WITHOUT, "receipts count the objects of one log: the source's passes stay with the source")
_OPEN = Cell(Fate.WITHOUT, "it is open, whatever the source is")
_IDLE = Cell(Fate.WITHOUT, "what was announced concerns the source's manifest alone")
_GONE = Cell(Fate.WITHOUT, "deleted with the log; a later life of the name owns nothing yet")
_BY_OFFSET = Cell(
    Fate.KEPT, "as in a copy; one below the copy's first record is left out, but that of a writer begins there"
)
_REVERTED = Cell(Fate.KEPT, "as the restored manifest has it")
_BESIDE = Cell(Fate.KEPT, "it is a document of its own; a cursor beyond the restored end stops collections")
_QUEUE = Cell(Fate.REFUSED, "a queue's items lie in its log alone: its successor would be no queue")
_ROLLUP = Cell(Fate.REFUSED, "servers mark in a dirty log by its name: its successor would get no markers")

_COPY = {
    **dict.fromkeys(Thing, _COPIED),
    Thing.PINS: _NO_PINS,
    Thing.DROPPED: _NO_LISTS,
    Thing.ANNOUNCEMENTS: _IDLE,
    Thing.SEAL: _OPEN,
}
_AT_ITS_BEGINNING = Cell(
    Fate.KEPT, "it begins where the successor does, so that the successor keeps all records until its owner has come"
)
_BEGUN_BEHIND = Cell(Fate.WITHOUT, "it concerns objects of the sealed log, which stay there")

# By operation, what becomes of each thing.
TABLE: Mapping[Operation, Mapping[Thing, Cell]] = {
    Operation.CREATE: dict.fromkeys(Thing, _NOTHING),
    Operation.OPEN_BY_OLDER: dict.fromkeys(Thing, _OLDER),
    Operation.MIGRATE: {
        **dict.fromkeys(Thing, _BEGUN_BEHIND),
        **dict.fromkeys((Thing.CONSUMER, Thing.KEYED_CONSUMER, Thing.SUBSCRIPTION), _AT_ITS_BEGINNING),
        Thing.RECORDS: Cell(Fate.WITHOUT, "they stay in the sealed log; offsets and setsum go on"),
        Thing.POLICY: Cell(Fate.KEPT, "the successor keeps its records as the sealed log would have"),
        Thing.WRITER: Cell(Fate.KEPT, "an append with a name that the sealed log has is not made again"),
        Thing.ROLLUP: _ROLLUP,
        Thing.QUEUE: _QUEUE,
        Thing.SEAL: Cell(Fate.WITHOUT, "the successor is open"),
    },
    Operation.COPY: _COPY,
    Operation.UPDATE: {
        **dict.fromkeys(Thing, _NOT_MOVED),
        Thing.RECORDS: Cell(Fate.KEPT, "those that the source has gained are appended at their offsets"),
        **dict.fromkeys(
            CURSORS.values(), Cell(Fate.KEPT, "where the source's is by now; deleted if the source's was deleted")
        ),
        Thing.SEAL: Cell(Fate.REFUSED, "a sealed log takes no records"),
    },
    Operation.COPY_FROM: {**_COPY, **dict.fromkeys(CURSORS.values(), _BY_OFFSET)},
    Operation.RESTORE: _COPY,
    Operation.RESTORE_ELSEWHERE: _COPY,
    Operation.BOOTSTRAP: {
        **dict.fromkeys(Thing, _NOTHING),
        Thing.RECORDS: Cell(Fate.KEPT, "at their own offsets and times"),
    },
    Operation.REPAIR: dict.fromkeys(Thing, _STAYS),
    Operation.SEAL: dict.fromkeys(Thing, _STAYS),
    Operation.DESTROY: {
        **dict.fromkeys(Thing, _GONE),
        Thing.PINS: Cell(Fate.REFUSED, "a process relies on it; unless the call says that pins go, too"),
    },
    Operation.COMPACT: {
        **dict.fromkeys(Thing, _STAYS),
        Thing.RECORDS: Cell(Fate.KEPT, "the newest of each key, and all that a cursor or the lag protects"),
        Thing.CLEAN_MARKS: Cell(Fate.KEPT, "and one more, for what the pass left"),
        Thing.DROPPED: Cell(Fate.KEPT, "and those of the pass"),
        Thing.ANNOUNCEMENTS: Cell(Fate.WITHOUT, "the pass's own stands from its record to its install"),
    },
    Operation.COLLECT: {
        **dict.fromkeys(Thing, _STAYS),
        Thing.RECORDS: Cell(Fate.KEPT, "all at and behind the lowest cursor, and all that the policy keeps"),
        Thing.ANNOUNCEMENTS: Cell(Fate.WITHOUT, "the collection's own stands from its garbage document to its prune"),
    },
    Operation.OLDER_MANIFEST: {
        **dict.fromkeys(Thing, _REVERTED),
        **dict.fromkeys((*CURSORS.values(), Thing.POLICY, Thing.PINS, Thing.DROPPED), _BESIDE),
    },
}
