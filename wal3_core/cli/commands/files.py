"""``wal3 files``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wal3_core.cli.names import PIN, log_argument
from wal3_core.cli.output import print_json, quiet_pipe
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.times import Time, Whole
from wal3_core.log.read.reader import LogReader, open_pinned
from wal3_core.model.position import AtTime

if TYPE_CHECKING:
    from wal3_core.log.read.walk import StoredFile


@click.command()
@log_argument()
@click.option("--from-offset", metavar="N", type=Whole(min=1), help="Begin with the file that holds offset N.")
@click.option("--from-time", metavar="T", type=Time(), help="Begin with the first file that has records at or after T.")
@click.option("--pin", metavar="NAME", type=PIN, help="List the files that the pin NAME keeps.")
@json_option
@pass_session
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
    if from_offset is not None and from_time is not None:
        message = "--from-offset and --from-time: give only one of them"
        raise click.UsageError(message)
    store = session.store()
    reader = LogReader.open(store, log) if pin is None else open_pinned(store, log, pin)
    with quiet_pipe():
        for found in reader.files(AtTime(from_time) if from_time is not None else from_offset):
            if as_json:
                print_json(_json(found))
            else:
                click.echo(found.location)


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
