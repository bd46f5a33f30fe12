"""How far a stream has come in each log, as Spark keeps it in the checkpoint, and how a limit is shared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import LogId, check_log_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    # As Spark hands it over: {log: {"id": …, "first": …, "offset": …}}, and what was selected, under no log's name.
    OffsetJson = dict[str, dict[str, str | int | bool]]


_SELECTION = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which logs a stream was asked for: those named, or else those at or below a prefix."""

    prefix: str
    logs: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"prefix {self.prefix!r}" if self.logs is None else f"logs {','.join(self.logs)[:200]}"

    def is_within(self, other: Selection) -> bool:
        """Tell whether the other one selects all that this one does."""
        if other.logs is not None:
            return self.logs is not None and set(self.logs) <= set(other.logs)
        above = _parts(other.prefix)
        return all(_parts(each)[: len(above)] == above for each in self.logs or (self.prefix,))

    def to_json(self) -> dict[str, str | int | bool]:
        """Encode for the checkpoint."""
        return {"prefix": self.prefix} if self.logs is None else {"logs": ",".join(self.logs)}


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part]


def selection_of(found: Mapping[str, object]) -> Selection | None:
    """Return what the checkpoint's stream was asked for; None if it began with a version that did not note it."""
    match found.get(_SELECTION):
        case None:
            return None
        case {"prefix": str(prefix), **others} if not others:
            return Selection(prefix, None)
        case {"logs": str(logs), **others} if logs and not others:
            return Selection("", tuple(logs.split(",")))
        case other:
            message = f"offset of the stream: expected prefix or logs as what it reads, found {str(other)[:200]}"
            raise CorruptError(message)


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


def to_json(places: Mapping[str, Reached], selection: Selection | None = None) -> OffsetJson:
    """Encode the places of all logs, and what the stream was asked for; equal places give equal text."""
    selected = {} if selection is None or not places else {_SELECTION: selection.to_json()}
    return selected | {log: places[log].to_json() for log in sorted(places)}


def from_json(found: Mapping[str, object]) -> dict[str, Reached]:
    """Decode the places of all logs; CorruptError when they are none."""
    return {log: _reached(log, value) for log, value in found.items() if log != _SELECTION}


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
