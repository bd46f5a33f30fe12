"""What ``wal3 dirty`` prints: a line for each server, and one table in which each marked log stands once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wal3_core.cli.output import count, counted, plain, print_json, size
from wal3_core.cli.tables import show_table
from wal3_core.cli.times import age_of
from wal3_core.fleet.dirty.rollup_plan import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wal3_core.fleet.dirty.rollup_plan import MarkedLog, RollUpPlan

NO_DIRTY_LOGS = "no dirty logs: a server has one that opens its fleet by name (`Fleet.open(store, server=NAME)`)"

_COLUMNS = ("log", "decision", "records", "bytes", "age", "reinserted", "why")
# What asks for work comes first. The decision about a log that several lanes have marked is the first of theirs.
_ORDER = (
    Decision.UNREADABLE,
    Decision.SELECTED,
    Decision.KEPT,
    Decision.UNDECIDED,
    Decision.CAUGHT_UP,
    Decision.GONE,
)
# Only these can be handed out: the others need nothing, or stay marked.
_HANDED_OUT = frozenset({Decision.KEPT, Decision.SELECTED})


def server_of(dirty_log: str) -> str:
    """Return the name of a server's first dirty log, of which this is a lane."""
    return "/".join(dirty_log.split("/")[:2])


def print_marked(plan: RollUpPlan, handed_out: Collection[str] | None = None) -> None:
    """Print a JSON object for each log that is marked in one dirty log."""
    for each in plan.logs:
        more = {} if handed_out is None else {"handed_out": is_handed_out(each, handed_out)}
        print_json({"dirty_log": plan.marker_range.dirty_log, **each.to_json(), **more})


def is_handed_out(each: MarkedLog, handed_out: Collection[str]) -> bool:
    """Whether a log that is named is no longer marked afterwards."""
    return each.log in handed_out and each.decision in _HANDED_OUT


def show_marked(
    plans: Sequence[RollUpPlan],
    *,
    rows_max: int,
    summed: bool,
    handed_out: Collection[str] = (),
    handing: str = "handed out",
) -> None:
    """Print a line for each server and a table of the marked logs, cut to ``rows_max``.

    ``summed``: lanes count different records of a log. Else each counts all records behind the log's cursor.
    ``handing`` is what stands at the logs that are handed out.
    """
    by_server: dict[str, list[RollUpPlan]] = {}
    by_log: dict[str, list[MarkedLog]] = {}
    for plan in plans:
        by_server.setdefault(server_of(plan.marker_range.dirty_log), []).append(plan)
        for each in plan.logs:
            by_log.setdefault(each.log, []).append(each)
    for server, lanes in by_server.items():
        click.echo(plain(_summary(server, lanes)))
    given = {log for log, lanes in by_log.items() if any(is_handed_out(each, handed_out) for each in lanes)}
    logs = sorted(by_log.values(), key=lambda lanes: (lanes[0].log not in given, *_urgency(lanes)))
    if logs:
        total: Callable[..., int] = sum if summed else max
        rows = (_cells(lanes, total, handing if lanes[0].log in given else "") for lanes in logs[:rows_max])
        show_table(_COLUMNS, rows, numbers=_COLUMNS[2:6], texts=("why",))
    say_cut(len(logs), rows_max)


def say_cut(num_logs: int, rows_max: int) -> None:
    """Say how many logs a table that is cut to ``rows_max`` leaves out, if any."""
    if num_logs > rows_max:
        click.echo(f"and {count(num_logs - rows_max)} more: --limit {num_logs} or --json shows them")


def warn_of(plans: Sequence[RollUpPlan]) -> None:
    """Print on stderr by which clock ages are if not the store's, and which markers were lost."""
    warn_of_clock(next((plan.guessed for plan in plans if plan.guessed is not None), None))
    for plan in plans:
        if plan.marker_range.skipped:
            lost = f"{counted(plan.marker_range.skipped, 'marker')} collected before a roll-up"
            click.echo(
                plain(f"{plan.marker_range.dirty_log}: {lost}: only a sweep over all logs finds what they marked"),
                err=True,
            )


def warn_of_clock(guessed: str | None) -> None:
    """Print on stderr why ages are not by the store's clock."""
    if guessed is not None:
        click.echo(plain(f"ages are by this machine's clock, the store's time is not known: {guessed}"), err=True)


def _summary(server: str, lanes: Sequence[RollUpPlan]) -> str:
    marked = {each.log for plan in lanes for each in plan.logs}
    selected = {log for plan in lanes for log in plan.selected}
    # The server may be asked for by one of its lanes alone.
    name = server if len(lanes) > 1 else lanes[0].marker_range.dirty_log
    within = f" in {len(lanes)} lanes" if len(lanes) > 1 else ""
    markers = counted(sum(plan.marker_range.num_markers for plan in lanes), "marker")
    return f"{name}: {markers}{within}, {counted(len(marked), 'marked log')}, {count(len(selected))} selected"


def _first(lanes: Sequence[MarkedLog]) -> MarkedLog:
    return min(lanes, key=lambda each: (_ORDER.index(each.decision), -each.age_s))


def _urgency(lanes: Sequence[MarkedLog]) -> tuple[int, float, str]:
    return _ORDER.index(_first(lanes).decision), -max(each.age_s for each in lanes), lanes[0].log


def _cells(lanes: Sequence[MarkedLog], total: Callable[..., int], handing: str) -> tuple[str, ...]:
    first = _first(lanes)
    decision = handing or first.decision.value
    return (
        first.log,
        f"{decision}, over the limit" if any(each.over for each in lanes) else decision,
        count(total(each.num_records for each in lanes)),
        size(max(each.num_bytes for each in lanes)),
        age_of(max(each.age_s for each in lanes)),
        count(max(each.marker.reinsertions for each in lanes)),
        first.reason,
    )
