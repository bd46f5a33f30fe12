"""The assets of dirty logs, upstream of each log's maintenance, and the run that rolls up what a tick cannot.

The run reads every dirty log and judges it. It finishes what selects nothing; plans with selected logs are kept for the
sensor, which asks for the runs that maintain them. An error of one dirty log hides no other.

The instance keeps a round from before its runs are asked for until its plans are finished. A tick may end anywhere,
and be repeated: it asks for the same runs under the same keys, which Dagster starts once. A plan is finished only when
Dagster has launched or queued a run for each of its logs.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from itertools import accumulate
from typing import Any, Self

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetSpec,
    DagsterInstance,
    Definitions,
    MaterializeResult,
    MetadataValue,
    Output,
    RunRequest,
    multi_asset,
)

from wal3_core.compaction.reports import Retried
from wal3_core.errors import LogError, LogNotFoundError
from wal3_core.fleet.dirty.back_pressure import measure_logs, over_limit
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup import FinishedRollUp, RollUp
from wal3_core.fleet.dirty.rollup_plan import Decision, MarkerRange, RollUpOptions, RollUpPlan
from wal3_core.fleet.outcomes import try_log
from wal3_core.options import UNPROCESSED_MIN
from wal3_core.runtime import US_PER_S
from wal3_core.spark.maintenance import plan_rollups
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.dirty_logs.checks import DIRTY_LOG, ROLLUP, DirtyLogProbe, consumers_keep_up
from wal3_orchestration.defs.maintenance import request_maintenance
from wal3_orchestration.framework.assets import StoreJob
from wal3_orchestration.framework.checks import (
    CheckFindings,
    CheckResult,
    checks_of,
    evaluate,
    judged,
    retried_metadata,
    table,
)
from wal3_orchestration.framework.log_records import KnownProblem, LogRecord
from wal3_orchestration.framework.runbook import Section, link
from wal3_orchestration.framework.scope import ROLLED_UP, StoreScope
from wal3_orchestration.framework.step import retried_only_when_unavailable
from wal3_orchestration.framework.store import open_known
from wal3_orchestration.resources import RollUpResource, spark_session

# Plans of this many logs take a tick some 10 s to load; Dagster ends it after a minute.
PLANNED_LOGS_MAX = 100_000
_ROWS_MAX = 50
_NAMED_MAX = 3
_DIGEST_CHARS = 12

JOB = StoreJob(
    name="rollup_job",
    assets=(DIRTY_LOG, ROLLUP),
    description=(
        "Reads all dirty logs, on Spark if many markers wait, and checks them. The sensor `dirty_logs` asks for the"
        " maintenance of the logs that are selected."
    ),
)


# ---------------------------------------------------------------------- dirty logs


def probe(store: ObjectStore, limits: RollUpResource, name: str) -> DirtyLogProbe:
    """Count a dirty log's markers, and read them if there are no more than a tick reads."""
    found = try_log(partial(_probe, store, limits.options(limits.tick_markers_max)), name)
    return DirtyLogProbe(log=name, problem=error_text(found)) if isinstance(found, LogError) else found


def _probe(store: ObjectStore, options: RollUpOptions, name: str) -> DirtyLogProbe:
    whole = marker_range(store, name)
    waiting = whole.num_markers
    if not waiting:
        return DirtyLogProbe(log=name, plan=RollUpPlan(marker_range=whole, now_us=0, logs=()))
    if waiting > options.markers_max:
        return DirtyLogProbe(log=name, waiting=waiting, generation=whole.generation)
    return DirtyLogProbe(log=name, waiting=waiting, plan=RollUp(store, name, options=options).read())


def marker_range(store: ObjectStore, name: str) -> MarkerRange:
    """Return where the markers are that wait in a dirty log."""
    return RollUp(store, name, options=RollUpOptions(markers_max=2**31 - 1)).marker_range()


def error_text(error: LogError) -> str:
    """Name an error's class, and what it says."""
    return f"{type(error).__name__}: {error}"


