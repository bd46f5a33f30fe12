"""The port through which the library reports figures; by default nothing listens."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from wal3_core.runtime.loggers import shielded


class AppendEnd(StrEnum):
    """What became of an append."""

    DURABLE = "durable"
    NOT_DURABLE = "not_durable"
    UNKNOWN = "unknown"
    UNMARKED = "unmarked"


class CommitEnd(StrEnum):
    """What became of a commit."""

    COMMITTED = "committed"
    DISPLACED = "displaced"
    SEALED = "sealed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Conflict(StrEnum):
    """What a commit lost to: another writer, whose records took its place, or maintenance."""

    CONTENTION = "contention"
    REBASE = "rebase"


class RequestEnd(StrEnum):
    """What became of a request: the store did it, refused it, denied it, found damage; or did not answer."""

    DONE = "done"
    REFUSED = "refused"
    DENIED = "denied"
    DAMAGED = "damaged"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"


class Observer:
    """Gets the library's figures and drops them; a subclass records them.

    Its methods are called from any thread, some with a writer's lock held: they must be quick, and must not call the
    library. An error that one raises is printed, and goes no further. ``log`` is a log's name.
    """

    def __init_subclass__(cls) -> None:
        """Shield the library from the methods of a subclass."""
        for name in vars(Observer).keys() & vars(cls).keys():
            if not name.startswith("_"):
                setattr(cls, name, shielded(vars(cls)[name]))

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        """Get the end of a request to a store, which is named by its URL without options."""

    def throttled(self, store: str, kind: str, seconds: float) -> None:
        """Get how long a request has waited for its turn; ``kind`` is ``reads`` or ``writes``."""

    def slowed(self, store: str, kind: str) -> None:
        """Get that a store asked to slow down, and the rate of such requests to it was halved."""

    def appended(self, log: str, end: AppendEnd, *, num_records: int, num_bytes: int, waits_s: Iterable[float]) -> None:
        """Get the outcome of appends, and how long each has waited for it."""

    def committed(self, log: str, end: CommitEnd, seconds: float) -> None:
        """Get the end of a commit."""

    def retried(self, log: str) -> None:
        """Get a request that a writer sends again."""

    def conflicted(self, log: str, conflict: Conflict) -> None:
        """Get a commit that has to be made again."""

    def unrolled(self, log: str) -> None:
        """Get a failure to roll a manifest's pointers into snapshots: the manifest grows."""

    def held(self, log: str, change_bytes: int) -> None:
        """Get how many bytes more, or fewer, a writer holds for appends without an outcome."""

    def refused(self, log: str) -> None:
        """Get an append that a fleet refused because the log's consumers are too far behind."""

    def followed(self, log: str, lag_records: int) -> None:
        """Get how many records a follower has yet to read, as often as it looks for more."""

    def consumed(self, log: str, consumer: str, num_records: int) -> None:
        """Get a cursor that a consumer has saved, and how many records it counts as processed since the last one."""

    def collected(self, log: str, num_records: int, num_bytes: int) -> None:
        """Get what a collection has pruned; the objects are deleted later."""


# Drops everything.
SILENT = Observer()
