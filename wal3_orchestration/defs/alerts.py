"""Alerts: posts failed runs, failed checks and failing ticks to a webhook, such as a chat's or a pager's.

WAL3_ALERT_URL  where to post; the sensors are off until someone turns them on, unless it is set
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import http.client
import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from dagster import (
    AssetCheckEvaluation,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    Definitions,
    MetadataValue,
    RunStatusSensorContext,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    TableMetadataValue,
    run_status_sensor,
)
from dagster._core.definitions.run_request import InstigatorType  # Dagster exports neither
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorTick, TickStatus

from wal3_core import InvalidRequestError, UnavailableError
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.framework.checks import FOUND, STEPS, found_by_run
from wal3_orchestration.framework.runbook import Section, address
from wal3_orchestration.framework.scope import FOUND_BAD, REASON_TAG, STORE_TAG, StoreScope
from wal3_orchestration.framework.triggers import LogSensor, Workflow

ALERT_VARIABLE = "WAL3_ALERT_URL"
TIMEOUT_S = 10.0
TRIES_MAX = 3
PAUSE_S = 1.0
PERIOD_S = 30
# Ticks in a row that fail before that is posted; a schedule may tick once a week.
SENSOR_TICKS = 3
SCHEDULE_TICKS = 1
TICKS_PERIOD_S = 120
# Interval at which it is posted again while they fail.
TICKS_AGAIN_S = 24 * 60 * 60
_ENDED = [TickStatus.SUCCESS, TickStatus.SKIPPED, TickStatus.FAILURE]
ASSETS = frozenset(
    {
        "manifest",
        "dirty_log",
        "rollup",
        "verification",
        "repacked_snapshots",
        "compaction_plan",
        "merged_fragments",
        "installed_manifest",
        "garbage_plan",
        "pruned_manifest",
        "deleted_garbage",
        "marked_orphans",
        "delay_queue",
    }
)
_TEXT_CHARS_MAX = 3_000
_CHECKS_MAX = 10
_LOGS_MAX = 10
_LOCAL = ("127.0.0.1", "localhost", "::1")
_STATUSES = {
    DagsterRunStatus.FAILURE: ("failed_run_alert", "Posts each failed run, with its failed checks, to WAL3_ALERT_URL."),
    DagsterRunStatus.SUCCESS: (
        "failed_check_alert",
        "Posts the failed checks of runs that succeeded, which are warnings, to WAL3_ALERT_URL.",
    ),
}


def post(url: str, text: str) -> None:
    """Post a text as JSON (``{"text": …}``); UnavailableError when no try was accepted.

    InvalidRequestError for an address that is neither https nor on this machine. Errors name only the
    host: the rest of a webhook's address is a secret.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
        message = f"{ALERT_VARIABLE}: expected an https URL, found one that begins with {parts.scheme!r}"
        raise InvalidRequestError(message)
    body = json.dumps({"text": text[:_TEXT_CHARS_MAX]}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - checked above
    for number in range(TRIES_MAX):
        if number:
            shared_runtime().sleep(PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - checked above
                return
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {getattr(error, 'code', getattr(error, 'reason', ''))}"
    message = f"{ALERT_VARIABLE}: expected {parts.hostname} to accept an alert, found in {TRIES_MAX} tries: {problem}"
    raise UnavailableError(message)


def alert_text(scope: StoreScope, run: DagsterRun, instance: DagsterInstance) -> str | None:
    """Return what to say about a finished run; None when it neither failed nor has a failed check."""
    failed = [check for check in found_by_run(instance, run.run_id) if not check.passed]
    if run.status is not DagsterRunStatus.FAILURE and not failed:
        return None
    lines = [f"{run.status.value} {run.job_name}, run {run.run_id}, store {scope.store_url}"]
    lines += _causes(instance, run.run_id)
    for check in failed[:_CHECKS_MAX]:
        lines += [f"- {check.asset_check_key.to_user_string()}: {_found(check)}", *_advice(check)]
    if len(failed) > _CHECKS_MAX:
        lines.append(f"- and {len(failed) - _CHECKS_MAX} more failed checks")
    return "\n".join(lines)


def _found(check: AssetCheckEvaluation) -> str:
    """Say what this run found: the description also speaks of logs that earlier runs found bad."""
    found = check.metadata[FOUND].value
    said = [f"{each['log']}: {each['problem']}" for each in found] if isinstance(found, list) else []
    more = f"; and {len(said) - _LOGS_MAX} more logs" if len(said) > _LOGS_MAX else ""
    return f"{'; '.join(said[:_LOGS_MAX])}{more}"


def _advice(check: AssetCheckEvaluation) -> Iterator[str]:
    for label in ("next_command", "runbook", "file"):
        if label in check.metadata:
            yield f"  {label.replace('_', ' ')}: {check.metadata[label].value}"
    steps = check.metadata.get("remedy")
    if isinstance(steps, TableMetadataValue):
        yield from (f"  {'. '.join(str(row.data[column]) for column in STEPS)}" for row in steps.records)


def _causes(instance: DagsterInstance, run_id: str) -> Iterator[str]:
    found = False
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.STEP_FAILURE):
        data = None if entry.dagster_event is None else entry.dagster_event.step_failure_data
        if data is None:
            continue
        said = None if data.user_failure_data is None else data.user_failure_data.description
        message = "" if data.error is None else data.error.message.strip()
        yield f"{entry.step_key}: {said or message}"
        found = True
    if not found:
        # Of a run that was killed, or never began, no step says why.
        for entry in instance.all_logs(run_id, of_type=DagsterEventType.RUN_FAILURE):
            if entry.dagster_event is not None and entry.dagster_event.message:
                yield entry.dagster_event.message


def is_of(scope: StoreScope, run: DagsterRun) -> bool:
    """Return whether a run is of the scope's store: of one of its jobs, or started by a click on its assets."""
    if run.tags.get(STORE_TAG) is not None:
        return run.tags[STORE_TAG] == scope.tags[STORE_TAG]
    selected = run.asset_selection or ()
    return any(key == scope.key(key.path[-1]) and key.path[-1] in ASSETS for key in selected)


def alert(scope: StoreScope, context: RunStatusSensorContext) -> SkipReason:
    """Post what is wrong with the run that just finished, if anything is."""
    run = context.dagster_run
    if not is_of(scope, run):
        return SkipReason(f"run {run.run_id} is not of this store")
    if run.tags.get(REASON_TAG, "").startswith(FOUND_BAD):
        return SkipReason(f"run {run.run_id} shows what a sweep has found, which was posted")
    text = alert_text(scope, run, context.instance)
    if text is None:
        return SkipReason(f"run {run.run_id}: nothing failed")
    url = os.environ.get(ALERT_VARIABLE)
    if not url:
        return SkipReason(f"{ALERT_VARIABLE} is not set: not posted: {text}")
    post(url, text)
    return SkipReason(f"posted: {text}")


def _sensor(scope: StoreScope, status: DagsterRunStatus) -> SensorDefinition:
    name, description = _STATUSES[status]

    @run_status_sensor(
        run_status=status,
        name=scope.named(name),
        description=description,
        minimum_interval_seconds=PERIOD_S,
        default_status=DefaultSensorStatus.RUNNING if os.environ.get(ALERT_VARIABLE) else DefaultSensorStatus.STOPPED,
        tags=scope.tags,
        metadata=scope.metadata,
    )
    def evaluate(context: RunStatusSensorContext) -> SkipReason:
        return alert(scope, context)

    return evaluate


def failing(scope: StoreScope, context: SensorEvaluationContext) -> Iterator[InstigatorTick]:
    """Yield the newest tick of each of the store's sensors and schedules whose last ticks have all failed."""
    repository = context.repository_def
    assert repository is not None
    names = {each.name for each in repository.sensor_defs if _says_store(each.metadata, scope)}
    names |= {each.name for each in repository.schedule_defs if _says_store(each.metadata, scope)}
    for state in context.instance.all_instigator_state():
        if state.name not in names or state.status is InstigatorStatus.STOPPED or not _is_here(state, context):
            continue
        count = SCHEDULE_TICKS if state.instigator_type is InstigatorType.SCHEDULE else SENSOR_TICKS
        ticks = context.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=count, statuses=_ENDED)
        if len(ticks) == count and all(tick.status is TickStatus.FAILURE for tick in ticks):
            yield ticks[0]