def _read(
    scope: StoreScope, context: AssetExecutionContext, store: ObjectStore
) -> tuple[list[DirtyLogProbe], Retried | None]:
    """Read dirty logs, up to ``run_markers_max`` markers of each; on Spark if many wait: then say what it ran again."""
    names, limits = dirty_logs(store), scope.rollup(context)
    options = limits.options(limits.run_markers_max)
    ranges = {name: try_log(partial(marker_range, store), name) for name in names}
    waiting = {name: 0 if isinstance(found, LogError) else found.num_markers for name, found in ranges.items()}
    plans: dict[str, RollUpPlan | None] = {}
    problems: dict[str, str] = {}
    retried = None
    if sum(waiting.values()) >= limits.spark_markers_min:
        planned = plan_rollups(spark_session(scope.spark(context)), scope.store(context).url, names, options)
        retried = planned.retried
        plans = {each.dirty_log: each.plan for each in planned}
        problems = {each.dirty_log: each.refusal.message for each in planned if each.refusal is not None}
    else:
        for name in names:
            found = try_log(RollUp.read, RollUp(store, name, options=options))
            if isinstance(found, LogError):
                problems[name] = error_text(found)
            else:
                plans[name] = found
    probes = [
        DirtyLogProbe(log=name, waiting=waiting[name], plan=plans.get(name), problem=problems.get(name))
        for name in names
    ]
    return probes, retried


def finish(
    store: ObjectStore, plans: Iterable[RollUpPlan], options: RollUpOptions
) -> tuple[dict[str, FinishedRollUp], dict[str, str]]:
    """Finish plans that were read with these options, and whose selected logs, if any, are taken care of.

    Return what was done, and what was refused. A plan that cannot be finished leaves everything marked: the dirty log
    is read again.
    """
    done: dict[str, FinishedRollUp] = {}
    refused: dict[str, str] = {}
    for plan in plans:
        name = plan.marker_range.dirty_log
        found = try_log(partial(RollUp(store, name, options=options).finish, plan), plan.selected)
        if isinstance(found, LogError):
            refused[name] = error_text(found)
        else:
            done[name] = found
    return done, refused


# ---------------------------------------------------------------------- logs over their limit


def _over_limit_key(scope: StoreScope) -> str:
    return f"wal3/pressed/{scope.name}"


def known_over_limit(scope: StoreScope, instance: DagsterInstance) -> list[str]:
    """Return the logs that ticks have found over their limit, or the last run did: the next one measures them."""
    key = _over_limit_key(scope)
    text = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
    return list(map(str, json.loads(text))) if text else []


def save_over_limit(scope: StoreScope, instance: DagsterInstance, logs: Iterable[str]) -> None:
    """Keep these logs in place of those before."""
    instance.daemon_cursor_storage.set_cursor_values({_over_limit_key(scope): json.dumps(sorted(logs))})


def find_over_limit(
    store: ObjectStore, known: Collection[str], marked: Collection[str], limits: RollUpResource
) -> dict[str, str]:
    """Return why logs are over their limit, the farthest behind first; two small requests for each log.

    With them those of the ``known`` ones that cannot be measured now: nothing else would look at them again.
    """
    limit = limits.unprocessed_max or None
    again = measure_logs(store, known, limit, whole=False)
    over = over_limit(store, set(marked) - again.keys(), unprocessed_max=limit)
    over += [each for each in again.values() if not isinstance(each, LogError) and each.over]
    over.sort(key=lambda each: (-each.unprocessed, each.log))
    found = {each.log: each.reason for each in over}
    text = "log {}: over its limit when it was looked at last; it cannot be measured now: {}"
    return found | {
        log: text.format(log, error)
        for log, error in again.items()
        if isinstance(error, LogError) and not isinstance(error, LogNotFoundError)
    }


def marked_logs(probes: Iterable[DirtyLogProbe], *, grown: bool = False) -> set[str]:
    """Return the logs that are marked; with ``grown``, only by as many records as the least limit."""
    plans = [each.plan for each in probes if each.plan is not None]
    least = UNPROCESSED_MIN if grown else 0
    return {each.log for plan in plans for each in plan.dirty if each.num_records >= least}


