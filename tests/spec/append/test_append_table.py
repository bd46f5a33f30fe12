"""Appends of Arrow tables: the records are those of append_many, whatever the arrays look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.spec.keyed import keyed_log
from wal3_core import (
    ConditionNotMetError,
    Fleet,
    FleetOptions,
    InvalidRequestError,
    KeyRequiredError,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    OverloadedError,
    Record,
    WriterOptions,
)
from wal3_core.store.object_store import ObjectStore

LOG = "a"
KEYS = [b"k", None, b"", b"k", None]
BODIES = [b"1", b"", None, b"a longer body" * 100, b"\xff"]
MESSAGES = [Message(body, key) for key, body in zip(KEYS, BODIES, strict=True)]


def table_of(keys: pa.Array | None = None, bodies: pa.Array | None = None) -> pa.Table:
    columns = {"key": keys, "body": pa.array(BODIES, pa.binary()) if bodies is None else bodies}
    return pa.table({name: column for name, column in columns.items() if column is not None})


def rows(store: ObjectStore) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.body) for record in LogReader.open(store, LOG).records()]


def dictionary(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).dictionary_encode()


def with_null_in_dictionary(values: list[bytes | None]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([4, 3, 2, 1, 0]), pa.array(values[::-1], pa.large_binary()))


def dictionary_of_views(values: list[bytes | None]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([4, 3, 2, 1, 0]), pa.array(values[::-1], pa.binary_view()))


def full_dictionary(values: list[bytes | None]) -> pa.Array:
    """Its indices have no number left that names no value."""
    places = [None if value is None else place for place, value in enumerate(values)]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), pa.array([*values, *[b""] * 123], pa.binary()))


def sliced(values: list[bytes | None]) -> pa.Array:
    return pa.array([b"before", *values, None, b"behind"], pa.binary()).slice(1, len(values))


def views(values: list[bytes | None]) -> pa.Array:
    return pa.array([b"before", *values], pa.binary_view()).slice(1)


def chunked(values: list[bytes | None]) -> pa.ChunkedArray:
    return pa.chunked_array([sliced(values[:2]), pa.array([], pa.binary()), sliced(values[2:])])


def chunks_of_dictionaries(values: list[bytes | None]) -> pa.ChunkedArray:
    return pa.chunked_array([dictionary(values[:3]), dictionary(values[3:])])


ARRAYS: dict[str, Callable[[list[bytes | None]], pa.Array]] = {
    "binary": lambda values: pa.array(values, pa.binary()),
    "large": lambda values: pa.array(values, pa.large_binary()),
    **{made.__name__: made for made in (dictionary, with_null_in_dictionary, full_dictionary)},
    **{made.__name__: made for made in (dictionary_of_views, sliced, views, chunked, chunks_of_dictionaries)},
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS.keys())
def test_records_are_the_rows(memory_store: MemoryStore, make: Callable[[list[bytes | None]], pa.Array]) -> None:
    table = table_of(make(KEYS), make(BODIES))

    with LogWriter.open_or_create(memory_store, LOG) as writer:
        assert writer.append_table(table).offset == 1
        assert writer.append_many(MESSAGES).offset == 6

    assert rows(memory_store) == 2 * list(zip(KEYS, BODIES, strict=True))


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (pa.table({"body": [b"1", b"2"]}), [(None, b"1"), (None, b"2")]),
        (pa.table({"body": [b"1"], "key": pa.nulls(1)}), [(None, b"1")]),
        (pa.table({"body": pa.nulls(2), "key": [b"1", b"2"]}), [(b"1", None), (b"2", None)]),
        (pa.table({"body": pa.array([b"ab", b"cd"], pa.binary(2))}), [(None, b"ab"), (None, b"cd")]),
        (pa.record_batch({"key": [b"k"], "body": [b"1"]}), [(b"k", b"1")]),
        (pa.table({"body": [b"1", b"2"]}).to_reader(max_chunksize=1), [(None, b"1"), (None, b"2")]),
    ],
    ids=["plain", "keys of null", "tombstones", "fixed size", "batch", "reader"],
)
def test_tables_of_other_shapes(
    memory_store: MemoryStore, table: pa.Table, found: list[tuple[bytes | None, bytes | None]]
) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_table(table)

    assert rows(memory_store) == found


def test_tables_of_other_libraries(memory_store: MemoryStore) -> None:
    frame = pl.DataFrame({"body": [b"1", b"2"]})
    relation = duckdb.sql("SELECT 'a'::BLOB AS key, '3'::BLOB AS body")

    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_table(frame.to_arrow())
        writer.append_table(pa.RecordBatchReader.from_stream(frame))
        writer.append_table(pa.table(relation))

    assert rows(memory_store) == [(None, b"1"), (None, b"2"), (None, b"1"), (None, b"2"), (b"a", b"3")]


def test_what_was_read_is_appended_again(memory_store: MemoryStore) -> None:
    with (
        LogWriter.open_or_create(memory_store, LOG) as writer,
        LogWriter.open_or_create(memory_store, "b") as other,
    ):
        writer.append_many(MESSAGES)
        for batch in LogReader.open(memory_store, LOG).batches():
            other.append_table(batch.select(["key", "body"]))

    again = [(record.key, record.body) for record in LogReader.open(memory_store, "b").records()]
    assert again == rows(memory_store)


def test_appends_of_both_kinds_share_a_fragment(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, LOG, options=WriterOptions(batch_age_s_max=60)) as writer:
        writer.append(b"first")
        blocked = writer.submit(b"0")
        futures = [
            writer.submit(b"1"),
            writer.submit_table(pa.table({"body": [b"2", b"3"]})),
            writer.submit_table(pa.table({"body": pa.nulls(1, pa.binary()), "key": [b"k"]})),
            writer.submit(b"5", key=b"k"),
            writer.submit_many([b"6", b"7"]),
        ]
        writer.flush()
        assert blocked.result().offset == 2
        assert [future.result().offset for future in futures] == [3, 4, 6, 7, 8]

    reader = LogReader.open(memory_store, LOG)
    assert [record.body for record in reader.records()] == [b"first", b"0", b"1", b"2", b"3", None, b"5", b"6", b"7"]
    assert len(reader.scan()) < 1 + 1 + len(futures)


def test_fragment_is_the_same_either_way(memory_store: MemoryStore) -> None:
    fragments = []
    for log, table in (("a", False), ("b", True)):
        with LogWriter.open_or_create(memory_store, log) as writer:
            if table:
                writer.append_table(table_of(pa.array(KEYS, pa.large_binary())))
            else:
                writer.append_many(MESSAGES)
        reader = LogReader.open(memory_store, log)
        fragments.append(reader.fetch(reader.scan()[0]).table.drop_columns("timestamp_us"))

    assert fragments[0] == fragments[1]


WRONG: dict[str, tuple[object, str]] = {
    "not a table": ({"body": [b"1"]}, "table: expected Table or RecordBatch or RecordBatchReader, found dict"),
    "no rows": (table_of(bodies=pa.array([], pa.binary())), "at least one record, found none"),
    "no body": (pa.table({"key": [b"1"]}), r"columns body and key, or body alone, found \['key'\]"),
    "unknown column": (pa.table({"body": [b"1"], "offset": [1]}), r"found \['body', 'offset'\]"),
    "two bodies": (pa.table([[b"1"], [b"2"]], names=["body", "body"]), r"found \['body', 'body'\]"),
    "many columns": (pa.table({f"c{number}": [1] for number in range(1000)}), r"found \['c0', 'c1', "),
    "text": (pa.table({"body": ["1"]}), "column body: expected the type binary, found string: cast it"),
    "text by dictionary": (
        table_of(pa.array(["1"] * 5).dictionary_encode()),
        "column key: expected the type binary, found dictionary<values=string",
    ),
    "numbers": (table_of(pa.array(range(5))), "column key: expected the type binary, found int64: cast it"),
    "runs": (
        pa.table({"body": pa.RunEndEncodedArray.from_arrays([1], [b"1"])}),
        "column body: expected the type binary, found run_end_encoded",
    ),
    "neither": (
        pa.table({"body": [b"1", None], "key": pa.array([None, None], pa.binary())}),
        "append: record 1 of 2: record: expected a body, a key, or both, found neither",
    ),
    "null without keys": (
        pa.table({"body": [b"1", None]}),
        "append: record 1 of 2: record: expected a body, a key, or both, found neither",
    ),
    "large record": (
        pa.table({"body": [b"1" * 99, b"1" * 99], "key": [b"", b"12"]}),
        "append: record 1 of 2: record: expected at most 100 bytes of key and body, found 101",
    ),
    "many bytes": (
        pa.table({"body": [b"1" * 99] * 8}),
        "expected at most 500 bytes and 10 records to append together, found 792 bytes and 8 records",
    ),
    "many rows": (
        pa.table({"body": [b"1"] * 1000}),
        "expected at most 500 bytes and 10 records to append together, found at least 11 bytes and 1000 records",
    ),
}


@pytest.mark.parametrize(("table", "message"), WRONG.values(), ids=WRONG.keys())
def test_table_that_cannot_be_records_is_refused(memory_store: MemoryStore, table: pa.Table, message: str) -> None:
    options = WriterOptions(record_bytes_max=100, fragment_bytes_max=500, batch_records_max=10)
    with LogWriter.open_or_create(memory_store, LOG, options=options) as writer:
        with pytest.raises(InvalidRequestError, match=message):
            writer.append_table(table)
        assert writer.append(b"1").offset == 1

    assert rows(memory_store) == [(None, b"1")]


def test_values_that_expand_are_refused_before_they_do(memory_store: MemoryStore) -> None:
    body = b"1" * 2**20
    one = pa.array([body], pa.binary())
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, dtype=np.int32)), one)
    view = np.frombuffer(one.cast(pa.binary_view()).buffers()[1], dtype=np.int32)
    buffers = [None, pa.py_buffer(np.tile(view, 60_000)), *one.cast(pa.binary_view()).buffers()[2:]]
    overlapping = pa.Array.from_buffers(pa.binary_view(), 60_000, buffers)

    with LogWriter.open_or_create(memory_store, LOG) as writer:
        before = pa.total_allocated_bytes()
        for bodies in (repeated, overlapping):
            with pytest.raises(InvalidRequestError, match=f"found {60_000 * len(body)} bytes and 60000 records"):
                writer.append_table(pa.table({"body": bodies}))
        assert pa.total_allocated_bytes() - before < 2**24


def test_damaged_array_is_refused(memory_store: MemoryStore) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 2**30, 1], dtype=np.int32)), pa.py_buffer(b"x")]
    damaged = pa.Array.from_buffers(pa.binary(), 2, buffers)

    with (
        LogWriter.open_or_create(memory_store, LOG) as writer,
        pytest.raises(InvalidRequestError, match="column body: expected an array that can be read, found: "),
    ):
        writer.append_table(pa.table({"body": damaged}))


def test_reader_without_an_end_is_refused(memory_store: MemoryStore) -> None:
    batch = pa.record_batch({"body": [b"1"] * 8})
    taken: list[int] = []

    def endless() -> object:
        while True:
            taken.append(len(taken))
            yield batch

    with (
        LogWriter.open_or_create(memory_store, LOG, options=WriterOptions(batch_records_max=20)) as writer,
        pytest.raises(InvalidRequestError, match="at least 21 bytes and 24 records"),
    ):
        writer.append_table(pa.RecordBatchReader.from_batches(batch.schema, endless()))

    assert len(taken) == 3


def test_rows_are_appended_as_they_were_when_passed_in(memory_store: MemoryStore) -> None:
    memory = bytearray(b"before")
    lengths = pa.py_buffer(np.array([0, 3, 6], dtype=np.int32))
    bodies = pa.Array.from_buffers(pa.binary(), 2, [None, lengths, pa.py_buffer(memory)])

    with LogWriter.open_or_create(memory_store, LOG) as writer:
        future = writer.submit_table(pa.table({"body": bodies}))
        memory[:] = b"behind"
        future.result()

    assert rows(memory_store) == [(None, b"bef"), (None, b"ore")]


def test_condition_and_room_are_those_of_other_appends(memory_store: MemoryStore) -> None:
    table = pa.table({"body": [b"1" * 1000] * 3})
    options = WriterOptions(bytes_held_max=6000, batch_age_s_max=60)
    with LogWriter.open_or_create(memory_store, LOG, options=options) as writer:
        assert writer.append_table(table, expect_next=1).offset == 1
        with pytest.raises(ConditionNotMetError) as refused:
            writer.append_table(table, expect_next=3)
        assert refused.value.next_offset == 4
        with pytest.raises(OverloadedError):
            for _ in range(1000):
                writer.submit_table(table, timeout_s=0)
        writer.flush()

    assert {body for _, body in rows(memory_store)} == {b"1" * 1000}


def test_slice_counts_with_its_own_bytes(memory_store: MemoryStore) -> None:
    large = pa.table({"body": [b"1" * 2**20] * 32})
    with LogWriter.open_or_create(memory_store, LOG, options=WriterOptions(batch_age_s_max=60)) as writer:
        writer.append(b"first")
        writer.submit(b"second")
        before = pa.total_allocated_bytes()
        writer.submit_table(large.slice(7, 1))
        assert 2**20 < writer.stats().bytes_held < 2**21
        del large
        assert pa.total_allocated_bytes() - before < 0


@pytest.mark.parametrize("kind", [pa.binary(1024), pa.large_binary()], ids=str)
def test_slice_far_behind_the_beginning_of_its_column(
    memory_store: MemoryStore, tmp_path: Path, kind: pa.DataType
) -> None:
    """Regression: with 4 GiB of fixed-size values before the slice, the rows at the column's beginning were appended.

    Large values were refused there.
    """
    width, before = 1024, 2**22
    file = tmp_path / "values"
    # The gap takes no space, and no memory.
    with file.open("wb") as sparse:
        sparse.write(b"0" * 8 * width)
        sparse.seek(before * width)
        sparse.write(b"1" * 8 * width)
    values = pa.memory_map(str(file)).read_buffer()
    bounds = [] if pa.types.is_fixed_size_binary(kind) else [np.arange(before + 9, dtype=np.int64) * width]
    column = pa.Array.from_buffers(kind, before + 8, [None, *map(pa.py_buffer, bounds), values])
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_table(pa.table({"body": column}).slice(before, 8))

    assert rows(memory_store) == [(None, b"1" * width)] * 8


def test_keyed_log_takes_tables_with_keys_alone(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    with LogWriter.open(memory_store, LOG) as writer:
        with pytest.raises(KeyRequiredError, match="record 1 of 5: expected a key"):
            writer.append_table(table_of(pa.array(KEYS, pa.binary())))
        with pytest.raises(KeyRequiredError, match="record 0 of 1: expected a key"):
            writer.append_table(pa.table({"body": [b"1"]}))
        assert writer.append_table(pa.table({"key": [b"k"], "body": [b"1"]})).offset == 1


def test_fleet_takes_tables(memory_store: MemoryStore) -> None:
    table = pa.table({"key": [b"k"], "body": [b"1"]})
    with Fleet.open(memory_store, options=FleetOptions(creates=True)) as fleet:
        assert fleet.append_table(LOG, table).offset == 1
        with fleet.writer(LOG) as writer:
            assert writer.submit_table(table, expect_next=2).result().offset == 2
            assert writer.append_table(table).offset == 3

    assert [(each.offset, each.body) for each in LogReader.open(memory_store, LOG).records()] == [
        (number, b"1") for number in (1, 2, 3)
    ]
    assert isinstance(next(LogReader.open(memory_store, LOG).records()), Record)
