"""Markers: the records of a dirty log. Each says that a log has grown, and is kept until the log was looked at.

A marker's key is the log's name. Its body is one byte of format, then four bytes of the log's id (its life), then
unsigned LEB128 integers: the limit's offset and timestamp, the span (limit - start), the number of reinsertions; and,
if there were any, the count of records and the age of the first insertion at that time. A new marker takes some 20
bytes beside the name. Source: docs/protocol/dirty-logs.md, "Dirty logs".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.format.paths import LogId, check_log_name
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message, Record
from wal3_core.format.strict_json import (
    INTEGER,
    TEXT,
    U64_MAX,
    Fields,
    JsonObject,
    Kind,
    Stored,
    dump_members,
    member,
    nested,
)

FORMAT = 1
_LOW_BITS, _MORE = 0x7F, 0x80
# The part of a log's id in a marker: enough to tell two lives of a name apart.
LIFE_BYTES = 4


def _ranges_from(fields: Fields, name: str) -> tuple[tuple[int, int], ...]:
    return OffsetRanges.from_text(fields.string(name), 0, f"{fields.what}: {name}").ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Stored):
    """``num_records`` records were added to a log, between the offset ``start`` and the position ``limit``.

    ``life`` is the first eight hex digits of the log's id. ``first_us`` is when the oldest of these records were
    marked first, by the time of their log; ``reinsertions`` counts how often they were marked again since. ``limit``
    may lie behind the log's end: a marker is written beside its fragment, which may be committed later, or never.
    Of a folded marker, ``ranges`` are the offsets that were marked for the first time; they are not encoded.
    """

    log: str
    life: str
    start: int
    limit: LogPosition
    num_records: int
    first_us: int
    reinsertions: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    MEMBERS = (
        member("log", TEXT),
        member("life", TEXT),
        member("start", INTEGER),
        member("limit", nested(LogPosition)),
        member("num_records", INTEGER),
        member("first_us", INTEGER),
        member("reinsertions", INTEGER),
        member("ranges", Kind(_ranges_from, lambda ranges: OffsetRanges(ranges).to_text(0)), default=()),
    )

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        # Of more than can be read, what was marked twice counts twice.
        few = self if len(self.ranges) <= RANGES_MAX else replace(self, ranges=())
        return dump_members(few, self.MEMBERS)

    @classmethod
    def of_fragment(cls, log: str, log_id: LogId, start: LogPosition, num_records: int) -> Marker:
        """Return the marker of a new fragment."""
        return cls(
            log=log,
            life=life_of_log(log_id),
            start=start.offset,
            limit=LogPosition(start.offset + num_records, start.timestamp_us),
            num_records=num_records,
            first_us=start.timestamp_us,
        )

    def to_message(self) -> Message:
        """Encode as a record to append."""
        numbers = [self.limit.offset, self.limit.timestamp_us, self.limit.offset - self.start, self.reinsertions]
        if self.reinsertions:
            numbers += [self.num_records, max(0, self.limit.timestamp_us - self.first_us)]
        body = bytes([FORMAT]) + bytes.fromhex(self.life) + b"".join(map(_varint, numbers))
        return Message(body, self.log.encode())

    @classmethod
    def of_record(cls, record: Record, *, what: str) -> Marker:
        """Decode a record of a dirty log; CorruptError, which names ``what`` and the offset, for any other record."""
        try:
            return cls._decode(record)
        except (ValueError, InvalidRequestError) as error:
            raise CorruptError(f"{what}: record {record.offset}: expected a marker, found none: {error}") from error

    @classmethod
    def _decode(cls, record: Record) -> Marker:
        body, key = record.body or b"", record.key or b""
        if body[:1] != bytes([FORMAT]):
            raise ValueError(f"expected format {FORMAT}, found {body[:1].hex() or 'an empty body'}")
        life, numbers = body[1 : 1 + LIFE_BYTES], _numbers(body[1 + LIFE_BYTES :])
        if len(numbers) not in (4, 6) or (len(numbers) == 6) != bool(numbers[3]):  # noqa: PLR2004 - the fields above
            raise ValueError(f"expected 4 numbers, or 6 after a reinsertion, found {numbers}")
        limit, timestamp_us, span, reinsertions = numbers[:4]
        num_records, age_us = numbers[4:] or (span, 0)
        if not 0 < span < limit or not 0 < num_records <= span or age_us > timestamp_us:
            message = f"expected records before the limit {limit}, found {num_records} in {span}, {age_us} us old"
            raise ValueError(message)
        return cls(
            log=check_log_name(key.decode("ascii")),
            life=life.hex(),
            start=limit - span,
            limit=LogPosition(limit, timestamp_us),
            num_records=num_records,
            first_us=timestamp_us - age_us,
            reinsertions=reinsertions,
        )

    @property
    def new_ranges(self) -> tuple[tuple[int, int], ...]:
        """The offsets that are known to be marked for the first time: of a marker that is not folded, all or none."""
        is_new = not self.reinsertions and self.num_records == self.limit.offset - self.start
        return self.ranges or (((self.start, self.limit.offset),) if is_new else ())

    def reinserted(self) -> Marker:
        """Return the marker that keeps these records marked."""
        # A reinsertion may have been repeated, and counted twice: there cannot be more records than offsets.
        num_records = min(self.num_records, self.limit.offset - self.start)
        return replace(self, num_records=num_records, reinsertions=self.reinsertions + 1, ranges=())


def life_of_log(log_id: LogId) -> str:
    """Return what a marker keeps of a log's id."""
    return log_id[: 2 * LIFE_BYTES]


