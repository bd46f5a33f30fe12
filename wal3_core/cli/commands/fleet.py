"""``wal3 fleet``: how the servers that write many logs are doing, once or again and again."""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from wal3_core.cli.commands.dirty import NO_DIRTY_LOGS, say_cut, warn_of_clock
from wal3_core.cli.shell.failures import plain, unreadable
from wal3_core.cli.shell.output import count, counted, output_width, print_json, quiet_pipe, show_table, table
from wal3_core.cli.shell.session import Commands, Session, check_store, session_and_json
from wal3_core.cli.types import Duration, Whole, age_of
from wal3_core.fleet.dirty.rollup import fleet_status
from wal3_core.format.policy import UNPROCESSED_MAX, UNPROCESSED_MIN
from wal3_core.runtime import shared_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from wal3_core.fleet.dirty.rollup import FleetStatus, LogStatus
    from wal3_core.store.object_store import ObjectStore

    F = TypeVar("F", bound=Callable[..., object])

_STATUS = ("log", "age", "unprocessed", "limit", "farthest behind", "state")
_TOP = ("log", "unprocessed", "appended/s", "age", "limit", "farthest behind", "state")
_NUMBERS = ("age", "unprocessed", "limit", "appended/s")
_ROWS_MAX = 1_000_000

_url_argument = click.argument("url", required=False)


_limit_option = click.option(
    "--unprocessed-max",
    type=Whole(UNPROCESSED_MIN, UNPROCESSED_MAX),
    help="The limit of logs whose policy has none: that of your fleets' FleetOptions.",
)


def _rows_option(default: int) -> Callable[[F], F]:
    kind = Whole(1, _ROWS_MAX)
    return click.option("--limit", "rows_max", type=kind, default=default, show_default=True, help="Logs to show.")


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
    if as_json:
        print_json(found.to_json())
    else:
        _show(store, found, rows_max)
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
    click.echo(_summary(found))
    for name, waiting in found.markers.items():
        click.echo(plain(f"  {name}: {counted(waiting, 'marker')}"))
    if found.gone:
        click.echo(plain(f"marked, and gone: {', '.join(found.gone)}"))
    if found.logs:
        rows = (_cells(each, _STATUS) for each in found.logs[:rows_max])
        show_table(_STATUS, rows, numbers=_NUMBERS, texts=_STATUS[4:])
        say_cut(len(found.logs), rows_max)
    for each in found.over:
        click.echo(plain(each.reason))


def _summary(found: FleetStatus) -> str:
    markers = counted(sum(found.markers.values()), "marker")
    behind = f"{count(len(found.logs))} of {counted(found.num_marked, 'marked log')} with unprocessed records"
    oldest = f", the oldest marked {age_of(found.age_s)} ago" if found.logs else ""
    records = counted(found.num_unprocessed, "record")
    return f"{markers} waiting; {behind}: {records}{oldest}; {count(len(found.over))} over the limit"


def _cells(each: LogStatus, columns: Sequence[str], rate: float | None = None) -> tuple[str, ...]:
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
    rows = [_cells(each, _TOP, rates.get(each.log)) for each in logs]
    shown = [table(_TOP, rows, numbers=_NUMBERS, texts=_TOP[5:], width=output_width())] if rows else []
    return "\n".join([_summary(found), *shown])
