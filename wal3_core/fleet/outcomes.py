"""The result for one log of an operation over many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogError, UnavailableError

if TYPE_CHECKING:
    from wal3_core.log.collect.deleter import DeletionReport
    from wal3_core.model.strict_json import Fields, JsonObject
    from wal3_core.storage.object_store import ObjectMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a log cannot be collected: the error's class and its message."""

    kind: str
    message: str

    @property
    def transient(self) -> bool:
        """Whether a retry may succeed."""
        return self.kind == UnavailableError.__name__

    @classmethod
    def of(cls, error: LogError) -> Refusal:
        """Record an error; a refusal that damage caused counts as damage."""
        cause = error.__cause__ if isinstance(error.__cause__, CorruptError) else error
        return cls(kind=type(cause).__name__, message=str(error))

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"kind": self.kind, "message": self.message}

    @classmethod
    def from_json(cls, fields: Fields) -> Refusal:
        """Read from a JSON object."""
        refusal = cls(kind=fields.string("kind"), message=fields.string("message"))
        fields.finish()
        return refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrphans:
    """A log's oldest orphans, or why they could not be listed."""

    log: str
    objects: tuple[ObjectMeta, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeletion:
    """The result for one garbage document of a log, and why it was not finished, if it was refused."""

    log: str
    deleted: DeletionReport
    refusal: Refusal | None = None
