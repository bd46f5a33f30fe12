"""The assets of dirty logs, upstream of each log's maintenance, and the run that rolls up what a tick cannot.

The run reads every dirty log and judges it. It finishes what selects nothing; plans with selected logs are kept for the
sensor, which asks for the runs that maintain them.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetSpec,
    Definitions,
    MaterializeResult,
    MetadataValue,
    Output,
    multi_asset,
)

from wal3_core.compaction.retried import Retried
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup import FinishedRollUp
from wal3_core.fleet.dirty.rollup_plan import Decision, MarkedLog, RollUpPlan
from wal3_core.runtime import US_PER_S
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.defs.dirty_logs.checks import DIRTY_LOG, ROLLUP
from wal3_orchestration.defs.dirty_logs.probe import (
    Behind,
    DirtyLogProbe,
    Pressed,
    find_over,
    finish,
    look_in_run,
    marked,
    waiting_in,
)
from wal3_orchestration.defs.dirty_logs.rounds import Round, RoundKind, Rounds
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
from wal3_orchestration.framework.scope import Scope
from wal3_orchestration.framework.step import retried_only_when_unavailable
from wal3_orchestration.framework.store import open_known
from wal3_orchestration.resources import RollUpResource, spark_session

_ROWS_MAX = 50


# ---------------------------------------------------------------------- events


def dirty_log_metadata(looks: Sequence[DirtyLogProbe]) -> dict[str, Any]:
    """Say how many markers wait in the dirty logs, for how many logs, and since when."""
    plans = [look.plan for look in looks if look.plan is not None]
    firsts_us = [first_us for plan in plans if (first_us := _first_us(plan))]
    rows = [_look_row(look) for look in sorted(looks, key=lambda look: -look.waiting)[:_ROWS_MAX]]
    return {
        "dirty logs": len(looks),
        "markers waiting": sum(look.waiting for look in looks),
        "logs marked": len({each.log for plan in plans for each in plan.logs}),
        "oldest (s)": max((plan.age_s for plan in plans), default=0.0),
        **({"oldest first insertion": MetadataValue.timestamp(min(firsts_us) / US_PER_S)} if firsts_us else {}),
        **(
            {"by dirty log": MetadataValue.md(table(("dirty log", "markers", "from", "to", "logs", "oldest"), rows))}
            if rows
            else {}
        ),
    }


def _look_row(look: DirtyLogProbe) -> tuple[str, ...]:
    plan = look.plan
    if plan is None:
        return look.log, str(look.waiting), "", "", "", look.problem or "read by a run"
    marker_range = plan.marker_range
    where = str(marker_range.start), str(marker_range.limit.offset)
    return look.log, str(look.waiting), *where, str(len(plan.logs)), _age(plan.age_s)


def _first_us(plan: RollUpPlan) -> int:
    return min((each.marker.first_us for each in plan.dirty), default=0)


def rollup_metadata(plans: Sequence[RollUpPlan]) -> dict[str, Any]:
    """Say what plans have decided about the marked logs, and why logs were selected."""
    counts = {decision: sum(plan.counts()[decision] for plan in plans) for decision in Decision}
    selected = [
        (each, plan.marker_range.dirty_log)
        for plan in plans
        for each in plan.logs
        if each.decision is Decision.SELECTED
    ]
    heads = ("log", "dirty log", "records", "bytes", "oldest", "why")
    rows = [_selected_row(each, name) for each, name in selected[:_ROWS_MAX]]
    return {
        "selected": counts[Decision.SELECTED],
        "kept": counts[Decision.KEPT],
        "undecided": counts[Decision.UNDECIDED],
        "dropped": counts[Decision.GONE] + counts[Decision.CAUGHT_UP],
        "unreadable": counts[Decision.UNREADABLE],
        "records": sum(plan.num_records for plan in plans),
        "bytes": sum(plan.num_bytes for plan in plans),
        **({"selected logs": MetadataValue.md(table(heads, rows))} if rows else {}),
    }


def _selected_row(each: MarkedLog, dirty_log: str) -> tuple[str, ...]:
    return each.log, dirty_log, str(each.num_records), str(each.num_bytes), _age(each.age_s), each.reason


def _age(age_s: float) -> str:
    return str(timedelta(seconds=int(age_s)))


def finished_metadata(done: Mapping[str, FinishedRollUp], refused: Mapping[str, str]) -> dict[str, Any]:
    """Say what became of the markers of finished plans."""
    rows = [
        (
            name,
            each.outcome.value,
            str(each.num_markers),
            str(each.num_reinserted),
            str(each.num_fenced),
            str(each.limit),
        )
        for name, each in done.items()
    ]
    rows += [(name, f"not finished: {message}", "", "", "", "") for name, message in refused.items()]
    heads = ("dirty log", "end", "markers", "reinserted", "fenced", "up to")
    return {
        "markers": sum(each.num_markers for each in done.values()),
        "reinserted": sum(each.num_reinserted for each in done.values()),
        "fenced": sum(each.num_fenced for each in done.values()),
        **({"finished": MetadataValue.md(table(heads, rows[:_ROWS_MAX]))} if rows else {}),
    }


def looked_event(scope: Scope, looks: Sequence[DirtyLogProbe]) -> AssetMaterialization:
    """Return the event of a tick that read the dirty logs."""
    return AssetMaterialization(scope.key(DIRTY_LOG), metadata=dirty_log_metadata(looks))


def asked_event(scope: Scope, found: Round) -> AssetMaterialization:
    """Return the event of a roll-up whose runs are asked for."""
    metadata = {"logs": len(found.logs), **rollup_metadata(found.plans)}
    return AssetMaterialization(scope.key(ROLLUP), description=found.name, metadata=metadata)


def ended_event(
    scope: Scope, found: Round, done: Mapping[str, FinishedRollUp], refused: Mapping[str, str]
) -> AssetObservation:
    """Return the event of a roll-up that was finished."""
    return AssetObservation(scope.key(ROLLUP), description=found.name, metadata=finished_metadata(done, refused))


# A tick takes some 10 s to load the plans of so many logs, and Dagster ends it after a minute.
PLANNED_LOGS_MAX = 100_000
_DESCRIPTIONS = {
    DIRTY_LOG: (
        "The markers that wait in the dirty logs of all servers: how many, for how many logs, and since when. Recorded"
        " when maintenance is asked for, and by `rollup_job`."
    ),
    ROLLUP: (
        "What the roll-ups of dirty logs decided: which logs are to be maintained and why, and what stays marked. The"
        " `why` of a log's own maintenance names the roll-up that asked for it."
    ),
}
JOB = StoreJob(
    name="rollup_job",
    assets=(DIRTY_LOG, ROLLUP),
    description=(
        "Reads all dirty logs, on Spark if many markers wait, and checks them. The sensor `dirty_logs` asks for the"
        " maintenance of the logs that are selected."
    ),
)


def roll_up(scope: Scope, context: AssetExecutionContext) -> Iterator[object]:
    """Read and judge all dirty logs; keep plans that select logs for the sensor, and finish the others."""
    limits, rounds = scope.rollup(context), Rounds(scope, context.instance)
    with retried_only_when_unavailable(context):
        store = open_known(scope, context)
        looks, retried = _read(scope, context, store, dirty_logs(store))
        asked = rounds.load(RoundKind.ASKED)
        under_way = set() if asked is None else {plan.marker_range.dirty_log for plan in asked.plans}
        plans = [each.plan for each in looks if each.plan is not None and each.log not in under_way]
        selecting = _loadable([plan for plan in plans if plan.selected])
        rounds.save(RoundKind.PLANNED, Round(plans=selecting) if selecting else None)
        others = [plan for plan in plans if not plan.selected and plan.logs]
        pressed = Pressed(scope, context.instance)
        over = find_over(store, pressed.load(), marked(looks), limits)
        pressed.save(each.log for each in over)
        done, refused = finish(store, others, limits.options(limits.run_markers_max), hands_out=False)
    again = retried_metadata(retried)
    waiting = {**dirty_log_metadata(looks), **again}
    yield MaterializeResult(asset_key=scope.key(DIRTY_LOG), metadata=waiting)
    metadata = {**rollup_metadata(plans), **finished_metadata(done, refused), **again}
    yield MaterializeResult(asset_key=scope.key(ROLLUP), metadata=metadata)
    checked = [each for look in looks for each in judge(look, limits)]
    checked += [each for found in over for each in judge(found, limits)]
    yield from _evaluations(scope, checked, retried)


def judge(found: DirtyLogProbe | Behind, limits: RollUpResource) -> list[CheckResult]:
    """Judge a dirty log, or a log that it marks, by each check that applies."""
    return [each for asset in (DIRTY_LOG, ROLLUP) for each in judged(asset, found.log, found, limits)]


def _evaluations(scope: Scope, checked: Sequence[CheckResult], retried: Retried | None) -> Iterator[object]:
    """Judge the whole store by what was found of its dirty logs, and of marked logs."""
    checks = [*checks_of(DIRTY_LOG), *checks_of(ROLLUP)]
    for check in checks:
        yield Output(None, output_name=check.build(scope).get_python_identifier())
    for check in checks:
        found = CheckFindings(check=check)
        own = [each for each in checked if each.check is check]
        for each in own:
            found.judge(each)
        for each in own:
            problems = {} if each.problem is None else {check.name: KnownProblem(problem=each.problem)}
            found.know(each.log, LogRecord(problems=problems))
        yield evaluate(scope, found, retried)


def _loadable(plans: Sequence[RollUpPlan]) -> tuple[RollUpPlan, ...]:
    """Return the plans with the oldest marks, as many as a tick can load; the others' dirty logs are read again."""
    kept: list[RollUpPlan] = []
    num_logs = 0
    for plan in sorted(plans, key=lambda plan: -plan.age_s):
        num_logs += len(plan.logs)
        # One at least: the limit of markers bounds it.
        if kept and num_logs > PLANNED_LOGS_MAX:
            break
        kept.append(plan)
    return tuple(kept)


