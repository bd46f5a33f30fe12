"""``wal3 gc``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import click

from wal3_core.cli.shell.failures import exit_unless, explain
from wal3_core.cli.shell.output import count, counted, print_json, progress, show_table, size
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import Decimal, Duration, Whole, log_argument, wait_of, with_durations
from wal3_core.errors import CollectionRefusedError, LogError
from wal3_core.format.garbage import Garbage
from wal3_core.format.strict_json import JsonObject
from wal3_core.log.collect.collector import CollectionReport, Collector, Plan, collect
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.store.object_store import ObjectStore

# The rows of the table that are about a log, and whether nothing is wrong with it.
Done = tuple[list[tuple[str, ...]], bool]
# A collection that an earlier run began: when it can be deleted from now, and what is deleted then.
Begun = tuple[Garbage, float, list[str]]

_DEFAULTS = CollectorOptions()
_COLUMNS = ("log", "pruned records", "pruned bytes", "orphans", "deleted objects", "held by pins", "why", "to wait")


@click.command("gc")
@log_argument("logs", many=True)
@click.option("--all", "all_logs", is_flag=True, help="Collect every log of the store.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would be deleted, why, and what pins hold; writes only gc/CLOCK, to learn the store's time.",
)
@click.option(
    "--interval-s",
    "--interval",
    "interval_s",
    metavar="DURATION",
    type=Duration(),
    default=_DEFAULTS.interval_s,
    show_default=True,
    help="Seconds (or 6h, 2d) between pruning and deleting; must exceed the longest read of an older manifest.",
)
@click.option(
    "--fraction-max",
    type=Decimal(0, 1),
    default=_DEFAULTS.fraction_max,
    show_default=True,
    help="Refuse to prune more than this fraction of a log's bytes; 1 allows all.",
)
@click.option(
    "--up-to-offset",
    type=Whole(min=1),
    help="Keep every record from this offset on, whatever the cursors say.",
)
@click.option("--without-cursors", is_flag=True, help="Allow a log that has no cursor; needs --up-to-offset.")
@click.option(
    "--orphans/--no-orphans",
    default=True,
    show_default=True,
    help="Look for objects that nothing refers to; lists every object of the log.",
)
@session_and_json
def gc(  # noqa: PLR0913 - its options
    session: Session,
    /,
    logs: tuple[str, ...],
    *,
    all_logs: bool,
    dry_run: bool,
    interval_s: float,
    fraction_max: float,
    up_to_offset: int | None,
    without_cursors: bool,
    orphans: bool,
    as_json: bool,
) -> None:
    """Collect garbage: prune records below every cursor, delete what was pruned an interval ago.

    Appends and reads continue meanwhile. Objects that a manifest or a pin refers to are kept. Run it
    regularly: each run finishes what earlier runs left, even if they were killed. Refused: a log
    without cursors, unless its policy says that it has none (see `wal3 policy`), and a log that would
    lose nearly everything: find out why, then allow it with --fraction-max. With --all, a log without
    cursors is skipped and named; that is no failure.

    \b
    Examples:
      wal3 gc orders --dry-run
      wal3 gc --all
      wal3 gc orders --fraction-max 1 --interval-s 3600
      wal3 gc audit --without-cursors --up-to-offset 1000000
    """
    if without_cursors and up_to_offset is None:
        raise click.UsageError("--without-cursors needs --up-to-offset: nothing else limits the collection")
    options = replace(
        _DEFAULTS,
        interval_s=interval_s,
        fraction_max=fraction_max,
        without_cursors=without_cursors,
        orphans_max=_DEFAULTS.orphans_max if orphans else 0,
    )
    store, named = session.named_logs(logs, all_logs=all_logs, verb="collect", as_json=as_json)
    run = partial(_dry_run if dry_run else _collect, store, up_to_offset, options, as_json=as_json)
    rows: list[tuple[str, ...]] = []
    sound = True
    try:
        for log in named:
            try:
                shown, whole = run(log)
            except LogError as error:
                if len(logs) == 1:
                    raise
                # A log that cannot be collected must not stop the others.
                shown, whole = _refused(log, error, named=not all_logs, dry_run=dry_run, as_json=as_json)
            rows += shown
            sound &= whole
    finally:
        if rows:
            show_table(_COLUMNS, rows, numbers=_COLUMNS[1:6], texts=("why",))
    exit_unless(sound)


def _collect(store: ObjectStore, limit: int | None, options: CollectorOptions, log: str, *, as_json: bool) -> Done:
    with progress(f"gc {log}", None) as advance:
        done = collect(store, log, limit_offset=limit, options=options, progress=lambda deleted: advance(deleted, None))
    problems = [problem for each in done.deleted for problem in each.problems]
    if as_json:
        print_json(_to_json(done, problems))
    for problem in problems:
        click.echo(f"{log}: not deleted: {problem}", err=True)
    return [] if as_json else [_row(log, done)], not problems


def _refused(log: str, error: LogError, *, named: bool, dry_run: bool, as_json: bool) -> Done:
    """Report a log that was not collected, which is no failure where nothing says how it is."""
    if named or not (isinstance(error, CollectionRefusedError) and error.unclaimed):
        click.echo(f"{log}: {explain(error)}", err=True)
        return [], False
    if as_json:
        print_json({"log": log, "skipped": "no cursor"})
    elif dry_run:
        click.echo(f"{log}: skipped: no cursor")
    else:
        return [(log, *[""] * 5, "skipped: no cursor", "")], True
    return [], True


def _dry_run(store: ObjectStore, limit: int | None, options: CollectorOptions, log: str, *, as_json: bool) -> Done:
    """Show what would be done."""
    collector, deleter = Collector(store, log, options=options), Deleter(store, log, options=options)
    pending = deleter.pending()
    begun = list(_begun(deleter, pending))
    plan = collector.plan(limit)
    objects = list(collector.objects(plan))
    # The log still holds what is not pruned.
    pruned = [each for each in pending if each.pruned]
    held = dict(deleter.held(chain(objects, *map(deleter.dropped_objects, pruned))))
    paths = [path for path in objects if path not in held]
    orphans = deleter.orphans(pending)
    pins = Counter(chain.from_iterable(held.values()))
    if as_json:
        document = {**plan.to_json(), "objects": [*paths], "num_held": len(held), "pins": {**pins}}
        print_json({**document, "orphans": [*orphans], "begun": list(map(_begun_json, begun))})
    else:
        _show_plan(plan, paths, orphans, begun)
        if held:
            named = ", ".join(f"{name} ({count(num)})" for name, num in sorted(pins.items()))
            click.echo(f"  held by pins until they are deleted: {counted(len(held), 'object')}: {named}")
    if not plan.empty:
        # Raises as the run would.
        collector.verify(plan)
    return [], True


def _row(log: str, done: CollectionReport) -> tuple[str, ...]:
    return (
        log,
        count(done.plan.num_records),
        size(done.plan.num_bytes),
        count(done.num_orphans),
        count(sum(each.num_deleted for each in done.deleted)),
        count(sum(each.num_held for each in done.deleted)),
        with_durations(done.plan.reason),
        wait_of(done.wait_s) if done.wait_s else "",
    )


def _to_json(done: CollectionReport, problems: list[str]) -> JsonObject:
    return {
        **done.plan.to_json(),
        "num_orphans": done.num_orphans,
        "num_deleted": sum(each.num_deleted for each in done.deleted),
        "num_held": sum(each.num_held for each in done.deleted),
        "wait_s": round(done.wait_s),
        "problems": [*problems],
    }


def _begun(deleter: Deleter, pending: Sequence[Garbage]) -> Iterator[Begun]:
    """Describe pending collections; reads the store's clock and the references once for all of them."""
    if not pending:
        return
    references, now_us = deleter.references(), deleter.store_now_us()
    for garbage in pending:
        yield garbage, deleter.wait_s(garbage.path, now_us=now_us), list(deleter.objects(garbage, references))


def _begun_json(begun: Begun) -> JsonObject:
    garbage, wait_s, paths = begun
    return {
        "garbage": garbage.path,
        "reason": garbage.reason,
        "pruned": garbage.pruned,
        "wait_s": round(wait_s),
        "objects": [*paths],
    }


def _show_plan(plan: Plan, paths: list[str], orphans: list[str], begun: list[Begun]) -> None:
    click.echo(
        f"{plan.log}: would prune {counted(plan.num_records, 'record')} in {counted(plan.num_fragments, 'fragment')}"
        f" ({plan.fraction:.0%} of its bytes), since {with_durations(plan.reason)}; the log would begin at offset"
        f" {plan.first.position.offset}; {counted(len(orphans), 'orphan')},"
        f" {counted(len(begun), 'collection')} begun before"
    )
    for path in paths:
        click.echo(f"  {path}")
    for path in orphans:
        click.echo(f"  {path} (nothing refers to it)")
    for garbage, wait_s, dropped in begun:
        when = f"pruned before, to be deleted in {wait_of(wait_s)}" if wait_s else "pruned before"
        for path in dropped:
            click.echo(f"  {path} ({when if garbage.pruned else 'listed before, to be pruned or abandoned'})")
