"""``wal3 copy``, and ``wal3 repair`` from a copy."""

from __future__ import annotations

import click

from wal3_core.cli.commands.policy import describe_policy, policy_json
from wal3_core.cli.shell.failures import exit_unless, plain
from wal3_core.cli.shell.output import counted, print_json, progress, show, size, time
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import LOG, Whole, log_argument
from wal3_core.errors import LogNotFoundError
from wal3_core.log.maintain.copy.copier import CopyReport, LogAt
from wal3_core.log.maintain.copy.copier import copy as copy_log
from wal3_core.log.maintain.copy.update import CopyUpdateReport, update_copy
from wal3_core.log.maintain.repair import RepairReport, repair_log
from wal3_core.log.read.reader import LogReader
from wal3_core.store.documents.policy_store import PolicyStore


@click.command()
@log_argument()
@click.argument("target", type=LOG)
@click.option("--to-store", metavar="URL", help="The store of TARGET; LOG's by default.")
@click.option("--from-offset", metavar="N", type=Whole(min=1), help="Begin at the offset N.")
@click.option(
    "--after", metavar="COPY", type=LOG, help="Begin where COPY ends, in TARGET's store, and hold all that came since."
)
@click.option("--with-cursors", is_flag=True, help="Also copy the cursors within the copied range.")
@click.option("--update", is_flag=True, help="Bring TARGET, a copy of LOG, up to date; make the copy if there is none.")
@session_and_json
def copy(  # noqa: PLR0913, PLR0917 - a command's parameters are its arguments and options
    session: Session,
    log: str,
    target: str,
    to_store: str | None,
    from_offset: int | None,
    after: str | None,
    with_cursors: bool,
    update: bool,
    as_json: bool,
) -> None:
    """Copy LOG as it is now to the new log TARGET; offsets and times stay the same.

    Every record is checked. LOG may be appended to and collected meanwhile; records appended after the
    start are not copied. TARGET becomes a log only when the copy is complete. After an interruption,
    run the command again: it finishes the copy, as of when it was first started.

    With --update, TARGET gets the records that LOG has gained since TARGET was made or last updated, and
    --with-cursors moves its cursors to where LOG's are. TARGET must hold exactly LOG's records up to its own
    end, which is checked. A cursor of LOG at the end of TARGET keeps what TARGET lacks from being collected.

    \b
    Examples:
      wal3 copy orders orders-backup
      wal3 copy orders orders --to-store s3://backup/2026-10
      wal3 copy orders orders --to-store s3://backup --update
      wal3 copy orders orders-tail --from-offset 1000000 --with-cursors
      wal3 copy orders orders/2 --after orders/1 --to-store s3://backup
    """
    if update and (from_offset is not None or after is not None):
        left_out = "--after" if from_offset is None else "--from-offset"
        raise click.UsageError(f"--update goes on from the end of TARGET: leave out {left_out}")
    if from_offset is not None and after is not None:
        raise click.UsageError("a copy begins at one place: leave out --from-offset or --after")
    store = session.store()
    other = store if to_store is None else session.store(to_store)
    source, copied = LogAt(store, log), LogAt(other, target)
    if update and _update(source, copied, with_cursors=with_cursors, as_json=as_json):
        return
    begins = from_offset if after is None else LogAt(other, after)
    _copy(source, copied, begins, with_cursors=with_cursors, as_json=as_json)


def _place(source: LogAt, target: LogAt) -> str:
    """Name the target; with its store, if that is another one."""
    return target.log if target.store is source.store else plain(f"{target.log} in {target.store.url}")


def _held(done: CopyReport | CopyUpdateReport, first_offset: int, *, cursors: str, none: str) -> str:
    """Say what was copied or appended; ``none`` stands for no offsets, ``cursors`` for those that went along."""
    offsets = f"offsets {first_offset} to {done.next_offset - 1}" if done.num_records else none
    return (
        f"{counted(done.num_records, 'record')} ({offsets}), {size(done.num_bytes)},"
        f" {counted(done.num_fragments, 'fragment')}{cursors}; setsum {done.setsum} verified"
    )


