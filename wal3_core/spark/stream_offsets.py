"""How far a stream has come in each log, as Spark keeps it in the checkpoint, and how a limit is shared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import LogId, check_log_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    # As Spark hands it over: {log: {"id": …, "first": …, "offset": …}}
    OffsetJson = dict[str, dict[str, str | int | bool]]


@dataclass(frozen=True, slots=True)
class Reached:
    """A stream has the records of one life of a log from ``first`` to ``offset``, without that one.

    ``initial``: as a stream without a checkpoint begins. Spark does not keep that place, and asks for it again when
    the first batch is repeated; then ``first`` of the batch's end, which it keeps, says where the batch begins.
    """

    log_id: LogId
    first: int
    offset: int
    initial: bool = False

    def to_json(self) -> dict[str, str | int | bool]:
        """Encode for the checkpoint."""
        found: dict[str, str | int | bool] = {"id": self.log_id, "first": self.first, "offset": self.offset}
        return found | {"initial": True} if self.initial else found


def to_json(places: Mapping[str, Reached]) -> OffsetJson:
    """Encode the places of all logs; equal places give equal text."""
    return {log: places[log].to_json() for log in sorted(places)}


def from_json(found: Mapping[str, object]) -> dict[str, Reached]:
    """Decode the places of all logs; CorruptError when they are none."""
    return {log: _reached(log, value) for log, value in found.items()}


def _reached(log: str, found: object) -> Reached:
    match found:
        case {"id": str(log_id), "first": int(first), "offset": int(offset), **others} if 1 <= first <= offset and set(
            others
        ) <= {"initial"}:
            what = f"offset of the stream in log {log}"
            return Reached(check_log_id(log_id, what), first, offset, bool(others.get("initial", False)))
    message = f"offset of the stream in log {log[:80]!r}: expected id, first and offset, found {str(found)[:200]}"
    raise CorruptError(message)


def begin_of(log: str, before: Mapping[str, Reached], end: Reached) -> int:
    """Return the offset at which a batch that ends at ``end`` begins in a log."""
    known = before.get(log)
    # Of a new log, another life of it, and the first batch, the end itself says where it begins.
    if known is None or known.initial or known.log_id != end.log_id:
        return end.first
    # The end's first is further on where records were lost.
    return max(known.offset, end.first)


def share_out(behind: Mapping[str, int], records_max: int, turn: int) -> dict[str, int]:
    """Grant each log a part of what the stream is behind there, ``records_max`` in all.

    Each gets the same unless it is less behind. ``turn`` rotates who is first, so that none waits for ever when there
    are more logs than records.
    """
    waiting = sorted(log for log, count in behind.items() if count > 0)
    if waiting:
        at = turn % len(waiting)
        waiting = waiting[at:] + waiting[:at]
    granted, left = dict.fromkeys(behind, 0), records_max
    while waiting and left:
        share = max(1, left // len(waiting))
        for log in waiting:
            given = min(share, behind[log] - granted[log], left)
            granted[log] += given
            left -= given
        waiting = [log for log in waiting if granted[log] < behind[log]]
    return granted
