"""Tables that fit the terminal: narrower columns, and where that is not enough, a block of lines for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from wal3_core.cli.output import console, plain, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

# Of the columns that may be folded: the first, and those of free text.
_FOLDED_WIDTH_MIN = 16
# Between two columns, and beside the outer ones.
_GAP, _EDGES = 3, 2


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[str] = (),
    texts: Iterable[str] = (),
    output: Console | None = None,
) -> None:
    """Print rows under headings. Cells of the first column and of ``texts`` are folded if need be, others never."""
    output = output or console()
    shown = [tuple(map(plain, row)) for row in rows]
    folded = {columns[0], *texts}
    widths = _widths(columns, shown, folded, output.width)
    if widths is None:
        _show_blocks(columns, shown, output)
        return
    made = table(columns, shown, numbers=numbers)
    for column, width in zip(made.columns, widths, strict=True):
        column.width = width
    output.print(made)


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], folded: set[str], width: int
) -> list[int | None] | None:
    """Return the columns' widths, None for as wide as needed; None when they do not fit."""
    cells = [max((cell_len(row[index]) for row in rows), default=0) for index in range(len(columns))]
    whole = [max(cell, cell_len(name)) for cell, name in zip(cells, columns, strict=True)]
    excess = sum(whole) + _GAP * (len(columns) - 1) + _EDGES - width
    if excess <= 0:
        return [None] * len(columns)
    for names_folded in (False, True):
        # Headings first: they break at words.
        for index, name in enumerate(columns):
            if (name in folded) is names_folded:
                needed = min(cells[index], _FOLDED_WIDTH_MIN) if names_folded else cells[index]
                least = max(needed, *map(cell_len, name.split()), 1) if name else max(needed, 1)
                saved = min(max(0, whole[index] - least), excess)
                whole[index] -= saved
                excess -= saved
    return None if excess else list(whole)


def _show_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], output: Console) -> None:
    width = max(map(cell_len, columns))
    for row in rows:
        output.print()
        for name, cell in zip(columns, row, strict=True):
            if cell:
                output.print(f" {name:<{width}}   {cell}", soft_wrap=True)
    output.print()
