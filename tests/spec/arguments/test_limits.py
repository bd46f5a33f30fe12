"""Every fragment a writer may write is accepted by every reader, copy and pinned read: all share one set of limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from wal3_core import (
    CorruptError,
    InvalidRequestError,
    LogAt,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    PinStore,
    ReaderOptions,
    WriterOptions,
    copy,
    open_pinned,
)
from wal3_core.format import parquet
from wal3_core.format.fragment import BYTES_MAX, FragmentPointer
from wal3_core.format.parquet.pages import measure, read_footer
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FIRST_SEQ_NO, LogPosition
from wal3_core.options import (
    FRAGMENT_BYTES_MAX,
    FRAGMENT_EXPANDED_BYTES_MAX,
    FRAGMENT_RECORDS_MAX,
    KIB,
    MIB,
    expanded_bytes,
)

# The limits scaled down, so that a fragment at both limits is made quickly.
SCALE = 64
BYTES_MAX_HERE, RECORDS_MAX_HERE = FRAGMENT_BYTES_MAX // SCALE, FRAGMENT_RECORDS_MAX // SCALE


def encoded(keys: Sequence[bytes | None] | None, bodies: Sequence[bytes | None]) -> tuple[FragmentPointer, bytes]:
    start, token = LogPosition(1, 1), "0" * 16
    source = parquet.FragmentSource(start=start, seq_no=FIRST_SEQ_NO, token=token, keys=keys, bodies=bodies)
    fragment = parquet.encode(source)
    pointer = FragmentPointer(
        path=fragment_path(FIRST_SEQ_NO, token),
        first_seq_no=FIRST_SEQ_NO,
        seq_no=FIRST_SEQ_NO,
        start=start,
        limit=LogPosition(1 + len(bodies), 1),
        setsum=fragment.setsum,
        num_bytes=len(fragment.data),
        num_records=len(bodies),
    )
    return pointer, bytes(fragment.data)


def expansion(data: bytes) -> int:
    view = memoryview(data)
    columns = ["offset", "timestamp_us", "key", "body"]
    return measure(view, read_footer(view), columns, what="it", expanded_bytes_max=2**40)[0]


def test_largest_fragment_of_any_writer_is_within_the_default_limits_of_readers() -> None:
    largest = WriterOptions(
        record_bytes_max=FRAGMENT_BYTES_MAX,
        batch_bytes_max=FRAGMENT_BYTES_MAX,
        fragment_bytes_max=FRAGMENT_BYTES_MAX,
        batch_records_max=FRAGMENT_RECORDS_MAX,
    )

    # A batch is one append, or as many as ``batch_bytes_max`` allows, never both.
    num_bytes = max(largest.batch_bytes_max, largest.fragment_bytes_max)
    assert expanded_bytes(num_bytes, largest.batch_records_max) <= FRAGMENT_EXPANDED_BYTES_MAX
    assert ReaderOptions().fragment_expanded_bytes_max == FRAGMENT_EXPANDED_BYTES_MAX
    assert expanded_bytes(num_bytes, largest.batch_records_max) < BYTES_MAX
    # Arrow counts the bytes of a column with 32 bits.
    assert num_bytes < 2**31


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=40)), st.binary(max_size=300)), min_size=1),
    st.sampled_from([1, 50, 1000]),
)
@settings(max_examples=some(60), deadline=None)
def test_fragment_never_expands_beyond_the_bound_for_its_bytes_and_records(
    records: list[tuple[bytes | None, bytes]], times: int
) -> None:
    keys, bodies = [key for key, _ in records] * times, [body for _, body in records] * times
    num_bytes = sum(map(len, bodies)) + sum(len(key or b"") for key in keys)

    for each in (keys, None):
        _, data = encoded(each, bodies)
        assert expansion(data) <= expanded_bytes(num_bytes, len(bodies))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 1024, RECORDS_MAX_HERE], ids=["one record", "a thousand", "as many as allowed"])
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_largest_fragment_a_writer_makes_is_read_copied_and_read_through_a_pin(
    memory_store: MemoryStore, *, count: int, keyed: bool
) -> None:
    """Regression: writers allowed batches of 2 GiB, which default readers, copies and pinned reads refused."""
    writing = WriterOptions(
        record_bytes_max=BYTES_MAX_HERE,
        batch_bytes_max=BYTES_MAX_HERE,
        fragment_bytes_max=BYTES_MAX_HERE,
        batch_records_max=RECORDS_MAX_HERE,
    )
    reading = ReaderOptions(fragment_expanded_bytes_max=expanded_bytes(BYTES_MAX_HERE, RECORDS_MAX_HERE))
    body = b"x" * (BYTES_MAX_HERE // count - 8 * keyed)
    records = [Message(body, b"%08d" % number if keyed else None) for number in range(count)]
    with LogWriter.open_or_create(memory_store, "a", options=writing) as writer:
        writer.append_many(records)
    PinStore(memory_store, "a").create("pin", reason="a test")

    assert lengths(LogReader.open(memory_store, "a", options=reading)) == (count, 1)
    assert lengths(open_pinned(memory_store, "a", "pin", options=reading)) == (count, 1)
    copied = copy(LogAt(memory_store, "a", reading=reading), LogAt(memory_store, "b"))
    assert copied.num_records == count
    assert lengths(LogReader.open(memory_store, "b", options=reading)) == (count, 1)


def lengths(reader: LogReader) -> tuple[int, int]:
    """The number of records and of fragments."""
    return sum(len(batch) for batch in reader.batches()), len(reader.scan())


def test_reader_s_own_limit_holds_for_copies_and_pinned_reads(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"x" * MIB)
    PinStore(memory_store, "a").create("pin", reason="a test")
    small = ReaderOptions(fragment_expanded_bytes_max=100 * KIB)

    for read in (
        lambda: list(LogReader.open(memory_store, "a", options=small).records()),
        lambda: list(open_pinned(memory_store, "a", "pin", options=small).records()),
        lambda: copy(LogAt(memory_store, "a", reading=small), LogAt(memory_store, "b")),
    ):
        with pytest.raises(CorruptError, match="raise ReaderOptions.fragment_expanded_bytes_max"):
            read()
    assert copy(LogAt(memory_store, "a"), LogAt(memory_store, "b")).num_records == 1


def test_defaults_are_within_the_limits() -> None:
    assert replace(WriterOptions()).batch_bytes_max < FRAGMENT_BYTES_MAX
    assert expanded_bytes(WriterOptions().fragment_bytes_max, WriterOptions().batch_records_max) < 100 * MIB


def test_mapping_is_refused_as_only_its_keys_would_be_appended(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        with pytest.raises(InvalidRequestError, match="records: expected an iterable of records, found dict"):
            writer.append_many({b"key": b"value"})
        assert writer.append_many({b"key": b"value"}.values()).offset == 1
