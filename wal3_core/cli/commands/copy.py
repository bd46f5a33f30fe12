"""``wal3 copy``."""

from __future__ import annotations

import click

from wal3_core.cli.completing import log_argument
from wal3_core.cli.output import counted, plain, print_json, progress, size, time
from wal3_core.cli.session import Session, json_option, open_named, pass_session
from wal3_core.log.maintain.copier import LogAt
from wal3_core.log.maintain.copier import copy as copy_log


@click.command()
@log_argument()
@click.argument("target")
@click.option("--to-store", metavar="URL", help="The store of TARGET; LOG's by default.")
@click.option("--from-offset", metavar="N", type=click.IntRange(min=1), help="Begin with the fragment that holds N.")
@click.option("--with-cursors", is_flag=True, help="Also copy the cursors within the copied range.")
@json_option
@pass_session
def copy(  # noqa: PLR0913, PLR0917 - a command's parameters are its arguments and options
    session: Session,
    log: str,
    target: str,
    to_store: str | None,
    from_offset: int | None,
    with_cursors: bool,
    as_json: bool,
) -> None:
    """Copy LOG as it is now to the new log TARGET; offsets and times stay the same.

    Every record is checked. LOG may be appended to and collected meanwhile; records appended after the
    start are not copied. TARGET becomes a log only when the copy is complete. After an interruption,
    run the command again: it finishes the copy, as of when it was first started.

    \b
    Examples:
      wal3 copy orders orders-backup
      wal3 copy orders orders --to-store s3://backup/2026-10
      wal3 copy orders orders-tail --from-offset 1000000 --with-cursors
    """  # noqa: D301 - \b keeps click from wrapping what follows
    store = session.store()
    other = store if to_store is None else open_named(to_store, timeout_s=session.timeout_s)
    with progress(f"copy {log}", None) as advance:
        copied = copy_log(
            LogAt(store, log),
            LogAt(other, target),
            from_offset=from_offset,
            with_cursors=with_cursors,
            progress=advance,
        )
    for name in copied.pins_left:
        message = (
            f"the copy is complete, but {log} is still pinned as {name}, which could not be deleted:"
            f" wal3 --store {store.url} pin delete {log} {name}"
        )
        click.echo(plain(message), err=True)
    if as_json:
        print_json({"source": log, **copied.to_json()})
        return
    offsets = f"offsets {copied.first_offset} to {copied.next_offset - 1}" if copied.num_records else "no offsets"
    cursors = f", {counted(copied.num_cursors, 'cursor')}" if with_cursors else ""
    resumed = " (begun by an earlier run)" if copied.resumed else ""
    click.echo(
        f"copied {log} as of {time(copied.pinned_us)}{resumed} to {target}: {counted(copied.num_records, 'record')}"
        f" ({offsets}), {size(copied.num_bytes)}, {counted(copied.num_fragments, 'fragment')}{cursors};"
        f" setsum {copied.setsum} verified"
    )
