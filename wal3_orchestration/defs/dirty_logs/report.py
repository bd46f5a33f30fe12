"""What dirty logs hold and what a roll-up decided, as events of Dagster; and what the checks say of it. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckEvaluation, AssetMaterialization, AssetObservation, MetadataValue

from wal3_core.fleet.dirty.rollup_plan import Decision, MarkedLog
from wal3_core.runtime import US_PER_S
from wal3_orchestration.building import LogCheck
from wal3_orchestration.log_records import KnownProblem, LogRecord
from wal3_orchestration.outcomes import Verdict
from wal3_orchestration.runbook import Section
from wal3_orchestration.store_checks import CheckFindings, evaluate, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core.fleet.dirty.rollup import FinishedRollUp
    from wal3_core.fleet.dirty.rollup_plan import RollUpPlan
    from wal3_core.model.retried import Retried
    from wal3_orchestration.defs.dirty_logs.looks import Look
    from wal3_orchestration.defs.dirty_logs.pressed import Behind
    from wal3_orchestration.resources import RollUpResource
    from wal3_orchestration.rollup_rounds import Round
    from wal3_orchestration.scope import Scope

DIRTY_LOG, ROLLUP = "dirty_log", "rollup"
_ROWS_MAX = 50
_SPOKEN_MAX = 3
_SHOW = ("dirty", "show", "SERVER")

READABLE = LogCheck(
    name="dirty_logs_readable",
    asset=DIRTY_LOG,
    description="Each dirty log can be read, and every marker was read before it was collected.",
    section=Section.DIRTY,
    next_command=_SHOW,
)
FEW = LogCheck(
    name="few_markers_wait",
    asset=DIRTY_LOG,
    description="Not many markers wait in a dirty log to be rolled up.",
    section=Section.DIRTY,
    next_command=_SHOW,
)
IN_TIME = LogCheck(
    name="rolled_up_in_time",
    asset=DIRTY_LOG,
    description="No log has been marked for long without its maintenance being asked for.",
    section=Section.DIRTY,
    next_command=_SHOW,
)
FOUND = LogCheck(
    name="marked_logs_found",
    asset=ROLLUP,
    description="Each marked log exists and can be read.",
    section=Section.DIRTY,
    next_command=_SHOW,
)
KEEP_UP = LogCheck(
    name="consumers_keep_up",
    asset=ROLLUP,
    description="No marked log has more unprocessed records than its limit: fleets refuse appends beyond it.",
    section=Section.PRESSURE,
    next_command=("cursor", "list", "LOG"),
)
CHECKS = (READABLE, FEW, IN_TIME, FOUND, KEEP_UP)


# ---------------------------------------------------------------------- checks


def verdicts(looks: Iterable[Look], limits: RollUpResource) -> list[Verdict]:
    """Judge each dirty log by each check that this look allows."""
    return [
        Verdict(check=check, log=look.dirty_log, problem=problem)
        for look in looks
        for check, problem in _judged(look, limits)
    ]


def behind(over: Iterable[Behind]) -> list[Verdict]:
    """Judge the logs that are over their limit."""
    return [Verdict(check=KEEP_UP, log=each.log, problem=each.reason) for each in over]


def _judged(look: Look, limits: RollUpResource) -> Iterator[tuple[LogCheck, str | None]]:
    yield READABLE, look.problem or _skipped(look.plan)
    if look.waiting > limits.waiting_max:
        yield FEW, f"expected at most {limits.waiting_max:,} markers to wait, found {look.waiting:,}"
    else:
        yield FEW, None
    if look.plan is not None:
        yield IN_TIME, _late(look.plan, limits)
        yield FOUND, _not_found(look.plan)


def _skipped(plan: RollUpPlan | None) -> str | None:
    if plan is None or not plan.marker_range.skipped:
        return None
    return f"expected every marker to be read before it is collected, found {plan.marker_range.skipped} that were not"


def _late(plan: RollUpPlan, limits: RollUpResource) -> str | None:
    limit_s = limits.due_s + limits.late_s_max
    late = sorted((each for each in plan.dirty if each.age_s > limit_s), key=lambda each: -each.age_s)
    if not late:
        return None
    return (
        f"expected maintenance to be asked for within {limit_s:.0f} s of the first mark, found {late[0].log} marked for"
        f" {late[0].age_s:.0f} s{_more(len(late), 1)}"
    )


def _not_found(plan: RollUpPlan) -> str | None:
    lost = [each for each in plan.logs if each.decision in (Decision.GONE, Decision.UNREADABLE)]
    if not lost:
        return None
    named = "; ".join(f"{each.log}: {each.reason}" for each in lost[:_SPOKEN_MAX])
    return f"expected a log for every marker, found {len(lost)} without one: {named}{_more(len(lost), _SPOKEN_MAX)}"


def _more(count: int, spoken: int) -> str:
    return f", and {count - spoken} more" if count > spoken else ""


def problems(judged: Iterable[Verdict]) -> dict[str, list[str]]:
    """Return the names of the checks that each dirty log fails."""
    failed: dict[str, list[str]] = {}
    for verdict in judged:
        if verdict.problem is not None:
            failed.setdefault(verdict.log, []).append(verdict.check.name)
    return failed


def evaluations(
    scope: Scope, judged: Sequence[Verdict], retried: Retried | None = None
) -> Iterator[AssetCheckEvaluation]:
    """Judge the whole store by the verdicts on its dirty logs, and on marked logs; say what Spark ran again."""
    for check in CHECKS:
        found = CheckFindings(check=check)
        own = [verdict for verdict in judged if verdict.check is check]
        for verdict in own:
            found.judge(verdict)
        for verdict in own:
            found.know(verdict.log, LogRecord(problems=_problem(verdict)))
        yield evaluate(scope, found, retried)


def _problem(verdict: Verdict) -> dict[str, KnownProblem]:
    return {} if verdict.problem is None else {verdict.check.name: KnownProblem(problem=verdict.problem)}


# ---------------------------------------------------------------------- events


def dirty_log_metadata(looks: Sequence[Look]) -> dict[str, Any]:
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


def _look_row(look: Look) -> tuple[str, ...]:
    plan = look.plan
    if plan is None:
        return look.dirty_log, str(look.waiting), "", "", "", look.problem or "read by a run"
    marker_range = plan.marker_range
    where = str(marker_range.start), str(marker_range.limit.offset)
    return look.dirty_log, str(look.waiting), *where, str(len(plan.logs)), _age(plan.age_s)


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


def _numbers(done: FinishedRollUp) -> tuple[int, ...]:
    return done.num_markers, done.num_reinserted, done.num_fenced, done.limit


def looked(scope: Scope, looks: Sequence[Look]) -> AssetMaterialization:
    """Return the event of a tick that read the dirty logs."""
    return AssetMaterialization(scope.key(DIRTY_LOG), metadata=dirty_log_metadata(looks))


def asked(scope: Scope, found: Round) -> AssetMaterialization:
    """Return the event of a roll-up whose runs are asked for."""
    metadata = {"logs": len(found.logs), **rollup_metadata(found.plans)}
    return AssetMaterialization(scope.key(ROLLUP), description=found.name, metadata=metadata)


def ended(
    scope: Scope, found: Round, done: Mapping[str, FinishedRollUp], refused: Mapping[str, str]
) -> AssetObservation:
    """Return the event of a roll-up that was finished."""
    return AssetObservation(scope.key(ROLLUP), description=found.name, metadata=finished_metadata(done, refused))
