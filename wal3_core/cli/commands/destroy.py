"""``wal3 destroy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wal3_core.cli.asking import require_terminal
from wal3_core.cli.failures import Failure
from wal3_core.cli.names import log_argument
from wal3_core.cli.output import console, count, counted, plain, print_json, progress, size
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.tables import show_table
from wal3_core.log.maintain.destroyer import DestroyPlan, plan_destroy, undo_destroy
from wal3_core.log.maintain.destroyer import destroy as destroy_log

if TYPE_CHECKING:
    from wal3_core.storage.object_store import ObjectStore

_COLUMNS = ("objects", "how many", "bytes")


@click.command()
@log_argument()
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--also-pinned", is_flag=True, help="Destroy a log that has pins, and delete the pins too.")
@click.option("--undo", is_flag=True, help="Take back a destroy that was cut short, if LOG is still there.")
@json_option
@pass_session
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
    store = session.store()
    if undo:
        if dry_run or yes or also_pinned:
            message = "--undo: expected no --dry-run, --yes or --also-pinned, since nothing is destroyed"
            raise click.UsageError(message)
        _undo(store, log, as_json=as_json)
        return
    plan = plan_destroy(store, log)
    if dry_run:
        _show(plan, as_json=as_json)
        return
    if not yes:
        _confirm(plan)
    with progress(f"destroy {log}", plan.num_objects) as advance:
        deleted = destroy_log(store, log, also_pinned=also_pinned, progress=advance)
    if as_json:
        print_json({"log": log, "num_objects": deleted})
    else:
        click.echo(f"destroyed {log}: {counted(deleted, 'object')} deleted")


def _undo(store: ObjectStore, log: str, *, as_json: bool) -> None:
    seal = undo_destroy(store, log)
    if as_json:
        print_json({"log": log, "destroying": False, "seal": None if seal is None else seal.to_json()})
        return
    state = "" if seal is None else f"; it stays sealed, for good: {seal.reason}: `wal3 copy` makes an open log of it"
    click.echo(plain(f"{log} is not being destroyed any more: it can be pinned and copied{state}"))


def _confirm(plan: DestroyPlan) -> None:
    require_terminal(f"log {plan.log}", "for the log's name")
    _show(plan, as_json=False)
    if click.prompt("Type the log's name to destroy it", default="", show_default=False) != plan.log:
        message = f"log {plan.log}: expected its name, found another: nothing was deleted"
        raise Failure(message)


def _show(plan: DestroyPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({**plan.to_json(), "pins": list(plan.pins)})
        return
    rows = [(str(part.kind), count(part.num_objects), size(part.num_bytes)) for part in plan.parts]
    rows.append(("total", count(plan.num_objects), size(plan.num_bytes)))
    show_table(_COLUMNS, rows, numbers=_COLUMNS[1:])
    if plan.destroying:
        console().print("being destroyed already, by another process or one that was cut short: --undo takes that back")
    if plan.pins:
        console().print(f"pins (deleted with --also-pinned): {', '.join(plan.pins)}")
