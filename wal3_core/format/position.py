"""Positions in a log. ``start`` is inclusive, ``limit`` exclusive, everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from wal3_core.arguments import integer, make_plain, wrong
from wal3_core.errors import InvalidRequestError
from wal3_core.format.strict_json import U64_MAX, Fields, JsonObject

FragmentSeqNo = NewType("FragmentSeqNo", int)

FIRST_SEQ_NO = FragmentSeqNo(1)
FIRST_OFFSET = 1


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A record's place: ``offset`` counts appended records from 1, ``timestamp_us`` is microseconds since the epoch.

    The offset alone identifies the place; the timestamp is that of its record, or of its fragment. The record may have
    been dropped since: a read there begins with the next one.
    """

    offset: int
    timestamp_us: int

    def __post_init__(self) -> None:
        """Refuse values that are not integers."""
        # This test costs a tenth of the full check, and a manifest has dozens of positions.
        if type(self.offset) is not int or type(self.timestamp_us) is not int:
            make_plain(self, offset=integer, timestamp_us=integer)

    # By hand: snapshots have thousands of positions, and a table takes a tenth longer to read them.
    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"offset": self.offset, "timestamp_us": self.timestamp_us}

    @classmethod
    def from_json(cls, fields: Fields) -> LogPosition:
        """Read from a JSON object."""
        position = cls(fields.integer("offset"), fields.integer("timestamp_us"))
        fields.finish()
        return position

    def __str__(self) -> str:
        return f"{self.offset}@{self.timestamp_us}"


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start reading at the first record whose timestamp is ``timestamp_us`` or later."""

    timestamp_us: int

    def __post_init__(self) -> None:
        """Refuse a time outside u64."""
        make_plain(self, timestamp_us=integer)
        if not 0 <= self.timestamp_us <= U64_MAX:
            raise InvalidRequestError(f"time: expected microseconds within u64, found {self.timestamp_us}")


# Where a read starts: an offset, a position (its offset counts), a time, or None for the log's first record.
ReadStart = int | LogPosition | AtTime | None


def read_start(value: object, name: str) -> ReadStart:
    """Take the start of a read from a caller."""
    if value is None or isinstance(value, LogPosition | AtTime):
        return value
    try:
        return integer(value, name)
    except InvalidRequestError:
        raise wrong(name, "an offset, a position or a time", value) from None