def _read(
    scope: Scope, context: AssetExecutionContext, store: ObjectStore, names: Sequence[str]
) -> tuple[list[DirtyLogProbe], Retried | None]:
    limits = scope.rollup(context)
    waiting = sum(waiting_in(store, names, limits).values())
    spark = spark_session(scope.spark(context)) if waiting >= limits.spark_markers_min else None
    return look_in_run(store, names, limits, spark=spark, url=scope.store(context).url)


def build(scope: Scope) -> Definitions:
    """Return both assets of one store: one operation, as one look describes both."""

    def spec(name: str, deps: Sequence[AssetKey] = ()) -> AssetSpec:
        return AssetSpec(
            scope.key(name),
            deps=deps,
            skippable=True,
            group_name=scope.group,
            description=_DESCRIPTIONS[name],
            owners=scope.owners,
            tags=scope.tags,
            metadata={**scope.metadata, "runbook": link(scope, Section.DIRTY)},
            kinds={"wal3", "pyspark"},
        )

    @multi_asset(
        name=scope.named("rolled_up_dirty_logs"),
        specs=[spec(DIRTY_LOG), spec(ROLLUP, [scope.key(DIRTY_LOG)])],
        check_specs=[check.build(scope) for name in (DIRTY_LOG, ROLLUP) for check in checks_of(name)],
        pool=scope.named("wal3_rollup"),
        required_resource_keys={scope.named(name) for name in ("store", "spark", "rollup")},
    )
    def compute(context: AssetExecutionContext) -> Iterator[object]:
        yield from roll_up(scope, context)

    return Definitions(assets=[compute])
