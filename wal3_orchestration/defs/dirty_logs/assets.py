"""The assets of dirty logs, upstream of each log's maintenance, and the run that rolls up what a tick cannot.

The run reads every dirty log and judges it. It finishes what selects nothing; plans with selected logs are kept for the
sensor, which asks for the runs that maintain them.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from collections.abc import Iterator, Sequence

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Definitions,
    MaterializeResult,
    Output,
    multi_asset,
)

from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup_plan import RollUpPlan
from wal3_core.model.retried import Retried
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.defs.dirty_logs import report
from wal3_orchestration.defs.dirty_logs.looks import Look, finish, look_in_run, waiting_in
from wal3_orchestration.defs.dirty_logs.pressed import Pressed, find_over, marked
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.jobs import StoreJob, build_jobs
from wal3_orchestration.outcomes import retried_metadata
from wal3_orchestration.resources import spark_session
from wal3_orchestration.rollup_rounds import Kept, Round, Rounds
from wal3_orchestration.runbook import Section, link
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known

# A tick takes some 10 s to load the plans of so many logs, and Dagster ends it after a minute.
PLANNED_LOGS_MAX = 100_000
_DESCRIPTIONS = {
    report.DIRTY_LOG: (
        "The markers that wait in the dirty logs of all servers: how many, for how many logs, and since when. Recorded"
        " when maintenance is asked for, and by `rollup_job`."
    ),
    report.ROLLUP: (
        "What the roll-ups of dirty logs decided: which logs are to be maintained and why, and what stays marked. The"
        " `why` of a log's own maintenance names the roll-up that asked for it."
    ),
}
JOB = StoreJob(
    name="rollup_job",
    assets=(report.DIRTY_LOG, report.ROLLUP),
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
        asked = rounds.load(Kept.ASKED)
        under_way = set() if asked is None else {plan.marker_range.dirty_log for plan in asked.plans}
        plans = [each.plan for each in looks if each.plan is not None and each.dirty_log not in under_way]
        selecting = _loadable([plan for plan in plans if plan.selected])
        rounds.save(Kept.PLANNED, Round(plans=selecting) if selecting else None)
        others = [plan for plan in plans if not plan.selected and plan.logs]
        pressed = Pressed(scope, context.instance)
        over = find_over(store, pressed.load(), marked(looks), limits)
        pressed.save(each.log for each in over)
        done, refused = finish(store, others, limits.options(limits.run_markers_max), hands_out=False)
    again = retried_metadata(retried)
    waiting = {**report.dirty_log_metadata(looks), **again}
    yield MaterializeResult(asset_key=scope.key(report.DIRTY_LOG), metadata=waiting)
    metadata = {**report.rollup_metadata(plans), **report.finished_metadata(done, refused), **again}
    yield MaterializeResult(asset_key=scope.key(report.ROLLUP), metadata=metadata)
    for check in report.CHECKS:
        yield Output(None, output_name=check.build(scope).get_python_identifier())
    yield from report.evaluations(scope, [*report.verdicts(looks, limits), *report.behind(over)], retried)


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
) -> tuple[list[Look], Retried | None]:
    limits = scope.rollup(context)
    waiting = sum(waiting_in(store, names, limits).values())
    spark = spark_session(scope.spark(context)) if waiting >= limits.spark_markers_min else None
    return look_in_run(store, names, limits, spark=spark, url=scope.store(context).url)


def build(scope: Scope) -> AssetsDefinition:
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
        specs=[spec(report.DIRTY_LOG), spec(report.ROLLUP, [scope.key(report.DIRTY_LOG)])],
        check_specs=[check.build(scope) for check in report.CHECKS],
        pool=scope.named("wal3_rollup"),
        required_resource_keys={scope.named(name) for name in ("store", "spark", "rollup")},
    )
    def compute(context: AssetExecutionContext) -> Iterator[object]:
        yield from roll_up(scope, context)

    return compute


def workflow(scope: Scope) -> Definitions:
    """Return the assets with their checks, and their job."""
    return Definitions.merge(Definitions(assets=[build(scope)]), build_jobs(scope, [JOB]))
