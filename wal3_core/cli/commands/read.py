"""``wal3 cat``, ``tail`` and ``files``: the records of a log, and where they are stored."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import click

from wal3_core.cli.shell.failures import plain
from wal3_core.cli.shell.input import json_of_record
from wal3_core.cli.shell.output import progress, quiet_pipe, show
from wal3_core.cli.shell.session import Session, lines_option, pass_session, session_and_json
from wal3_core.cli.types import PIN, Time, Whole, log_argument, range_options, start_of
from wal3_core.format.record import Record
from wal3_core.log.read.following import Following
from wal3_core.log.read.reader import LogReader, open_pinned, pinned_records
from wal3_core.log.read.scan import StoredFile
from wal3_core.options import UNLIMITED, Limits

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
    session: Session,
    /,
    log: str,
    limit: int | None,
    pin: str | None,
    raw: bool,
    separator: str | None,
    **chosen: int | None,
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
        raise click.UsageError("--separator needs --raw")
    start = start_of(chosen["from_offset"], chosen["from_time"])
    limits = Limits(offset=chosen["to_offset"], timestamp_us=chosen["to_time"], records=limit)
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


# A compacted log has gaps, so the last N records may span more than N offsets.
_REACH_GROWTH = 4
_LINES = 10


@click.command()
@log_argument()
@click.option("-n", "--lines", "wanted", type=Whole(min=0), help="Records; 10, or all of a range given by --from-….")
@click.option("-f", "--follow", is_flag=True, help="Then wait for more, until Ctrl-C or until the log is sealed.")
@range_options
@lines_option
@pass_session
def tail(session: Session, /, log: str, wanted: int | None, follow: bool, **chosen: int | None) -> None:
    """Print the last records of LOG, as `wal3 cat` does; with --follow, wait for more.

    T is ISO 8601 (UTC unless it has an offset), -1h or -7d for so long ago, or microseconds since the epoch.

    Waiting costs at most one small request every two seconds. It ends after the last record of a
    sealed log, and names the log's successor; then the exit code is 0, after Ctrl-C 130.

    \b
    Examples:
      wal3 tail orders
      wal3 tail orders -n 100
      wal3 tail orders --from-time -1h
      wal3 tail orders --follow | jq .body
    """
    start = start_of(chosen["from_offset"], chosen["from_time"])
    limits = Limits(offset=chosen["to_offset"], timestamp_us=chosen["to_time"])
    if follow and limits != UNLIMITED:
        raise click.UsageError("--follow: expected no --to-offset and no --to-time, since it waits for more")
    reader = LogReader.open(session.store(), log)
    if start is None and limits == UNLIMITED:
        limit, records = _last(reader, _LINES if wanted is None else wanted)
    else:
        limit = reader.manifest().next.position.offset
        offset = limit if limits.offset is None else min(limit, limits.offset)
        selected = reader.records(start, replace(limits, offset=offset))
        wanted = _LINES if wanted is None and start is None else wanted
        records = selected if wanted is None else deque(selected, maxlen=min(wanted, limit))
    output = sys.stdout.buffer
    with quiet_pipe():
        for record in records:
            output.write(json_of_record(record))
        output.flush()
        if follow:
            _follow(reader.following(limit), log)


def _follow(following: Following, log: str) -> None:
    output = sys.stdout.buffer
    for record in following.records():
        output.write(json_of_record(record))
        output.flush()
    seal = None if following.sealed is None else following.sealed.seal
    if seal is not None:
        successor = f"; it goes on in {seal.successor}: wal3 tail {seal.successor} --follow" if seal.successor else ""
        click.echo(plain(f"log {log}: sealed: {seal.reason}{successor}"), err=True)


def _last(reader: LogReader, wanted: int) -> tuple[int, Iterable[Record]]:
    """Return the offset after the log's present end, and its last records."""
    manifest = reader.manifest()
    first, limit = manifest.first.position.offset, manifest.next.position.offset
    # Bounded by the log's length: a deque does not accept every integer as maxlen.
    reach = wanted = min(wanted, limit - first)
    while True:
        start = max(first, limit - reach)
        last = deque((record for record in reader.records(start) if record.offset < limit), maxlen=wanted)
        if len(last) == wanted or start == first:
            return limit, last
        reach *= _REACH_GROWTH


@click.command()
@log_argument()
@click.option("--from-offset", metavar="N", type=Whole(min=1), help="Begin with the file that holds offset N.")
@click.option("--from-time", metavar="T", type=Time(), help="Begin with the first file that has records at or after T.")
@click.option("--pin", metavar="NAME", type=PIN, help="List the files that the pin NAME keeps.")
@session_and_json
def files(
    session: Session, log: str, from_offset: int | None, from_time: int | None, pin: str | None, as_json: bool
) -> None:
    """List the stored files that hold LOG's records now, for programs that read them in place.

    One path or URL per line, in order. Give exactly these files to programs that read Parquet. The log's
    folder may hold others, whose records are not, or no longer, in the log. A collection may delete a file
    after it was listed: list a pin's files to keep them while they are read. The first file from N or T may
    also hold earlier records.

    T is ISO 8601 (UTC unless it has an offset), -1h or -7d for so long ago, or microseconds since the epoch.

    \b
    Examples:
      wal3 files orders
      wal3 files orders --pin audit-2026 --json | jq -r .location
    """
    start = start_of(from_offset, from_time)
    store = session.store()
    reader = LogReader.open(store, log) if pin is None else open_pinned(store, log, pin)
    with quiet_pipe():
        for found in reader.files(start):
            show(found.location, _json(found), as_json=as_json)


def _json(found: StoredFile) -> dict[str, object]:
    return {
        "location": found.location,
        "url": found.url,
        "first_offset": found.start.offset,
        "next_offset": found.limit.offset,
        "first_timestamp_us": found.start.timestamp_us,
        "records": found.num_records,
        "bytes": found.num_bytes,
    }
