"""The commands that read a log, on one from which records were dropped."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.compacted_logs import compact, write_log
from wal3_core import open_store

if TYPE_CHECKING:
    from .conftest import Command

LEFT = [7, 8, 10, 11, 12, 13, 14, 15, *range(17, 36)]


@pytest.fixture
def gappy(wal3: Command) -> Command:
    """A log of 36 offsets, at whose beginning, middle and end records were dropped."""
    store = open_store(wal3.url)
    write_log(store, "a", [[(1_000 + 3 * number, b"k", b"v")] * 3 for number in range(12)])
    compact(store, "a", {*range(1, 7), 9, 16, 36}, [(0, 3), (4, 6)])
    return wal3


def offsets(rows: list[dict[str, object]]) -> list[object]:
    return [row["offset"] for row in rows]


def test_cat_prints_what_is_left_of_each_range(gappy: Command) -> None:
    assert offsets(gappy.json("cat", "a")) == LEFT
    assert offsets(gappy.json("cat", "a", "--from-offset", "2", "--limit", "3")) == [7, 8, 10]
    assert offsets(gappy.json("cat", "a", "--from-offset", "9", "--to-offset", "12")) == [10, 11]
    assert gappy.json("cat", "a", "--from-offset", "36") == []


@pytest.mark.parametrize("count", [0, 1, 10, 27, 28, 100])
def test_tail_prints_the_last_records_however_many_offsets_they_span(gappy: Command, count: int) -> None:
    assert offsets(gappy.json("tail", "a", "-n", str(count))) == LEFT[len(LEFT) - min(count, len(LEFT)) :]


def test_ls_and_inspect_count_what_is_left_and_show_what_a_fragment_stands_for(gappy: Command) -> None:
    [row] = gappy.json("ls", "--json")
    assert (row["records"], row["first_offset"], row["next_offset"]) == (len(LEFT), 1, 37)
    assert "fragment 3, stands for 1 to 3: offsets 1 to 9, 2 records" in gappy.ok("inspect", "a", "--full").decode()


def test_files_and_their_records_are_those_of_cat(gappy: Command) -> None:
    rows = gappy.json("files", "a", "--json")
    found = [pq.ParquetFile(Path(str(row["location"]))).read()["offset"].to_pylist() for row in rows]

    assert list(chain.from_iterable(found)) == LEFT
    assert [row["records"] for row in rows] == [len(each) for each in found]
    assert (rows[0]["first_offset"], rows[0]["next_offset"]) == (1, 10)


def test_cursor_may_be_set_to_an_offset_that_was_dropped(gappy: Command) -> None:
    gappy.ok("cursor", "set", "a", "reader", "9")
    [row] = gappy.json("cursor", "get", "a", "reader", "--json")

    assert (row["offset"], row["lag"]) == (9, 28)


def test_scrub_by_bytes_goes_through_the_gaps(gappy: Command) -> None:
    records, begin = 0, "1"
    while begin != "37":
        [report] = gappy.json("scrub", "a", "--json", "--bytes", "1500", "--from-offset", begin)
        assert report["sound"]
        records, begin = records + int(str(report["num_records"])), str(report["next_offset"])

    assert records == len(LEFT)
