"""Tables fit a terminal of 80 columns: no word of a heading and no number is broken."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from wal3_core import LogWriter, PinStore, open_store
from wal3_core.cli.commands import cursor, gc, ls, scrub, snapshot
from wal3_core.cli.shell.output import counted, second, show_table, time

WIDTH = 80
ROWS = {
    "ls": (ls._COLUMNS, ("tenants/acme/a-long-name-of-orders", "12,345", "1.2 GB", "123", "1", "12,346", "sealed")),
    "scrub": (scrub._SCRUB_COLUMNS, ("tenants/acme/a-long-name", "sound", "12,345", "1.2 GB", "123", "4")),
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
    shown = io.StringIO()

    show_table(columns, [row], numbers=columns[1:3], texts=("why",), output=Console(file=shown, width=WIDTH))

    lines = shown.getvalue().splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    words = shown.getvalue().split()
    assert {word for column in columns for word in column.split()} <= set(words)
    assert {word for cell in row[1:] for word in cell.split()} <= set(words)


def test_ls_stays_a_table_at_80_columns() -> None:
    shown = io.StringIO()

    show_table(ls._COLUMNS, [ROWS["ls"][1]], output=Console(file=shown, width=WIDTH))

    assert "fragments   first" in shown.getvalue()


def test_no_time_is_a_dash_and_one_is_singular() -> None:
    assert (time(0), second(0)) == ("-", "-")
    assert [counted(number, "record") for number in (0, 1, 1234)] == ["0 records", "1 record", "1,234 records"]


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
