"""``wal3 cat``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wal3_core.cli.lines import json_of_record
from wal3_core.cli.names import PIN, log_argument
from wal3_core.cli.output import progress, quiet_pipe
from wal3_core.cli.ranges import limits_of, range_options, start_of
from wal3_core.cli.session import Session, lines_option, pass_session
from wal3_core.cli.times import Whole
from wal3_core.log.read.reader import LogReader, pinned_records
from wal3_core.options import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wal3_core.model.record import Record

_PROGRESS_EVERY = 1000
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}


@click.command()
@log_argument()
@range_options
@click.option("--limit", metavar="N", type=Whole(min=0), help="Print at most N records.")
@click.option("--pin", metavar="NAME", type=PIN, help="Read what the pin NAME keeps.")
@click.option("--raw", is_flag=True, help="Print bodies alone, as bytes; a tombstone prints nothing.")
@click.option(
    "--separator",
    metavar="TEXT",
    help=r"With --raw, print TEXT after each body: a newline by default; '' for nothing, '\0' for a NUL.",
)
@lines_option
@pass_session
def cat(
    session: Session, /, log: str, limit: int | None, pin: str | None, raw: bool, separator: str | None, **chosen: int
) -> None:
    """Print the records of LOG, one JSON object per line.

    Lines have offset, timestamp_us, key (if the record has one) and body (null for a tombstone); bytes
    that are not UTF-8 are printed as key_b64 and body_b64. `wal3 append` accepts these lines.

    T is ISO 8601 (UTC unless it has an offset), -1h or -7d for so long ago, or microseconds since the epoch.

    \b
    Examples:
      wal3 cat orders --limit 10
      wal3 cat orders --from-offset 1000 --to-offset 2000
      wal3 cat orders --pin audit-2026
      wal3 cat orders --from-time -1h
      wal3 cat orders --from-time 2026-01-31 --to-time 2026-02-01T00:00:00+01:00
      wal3 cat images --raw --separator '' --from-offset 7 --limit 1 > image.png
      wal3 cat orders | jq -r 'select(.key == "user-1") | .body'
    """
    if separator is not None and not raw:
        message = "--separator needs --raw"
        raise click.UsageError(message)
    start, limits = start_of({**chosen}), limits_of({**chosen}, limit)
    line = _raw_line(separator) if raw else json_of_record
    store = session.store()
    if pin is not None:
        _print(pinned_records(store, log, pin, start, limits), line, f"cat {log} at {pin}", limit)
        return
    reader = LogReader.open(store, log)
    records = reader.records(start, limits)
    total = reader.manifest().num_records if start is None and limits == UNLIMITED else limit
    _print(records, line, f"cat {log}", total)


def _raw_line(separator: str | None) -> Callable[[Record], bytes]:
    """Return what prints a body: its bytes and the separator."""
    after = "\n" if separator is None else separator
    for escape, character in _ESCAPES.items():
        after = after.replace(escape, character)
    ending = after.encode()
    return lambda record: b"" if record.body is None else record.body + ending


def _print(records: Iterable[Record], line: Callable[[Record], bytes], label: str, total: int | None) -> None:
    output = sys.stdout.buffer
    with quiet_pipe(), progress(label, total, beside=True) as advance:
        for done, record in enumerate(records, start=1):
            output.write(line(record))
            if done % _PROGRESS_EVERY == 0:
                advance(done, total)