class _Folding:
    """Markers of one life of a log that are being merged."""

    def __init__(self, first: Marker) -> None:
        self._merged = first
        self._num_again = 0
        self._ranges: list[tuple[int, int]] = []
        self.count = 0

    def add(self, marker: Marker) -> None:
        self.count += 1
        known, ranges = self._merged, self._ranges
        self._merged = replace(
            known,
            start=min(known.start, marker.start),
            limit=max(known.limit, marker.limit),
            first_us=min(known.first_us, marker.first_us),
            reinsertions=max(known.reinsertions, marker.reinsertions),
        )
        self._num_again += marker.num_records
        for start, limit in marker.new_ranges:
            self._num_again -= limit - start
            if ranges and ranges[-1][0] <= start <= ranges[-1][1]:
                # Most come in the order of the log.
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], limit)
            else:
                ranges.append((start, limit))

    def merged(self) -> Marker:
        """Return one marker for all of them: in any order, the same."""
        if self.count == 1:
            return self._merged
        # A fragment that is uploaded again at its place is marked again, and its records are there once.
        united = OffsetRanges.of(self._ranges).ranges
        num_new = sum(limit - start for start, limit in united)
        return replace(self._merged, num_records=self._num_again + num_new, ranges=united)


def fold(
    markers: Iterable[Marker], into: Mapping[tuple[str, str], Marker] | None = None
) -> dict[tuple[str, str], Marker]:
    """Merge markers into one for each log and life, in the order in which these first appear.

    Associative and commutative up to that order, so parts of a dirty log can be folded apart, and their results again.
    """
    folding: dict[tuple[str, str], _Folding] = {}
    for marker in chain((into or {}).values(), markers):
        key = (marker.log, marker.life)
        known = folding.get(key)
        if known is None:
            known = folding[key] = _Folding(marker)
        known.add(marker)
    return {key: each.merged() for key, each in folding.items()}


def _varint(number: int) -> bytes:
    if not 0 <= number <= U64_MAX:
        raise InvalidRequestError(f"marker: expected numbers from 0 to 2**64 - 1, found {number}")
    encoded = bytearray()
    while number > _LOW_BITS:
        encoded.append(number & _LOW_BITS | _MORE)
        number >>= _LOW_BITS.bit_length()
    encoded.append(number)
    return bytes(encoded)


def _numbers(data: bytes) -> list[int]:
    """Decode integers; ValueError unless each is the shortest form of a number within u64."""
    numbers: list[int] = []
    number = shift = 0
    for index, byte in enumerate(data):
        number |= (byte & _LOW_BITS) << shift
        shift += _LOW_BITS.bit_length()
        if byte & _MORE:
            continue
        if number > U64_MAX or (not byte and shift > _LOW_BITS.bit_length()):
            raise ValueError(f"expected the shortest form of a number within u64, found one that ends at byte {index}")
        numbers.append(number)
        number = shift = 0
    if shift:
        raise ValueError("expected whole numbers, found one cut short")
    return numbers
