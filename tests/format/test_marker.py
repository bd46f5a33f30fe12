"""Markers of dirty logs: their bytes, and how they are folded."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.marker import Marker, fold
from wal3_core.format.offset_ranges import OffsetRanges
from wal3_core.format.paths import LogId
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Record
from wal3_core.format.strict_json import U64_MAX, Fields

_NAMES = st.sampled_from(["a", "orders", "tenant-0042/orders", "b/c/d"])
_LIVES = st.sampled_from(["00000000", "89abcdef"])


@st.composite
def _markers(draw: st.DrawFn) -> Marker:
    start = draw(st.integers(1, U64_MAX - 1))
    limit = draw(st.integers(start + 1, U64_MAX))
    reinsertions = draw(st.integers(0, 300))
    timestamp_us = draw(st.integers(0, U64_MAX))
    return Marker(
        log=draw(_NAMES),
        life=draw(_LIVES),
        start=start,
        limit=LogPosition(limit, timestamp_us),
        num_records=draw(st.integers(1, limit - start)) if reinsertions else limit - start,
        first_us=draw(st.integers(0, timestamp_us)) if reinsertions else timestamp_us,
        reinsertions=reinsertions,
    )


def _record(marker: Marker) -> Record:
    message = marker.to_message()
    return Record(7, 8, message.key, message.body)


@given(_markers())
def test_marker_reads_back_as_written(marker: Marker) -> None:
    assert Marker.of_record(_record(marker), what="log dirty/a") == marker


def test_new_marker_of_a_usual_log_takes_at_most_48_bytes() -> None:
    now_us = 1_795_000_000_000_000
    log_id = LogId("0123456789abcdef0123456789abcdef")
    marker = Marker.of_fragment("tenant-00042/orders-eu-1", log_id, LogPosition(10**9, now_us), 1000)
    message = marker.to_message()
    assert len(message.key or b"") + len(message.body or b"") <= 48
    assert marker.limit == LogPosition(10**9 + 1000, now_us)


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (b"orders", b""),
        (b"orders", None),
        (b"orders", b"\x02" + bytes(4) + b"\x02\x00\x01\x00"),
        (b"orders", b"\x01" + bytes(4) + b"\x02\x00\x01"),
        (b"orders", b"\x01" + bytes(4) + b"\x02\x00\x01\x00\x01"),
        # No records; more than lie before the limit; a longer form than needed; a number cut short.
        (b"orders", b"\x01" + bytes(4) + b"\x02\x00\x00\x00"),
        (b"orders", b"\x01" + bytes(4) + b"\x02\x00\x02\x00"),
        (b"orders", b"\x01" + bytes(4) + b"\x82\x00\x00\x01\x00"),
        (b"orders", b"\x01" + bytes(4) + b"\x02\x00\x01\x80"),
        (b"orders", b"\x01" + bytes(4) + b"\x02" + b"\xff" * 10 + b"\x01\x00"),
        (b"a//b", b"\x01" + bytes(4) + b"\x02\x00\x01\x00"),
        (b"\xff", b"\x01" + bytes(4) + b"\x02\x00\x01\x00"),
        (None, b"\x01" + bytes(4) + b"\x02\x00\x01\x00"),
    ],
)
def test_record_that_is_no_marker_is_refused_by_its_offset(key: bytes | None, body: bytes | None) -> None:
    with pytest.raises(CorruptError, match=r"log dirty/a: record 7: expected a marker"):
        Marker.of_record(Record(7, 8, key, body), what="log dirty/a")


@given(st.lists(_markers(), max_size=12), st.data())
def test_parts_may_be_folded_apart_and_in_any_order(markers: list[Marker], data: st.DataObject) -> None:
    whole = fold(markers)
    shuffled = data.draw(st.permutations(markers))
    cut = data.draw(st.integers(0, len(markers)))
    parts = [fold(shuffled[:cut]), fold(shuffled[cut:])]
    assert fold(part for folded in parts for part in folded.values()) == whole
    assert reduce(lambda into, part: fold(part.values(), into), parts, {}) == whole


@given(st.lists(_markers(), min_size=1, max_size=12))
def test_folded_marker_spans_all_that_its_markers_span(markers: list[Marker]) -> None:
    for (log, life), folded in fold(markers).items():
        # Records are counted in u64, however often some of them are marked again.
        assume(folded.num_records <= U64_MAX)
        own = [marker for marker in markers if (marker.log, marker.life) == (log, life)]
        assert folded.start == min(marker.start for marker in own)
        assert folded.limit == max(marker.limit for marker in own)
        assert folded.first_us == min(marker.first_us for marker in own)
        assert folded.reinsertions == max(marker.reinsertions for marker in own)
        new = OffsetRanges.of((each.start, each.limit.offset) for each in own if not each.reinsertions)
        again = sum(each.num_records for each in own if each.reinsertions)
        assert folded.num_records == again + sum(limit - start for start, limit in new.ranges)
        assert Marker.from_json(Fields(folded.to_json(), "a marker")) == folded
        again = folded.reinserted()
        assert again.num_records == min(folded.num_records, folded.limit.offset - folded.start)
        assert again.reinsertions == folded.reinsertions + 1
        assert Marker.of_record(_record(again), what="log dirty/a") == again


@pytest.mark.parametrize("offset", [-1, 2**64])
def test_marker_that_could_not_be_read_back_is_refused(offset: int) -> None:
    limit = LogPosition(offset, 0)
    marker = Marker(log="a", life="00000000", start=1, limit=limit, num_records=1, first_us=0)
    with pytest.raises(InvalidRequestError, match="2\\*\\*64"):
        marker.to_message()
