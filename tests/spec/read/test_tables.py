"""A reader gives a log as an Arrow table, a pandas DataFrame and a polars DataFrame: the records that it reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.spec.seals import collect
from tests.stores import damage, life_store
from wal3_core import (
    AtTime,
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    Limits,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    Origin,
    PinStore,
    Record,
    bootstrap,
    open_pinned,
)
from wal3_core.store.object_store import ObjectStore

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[int, datetime, bytes | None, bytes | None]


@pytest.fixture
def reader(store: ObjectStore) -> LogReader:
    """A log of fragments without keys, with keys, with a tombstone."""
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append_many([b"1", b""])
        writer.append_many([Message(b"3", key=b"k"), Message(None, key=b"k"), Message(b"5")])
        writer.append(b"\xff\x00")
    return LogReader.open(store, "a")


def rows_of(reader: LogReader, *bounds: object) -> list[Row]:
    return [
        (each.offset, EPOCH + timedelta(microseconds=each.timestamp_us), each.key, each.body)
        for each in reader.records(*bounds)
    ]


def arrow_rows(reader: LogReader, *bounds: object) -> list[Row]:
    table = reader.to_arrow(*bounds)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def pandas_rows(reader: LogReader, *bounds: object) -> list[Row]:
    frame = reader.to_pandas(*bounds)
    assert isinstance(frame, pd.DataFrame)
    return [(row.offset, row.timestamp_us.to_pydatetime(), row.key, row.body) for row in frame.itertuples()]


def polars_rows(reader: LogReader, *bounds: object) -> list[Row]:
    frame = reader.to_polars(*bounds)
    assert isinstance(frame, pl.DataFrame)
    return frame.rows()


WAYS = pytest.mark.parametrize("rows", [arrow_rows, pandas_rows, polars_rows])


@WAYS
def test_table_holds_the_records_of_the_same_bounds(reader: LogReader, rows: Callable[..., list[Row]]) -> None:
    last = list(reader.records())[-1]

    for bounds in (
        (),
        (2,),
        (None, Limits(records=3)),
        (3, Limits(offset=5)),
        (AtTime(last.timestamp_us),),
        (AtTime(last.timestamp_us * 2),),
        (4, Limits(records=0)),
    ):
        assert rows(reader, *bounds) == rows_of(reader, *bounds), bounds


def test_columns_have_the_same_types_for_every_log_also_an_empty_one(
    reader: LogReader, memory_store: MemoryStore
) -> None:
    LogWriter.create(memory_store, "empty")
    empty = LogReader.open(memory_store, "empty")

    expected = {
        "offset": pa.uint64(),
        "timestamp_us": pa.timestamp("us", tz="UTC"),
        "key": pa.large_binary(),
        "body": pa.large_binary(),
    }
    for table in (reader.to_arrow(), reader.to_arrow(1, Limits(records=1)), empty.to_arrow()):
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == expected
    for frame in (reader.to_pandas(), empty.to_pandas()):
        assert dict(frame.dtypes.astype(str)) == {
            "offset": "uint64",
            "timestamp_us": "datetime64[us, UTC]",
            "key": "object",
            "body": "object",
        }
    for found in (reader.to_polars(), empty.to_polars()):
        assert found.schema == {
            "offset": pl.UInt64,
            "timestamp_us": pl.Datetime("us", "UTC"),
            "key": pl.Binary,
            "body": pl.Binary,
        }


def test_table_of_a_pin_is_the_log_as_it_was(store: ObjectStore, reader: LogReader) -> None:
    before = arrow_rows(reader)
    PinStore(store, "a").create("p", reason="a test")

    collect(store, "a", 3)

    assert arrow_rows(open_pinned(store, "a", "p")) == before
    assert arrow_rows(reader) == before[2:]
    with pytest.raises(GarbageCollectedError, match="from 3, found 2"):
        reader.to_arrow(2)


def test_damaged_record_is_an_error_and_no_table(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"x" * 100)
    reader = LogReader.open(memory_store, "a")
    damage(life_store(memory_store, "a"), reader.scan()[0].path, at=20)

    for method in (reader.to_arrow, reader.to_pandas, reader.to_polars):
        with pytest.raises(CorruptError):
            method()


def test_time_that_no_timestamp_can_hold_is_refused(memory_store: MemoryStore) -> None:
    bootstrap(memory_store, "a", [Record(1, 2**63, None, b"x")], Origin(any_time=True))
    reader = LogReader.open(memory_store, "a")

    with pytest.raises(InvalidRequestError, match="use batches"):
        reader.to_arrow()
    assert [batch["timestamp_us"].to_pylist() for batch in reader.batches()] == [[2**63]]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    memory_store: MemoryStore, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LogWriter.create(memory_store, "a")
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ModuleNotFoundError, match=f"expected {package} .*: pip install {package}"):
        getattr(LogReader.open(memory_store, "a"), f"to_{package}")()
