"""``wal3 dirty`` and ``wal3 fleet``: which logs have grown, by the dirty logs of their servers, and who lags behind."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from itertools import groupby
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from wal3_core.cli.shell.failures import Failure, plain, unreadable
from wal3_core.cli.shell.output import (
    count,
    counted,
    output_width,
    print_json,
    quiet_pipe,
    show,
    show_table,
    size,
    table,
)
from wal3_core.cli.shell.session import Commands, Session, check_store, session_and_json
from wal3_core.cli.types import CURSOR, LOG, SERVER, Duration, Whole, age_of
from wal3_core.errors import InvalidRequestError
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup import FinishedRollUp, FleetStatus, LogStatus, RollUp, RollUpEnd, fleet_status
from wal3_core.fleet.dirty.rollup_plan import Decision, MarkedLog, RollUpOptions, RollUpPlan
from wal3_core.format.paths import DIRTY, check_log_name
from wal3_core.options import UNPROCESSED_MAX, UNPROCESSED_MIN
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from wal3_core.cli.shell.session import F

_DUE = RollUpOptions()
_COUNT_MAX = 2**63 - 1
_ROWS_MAX = 1_000_000
_NAMED_MAX = 20
NO_DIRTY_LOGS = "no dirty logs: a server has one that opens its fleet by name (`Fleet.open(store, server=NAME)`)"

_COLUMNS = ("log", "decision", "records", "bytes", "age", "reinserted", "why")
# Decisions that ask for work come first. That about a log which several lanes have marked is the first of theirs.
_ORDER = (
    Decision.UNREADABLE,
    Decision.SELECTED,
    Decision.KEPT,
    Decision.UNDECIDED,
    Decision.CAUGHT_UP,
    Decision.GONE,
)
# Decisions about logs that can be handed out: others need nothing, or stay marked.
_HANDED_OUT = frozenset({Decision.KEPT, Decision.SELECTED})


@click.group(cls=Commands)
def dirty() -> None:
    """Show which logs have grown, and roll the dirty logs up.

    Each server marks the logs that it appends to in a dirty log of its own, dirty/SERVER; a busy one
    in several, its lanes dirty/SERVER/1, dirty/SERVER/2 and so on. A roll-up folds the markers, drops
    those of logs that need nothing, and selects the logs that are due.

    \b
    Examples:
      wal3 dirty show
      wal3 dirty rollup server-1 --dry-run
    """


def _rows_option(default: int, said: str = "Logs to show.") -> Callable[[F], F]:
    return click.option("--limit", "rows_max", type=Whole(1, _ROWS_MAX), default=default, show_default=True, help=said)


_SELECTING = (
    click.argument("server", type=SERVER, default=""),
    click.option(
        "--cursor",
        type=CURSOR,
        metavar="NAME",
        help="The cursor that says, in each log, what was processed; without it, nothing was.",
    ),
    click.option(
        "--age",
        "age_s",
        type=Duration(),
        default=_DUE.age_s_max,
        metavar="DURATION",
        help="Select a log when a record has been marked for longer; 1h.",
    ),
    click.option(
        "--records",
        type=Whole(1, _COUNT_MAX),
        default=_DUE.records_max,
        show_default=True,
        help="Select a log with so many unprocessed records.",
    ),
    click.option(
        "--bytes",
        "num_bytes",
        type=Whole(1, _COUNT_MAX),
        default=_DUE.bytes_max,
        show_default=True,
        help="Select a log with so many unprocessed bytes.",
    ),
    _rows_option(50, "Logs to show; --json has all."),
)


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Take the server, how many rows to show, and which logs are due."""

    @wraps(command)
    def with_options(
        *arguments: object, cursor: str | None, age_s: float, records: int, num_bytes: int, **others: object
    ) -> None:
        options = RollUpOptions(cursor=cursor, age_s_max=age_s, records_max=records, bytes_max=num_bytes)
        command(*arguments, options=options, **others)

    for option in reversed(_SELECTING):
        with_options = option(with_options)
    return with_options


@dirty.command("show")
@_selecting
@session_and_json
def show_dirty(session: Session, *, server: str, options: RollUpOptions, rows_max: int, as_json: bool) -> None:
    """Show what is marked in the dirty logs of SERVER, or of every one; changes nothing.

    Reads one manifest for each log marked in a dirty log, and no records. The exit code is 1 when a marked
    log cannot be read; the others are still shown.

    \b
    Examples:
      wal3 dirty show
      wal3 dirty show server-1 --cursor compactor --age 10m
      wal3 dirty show --json | jq -r 'select(.decision == "selected") | .log'
    """
    store = session.store()
    plans = [RollUp(store, name, options=options).read() for name in _named(store, server, as_json=as_json)]
    if as_json:
        for plan in plans:
            print_marked(plan)
    else:
        show_marked(plans, rows_max=rows_max, summed=options.cursor is None)
    warn_of(plans)
    _fail_if_unreadable(plans)