def _says_store(metadata: Mapping[str, MetadataValue], scope: StoreScope) -> bool:
    """Return whether a definition is one of the store's: all of these say which store that is."""
    return "store" in metadata and metadata["store"].value == scope.store_url


def _is_here(state: InstigatorState, context: SensorEvaluationContext) -> bool:
    here, there = context.code_location_origin, state.origin.repository_origin.code_location_origin
    return here is None or here.location_name == there.location_name


def alert_ticks(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Post which sensors and schedules fail; again once a day while they do."""
    posted, now_s = json.loads(context.cursor or "{}"), shared_runtime().now_us() / US_PER_S
    found = {tick.instigator_name: tick for tick in failing(scope, context)}
    new = [name for name in sorted(found) if not 0 <= now_s - posted.get(name, -TICKS_AGAIN_S) < TICKS_AGAIN_S]
    said = [f"{name}: {_message(found[name])}" for name in new]
    if said:
        lines = [f"TICKS FAIL, store {scope.store_url}: what they would start is not done", *said]
        lines.append(f"runbook: {address(scope, Section.DISCOVERY)}")
        url = os.environ.get(ALERT_VARIABLE)
        if url:
            post(url, "\n".join(lines))
    after = {name: now_s if name in new else posted[name] for name in found}
    what = "; ".join(said) if said else f"{len(found)} fail, nothing new"
    return SensorResult(skip_reason=what, cursor=json.dumps(after))


def _message(tick: InstigatorTick) -> str:
    # The last error of the chain says why; the others, where.
    error = tick.error
    while error is not None and error.cause is not None:
        error = error.cause
    return "" if error is None else error.message.strip()


FAILED_TICKS = LogSensor(
    name="failed_tick_alert",
    tick=alert_ticks,
    jobs=(),
    period_s=TICKS_PERIOD_S,
    description=(
        "Posts which sensors of the store have failed three times in a row, and which schedules once, to"
        " WAL3_ALERT_URL: at once, and each day until a tick succeeds."
    ),
    uses=(),
)


def _build(scope: StoreScope) -> Definitions:
    of_ticks = replace(FAILED_TICKS, running=bool(os.environ.get(ALERT_VARIABLE)))
    return Definitions(sensors=[*(_sensor(scope, status) for status in _STATUSES), of_ticks.build(scope)])


workflow = Workflow(further=_build)
