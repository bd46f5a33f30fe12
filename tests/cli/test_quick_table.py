"""Tables are laid out as rich lays them out."""

from __future__ import annotations

import io
import re

import pytest
from rich import box
from rich.console import Console
from rich.table import Table

from wal3_core.cli.shell.output import QuickTable

ROWS = [
    ("orders", "1,000", ""),
    ("größe/東京", "2", "sealed"),
    ("", "", "a text that is far longer than its heading"),
]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [20, 40, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 10_000])
@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "none"])
def test_table_is_the_one_that_rich_prints(rows: list[tuple[str, ...]], width: int, *, terminal: bool) -> None:
    printed = []
    for kind in (Table, QuickTable):
        output = io.StringIO()
        table = kind(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("log", overflow="fold")
        table.add_column("number of records", justify="right", overflow="fold")
        table.add_column("state", overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(file=output, force_terminal=terminal, width=width, markup=False, highlight=False).print(table)
        # The same style in one piece, or in several.
        printed.append(re.sub("\x1b\\[0m( *)\x1b\\[1m", r"\1", output.getvalue()))

    assert printed[0] == printed[1]