def _copy(source: LogAt, target: LogAt, begins: int | LogAt | None, *, with_cursors: bool, as_json: bool) -> None:
    """Make a copy, and print what it holds."""
    with progress(f"copy {source.log}", None) as advance:
        copied = copy_log(source, target, from_offset=begins, with_cursors=with_cursors, progress=advance)
    for name in copied.pins_left:
        message = (
            f"the copy is complete, but {source.log} is still pinned as {name}, which could not be deleted:"
            f" wal3 --store {source.store.url} pin delete {source.log} {name}"
        )
        click.echo(plain(message), err=True)
    # A restore brings back the backup's, whatever the log had since.
    policy = PolicyStore(target.store, target.log).load()
    if as_json:
        print_json({"source": source.log, **copied.to_json(), "policy": policy_json(target.log, policy)})
        return
    cursors = f", {counted(copied.num_cursors, 'cursor')}" if with_cursors else ""
    resumed = " (begun by an earlier run)" if copied.resumed else ""
    held = _held(copied, copied.first_offset, cursors=cursors, none="no offsets")
    click.echo(f"copied {source.log} as of {time(copied.pinned_us)}{resumed} to {_place(source, target)}: {held}")
    click.echo(plain(f"its policy is that of {source.log}: {describe_policy(target.log, policy)}"))


def _update(source: LogAt, target: LogAt, *, with_cursors: bool, as_json: bool) -> bool:
    """Bring a copy up to date, and print what was appended; return False when there is no copy yet."""
    # A copy that was cut short is no log yet either: copying finishes it.
    try:
        LogReader.open(target.store, target.log).manifest()
    except LogNotFoundError:
        return False
    with progress(f"update {target.log}", None) as advance:
        updated = update_copy(source, target, with_cursors=with_cursors, progress=advance)
    cursors = f", {counted(updated.num_cursors, 'cursor')} moved" if with_cursors else ""
    held = _held(updated, updated.from_offset, cursors=cursors, none="nothing was missing")
    said = f"updated {_place(source, target)} from {source.log}: {held}"
    show(said, {"source": source.log, **updated.to_json()}, as_json=as_json)
    return True


@click.command()
@log_argument()
@click.option("--from", "from_store", metavar="URL", required=True, help="The store that holds a copy of LOG.")
@click.option("--from-log", metavar="NAME", type=LOG, help="The copy's name there; LOG by default.")
@click.option("--dry-run", is_flag=True, help="Name what would be repaired, and change nothing.")
@session_and_json
def repair(session: Session, log: str, from_store: str, from_log: str | None, dry_run: bool, as_json: bool) -> None:
    """Write LOG's damaged and missing files again, from a copy of LOG.

    The copy may come from `wal3 copy`, with --update or without. Reads all of LOG; of the copy, only what LOG lacks.
    Every file is checked against LOG's manifest before and after it is written; sound files are not changed. LOG may
    be written, read and collected meanwhile. After an interruption, run the command again.

    The exit code is 1 when something could not be repaired; each such file is named, with what helps.

    \b
    Examples:
      wal3 repair orders --from s3://backup --dry-run
      wal3 repair orders --from s3://backup
      wal3 repair orders --from s3://backup --from-log orders/w47
    """
    store = session.store()
    copied = LogAt(session.store(from_store), from_log or log)
    with progress(f"repair {log}", None) as advance:
        report = repair_log(LogAt(store, log), copied, dry_run=dry_run, progress=advance)
    show(lambda: _show(report), report.to_json(), as_json=as_json)
    exit_unless(report.complete)


def _show(report: RepairReport) -> None:
    for path in report.repaired:
        click.echo(f"{'would repair' if report.dry_run else 'repaired'} {plain(path)}")
    for problem in report.problems:
        click.echo(f"not repaired: {plain(' '.join(problem.message.split()))}")
    done = f"{counted(len(report.repaired), 'file')} {'can be repaired' if report.dry_run else 'repaired'}"
    left = f", {len(report.problems):,} not" if report.problems else ""
    sound = f"{counted(report.num_records, 'record')} in {counted(report.num_fragments, 'fragment')}"
    click.echo(f"{report.log}: {done}{left}; {sound} {'would be' if report.dry_run else 'are'} sound")
