"""``wal3 dirty``: which logs have grown, by the dirty logs of their servers, and which of them are due."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from wal3_core.cli.completing import complete_logs
from wal3_core.cli.failures import Failure
from wal3_core.cli.output import count, counted, print_json, size
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.tables import show_table
from wal3_core.cli.targets import check_store
from wal3_core.errors import InvalidRequestError
from wal3_core.fleet.assignment import DIRTY, dirty_logs
from wal3_core.fleet.rollup import RollUp, RollUpEnd
from wal3_core.model.paths import check_log_name
from wal3_core.model.rollup_options import RollUpOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeVar

    from wal3_core.fleet.rollup import FinishedRollUp
    from wal3_core.model.rollup import MarkedLog
    from wal3_core.model.rollup_plan import RollUpPlan
    from wal3_core.storage.object_store import ObjectStore

    F = TypeVar("F", bound=Callable[..., object])

_COLUMNS = ("log", "decision", "records", "bytes", "age", "reinserted", "why")
_NONE = "no dirty logs: a server that marks what it appends has one"


@click.group()
def dirty() -> None:
    """Show which logs have grown, and roll the dirty logs up.

    Each server marks the logs that it appends to in a dirty log of its own, dirty/SERVER. A roll-up
    folds the markers, drops those of logs that need nothing, and selects the logs that are due.

    \b
    Examples:
      wal3 dirty show
      wal3 dirty rollup server-1 --dry-run
    """


def _server(command: F) -> F:
    return click.argument("server", default="")(command)


_cursor_option = click.option(
    "--cursor", metavar="NAME", help="The cursor that says, in each log, what was processed; without it, nothing was."
)


@dirty.command("show")
@_server
@_cursor_option
@json_option
@pass_session
def show_dirty(session: Session, server: str, cursor: str | None, as_json: bool) -> None:
    """Show what is marked in the dirty log of SERVER, or in every one; changes nothing.

    Reads one manifest for each marked log, and no records. The exit code is 1 when a marked log cannot be
    read; the others are still shown.

    \b
    Examples:
      wal3 dirty show
      wal3 dirty show server-1 --cursor compactor
      wal3 dirty show --json | jq -r 'select(.decision == "selected") | .log'
    """
    store = session.store()
    options = RollUpOptions(cursor=cursor)
    plans = [RollUp(store, name, options=options).read() for name in _named(store, server, as_json=as_json)]
    for plan in plans:
        _show(plan, as_json=as_json)
    _fail_if_unreadable(plans)


@dirty.command("rollup")
@_server
@_cursor_option
@click.option(
    "--handled",
    metavar="LOG",
    multiple=True,
    shell_complete=complete_logs,
    help="Hand LOG out: it is no longer marked, so maintain it after this command; can be given several times.",
)
@click.option("--all", "take_all", is_flag=True, help="Hand out every dirty log, due or not.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@json_option
@pass_session
def roll_up_dirty(  # noqa: PLR0913 - its options
    session: Session,
    *,
    server: str,
    cursor: str | None,
    handled: tuple[str, ...],
    take_all: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Roll up the dirty log of SERVER, or every one: fold its markers, and drop those that need nothing.

    Prints the logs and what is decided about each. Hands nothing out unless --handled or --all says so:
    the logs that are due are shown as selected and stay marked, so nothing is forgotten. A log that is
    handed out is no longer marked for what it held when this command read it.

    Can be stopped at any time, started again, and run twice at once. If another roll-up is faster, the
    exit code is 1, and no log is handed out.

    \b
    Examples:
      wal3 dirty rollup --dry-run
      wal3 dirty rollup server-1 --cursor compactor
      wal3 dirty rollup server-1 --handled orders && wal3 gc orders
      wal3 dirty rollup --all --json | jq -r 'select(.decision == "selected") | .log'
    """
    if handled and take_all:
        message = "dirty rollup: expected --handled or --all, found both"
        raise InvalidRequestError(message)
    store = session.store()
    names = [check_log_name(log) for log in handled]
    plans: list[RollUpPlan] = []
    overtaken: list[str] = []
    for name in _named(store, server, as_json=as_json):
        rollup = RollUp(store, name, options=replace(RollUpOptions(cursor=cursor), take_all=take_all))
        plan = rollup.read()
        handed_out = plan.selected if take_all else names
        done = None if dry_run else rollup.finish(plan, handed_out)
        if done is not None and done.outcome is RollUpEnd.OVERTAKEN:
            overtaken.append(name)
            continue
        plans.append(plan)
        _show(plan, as_json=as_json, handed_out=handed_out)
        if done is not None and not as_json:
            _show_done(name, done)
    if overtaken:
        raise Failure(f"{', '.join(overtaken)}: another roll-up was faster, nothing was handed out: run this again")
    _fail_if_unreadable(plans)


def _named(store: ObjectStore, server: str, *, as_json: bool) -> list[str]:
    """Return the dirty logs of a server, or every one; the name of its first if it has none."""
    found = dirty_logs(store)
    if server:
        name = check_log_name(f"{DIRTY}/{server}")
        # A busy server has further ones below its first.
        return [each for each in found if f"{each}/".startswith(f"{name}/")] or [name]
    if not found:
        check_store(store)
        if not as_json:
            click.echo(_NONE)
    return found


def _show(plan: RollUpPlan, *, as_json: bool, handed_out: Collection[str] | None = None) -> None:
    name, skipped = plan.stretch.dirty_log, plan.stretch.skipped
    if as_json:
        for each in plan.logs:
            more = {} if handed_out is None else {"handed_out": each.log in handed_out}
            print_json({"dirty_log": name, **each.to_json(), **more})
    else:
        dirty_ones = counted(len(plan.dirty), "dirty log")
        click.echo(
            f"{name}: {counted(plan.stretch.num_markers, 'marker')}, {dirty_ones}, {len(plan.selected)} selected"
        )
        if plan.logs:
            show_table(_COLUMNS, map(_cells, plan.logs), numbers=_COLUMNS[2:6], texts=("why",))
    if skipped:
        lost = f"{counted(skipped, 'marker')} collected before a roll-up"
        click.echo(f"{name}: {lost}: only a sweep over all logs finds what they marked", err=True)


def _cells(each: MarkedLog) -> tuple[str, ...]:
    return (
        each.log,
        f"{each.decision.value}, over the limit" if each.over else each.decision.value,
        count(each.num_records),
        size(each.num_bytes),
        str(timedelta(seconds=int(each.age_s))),
        count(each.marker.reinsertions),
        each.reason,
    )


def _show_done(name: str, done: FinishedRollUp) -> None:
    if done.outcome is RollUpEnd.NOTHING_TO_DO:
        click.echo(f"{name}: nothing to do")
        return
    kept = f"{counted(done.num_reinserted, 'marker')} for {count(done.num_markers)}"
    click.echo(f"{name}: rolled up to offset {done.limit}: {kept}")


def _fail_if_unreadable(plans: list[RollUpPlan]) -> None:
    unreadable = [f"{each.log}: {each.reason}" for plan in plans for each in plan.unreadable]
    if unreadable:
        raise Failure(f"{len(unreadable)} unreadable: {'; '.join(unreadable)}")
