"""``wal3 cat``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from wal3_core.cli.lines import json_of_record
from wal3_core.cli.output import progress, quiet_pipe
from wal3_core.cli.session import Session, pass_session
from wal3_core.log.read.pinned import pinned_records
from wal3_core.log.read.reader import LogReader
from wal3_core.model.position import AtTime
from wal3_core.options import Limits
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.model.position import ReadStart
    from wal3_core.model.record import Record

_PROGRESS_EVERY = 1000


class Time(click.ParamType[int]):
    """A time: ISO 8601, UTC unless it has an offset, or microseconds since the epoch."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return microseconds since the epoch."""
        if isinstance(value, int) or value.isdecimal():
            return int(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"expected ISO 8601 or microseconds since the epoch, found {value!r}", param, ctx)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.replace(microsecond=0).timestamp()) * US_PER_S + moment.microsecond


@click.command()
@click.argument("log")
@click.option("--from-offset", metavar="N", type=click.IntRange(min=1), help="Begin with the record at offset N.")
@click.option("--from-time", metavar="T", type=Time(), help="Begin with the first record at or after T.")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="Print at most N records.")
@click.option("--pin", metavar="NAME", help="Read what the pin NAME keeps.")
@pass_session
def cat(
    session: Session, log: str, from_offset: int | None, from_time: int | None, limit: int | None, pin: str | None
) -> None:
    """Print the records of LOG, one JSON object per line.

    Lines have offset, timestamp_us, key (if the record has one) and body (null for a tombstone); bytes
    that are not UTF-8 are printed as key_b64 and body_b64. `wal3 append` accepts these lines.

    T is ISO 8601, in UTC unless it has an offset, or microseconds since the epoch.

    \b
    Examples:
      wal3 cat orders --limit 10
      wal3 cat orders --from-offset 1000
      wal3 cat orders --pin audit-2026
      wal3 cat orders --from-time 2026-01-31T12:00:00Z
      wal3 cat orders | jq -r 'select(.key == "user-1") | .body'
    """  # noqa: D301 - \b keeps click from wrapping what follows
    if from_offset is not None and from_time is not None:
        message = "--from-offset and --from-time: give only one of them"
        raise click.UsageError(message)
    store = session.store()
    start: ReadStart = AtTime(from_time) if from_time is not None else from_offset
    if pin is not None:
        _print(pinned_records(store, log, pin, start, Limits(records=limit)), f"cat {log} at {pin}", limit)
        return
    reader = LogReader.open(store, log)
    records = reader.records(start, Limits(records=limit))
    held = reader.manifest().num_records
    total = held if start is None and limit is None else limit
    _print(records, f"cat {log}", total)


def _print(records: Iterable[Record], label: str, total: int | None) -> None:
    output = sys.stdout.buffer
    with quiet_pipe(), progress(label, total, beside=True) as advance:
        for done, record in enumerate(records, start=1):
            output.write(json_of_record(record))
            if done % _PROGRESS_EVERY == 0:
                advance(done, total)
