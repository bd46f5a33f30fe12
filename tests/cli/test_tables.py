"""Tables fit a terminal of 80 columns: no word of a heading and no number is broken."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import click
import pytest
from rich import box
from rich.console import Console
from rich.table import Table

from wal3_core import LogWriter, PinStore, open_store
from wal3_core.cli.commands import cursor, gc, ls, scrub, snapshot
from wal3_core.cli.shell.output import _widths, counted, second, table, time

WIDTH = 80
ROWS = {
    "ls": (
        tuple(ls._COLUMNS),
        ("tenants/acme/a-long-name-of-orders", "12,345", "1.2 GB", "123", "1", "12,346", "sealed"),
    ),
    "scrub": (tuple(scrub._COLUMNS), ("tenants/acme/a-long-name", "sound", "12,345", "1.2 GB", "123", "4")),
    "gc": (gc._COLUMNS, ("orders", "12,345", "1.2 GB", "0", "123", "0", "cursor billing is at offset 12346", "23h59m")),
    "cursors": (
        cursor.CURSOR_COLUMNS,
        (
            "billing",
            "12,345",
            second(1_793_491_200_000_000),
            "1,000",
            second(1_793_491_200_000_000),
            "host:1 0123456789",
        ),
    ),
    "levels": (snapshot._LEVEL_COLUMNS, ("fragments", "12", "345", "500", "69%", "12", "40", "3")),
}


@pytest.mark.parametrize("name", ROWS)
def test_table_breaks_no_word_and_no_number_at_80_columns(name: str) -> None:
    columns, row = ROWS[name]
    shown = click.unstyle(table(columns, [row], numbers=columns[1:3], texts=("why",), width=WIDTH))

    assert all(len(line) <= WIDTH for line in shown.splitlines())
    words = shown.split()
    assert {word for column in columns for word in column.split()} <= set(words)
    assert {word for cell in row[1:] for word in cell.split()} <= set(words)


LAID_OUT = [
    ("orders", "1,000", ""),
    ("größe/東京", "2", "sealed"),
    ("", "", "a text that is far longer than its heading"),
]


@pytest.mark.parametrize("width", [44, 46, 52, 60, 66, 67, 68, 69, 70, 75, 10_000])
@pytest.mark.parametrize("rows", [LAID_OUT, []], ids=["rows", "none"])
def test_table_is_laid_out_as_rich_does(rows: list[tuple[str, ...]], width: int) -> None:
    columns = ("log", "number of records", "state")

    ours = table(columns, rows, numbers=columns[1:2], texts=columns[2:], width=width)

    output = io.StringIO()
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    widths = _widths(columns, rows, {"log", "state"}, width)
    assert widths is not None
    for column, column_width in zip(columns, widths, strict=True):
        right = column in columns[1:2]
        made.add_column(column, justify="right" if right else "left", overflow="fold", width=column_width)
    for row in rows:
        made.add_row(*row)
    Console(file=output, width=10_000, markup=False, highlight=False).print(made)
    assert f"{click.unstyle(ours)}\n" == output.getvalue()


def test_ls_stays_a_table_at_80_columns() -> None:
    assert "fragments   first" in table(ROWS["ls"][0], [ROWS["ls"][1]], width=WIDTH)


def test_no_time_is_a_dash_and_one_is_singular() -> None:
    assert (time(0), second(0)) == ("-", "-")
    assert [counted(number, "record") for number in (0, 1, 1234)] == ["0 records", "1 record", "1,234 records"]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_output_in_another_encoding_than_utf8_is_escaped_and_no_error(
    local_url: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Each table was once a traceback in such a terminal or pipe."""
    with LogWriter.open_or_create(open_store(local_url), "a") as writer:
        writer.append(b"x")
    PinStore(open_store(local_url), "a").create("p", reason="\u20ac \U0001f600 \u00e9")
    monkeypatch.setenv("PYTHONIOENCODING", encoding)

    def output(*arguments: str) -> str:
        command = [sys.executable, "-c", "from wal3_core.cli import main; main()", "--store", local_url, *arguments]
        ended = subprocess.run(command, capture_output=True, check=True, timeout=600)
        return ended.stdout.decode(encoding)

    assert "----" in output("ls")
    assert "\\U0001f600" in output("pin", "list", "a")
    assert json.loads(output("pin", "list", "a", "--json"))["reason"] == "\u20ac \U0001f600 \u00e9"