# ---------------------------------------------------------------------- rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Plans whose selected logs are maintained in the same runs.

    ``collected`` are dirty logs that are collected themselves, each with the offset of its cursor. ``attempt`` is part
    of the round's name: a quiet dirty log stays where it is, and asks for another run only under another name.
    """

    plans: tuple[RollUpPlan, ...]
    collected: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0

    @property
    def logs(self) -> list[str]:
        """The logs to maintain, in the order of their names."""
        return sorted({*self.collected, *(log for plan in self.plans for log in plan.selected)})

    @property
    def name(self) -> str:
        """The round's name, and why its runs are asked for.

        The same for the same ranges of markers, if these logs were found to end at the same offsets: a run of this name
        began after everything was committed that it stands for.
        """
        marker_ranges = sorted(json.dumps(plan.marker_range.to_json(), sort_keys=True) for plan in self.plans)
        selected = (each for plan in self.plans for each in plan.logs if each.decision is Decision.SELECTED)
        # Up to where a log's marked records were committed when it was looked up.
        logs = sorted(
            f"{each.log} {each.marker.life} {each.marker.limit.offset if each.rest is None else each.rest.start}"
            for each in selected
        )
        own = sorted(f"{name} {offset} {self.attempt}" for name, offset in self.collected.items())
        digest = hashlib.sha256("\n".join([*marker_ranges, "", *logs, "", *own]).encode()).hexdigest()[:_DIGEST_CHARS]
        read = {plan.marker_range.dirty_log: plan.marker_range.limit.offset for plan in self.plans}
        limits = sorted({**self.collected, **read}.items())
        named = ", ".join(f"{name} to {offset}" for name, offset in limits[:_NAMED_MAX])
        more = f" and {len(limits) - _NAMED_MAX} more" if len(limits) > _NAMED_MAX else ""
        return f"{ROLLED_UP} {digest}: {named}{more}"

    def requests(self, scope: StoreScope) -> list[RunRequest]:
        """Return the runs that maintain the logs: the same ones each time."""
        logs = (each for plan in self.plans for each in plan.logs)
        keyed = {each.log for each in logs if each.keyed and each.decision is Decision.SELECTED}
        return request_maintenance(scope, self.logs, self.name, keyed=keyed)

    def to_text(self) -> str:
        """Format, to be kept by the instance."""
        plans = [plan.to_json() for plan in self.plans]
        return json.dumps({"plans": plans, "collected": dict(self.collected), "attempt": self.attempt})

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Read what ``to_text`` wrote; None for another form: without a round, the dirty logs are read again."""
        try:
            found = json.loads(text)
            plans = tuple(RollUpPlan.from_text(json.dumps(plan)) for plan in found["plans"])
            collected = {str(name): int(at) for name, at in found["collected"].items()}
            return cls(plans=plans, collected=collected, attempt=int(found.get("attempt", 0)))
        except (ValueError, TypeError, KeyError, AttributeError, LogError):
            return None


class RoundKind(StrEnum):
    """Which round: the one that a run has planned, or the one whose runs were asked for."""

    PLANNED = "planned"
    ASKED = "asked"


class Rounds:
    """The rounds of a scope. Only the sensor writes the one that was asked for."""

    def __init__(self, scope: StoreScope, instance: DagsterInstance) -> None:
        self._storage = instance.daemon_cursor_storage
        self._prefix = f"wal3/rollup/{scope.name}/"

    def load(self, kind: RoundKind) -> Round | None:
        """Return a round; None when there is none."""
        key = f"{self._prefix}{kind}"
        text = self._storage.get_cursor_values({key}).get(key)
        return Round.from_text(text) if text else None

    def save(self, kind: RoundKind, found: Round | None) -> None:
        """Keep a round in place of the one before; None keeps none. No mark is lost: the dirty logs are read again."""
        self._storage.set_cursor_values({f"{self._prefix}{kind}": "" if found is None else found.to_text()})


# ---------------------------------------------------------------------- metadata


