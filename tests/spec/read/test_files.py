"""DuckDB, pandas and polars read exactly the log's records from exactly the files that the log holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pytest

from tests.world import LATER, NOW, SMALL
from wal3_core import (
    AtTime,
    CursorStore,
    GarbageCollectedError,
    Limits,
    LogPosition,
    LogReader,
    LogWriter,
    Message,
    PinStore,
    collect,
    open_pinned,
    open_store,
)
from wal3_core.options import WriterOptions
from wal3_core.store.object_store import ObjectStore

Row = tuple[int, bytes | None, bytes | None]


def by_duckdb(files: Sequence[str]) -> list[Row]:
    query = "select * from read_parquet($files, union_by_name = true, hive_partitioning = false) order by 1"
    found = duckdb.execute(query, {"files": list(files)})
    names = [column[0] for column in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [(row["offset"], row.get("key"), row["body"]) for row in rows]


def by_polars(files: Sequence[str]) -> list[Row]:
    frames = [pl.scan_parquet(each, hive_partitioning=False) for each in files]
    return _rows(pl.concat(frames, how="diagonal").collect())


def by_pandas(files: Sequence[str]) -> list[Row]:
    frame = pd.concat([pd.read_parquet(each, partitioning=None) for each in files])
    keys = frame["key"] if "key" in frame else [None] * len(frame)
    return [
        (int(offset), key if isinstance(key, bytes) else None, body)
        for offset, key, body in zip(frame["offset"], keys, frame["body"], strict=True)
    ]


def _rows(frame: pl.DataFrame) -> list[Row]:
    keys = frame["key"].to_list() if "key" in frame.columns else [None] * len(frame)
    return list(zip(frame["offset"].to_list(), keys, frame["body"].to_list(), strict=True))


ENGINES = pytest.mark.parametrize("read", [by_duckdb, by_pandas, by_polars])


def locations(reader: LogReader, *bounds: object) -> list[str]:
    return [each.location for each in reader.files(*bounds)]


def rows_of(reader: LogReader, *bounds: object) -> list[Row]:
    return [(each.offset, each.key, each.body) for each in reader.records(*bounds)]


@pytest.fixture
def five(local_url: str) -> ObjectStore:
    """A log that held five fragments of one record before a collection, and holds two."""
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a") as writer:
        for number in range(1, 6):
            writer.append(b"%d" % number, key=b"k" if number > 4 else None)
    CursorStore(store, "a").create("c", LogPosition(4, 0))
    collect(store, "a", options=LATER)
    return store


@ENGINES
def test_files_hold_what_the_log_holds_where_a_glob_finds_what_it_held(
    five: ObjectStore, local_url: str, read: Callable[[Sequence[str]], list[Row]]
) -> None:
    reader = LogReader.open(five, "a")
    folder = Path(local_url.removeprefix("file://")) / "a"

    assert len(list(folder.rglob("*.parquet"))) == 5
    assert read(locations(reader)) == rows_of(reader) == [(4, None, b"4"), (5, b"k", b"5")]


@ENGINES
def test_files_of_a_pin_stay_while_the_log_is_collected(
    local_url: str, read: Callable[[Sequence[str]], list[Row]]
) -> None:
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a") as writer:
        for number in range(1, 6):
            writer.append_many([Message(b"%d" % number, key=b"k"), b"x"])
    PinStore(store, "a").create("p", reason="a query")
    pinned = open_pinned(store, "a", "p")
    before, held = locations(pinned), rows_of(pinned)

    with LogWriter.open(store, "a") as writer:
        writer.append(b"later")
    CursorStore(store, "a").create("c", LogPosition(9, 0))
    collect(store, "a", options=NOW)

    assert len(rows_of(LogReader.open(store, "a"))) == 3
    assert locations(pinned) == before
    assert read(before) == held
    PinStore(store, "a").delete("p")
    collect(store, "a", options=NOW)
    assert not Path(before[0]).exists()
    assert Path(before[-1]).exists()


@ENGINES
def test_files_of_a_log_with_a_tree_of_snapshots_hold_its_records(
    local_url: str, read: Callable[[Sequence[str]], list[Row]]
) -> None:
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a", options=WriterOptions(snapshots=SMALL)) as writer:
        for number in range(20):
            writer.append_many([b"%d" % number, b"x"])
    CursorStore(store, "a").create("c", LogPosition(14, 0))
    collect(store, "a", options=LATER)
    reader = LogReader.open(store, "a")

    assert reader.manifest().snapshots
    # Whole fragments are collected: the one that holds offset 14 is kept, with offset 13.
    assert [row[0] for row in rows_of(reader)] == list(range(13, 41))
    assert read(locations(reader)) == rows_of(reader)


def test_file_says_which_records_it_holds_and_how_long_it_is(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append_many([b"1", b"2", b"3"])
        writer.append(b"4")
    reader = LogReader.open(store, "a")

    files = list(reader.files())

    assert [(each.start.offset, each.limit.offset, each.num_records) for each in files] == [(1, 4, 3), (4, 5, 1)]
    for each, pointer in zip(files, reader.scan(), strict=True):
        assert each.url.startswith(f"{store.url.partition('?')[0]}/a/Life=")
        assert each.url.endswith(pointer.path)
        assert "?" not in each.url
        path = each.url.removeprefix(store.url.partition("?")[0]).lstrip("/")
        assert len(store.read(path) or b"") == each.num_bytes == pointer.num_bytes
        assert (each.start, each.limit) == (pointer.start, pointer.limit)


def test_range_gives_the_files_that_hold_it_as_a_whole(memory_store: ObjectStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        for _ in range(4):
            writer.append_many([b"x"] * 3)
    reader = LogReader.open(memory_store, "a")
    last = list(reader.records())[-1]

    def starts(*bounds: object) -> list[int]:
        return [each.start.offset for each in reader.files(*bounds)]

    assert starts() == [1, 4, 7, 10]
    assert starts(5) == [4, 7, 10]
    assert starts(5, Limits(offset=7)) == [4]
    assert starts(AtTime(last.timestamp_us)) == [10]
    assert starts(None, Limits(fragments=2)) == [1, 4]
    manifest = reader.manifest()
    with LogWriter.open(memory_store, "a") as writer:
        writer.append(b"x")
    assert [each.start.offset for each in reader.files(manifest=manifest)] == [1, 4, 7, 10]
    assert starts() == [1, 4, 7, 10, 13]


@pytest.mark.parametrize(
    ("start", "limits"),
    [
        (2, Limits(offset=2)),
        (5, Limits(offset=2)),
        (LogPosition(2, 0), Limits(offset=2)),
        (AtTime(1), Limits()),
        (2, Limits(fragments=0)),
        (6, Limits()),
    ],
)
def test_empty_range_has_no_fragment_and_no_file(
    memory_store: ObjectStore, start: int | LogPosition | AtTime, limits: Limits
) -> None:
    """The fragment around it was once named."""
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"x"] * 5)
    reader = LogReader.open(memory_store, "a")
    begun = AtTime(reader.manifest().first.position.timestamp_us) if isinstance(start, AtTime) else start
    cut = Limits(timestamp_us=begun.timestamp_us) if isinstance(begun, AtTime) else limits

    assert reader.scan(begun, cut) == []
    assert list(reader.files(begun, cut)) == []
    assert list(reader.records(begun, cut)) == []


def test_files_below_the_first_record_are_an_error_and_not_fewer_files(five: ObjectStore) -> None:
    with pytest.raises(GarbageCollectedError, match="from 4, found 2"):
        list(LogReader.open(five, "a").files(2))


def test_location_of_a_file_in_a_directory_is_its_path_whatever_its_name(tmp_path: Path) -> None:
    store = open_store((tmp_path / "a store, 100% ä").as_uri())
    with LogWriter.open_or_create(store, "team/a") as writer:
        writer.append(b"x")

    [file] = LogReader.open(store, "team/a").files()

    assert Path(file.location).is_file()
    assert Path(file.location).stat().st_size == file.num_bytes
    assert by_polars([file.location]) == [(1, None, b"x")]
