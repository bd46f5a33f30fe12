"""``wal3 destroy``."""

from __future__ import annotations

import click

from wal3_core.cli.shell.failures import Failure, plain
from wal3_core.cli.shell.output import count, counted, progress, require_terminal, show, show_table, size
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import log_argument
from wal3_core.log.maintain.destroyer import DestroyPlan, plan_destroy, undo_destroy
from wal3_core.log.maintain.destroyer import destroy as destroy_log
from wal3_core.store.object_store import ObjectStore

_COLUMNS = ("objects", "how many", "bytes")


@click.command()
@log_argument()
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--also-pinned", is_flag=True, help="Destroy a log that has pins, and delete the pins too.")
@click.option("--undo", is_flag=True, help="Take back a destroy that was cut short, if LOG is still there.")
@session_and_json
def destroy(  # noqa: PLR0913, PLR0917 - one parameter for each option
    session: Session, log: str, dry_run: bool, yes: bool, also_pinned: bool, undo: bool, as_json: bool
) -> None:
    """Delete LOG and everything that belongs to it, for good.

    Shows what would be deleted, and asks for the log's name; without a terminal, --yes is required. Logs
    below LOG (LOG/…) are separate and stay. If LOG's folder contains an object that belongs to no log,
    nothing is deleted. LOG is sealed first, so its writers fail. After an interruption, run it again; or with --undo
    as long as LOG is there: then it can be pinned and copied again, and, if it was not sealed yet, appended to.

    \b
    Examples:
      wal3 destroy trial --dry-run
      wal3 destroy trial
      wal3 destroy trial --yes
      wal3 destroy trial --undo
    """
    if undo and (dry_run or yes or also_pinned):
        raise click.UsageError("--undo: expected no --dry-run, --yes or --also-pinned, since nothing is destroyed")
    store = session.store()
    if undo:
        _undo(store, log, as_json=as_json)
        return
    plan = plan_destroy(store, log)
    if dry_run:
        show(lambda: _show(plan), plan.to_json(), as_json=as_json)
        return
    if not yes:
        _confirm(plan)
    with progress(f"destroy {log}", plan.num_objects) as advance:
        deleted = destroy_log(store, log, also_pinned=also_pinned, progress=advance)
    said = f"destroyed {log}: {counted(deleted, 'object')} deleted"
    show(said, {"log": log, "num_objects": deleted}, as_json=as_json)


def _undo(store: ObjectStore, log: str, *, as_json: bool) -> None:
    seal = undo_destroy(store, log)
    state = "" if seal is None else f"; it stays sealed, for good: {seal.reason}: `wal3 copy` makes an open log of it"
    said = plain(f"{log} is not being destroyed any more: it can be pinned and copied{state}")
    document = {"log": log, "destroying": False, "seal": None if seal is None else seal.to_json()}
    show(said, document, as_json=as_json)


def _confirm(plan: DestroyPlan) -> None:
    require_terminal(f"log {plan.log}", "for the log's name")
    _show(plan)
    if click.prompt("Type the log's name to destroy it", default="", show_default=False) != plan.log:
        raise Failure(f"log {plan.log}: expected its name, found another: nothing was deleted")


def _show(plan: DestroyPlan) -> None:
    rows = [(str(part.kind), count(part.num_objects), size(part.num_bytes)) for part in plan.parts]
    rows.append(("total", count(plan.num_objects), size(plan.num_bytes)))
    show_table(_COLUMNS, rows, numbers=_COLUMNS[1:])
    if plan.destroying:
        click.echo("being destroyed already, by another process or one that was cut short: --undo takes that back")
    if plan.pins:
        click.echo(f"pins (deleted with --also-pinned): {', '.join(plan.pins)}")
