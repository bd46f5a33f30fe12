"""What commands print: tables and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# Nobody's terminal: tables that go into a pipe are as wide as they need to be.
_PIPE_WIDTH = 10_000


def console() -> Console:
    """Make the console for stdout as it is now; no text is markup."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(markup=False, emoji=False, highlight=False, width=width)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[str] = ()) -> Table:
    """Lay out rows under headings; the columns named in ``numbers`` are set right."""
    right = set(numbers)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(plain, row))
    return made


def plain(text: str) -> str:
    """Replace what would steer a terminal: stored text is shown, not obeyed."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def print_json(document: Mapping[str, object]) -> None:
    """Print an object on a line of its own."""
    click.echo(json.dumps(document, ensure_ascii=False))


def count(number: int) -> str:
    """Show a count with its thousands apart."""
    return f"{number:,}"


def size(num_bytes: int) -> str:
    """Show a size in bytes as a person reads it."""
    return decimal(num_bytes)


def time(timestamp_us: int) -> str:
    """Show a time in UTC, to the microsecond; a time beyond the calendar as its number."""
    try:
        moment = datetime.fromtimestamp(timestamp_us // US_PER_S, UTC).replace(microsecond=timestamp_us % US_PER_S)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@contextmanager
def progress(label: str, total: int | None, *, beside: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar on stderr, if that is a terminal; yields what takes the amount done and the total, if known.

    ``beside`` says that stdout is written to meanwhile; then there is no bar on a terminal that shows both.
    """
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
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
    """End quietly when whoever reads stdout stops, as ``head`` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more on its way out.
        drop_output()


def drop_output() -> None:
    """Send what is still to be written to standard output nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