def probes_metadata(probes: Sequence[DirtyLogProbe]) -> dict[str, Any]:
    """Say how many markers wait in the dirty logs, for how many logs, and since when."""
    plans = [each.plan for each in probes if each.plan is not None]
    firsts_us = [min(each.marker.first_us for each in plan.dirty) for plan in plans if plan.dirty]
    rows = [_probe_row(each) for each in sorted(probes, key=lambda each: -each.waiting)[:_ROWS_MAX]]
    return {
        "dirty logs": len(probes),
        "markers waiting": sum(each.waiting for each in probes),
        "logs marked": len({each.log for plan in plans for each in plan.logs}),
        "oldest (s)": max((plan.age_s for plan in plans), default=0.0),
        **({"oldest first insertion": MetadataValue.timestamp(min(firsts_us) / US_PER_S)} if firsts_us else {}),
        **_table("by dirty log", ("dirty log", "markers", "from", "to", "logs", "oldest"), rows),
    }


def _probe_row(found: DirtyLogProbe) -> tuple[str, ...]:
    if found.plan is None:
        return found.log, str(found.waiting), "", "", "", found.problem or "read by a run"
    read = found.plan.marker_range
    numbers = (found.waiting, read.start, read.limit.offset, len(found.plan.logs))
    return found.log, *map(str, numbers), _age(found.plan.age_s)


def rollup_metadata(plans: Sequence[RollUpPlan]) -> dict[str, Any]:
    """Say what plans have decided about the marked logs, and why logs were selected."""
    counts = {decision: sum(plan.counts()[decision] for plan in plans) for decision in Decision}
    rows = [
        (
            each.log,
            plan.marker_range.dirty_log,
            str(each.num_records),
            str(each.num_bytes),
            _age(each.age_s),
            each.reason,
        )
        for plan in plans
        for each in plan.logs
        if each.decision is Decision.SELECTED
    ]
    return {
        "selected": counts[Decision.SELECTED],
        "kept": counts[Decision.KEPT],
        "undecided": counts[Decision.UNDECIDED],
        "dropped": counts[Decision.GONE] + counts[Decision.CAUGHT_UP],
        "unreadable": counts[Decision.UNREADABLE],
        "records": sum(plan.num_records for plan in plans),
        "bytes": sum(plan.num_bytes for plan in plans),
        **_table("selected logs", ("log", "dirty log", "records", "bytes", "oldest", "why"), rows[:_ROWS_MAX]),
    }


def finished_metadata(done: Mapping[str, FinishedRollUp], refused: Mapping[str, str]) -> dict[str, Any]:
    """Say what became of the markers of finished plans."""
    rows: list[tuple[str, ...]] = [
        (name, each.outcome.value, *map(str, (each.num_markers, each.num_reinserted, each.num_fenced, each.limit)))
        for name, each in done.items()
    ]
    rows += [(name, f"not finished: {message}", "", "", "", "") for name, message in refused.items()]
    return {
        "markers": sum(each.num_markers for each in done.values()),
        "reinserted": sum(each.num_reinserted for each in done.values()),
        "fenced": sum(each.num_fenced for each in done.values()),
        **_table("finished", ("dirty log", "end", "markers", "reinserted", "fenced", "up to"), rows[:_ROWS_MAX]),
    }


