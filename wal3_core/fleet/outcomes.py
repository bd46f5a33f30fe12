"""The result for one log of an operation over many: an error of one log is its own answer, and hides no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import (
    ClosedError,
    CorruptError,
    LogError,
    LogNotFoundError,
    LogReplacedError,
    NotDurableError,
    SealedError,
    StoreDeniedError,
    UnavailableError,
)
from wal3_core.format.strict_json import TEXT, Stored, member
from wal3_core.store.object_store import ObjectMeta

if TYPE_CHECKING:
    from wal3_core.log.collect.deleter import DeletionReport

A = TypeVar("A")
T = TypeVar("T")


def try_log(work: Callable[[A], T], of: A) -> T | LogError:
    """Do work on one log, or one of its objects; an error that concerns it alone is returned.

    It may be damaged, denied, lost, destroyed, replaced, or an unfinished copy. A store that does not
    answer concerns every log: UnavailableError is raised.
    """
    try:
        return work(of)
    except LogError as error:
        if not is_log_error(error):
            raise
        return error


def is_log_error(error: LogError) -> bool:
    """Return whether an error concerns one log alone."""
    return isinstance(error, StoreDeniedError) or not isinstance(error, UnavailableError | ClosedError)


def ends_writer(error: BaseException | None) -> bool:
    """Whether every later append of the writer fails in the same way: its log is sealed, destroyed, or another one."""
    if isinstance(error, SealedError | LogReplacedError | ClosedError):
        return True
    # Destroyed, and no other log has its name yet.
    return isinstance(error, NotDurableError) and isinstance(error.__cause__, LogNotFoundError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Stored):
    """Why a log cannot be collected: the error's class and its message."""

    kind: str
    message: str
    MEMBERS = (member("kind", TEXT), member("message", TEXT))

    @property
    def transient(self) -> bool:
        """Whether a retry may succeed."""
        return self.kind == UnavailableError.__name__

    @classmethod
    def of(cls, error: LogError) -> Refusal:
        """Record an error; a refusal that damage caused counts as damage."""
        cause = error.__cause__ if isinstance(error.__cause__, CorruptError) else error
        return cls(kind=type(cause).__name__, message=str(error))


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
