"""``wal3 repair``."""

from __future__ import annotations

import click

from wal3_core.cli.failures import EXIT_UNSOUND
from wal3_core.cli.names import LOG, log_argument
from wal3_core.cli.output import counted, plain, print_json, progress
from wal3_core.cli.session import Session, json_option, open_named
from wal3_core.log.maintain.copy.copier import LogAt
from wal3_core.log.maintain.repair import RepairReport, repair_log


@click.command()
@log_argument()
@click.option("--from", "from_store", metavar="URL", required=True, help="The store that holds a copy of LOG.")
@click.option("--from-log", metavar="NAME", type=LOG, help="The copy's name there; LOG by default.")
@click.option("--dry-run", is_flag=True, help="Name what would be repaired, and change nothing.")
@json_option
@click.pass_context
def repair(
    context: click.Context,
    log: str,
    from_store: str,
    from_log: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
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
    session = context.find_object(Session)
    assert session is not None
    store = session.store()
    copied = LogAt(open_named(from_store, timeout_s=session.timeout_s), from_log or log)
    with progress(f"repair {log}", None) as advance:
        report = repair_log(LogAt(store, log), copied, dry_run=dry_run, progress=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if not report.complete:
        context.exit(EXIT_UNSOUND)


def _show(report: RepairReport) -> None:
    for path in report.repaired:
        click.echo(f"{'would repair' if report.dry_run else 'repaired'} {plain(path)}")
    for problem in report.problems:
        click.echo(f"not repaired: {plain(' '.join(problem.message.split()))}")
    done = f"{counted(len(report.repaired), 'file')} {'can be repaired' if report.dry_run else 'repaired'}"
    left = f", {len(report.problems):,} not" if report.problems else ""
    sound = f"{counted(report.num_records, 'record')} in {counted(report.num_fragments, 'fragment')}"
    click.echo(f"{report.log}: {done}{left}; {sound} {'would be' if report.dry_run else 'are'} sound")
