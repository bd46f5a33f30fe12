"""``wal3 files`` lists exactly the files that hold a log's records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from wal3_core.cli.program import cli

if TYPE_CHECKING:
    from .conftest import Command


@pytest.fixture
def collected(wal3: Command) -> Command:
    """A log of five fragments, of which it holds two; a pin holds four."""
    for number in range(1, 6):
        wal3.ok("append", "--create", "--raw", "a", stdin=f"{number}\n")
        if number == 4:
            wal3.ok("pin", "create", "a", "four", "--reason", "a query")
    wal3.ok("cursor", "set", "a", "reader", "4")
    wal3.ok("gc", "a")
    return wal3


def bodies(paths: list[str]) -> list[bytes]:
    return [body for path in paths for body in pq.ParquetFile(path).read()["body"].to_pylist()]


def test_files_hold_what_cat_prints(collected: Command) -> None:
    files = collected.ok("files", "a").decode().splitlines()

    assert bodies(files) == [str(record["body"]).encode() for record in collected.json("cat", "a")] == [b"4", b"5"]
    assert len(list((Path(collected.url.removeprefix("file://")) / "a").rglob("*.parquet"))) == 5


def test_files_of_a_pin_hold_what_it_keeps(collected: Command) -> None:
    files = collected.ok("files", "a", "--pin", "four").decode().splitlines()

    assert bodies(files) == [b"1", b"2", b"3", b"4"]


def test_json_says_what_each_file_holds(collected: Command) -> None:
    [first, second] = collected.json("files", "a", "--json")
    [record, _] = collected.json("cat", "a")

    path = Path(str(first["location"]))
    assert first == {
        "location": str(path),
        "url": path.as_uri().replace("%3D", "="),
        "first_offset": 4,
        "next_offset": 5,
        "first_timestamp_us": record["timestamp_us"],
        "records": 1,
        "bytes": path.stat().st_size,
    }
    assert (second["first_offset"], second["next_offset"]) == (5, 6)


def test_files_from_an_offset_or_a_time(collected: Command) -> None:
    [_, last] = collected.json("cat", "a")
    [_, expected] = collected.ok("files", "a").decode().splitlines()

    assert collected.ok("files", "a", "--from-offset", "5").decode() == f"{expected}\n"
    assert collected.ok("files", "a", "--from-time", str(last["timestamp_us"])).decode() == f"{expected}\n"
    assert collected.ok("files", "a", "--from-offset", "6") == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("files", "a", "--from-offset", "2"), 2, "from 4, found 2"),
        (("files", "a", "--from-offset", "9"), 2, "from 1 to 6, found 9"),
        (("files", "a", "--from-offset", "4", "--from-time", "0"), 2, "give only one of them"),
        (("files", "a", "--pin", "none"), 2, "expected a pin none, found none"),
        (("files", "none"), 2, "create the log first"),
    ],
)
def test_invalid_request_is_refused(collected: Command, arguments: tuple[str, ...], code: int, complaint: str) -> None:
    result = collected(*arguments)

    assert result.exit_code == code
    assert complaint in result.stderr
    assert result.stdout == ""


def test_help_shows_examples() -> None:
    assert "  wal3 files" in CliRunner().invoke(cli, ["files", "--help"]).stdout
