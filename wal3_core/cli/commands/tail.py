"""``wal3 tail``."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from wal3_core.cli.lines import json_of_record
from wal3_core.cli.names import log_argument
from wal3_core.cli.output import plain, quiet_pipe
from wal3_core.cli.ranges import limits_of, range_options, start_of
from wal3_core.cli.session import Session, lines_option, pass_session
from wal3_core.cli.times import Whole
from wal3_core.log.read.reader import LogReader
from wal3_core.options import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.log.read.following import Following
    from wal3_core.model.record import Record

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
def tail(session: Session, /, log: str, wanted: int | None, follow: bool, **chosen: int) -> None:
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
    start, limits = start_of({**chosen}), limits_of({**chosen})
    if follow and limits != UNLIMITED:
        message = "--follow: expected no --to-offset and no --to-time, since it waits for more"
        raise click.UsageError(message)
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
