"""What commands print and ask: tables and JSON on stdout, progress and questions on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from wal3_core.cli.shell.failures import Failure, InvalidFailure, plain
from wal3_core.cli.shell.process import has_all
from wal3_core.runtime import US_PER_S

T = TypeVar("T")

# Width of a column that may be folded: of the first, and of those of free text.
_FOLDED_WIDTH_MIN = 16
# Between two columns, and beside the outer ones.
_GAP, _EDGES = "   ", 2


def output_width() -> int | None:
    """Return the columns of the terminal on stdout; None without one: then a line is as wide as it needs to be."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_json(document: Mapping[str, object]) -> None:
    """Print an object on one line."""
    # An escape of the stream's own is none of JSON's.
    click.echo(json.dumps(document, ensure_ascii=not has_all(sys.stdout.encoding)))


def show(said: str | Callable[[], None], document: Mapping[str, object], *, as_json: bool) -> None:
    """Print what a command did: a sentence, or more by a function, or for programs an object."""
    if as_json:
        print_json(document)
    elif callable(said):
        said()
    else:
        click.echo(said)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and what they stand for."""
    click.echo(table(("", ""), facts, width=output_width(), with_heading=False), file=sys.stdout)


def show_each(
    things: Iterable[T],
    to_json: Callable[[T], Mapping[str, object]],
    columns: Mapping[str, Callable[[T], str]],
    *,
    as_json: bool,
    numbers: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> None:
    """Print things: a table of the cells that ``columns`` make, by their heading, or for programs an object each."""
    if not as_json:
        rows = [[cell(thing) for cell in columns.values()] for thing in things]
        show_table(tuple(columns), rows, numbers=numbers, texts=texts)
        return
    for thing in things:
        print_json(to_json(thing))


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
    numbers: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> None:
    """Print rows under headings. Cells of the first column and of ``texts`` are folded if need be, others never."""
    # Named: to a stream for ASCII, click would write UTF-8.
    click.echo(table(columns, rows, numbers=numbers, texts=texts, width=output_width()), file=sys.stdout)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    texts: Sequence[str] = (),
    width: int | None = None,
    with_heading: bool = True,
) -> str:
    """Lay out rows under headings; the columns in ``numbers`` are right-aligned.

    If it is wider than ``width``, cells of the first column and of ``texts`` are folded; if that is not enough, each
    row is a block of lines.
    """
    shown = [tuple(map(plain, row)) for row in rows]
    widths = _widths(columns, shown, {columns[0], *texts}, width)
    if widths is None:
        return "\n".join(_blocks(columns, shown))
    right = [column in numbers for column in columns]
    whole = sum(widths) + len(_GAP) * (len(columns) - 1)
    line = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" if has_all(sys.stdout.encoding) else "-"
    blank, lines = " " * (whole + _EDGES), [each for row in shown for each in _row_lines(row, widths, right)]
    if with_heading:
        heading = [click.style(each, bold=True) for each in _row_lines(columns, widths, right, at_bottom=True)]
        lines = [*heading, f" {line * whole} ", *lines]
    return "\n".join([blank, *lines, blank])


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], folded: set[str], width: int | None
) -> list[int] | None:
    """Return the columns' widths; None when they do not fit."""
    cells = [max((cell_len(row[index]) for row in rows), default=0) for index in range(len(columns))]
    whole = [max(cell, cell_len(name)) for cell, name in zip(cells, columns, strict=True)]
    excess = 0 if width is None else sum(whole) + len(_GAP) * (len(columns) - 1) + _EDGES - width
    for names_folded in (False, True):
        # Headings first: they break at words.
        for index, name in enumerate(columns):
            if excess > 0 and (name in folded) is names_folded:
                needed = min(cells[index], _FOLDED_WIDTH_MIN) if names_folded else cells[index]
                least = max(needed, *map(cell_len, name.split()), 1) if name else max(needed, 1)
                saved = min(max(0, whole[index] - least), excess)
                whole[index] -= saved
                excess -= saved
    return None if excess > 0 else whole


def _row_lines(
    row: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, at_bottom: bool = False
) -> list[str]:
    folded = [_folded(text, width) for text, width in zip(row, widths, strict=True)]
    height = max(map(len, folded))
    columns = []
    for lines, width, to_right in zip(folded, widths, right, strict=True):
        missing = [""] * (height - len(lines))
        cells = [*missing, *lines] if at_bottom else [*lines, *missing]
        # Counted in cells of the terminal: some characters take two.
        paddings = [" " * (width - cell_len(cell)) for cell in cells]
        columns.append([p + cell if to_right else cell + p for cell, p in zip(cells, paddings, strict=True)])
    return [f" {_GAP.join(cells)} " for cells in zip(*columns, strict=True)]


def _folded(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return [line.plain.rstrip() for line in Text(text).wrap(Console(), width, overflow="fold")]


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    width = max(map(cell_len, columns))
    for row in rows:
        yield ""
        for name, cell in zip(columns, row, strict=True):
            if cell:
                yield f" {name:<{width}}   {cell}"
    yield ""


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
