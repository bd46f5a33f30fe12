"""Which errors of an append end its writer: the log that it was opened on is over."""

from __future__ import annotations

from wal3_core.errors import ClosedError, LogNotFoundError, LogReplacedError, NotDurableError, SealedError


def ends_writer(error: BaseException | None) -> bool:
    """Whether every later append of the writer fails in the same way: its log is sealed, destroyed, or another one."""
    if isinstance(error, SealedError | LogReplacedError | ClosedError):
        return True
    # Destroyed, and no other log has its name yet.
    return isinstance(error, NotDurableError) and isinstance(error.__cause__, LogNotFoundError)
