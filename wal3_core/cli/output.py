"""What commands print: tables and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from wal3_core.cli.failures import Failure
from wal3_core.cli.failures import plain as plain  # noqa: PLC0414 - what prints takes it from here
from wal3_core.cli.quick_table import QuickTable
from wal3_core.cli.streams import has_all
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.progress import Task

# Without a terminal, tables are as wide as they need to be.
_PIPE_WIDTH = 10_000


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


class _Pace(ProgressColumn):
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
        _Pace(),
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