def _table(label: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    return {label: MetadataValue.md(table(heads, rows))} if rows else {}


def _age(age_s: float) -> str:
    return str(timedelta(seconds=int(age_s)))


# ---------------------------------------------------------------------- the run


def roll_up(scope: StoreScope, context: AssetExecutionContext) -> Iterator[object]:
    """Read and judge all dirty logs; keep plans that select logs for the sensor, and finish the others."""
    limits, rounds = scope.rollup(context), Rounds(scope, context.instance)
    with retried_only_when_unavailable(context):
        store = open_known(scope, context)
        probes, retried = _read(scope, context, store)
        asked = rounds.load(RoundKind.ASKED)
        under_way = set() if asked is None else {plan.marker_range.dirty_log for plan in asked.plans}
        plans = [each.plan for each in probes if each.plan is not None and each.log not in under_way]
        selecting = _loadable([plan for plan in plans if plan.selected])
        rounds.save(RoundKind.PLANNED, Round(plans=selecting) if selecting else None)
        over = find_over_limit(store, known_over_limit(scope, context.instance), marked_logs(probes), limits)
        save_over_limit(scope, context.instance, over)
        others = [plan for plan in plans if not plan.selected and plan.logs]
        done, refused = finish(store, others, limits.options(limits.run_markers_max))
    again = retried_metadata(retried)
    yield MaterializeResult(asset_key=scope.key(DIRTY_LOG), metadata={**probes_metadata(probes), **again})
    metadata = {**rollup_metadata(plans), **finished_metadata(done, refused), **again}
    yield MaterializeResult(asset_key=scope.key(ROLLUP), metadata=metadata)
    checked = [result for each in probes for result in judge(each, limits)]
    checked += [consumers_keep_up.result(log, reason) for log, reason in over.items()]
    yield from _evaluations(scope, checked, retried)


def judge(found: DirtyLogProbe, limits: RollUpResource) -> list[CheckResult]:
    """Judge a dirty log by each check that applies."""
    return [each for asset in (DIRTY_LOG, ROLLUP) for each in judged(asset, found.log, found, limits)]


def _evaluations(scope: StoreScope, checked: Sequence[CheckResult], retried: Retried | None) -> Iterator[object]:
    """Judge the whole store by what was found of its dirty logs, and of marked logs."""
    checks = [*checks_of(DIRTY_LOG), *checks_of(ROLLUP)]
    for check in checks:
        yield Output(None, output_name=check.build(scope).get_python_identifier())
    for check in checks:
        found = CheckFindings(check=check)
        for each in checked:
            if each.check is check:
                found.judge(each)
                problems = {} if each.problem is None else {check.name: KnownProblem(problem=each.problem)}
                found.know(each.log, LogRecord(problems=problems))
        yield evaluate(scope, found, retried)


def _loadable(plans: Sequence[RollUpPlan]) -> tuple[RollUpPlan, ...]:
    """Return the plans with the oldest marks, as many as a tick can load; the others' dirty logs are read again."""
    oldest = sorted(plans, key=lambda plan: -plan.age_s)
    counts = accumulate(len(plan.logs) for plan in oldest)
    kept = [plan for plan, count in zip(oldest, counts, strict=True) if count <= PLANNED_LOGS_MAX]
    # One at least: the limit of markers bounds it.
    return tuple(kept or oldest[:1])


def build(scope: StoreScope) -> Definitions:
    """Return both assets of one store: one operation, as one run describes both."""

    def spec(name: str, description: str, deps: Sequence[AssetKey] = ()) -> AssetSpec:
        return AssetSpec(
            scope.key(name),
            deps=deps,
            skippable=True,
            group_name=scope.named("dirty_logs"),
            description=description,
            owners=scope.owners,
            tags=scope.tags,
            metadata={**scope.metadata, "runbook": link(scope, Section.DIRTY)},
            kinds=scope.kinds(["spark"]),
        )

    waiting = spec(
        DIRTY_LOG,
        "The markers that wait in the dirty logs of all servers: how many, for how many logs, and since when. Recorded"
        " when maintenance is asked for, and by `rollup_job`.",
    )
    decided = spec(
        ROLLUP,
        "What the roll-ups of dirty logs decided: which logs are to be maintained and why, and what stays marked. The"
        " `why` of a log's own maintenance names the roll-up that asked for it.",
        [scope.key(DIRTY_LOG)],
    )

    @multi_asset(
        name=scope.named("rolled_up_dirty_logs"),
        specs=[waiting, decided],
        check_specs=[check.build(scope) for name in (DIRTY_LOG, ROLLUP) for check in checks_of(name)],
        pool=scope.named("wal3_rollup"),
        required_resource_keys={scope.named(name) for name in ("store", "spark", "rollup")},
    )
    def compute(context: AssetExecutionContext) -> Iterator[object]:
        yield from roll_up(scope, context)

    return Definitions(assets=[compute])
