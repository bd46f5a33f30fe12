"""The answers that callers got, and whether all of them can be true together."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core import Message, Record, ResumeReport
from wal3_core.format.paths import NO_LOG, LogId

if TYPE_CHECKING:
    from tests.faults.oracle import Oracle

PENDING_S = float("inf")


@dataclass(slots=True)
class Append:
    """Records appended together, the outcome, and when (virtual seconds)."""

    records: tuple[Message, ...]
    began_s: float
    ended_s: float = PENDING_S
    # When the writer was opened on the log that had the name then.
    opened_s: float = PENDING_S
    offset: int | None = None
    # acked, unmarked, contended, sealed, unmet, overloaded, halted, refused, unknown, closed; replaced: the log was
    # gone by then; unopened: a fleet could not open it; pending: its process was killed before the answer.
    outcome: str = "pending"
    # The only offset it may have, and where the log was reported to end instead.
    expected: int | None = None
    found: int | None = None
    # Whether its writer marks what it appends.
    marked: bool = False

    @property
    def durable(self) -> bool:
        """Whether the caller was promised that the records are in the log."""
        return self.outcome in {"acked", "unmarked"}


@dataclass(slots=True)
class Read:
    """One pass over a log, of the life ``log_id``: where it began and what it found."""

    began_s: float
    start: int
    log_id: LogId = NO_LOG
    records: list[Message] = field(default_factory=list)
    # Where each record was found, and when.
    places: list[tuple[int, float]] = field(default_factory=list)
    finished: bool = False

    @property
    def end(self) -> int:
        """The offset after the last record found."""
        return self.places[-1][0] + 1 if self.places else self.start

    def see(self, record: Record, now_s: float) -> None:
        """Note the next record."""
        self.records.append(Message(record.body, record.key))
        self.places.append((record.offset, now_s))


@dataclass(slots=True)
class Stretch:
    """The appends of an ordered writer, in order, from its beginning or a failure to the next failure."""

    appends: list[Append] = field(default_factory=list)
    resumed: ResumeReport | None = None

    def check(self, held: Collection[Message]) -> None:
        """The log contains a prefix of the submitted records, as far as the writer reported outcomes."""
        present = [append.records[0] in held for append in self.appends]
        durable = present.index(False) if False in present else len(present)
        assert not any(present[durable:]), (
            f"a hole in an ordered stream: {self.appends[: present.index(True, durable)]}"
        )
        if self.resumed is not None:
            records = sum(len(append.records) for append in self.appends[:durable])
            reported = self.resumed.appends, self.resumed.records
            assert reported == (durable, records), (
                f"reported {reported} when resumed, found {durable} appends: {self.appends}"
            )


REFUSED = frozenset(
    {"refused", "contended", "sealed", "unmet", "overloaded", "halted", "closed", "replaced", "unopened"}
)


@dataclass
class History:
    """Everything that callers saw of one log, in any life of its name."""

    appends: list[Append] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    sealed_between_s: tuple[float, float] | None = None

    def check(self, lives: Mapping[LogId, Oracle]) -> None:
        """Compare with all records that the log's lives ever held; AssertionError where a promise was broken."""
        homes = self._check_homes(lives)
        for stretch in self.stretches:
            stretch.check(homes)
        for log_id, life in lives.items():
            mine = self.appends_of(log_id, life, homes)
            places = [self._check_append(append, life) for append in mine]
            self._check_order(places)
            self._check_reads([read for read in self.reads if read.log_id == log_id], life, places)
        assert all(read.log_id in lives or not read.records for read in self.reads), "read from a log that never was"
        self._check_seal()

    def native(self, life: Oracle) -> list[Message]:
        """Return the records that were appended to a life."""
        return life.records[life.num_inherited :]

    def appends_of(self, log_id: LogId, life: Oracle, homes: Mapping[Message, Oracle]) -> list[Append]:  # noqa: ARG002 - named appends are attempted in a life
        """Return the appends that a life has."""
        return [append for append in self.appends if homes.get(append.records[0]) is life]

    def _check_homes(self, lives: Mapping[LogId, Oracle]) -> dict[Message, Oracle]:
        """Map each record to the life it was appended to: at most one, since none was linked twice."""
        native = [(message, life) for life in lives.values() for message in self.native(life)]
        doubled = [message for message, count in Counter(message for message, _ in native).items() if count > 1]
        assert not doubled, f"doubled: {doubled}"
        homes = dict(native)
        known = {message for append in self.appends for message in append.records}
        assert homes.keys() <= known, "the log holds a record that no caller appended"
        for append in self.appends:
            present = [message in homes for message in append.records]
            assert all(present) or not any(present), f"torn: {append}"
            if append.durable:
                assert all(present), f"lost: {append}"
            if append.outcome in REFUSED:
                assert not any(present), f"it was refused, and is in the log: {append}"
        return homes

    def _check_append(self, append: Append, life: Oracle) -> tuple[Append, int]:
        """Return an append that is in a log, with its offset."""
        offset = life.records.index(append.records[0]) + 1
        assert append.offset in {None, offset}, f"found at {offset}: {append}"
        found = tuple(life.records[offset - 1 : offset - 1 + len(append.records)])
        assert found == append.records, f"torn: {append}"
        assert life.began_s <= append.opened_s, f"in a log that began after its writer had been opened: {append}"
        assert append.began_s <= life.over_s, f"in a log that was gone when it began: {append}"
        return append, offset

    def _check_order(self, places: Sequence[tuple[Append, int]]) -> None:
        """Positions fix the order: an append acknowledged before another began lies before it."""
        acked = sorted((append.ended_s, offset) for append, offset in places if append.durable)
        ends = [ended_s for ended_s, _ in acked]
        highest = [0]
        for _, offset in acked:
            highest.append(max(highest[-1], offset))
        for append, offset in places:
            before = highest[bisect.bisect_left(ends, append.began_s)]
            assert before < offset, f"offset {before} was acknowledged before this one at {offset} began: {append}"

    def _check_reads(self, reads: Sequence[Read], life: Oracle, places: Sequence[tuple[Append, int]]) -> None:
        acked = [(append, offset) for append, offset in places if append.durable]
        for read in reads:
            end = self._check_places(read, life)
            if read.finished:
                due = [offset + len(a.records) for a, offset in acked if a.ended_s < read.began_s]
                assert end >= max(due, default=0), (
                    f"acknowledged up to {max(due)} before the read, which ended at {end}"
                )

    def _check_places(self, read: Read, life: Oracle) -> int:
        """Return where a read ended. It found every record that no pass had dropped, and none that had gone before."""
        at = read.start
        for message, (offset, seen_s) in zip(read.records, read.places, strict=True):
            left_out = [each for each in range(at, offset) if life.dropped.get(each, PENDING_S) > seen_s]
            assert offset >= at, f"read from {read.start}: found {offset} after {at}"
            assert not left_out, f"read from {read.start}: a gap: {left_out}"
            assert message == life.records[offset - 1], f"read from {read.start}: otherwise at {offset}"
            assert life.dropped.get(offset, PENDING_S) >= read.began_s, f"read {offset}, which had been dropped"
            at = offset + 1
        while at in life.dropped:
            at += 1
        return at

    def _check_seal(self) -> None:
        if self.sealed_between_s is None:
            return
        began_s, ended_s = self.sealed_between_s
        for append in self.appends:
            if append.durable:
                assert append.began_s <= ended_s, f"acknowledged after the seal: {append}"
            if append.outcome == "sealed":
                assert append.ended_s >= began_s, f"refused before the seal: {append}"


def check_follower(records: Sequence[Record], dropped: Container[int] = ()) -> None:
    """A follower sees every offset, once, in order; but for records that passes of key compaction dropped."""
    for before, after in pairwise(records):
        assert after.offset > before.offset, f"from {before.offset} to {after.offset}"
        skipped = [offset for offset in range(before.offset + 1, after.offset) if offset not in dropped]
        assert not skipped, f"from {before.offset} to {after.offset}"
        assert after.timestamp_us >= before.timestamp_us, "time ran backwards"
