"""``wal3 gc``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import click

from wal3_core.cli.shell.failures import exit_unless, explain
from wal3_core.cli.shell.output import count, counted, print_json, progress, show_table, size
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.shell.stores import NO_LOGS, named_logs
from wal3_core.cli.types import Decimal, Duration, Whole, log_argument, wait_of, with_durations
from wal3_core.errors import CollectionRefusedError, LogError
from wal3_core.log.collect.collector import CollectionReport, Collector, collect
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.log.collect.planner import Plan
    from wal3_core.model.garbage import Garbage
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectStore

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
    store = session.store()
    named = named_logs(store, logs, all_logs=all_logs, verb="collect")
    if not named and not as_json:
        click.echo(NO_LOGS)
    run = _GcRun(store, options, up_to_offset, dry_run=dry_run, as_json=as_json)
    sound = True
    try:
        for log in named:
            try:
                sound &= run.collect(log)
            except LogError as error:
                if len(logs) == 1:
                    raise
                # A log that cannot be collected must not stop the others.
                sound &= run.refused(log, error, named=not all_logs)
    finally:
        if run.rows:
            show_table(_COLUMNS, run.rows, numbers=_COLUMNS[1:6], texts=("why",))
    exit_unless(sound)


class _GcRun:
    """Collects one log after another; ``rows`` is the table of what was done."""

    def __init__(
        self, store: ObjectStore, options: CollectorOptions, limit: int | None, *, dry_run: bool, as_json: bool
    ) -> None:
        self.rows: list[tuple[str, ...]] = []
        self._store = store
        self._options = options
        self._limit = limit
        self._dry_run = dry_run
        self._as_json = as_json

    def collect(self, log: str) -> bool:
        """Collect a log, or show what would be done; return whether all could be deleted."""
        if self._dry_run:
            self._show_dry_run(log)
            return True
        with progress(f"gc {log}", None) as advance:
            done = collect(
                self._store,
                log,
                limit_offset=self._limit,
                options=self._options,
                progress=lambda deleted: advance(deleted, None),
            )
        problems = [problem for each in done.deleted for problem in each.problems]
        if self._as_json:
            print_json(_to_json(done, problems))
        else:
            self.rows.append(_row(log, done))
        for problem in problems:
            click.echo(f"{log}: not deleted: {problem}", err=True)
        return not problems

    def refused(self, log: str, error: LogError, *, named: bool) -> bool:
        """Report a log that was not collected; return whether that is no failure: nothing says how."""
        if named or not (isinstance(error, CollectionRefusedError) and error.unclaimed):
            click.echo(f"{log}: {explain(error)}", err=True)
            return False
        if self._as_json:
            print_json({"log": log, "skipped": "no cursor"})
        elif self._dry_run:
            click.echo(f"{log}: skipped: no cursor")
        else:
            self.rows.append((log, *[""] * 5, "skipped: no cursor", ""))
        return True

    def _show_dry_run(self, log: str) -> None:
        collector = Collector(self._store, log, options=self._options)
        deleter = Deleter(self._store, log, options=self._options)
        pending = deleter.pending()
        begun = list(_begun(deleter, pending))
        plan = collector.plan(self._limit)
        objects = list(collector.objects(plan))
        # The log still holds what is not pruned.
        pruned = [each for each in pending if each.pruned]
        held = dict(deleter.held(chain(objects, *map(deleter.dropped_objects, pruned))))
        paths = [path for path in objects if path not in held]
        orphans = deleter.orphans(pending)
        pins = Counter(chain.from_iterable(held.values()))
        if self._as_json:
            document = {**plan.to_json(), "objects": [*paths], "num_held": len(held), "pins": {**pins}}
            print_json({**document, "orphans": [*orphans], "begun": [each.to_json() for each in begun]})
        else:
            _show_plan(plan, paths, orphans, begun)
            if held:
                named = ", ".join(f"{name} ({count(num)})" for name, num in sorted(pins.items()))
                click.echo(f"  held by pins until they are deleted: {counted(len(held), 'object')}: {named}")
        if not plan.empty:
            # Raises as the run would.
            collector.verify(plan)


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


def _begun(deleter: Deleter, pending: Sequence[Garbage]) -> Iterator[_PendingCollection]:
    """Describe pending collections; reads the store's clock and the references once for all of them."""
    if not pending:
        return
    references, now_us = deleter.references(), deleter.store_now_us()
    for garbage in pending:
        wait_s, paths = deleter.wait_s(garbage.path, now_us=now_us), deleter.objects(garbage, references)
        yield _PendingCollection(garbage, wait_s, tuple(paths))


def _show_plan(plan: Plan, paths: list[str], orphans: list[str], begun: list[_PendingCollection]) -> None:
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
    for each in begun:
        for path in each.paths:
            click.echo(f"  {path} ({each.when})")


@dataclass(frozen=True, slots=True)
class _PendingCollection:
    """A collection that an earlier run began, and what is to be deleted for it."""

    garbage: Garbage
    wait_s: float
    paths: tuple[str, ...]

    @property
    def when(self) -> str:
        if not self.garbage.pruned:
            return "listed before, to be pruned or abandoned"
        return f"pruned before, to be deleted in {wait_of(self.wait_s)}" if self.wait_s else "pruned before"

    def to_json(self) -> JsonObject:
        return {
            "garbage": self.garbage.path,
            "reason": self.garbage.reason,
            "pruned": self.garbage.pruned,
            "wait_s": round(self.wait_s),
            "objects": [*self.paths],
        }
