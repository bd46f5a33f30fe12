"""Reads of a log from which records were dropped: any start, any limits, compared with a plain list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compacted_logs import Timed, compact, write_log
from tests.effort import some
from wal3_core import AtTime, Limits, LogReader, MemoryStore, Record, open_pinned, records_across
from wal3_core.format.position import ReadStart
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.pin_store import PinStore

T0 = 1_000


def timed(*times: int) -> list[Timed]:
    return [(T0 + time, b"k%d" % (time % 3), b"at %d" % time) for time in times]


# Offsets 1 to 16; half of the records have other times than their neighbours.
FRAGMENTS = [timed(1, 1, 2), timed(2, 5, 5), timed(5), timed(7, 8, 9, 9), timed(9, 12), timed(12, 12, 15)]
# At the edges and in the middle, of the first fragment and the last; one group has lost all but one record.
DROPPED = {1, 3, 4, 5, 9, 10, 13, 16}
GROUPS = [(1, 3), (3, 5)]


def compacted(store: MemoryStore, fragments: list[list[Timed]] = FRAGMENTS) -> list[Record]:
    """Make a log with gaps; return its records."""
    kept = [record for record in write_log(store, "a", fragments) if record.offset not in DROPPED]
    compact(store, "a", DROPPED, GROUPS)
    return kept


def new_store() -> MemoryStore:
    return MemoryStore(shared_runtime())


@dataclass(frozen=True)
class Shaped:
    """A log, what is dropped of it, and which of its fragments become one."""

    fragments: list[list[Timed]]
    dropped: frozenset[int]
    groups: list[tuple[int, int]]


@st.composite
def shapes(draw: st.DrawFn) -> Shaped:
    """Draw a log of up to 14 fragments and a compaction that leaves something of each group."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=14))
    steps = iter(draw(st.lists(st.integers(0, 2), min_size=sum(sizes), max_size=sum(sizes))))
    times = iter(accumulate(steps))
    fragments = [timed(*(next(times) for _ in range(size))) for size in sizes]
    cuts = sorted({0, len(sizes), *draw(st.sets(st.integers(0, len(sizes))))})
    groups = list(pairwise(cuts))
    starts = [0, *accumulate(sizes)]
    dropped: set[int] = set()
    for start, limit in groups:
        offsets = range(starts[start] + 1, starts[limit] + 1)
        dropped |= draw(st.sets(st.sampled_from(offsets), max_size=len(offsets) - 1))
    chosen = [group for group in groups if draw(st.booleans()) or group[1] - group[0] > 1]
    return Shaped(fragments, frozenset(dropped), chosen)


def selected(records: Iterable[Record], start: ReadStart, limits: Limits) -> list[Record]:
    found = [
        record
        for record in records
        if (start is None or (record.timestamp_us >= start.timestamp_us if isinstance(start, AtTime) else True))
        and (record.offset >= start if isinstance(start, int) else True)
        and (limits.offset is None or record.offset < limits.offset)
        and (limits.timestamp_us is None or record.timestamp_us < limits.timestamp_us)
    ]
    return found[: limits.records]


@pytest.mark.slow
@settings(max_examples=some(60))
@given(st.data(), shapes())
def test_any_read_of_a_log_with_gaps_gives_what_a_list_gives(data: st.DataObject, shape: Shaped) -> None:
    store = new_store()
    kept = [each for each in write_log(store, "a", shape.fragments) if each.offset not in shape.dropped]
    compact(store, "a", shape.dropped, shape.groups)
    reader, end = LogReader.open(store, "a"), sum(map(len, shape.fragments)) + 1
    assert list(reader.records()) == kept
    for _ in range(10):
        offsets, times = st.integers(1, end), st.integers(T0 - 1, T0 + 30)
        start = data.draw(st.none() | offsets | times.map(AtTime))
        limits = data.draw(
            st.builds(
                Limits,
                offset=st.none() | offsets,
                timestamp_us=st.none() | times,
                records=st.none() | st.integers(0, 9),
            )
        )
        assert list(reader.records(start, limits)) == selected(kept, start, limits), (start, limits)
        assert reader.to_arrow(start, limits)["offset"].to_pylist() == [
            record.offset for record in selected(kept, start, limits)
        ]


@pytest.mark.slow
@settings(max_examples=some(100))
@given(
    shapes(),
    st.sampled_from(
        [Limits(records=1), Limits(records=2), Limits(fragments=1), Limits(fragments=2), Limits(num_bytes=1)]
    ),
)
def test_reads_that_continue_behind_the_last_record_give_every_record_once(shape: Shaped, limits: Limits) -> None:
    store = new_store()
    kept = [each for each in write_log(store, "a", shape.fragments) if each.offset not in shape.dropped]
    compact(store, "a", shape.dropped, shape.groups)
    reader = LogReader.open(store, "a")
    for read in (reader.records, lambda start, limits: records_across(store, "a", start, limits)):
        found: list[Record] = []
        while some := list(read(found[-1].offset + 1 if found else None, limits)):
            found += some

        assert found == kept


@pytest.mark.parametrize("start", range(1, 18))
def test_read_at_a_dropped_offset_begins_with_the_next_record(start: int) -> None:
    store = new_store()
    kept = compacted(store)

    found = list(LogReader.open(store, "a").records(start))

    assert found == [record for record in kept if record.offset >= start]


def test_files_of_a_log_with_gaps_hold_exactly_its_records() -> None:
    store = new_store()
    kept = compacted(store)
    files = list(LogReader.open(store, "a").files())

    assert sum(file.num_records for file in files) == len(kept)
    assert [file.limit.offset for file in files[:-1]] == [file.start.offset for file in files[1:]]


def test_pinned_reader_sees_the_log_as_it_was_before_it_was_compacted() -> None:
    store = new_store()
    records = write_log(store, "a", FRAGMENTS)
    PinStore(store, "a").create("audit", reason="before")
    compact(store, "a", DROPPED, GROUPS)

    assert list(open_pinned(store, "a", "audit").records()) == records
    assert len(list(LogReader.open(store, "a").records())) == len(records) - len(DROPPED)
