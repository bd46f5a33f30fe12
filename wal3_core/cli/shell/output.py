"""What commands print and ask: tables and JSON on stdout, progress and questions on stderr."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from wal3_core.cli.shell.failures import Failure, InvalidFailure
from wal3_core.cli.shell.failures import plain as plain  # noqa: PLC0414 - what prints takes it from here
from wal3_core.cli.shell.process import has_all
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import ConsoleOptions, RenderResult
    from rich.progress import Task
    from rich.style import Style

# Without a terminal, tables are as wide as they need to be.
_PIPE_WIDTH = 10_000
# Of the columns that may be folded: the first, and those of free text.
_FOLDED_WIDTH_MIN = 16
# Between two columns, and beside the outer ones.
_GAP, _EDGES = "   ", 2


def console() -> Console:
    """Make a console for the current stdout; text is never markup."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(markup=False, emoji=False, highlight=False, width=width)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[str] = ()) -> QuickTable:
    """Lay out rows under headings; the columns in ``numbers`` are right-aligned."""
    right = set(numbers)
    made = QuickTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(plain, row))
    return made


def print_json(document: Mapping[str, object]) -> None:
    """Print an object on one line."""
    # An escape of the stream's own is none of JSON's.
    click.echo(json.dumps(document, ensure_ascii=not has_all(sys.stdout.encoding)))


def show(said: str, document: Mapping[str, object], *, as_json: bool) -> None:
    """Print what a command did: a sentence, or for programs an object."""
    if as_json:
        print_json(document)
    else:
        click.echo(said)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and what they stand for."""
    shown = table(("", ""), facts)
    # On a terminal too narrow for it, an empty heading and a rule would be printed.
    shown.show_header = False
    console().print(shown)


def report(said: str, document: Mapping[str, object] | None) -> Failure | None:
    """Print what a command did, as a document if there is one; return the failure that says it if stdout fails.

    For commands that do it once more when they are run again, as they are if it seems that nothing was done.
    """
    try:
        if document is None:
            click.echo(said)
        else:
            print_json(document)
    except OSError as error:
        # A full disk, or a pipe that no process reads. The interpreter would flush once more at exit.
        drop_output()
        return Failure(f"{said}; standard output: {error}")
    return None


def count(number: int) -> str:
    """Format a count with thousands separators."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Format a count of things: ``1 record``, ``1,234 records``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(num_bytes: int) -> str:
    """Format a size in bytes for people."""
    return decimal(num_bytes)


def time(timestamp_us: int) -> str:
    """Format a time in UTC, to the microsecond; a time outside the calendar as its number, and none as ``-``."""
    if timestamp_us == 0:
        # A log's first position has no time until something is collected.
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_us // US_PER_S, UTC).replace(microsecond=timestamp_us % US_PER_S)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def second(timestamp_us: int) -> str:
    """Format a time in UTC, to the second; otherwise as ``time``."""
    shown = time(timestamp_us)
    return f"{shown.partition('.')[0]}Z" if shown.endswith("Z") else shown


class _RateColumn(ProgressColumn):
    """How many are done, how many a second, and how long the rest will take."""

    def render(self, task: Task) -> Text:
        """Return a line such as ``1,200/5,000  400/s  0:00:09 left``."""
        done = count(int(task.completed))
        total = "" if task.total is None else f"/{count(int(task.total))}"
        speed = f"  {count(round(task.speed))}/s" if task.speed else ""
        left = f"  {timedelta(seconds=int(task.time_remaining))} left" if task.time_remaining else ""
        return Text(f"{done}{total}{speed}{left}", style="progress.download")


@contextmanager
def progress(label: str, total: int | None, *, beside: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar on stderr if it is a terminal; yield a function that takes the amount done and the total, if known.

    Beside the bar stand the count, the rate and, with a total, how long the rest will take.
    ``beside`` says that stdout is written to meanwhile; then there is no bar when both are terminals.
    """
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        _RateColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty() or (beside and sys.stdout.isatty()),
        redirect_stdout=False,
    )
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly when the reader of stdout stops, as ``head`` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit.
        drop_output()


def drop_output() -> None:
    """Discard what is still to be written to stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    excess = sum(whole) + len(_GAP) * (len(columns) - 1) + _EDGES - width
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


class QuickTable(Table):
    """A rich table of plain cells with ``box.SIMPLE_HEAD``; one that fits the console is laid out here, to the same."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        columns = [(str(column.header), *map(str, column.cells)) for column in self.columns]
        widths = [max(map(cell_len, cells)) for cells in columns]
        width = sum(widths) + len(_GAP) * (len(widths) - 1)
        folded = any("\n" in cell for cells in columns for cell in cells)
        if folded or width + 2 > options.max_width or any(column.width is not None for column in self.columns):
            yield from super().__rich_console__(console, options)
            return
        right = [column.justify == "right" for column in self.columns]
        heading, *rows = (_GAP.join(map(_cell, row, widths, right)) for row in zip(*columns, strict=True))
        blank, rule = " " * width, ("-" if options.ascii_only else "\N{BOX DRAWINGS LIGHT HORIZONTAL}") * width
        yield from _segments(blank)
        yield from _segments(heading, console.get_style("table.header"))
        yield from _segments(rule)
        for row in rows:
            yield from _segments(row)
        yield from _segments(blank)


def _cell(text: str, width: int, right: bool) -> str:
    # Counted in cells of the terminal: some characters take two.
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _segments(line: str, style: Style | None = None) -> tuple[Segment, ...]:
    return Segment(" "), Segment(line, style), Segment(" "), Segment.line()


def require_terminal(what: str, wanted: str) -> None:
    """Raise InvalidFailure when stdin is not a terminal; its message names --yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidFailure(f"{what}: expected --yes, or a terminal to ask {wanted}, found neither")


def confirm(what: str, question: str) -> None:
    """Ask whether to delete something; Failure unless the answer is yes."""
    require_terminal(what, "for a yes")
    try:
        wanted = click.confirm(question)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        # Ctrl-D.
        wanted = False
    if not wanted:
        raise Failure(f"{what}: not deleted")