@dirty.command("rollup")
@_selecting
@click.option(
    "--handled",
    type=LOG,
    metavar="LOG",
    multiple=True,
    help="Hand LOG out: it is no longer marked, so maintain it after this command; can be given several times.",
)
@click.option("--all", "take_all", is_flag=True, help="Hand out every log with unprocessed records, due or not.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@session_and_json
def roll_up_dirty(  # noqa: PLR0913 - its options
    session: Session,
    *,
    server: str,
    options: RollUpOptions,
    rows_max: int,
    handled: tuple[str, ...],
    take_all: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Roll up the dirty logs of SERVER, or of every one: fold the markers, and drop those that need nothing.

    Prints the logs and what is decided about each. Hands nothing out unless --handled or --all says so:
    the logs that are due are shown as selected and stay marked, so nothing is forgotten. A log that is
    handed out is no longer marked for what it held when this command read it.

    Can be stopped at any time, started again, and run twice at once. If another roll-up is faster, the
    exit code is 1, and no log is handed out. If the store fails meanwhile, a log that may have been handed
    out is shown as that.

    \b
    Examples:
      wal3 dirty rollup --dry-run
      wal3 dirty rollup server-1 --cursor compactor
      wal3 dirty rollup server-1 --handled orders && wal3 gc orders
      wal3 dirty rollup --all --json | jq -r 'select(.handed_out) | .log'
    """
    if handled and take_all:
        raise InvalidRequestError("dirty rollup: expected --handled or --all, found both")
    store, options = session.store(), replace(options, take_all=take_all)
    names = {check_log_name(log) for log in handled}
    rollups = [RollUp(store, name, options=options) for name in _named(store, server, as_json=as_json)]
    read = [(rollup, rollup.read()) for rollup in rollups]
    plans = [plan for _, plan in read]
    _check_marked(names, plans, options)
    handed_out = {log for plan in plans for log in plan.selected} if take_all else names
    overtaken = _finish(read, handed_out, options, rows_max=rows_max, dry_run=dry_run, as_json=as_json)
    if overtaken:
        raise Failure(f"{', '.join(overtaken)}: another roll-up was faster, nothing was handed out: run this again")
    _fail_if_unreadable(plans)


def _finish(
    read: Sequence[tuple[RollUp, RollUpPlan]],
    handed_out: Collection[str],
    options: RollUpOptions,
    *,
    rows_max: int,
    dry_run: bool,
    as_json: bool,
) -> list[str]:
    """Finish roll-ups, and show what they did, as JSON at once; return the dirty logs where another one was faster.

    What was handed out must not be forgotten, so it is shown also if the store fails, or the command is interrupted:
    the cursor may have moved just before. A log that was not is maintained in vain, and stays marked.
    """
    shown: list[RollUpPlan] = []
    done: dict[str, FinishedRollUp] = {}
    overtaken: list[str] = []

    def add(plan: RollUpPlan) -> None:
        shown.append(plan)
        if as_json:
            print_marked(plan, handed_out)

    try:
        for rollup, plan in read:
            name = plan.marker_range.dirty_log
            try:
                ended = None if dry_run else rollup.finish(plan, handed_out)
            except BaseException:
                if any(is_handed_out(each, handed_out) for each in plan.logs):
                    add(plan)
                    message = f"{name}: not known whether its logs were handed out: maintain those shown"
                    click.echo(plain(message), err=True)
                raise
            if ended is not None and ended.outcome is RollUpEnd.OVERTAKEN:
                overtaken.append(name)
                continue
            add(plan)
            done |= {} if ended is None else {name: ended}
    finally:
        if not as_json:
            handing, summed = "to be handed out" if dry_run else "handed out", options.cursor is None
            show_marked(shown, rows_max=rows_max, summed=summed, handed_out=handed_out, handing=handing)
            _show_done(done)
        warn_of(shown)
    return overtaken


def _named(store: ObjectStore, server: str, *, as_json: bool) -> list[str]:
    """Return the dirty logs of a server, which may be given by the name of one of them, or every one."""
    found = dirty_logs(store)
    if not found:
        check_store(store)
    if server:
        name = check_log_name(f"{DIRTY}/{server}")
        # A busy server has further ones below its first.
        mine = [each for each in found if f"{each}/".startswith(f"{name}/")]
        if not mine:
            servers = _listed({server_of(each).removeprefix(f"{DIRTY}/") for each in found})
            raise InvalidRequestError(f"expected a server with a dirty log{servers}, found {server!r}")
        return mine
    if not found and not as_json:
        click.echo(NO_DIRTY_LOGS)
    return found


def _listed(servers: Collection[str]) -> str:
    if not servers:
        return ", of which there is none"
    names, more = sorted(servers)[:_NAMED_MAX], len(servers) - _NAMED_MAX
    return f" ({', '.join(names)}{f' and {more} more' if more > 0 else ''})"


def _check_marked(names: Collection[str], plans: list[RollUpPlan], options: RollUpOptions) -> None:
    """Refuse to hand out what is not marked: it is a mistyped name, or was handed out before."""
    missing = sorted(set(names) - {each.log for plan in plans for each in plan.logs})
    if not missing:
        return
    cut = any(plan.marker_range.num_markers >= options.markers_max for plan in plans)
    among = f" among the first {count(options.markers_max)} markers of each dirty log" if cut else ""
    found = f"found no marker{among} of {', '.join(missing)}"
    message = f"dirty rollup --handled: expected marked logs, {found}: mistyped, or handed out before; see dirty show"
    raise InvalidRequestError(message)


def _show_done(done: Mapping[str, FinishedRollUp]) -> None:
    # Lanes of a server need not be neighbours: dirty/web, dirty/web-2, dirty/web/1.
    for server, names in groupby(sorted(done, key=server_of), server_of):
        advanced = [name for name in names if done[name].outcome is RollUpEnd.ADVANCED]
        if not advanced:
            click.echo(f"{server}: nothing to do")
        for name in advanced:
            ended = done[name]
            folded = f"{counted(ended.num_markers, 'marker')} became {count(ended.num_reinserted)}"
            click.echo(f"{name}: rolled up to offset {ended.limit}: {folded}")


def _fail_if_unreadable(plans: list[RollUpPlan]) -> None:
    damage = {each.log: each.reason for plan in plans for each in plan.unreadable}
    if damage:
        raise unreadable(damage)


# ---------------------------------------------------------------------- what is shown


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


# ---------------------------------------------------------------------- how far behind consumers are

_STATUS = ("log", "age", "unprocessed", "limit", "farthest behind", "state")
_TOP = ("log", "unprocessed", "appended/s", "age", "limit", "farthest behind", "state")
_NUMBERS = ("age", "unprocessed", "limit", "appended/s")

_url_argument = click.argument("url", required=False)


_limit_option = click.option(
    "--unprocessed-max",
    type=Whole(UNPROCESSED_MIN, UNPROCESSED_MAX),
    help="The limit of logs whose policy has none: that of your fleets' FleetOptions.",
)


@click.group(cls=Commands)
def fleet() -> None:
    """Show the logs that the servers have marked, and how far behind their consumers are.

    Looks only at logs that are marked in the dirty logs of the servers, dirty/SERVER.

    \b
    Examples:
      wal3 fleet status
      wal3 fleet top --sort rate
    """


@fleet.command("status")
@_url_argument
@_limit_option
@_rows_option(50)
@session_and_json
def show_status(session: Session, url: str | None, unprocessed_max: int | None, rows_max: int, as_json: bool) -> None:
    """Show the markers that wait, and the marked logs with unprocessed records, the one marked first first.

    Unprocessed is what the cursor that is farthest behind has not passed; in a log without cursors, all that it
    holds. Changes nothing. The exit code is 1 when a marked log cannot be read; the others are still shown.
    URL replaces --store.

    \b
    Examples:
      wal3 fleet status
      wal3 fleet status s3://bucket/prefix --unprocessed-max 1000000
      wal3 fleet status --json | jq -r '.over[]'
    """
    store = session.store(url)
    found = fleet_status(store, unprocessed_max)
    show(lambda: _show(store, found, rows_max), found.to_json(), as_json=as_json)
    warn_of_clock(found.guessed)
    if found.unreadable:
        raise unreadable(found.unreadable)


@fleet.command("top")
@_url_argument
@_limit_option
@click.option(
    "--interval",
    "interval_s",
    type=Duration(0.1),
    default=5.0,
    metavar="DURATION",
    help="How long to wait between two looks; 5s.",
)
@click.option(
    "--sort",
    type=click.Choice(["unprocessed", "rate", "age"]),
    default="unprocessed",
    show_default=True,
    help="Which logs come first; the rate is that of appends since the last look.",
)
@_rows_option(20)
@click.option("--looks", type=Whole(1), help="End after so many looks.")
@session_and_json
def show_top(  # noqa: PLR0913, PLR0917 - its options
    session: Session,
    url: str | None,
    unprocessed_max: int | None,
    interval_s: float,
    sort: str,
    rows_max: int,
    looks: int | None,
    as_json: bool,
) -> None:
    """Show the marked logs with the most unprocessed records, again and again until Ctrl-C.

    Each look costs as much as `wal3 fleet status`. With --json, one object for each look. URL replaces --store.

    \b
    Examples:
      wal3 fleet top
      wal3 fleet top --sort rate --limit 5 --interval 1s
      wal3 fleet top --looks 2 --json | jq -c '.logs[] | [.log, .appended_per_s]'
    """
    store, runtime = session.store(url), shared_runtime()
    before: dict[str, int] = {}
    before_s = 0.0
    with quiet_pipe(), _screen(as_json=as_json) as show:
        for look in itertools.count(1):
            now_s, found = runtime.monotonic_s(), fleet_status(store, unprocessed_max)
            rates = _rates(found, before, now_s - before_s)
            show(found, rates, sorted(found.logs, key=_order(sort, rates))[:rows_max])
            before, before_s = {each.log: each.pressure.next for each in found.logs}, now_s
            if look == looks:
                return
            runtime.sleep(interval_s)


# ---------------------------------------------------------------------- once


def _show(store: ObjectStore, found: FleetStatus, rows_max: int) -> None:
    if not found.markers and not found.unreadable:
        check_store(store)
        click.echo(NO_DIRTY_LOGS)
        return
    click.echo(_status_line(found))
    for name, waiting in found.markers.items():
        click.echo(plain(f"  {name}: {counted(waiting, 'marker')}"))
    if found.gone:
        click.echo(plain(f"marked, and gone: {', '.join(found.gone)}"))
    if found.logs:
        rows = (_status_cells(each, _STATUS) for each in found.logs[:rows_max])
        show_table(_STATUS, rows, numbers=_NUMBERS, texts=_STATUS[4:])
        say_cut(len(found.logs), rows_max)
    for each in found.over:
        click.echo(plain(each.reason))


def _status_line(found: FleetStatus) -> str:
    markers = counted(sum(found.markers.values()), "marker")
    behind = f"{count(len(found.logs))} of {counted(found.num_marked, 'marked log')} with unprocessed records"
    oldest = f", the oldest marked {age_of(found.age_s)} ago" if found.logs else ""
    records = counted(found.num_unprocessed, "record")
    return f"{markers} waiting; {behind}: {records}{oldest}; {count(len(found.over))} over the limit"


def _status_cells(each: LogStatus, columns: Sequence[str], rate: float | None = None) -> tuple[str, ...]:
    pressure = each.pressure
    cells = {
        "log": each.log,
        "age": age_of(each.age_s),
        "unprocessed": count(pressure.unprocessed),
        "appended/s": "-" if rate is None else f"{rate:,.1f}",
        "limit": "-" if pressure.limit is None else count(pressure.limit),
        "farthest behind": pressure.consumer or "no cursor",
        "state": "over the limit" if pressure.over else "",
    }
    return tuple(plain(cells[column]) for column in columns)


# ---------------------------------------------------------------------- again and again


def _rates(found: FleetStatus, before: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Return the records appended a second since the last look, of the logs that were there then."""
    return {
        each.log: (each.pressure.next - before[each.log]) / seconds
        for each in found.logs
        # A log of that name that was created since may have ended below.
        if seconds and each.pressure.next >= before.get(each.log, each.pressure.next + 1)
    }


def _order(sort: str, rates: Mapping[str, float]) -> Callable[[LogStatus], tuple[float, int, str]]:
    def key(each: LogStatus) -> tuple[float, int, str]:
        first = {"rate": rates.get(each.log, -1.0), "age": each.age_s}.get(sort, 0.0)
        return -first, -each.pressure.unprocessed, each.log

    return key


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Callable[[FleetStatus, Mapping[str, float], Sequence[LogStatus]], None]]:
    """Show the fleet again and again: on a terminal in place of what was there, else one after the other."""
    if as_json:
        yield _print_json
    elif sys.stdout.isatty():
        with Live(console=Console(markup=False, emoji=False, highlight=False), auto_refresh=False) as live:
            yield lambda *shown: live.update(Text.from_ansi(_described(*shown)), refresh=True)
    else:
        yield _print


def _print_json(found: FleetStatus, rates: Mapping[str, float], logs: Sequence[LogStatus]) -> None:
    shown = [{**each.to_json(), "appended_per_s": rates.get(each.log)} for each in logs]
    print_json({**found.to_json(), "logs": shown})


def _print(found: FleetStatus, rates: Mapping[str, float], logs: Sequence[LogStatus]) -> None:
    click.echo(_described(found, rates, logs))
    sys.stdout.flush()


def _described(found: FleetStatus, rates: Mapping[str, float], logs: Sequence[LogStatus]) -> str:
    rows = [_status_cells(each, _TOP, rates.get(each.log)) for each in logs]
    shown = [table(_TOP, rows, numbers=_NUMBERS, texts=_TOP[5:], width=output_width())] if rows else []
    return "\n".join([_status_line(found), *shown])
