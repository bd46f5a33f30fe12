"""Alerts: posts failed runs and failed checks to a webhook, such as a chat's or a pager's.

WAL3_ALERT_URL  where to post; the sensors are off until someone turns them on, unless it is set
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import http.client
import json
import os
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from dagster import (
    AssetCheckEvaluation,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    Definitions,
    RunStatusSensorContext,
    SensorDefinition,
    SkipReason,
    TableMetadataValue,
    run_status_sensor,
)

from wal3_core import InvalidRequestError, UnavailableError
from wal3_core.runtime import shared_runtime
from wal3_orchestration.framework.checks import FOUND, STEPS, found_by_run
from wal3_orchestration.framework.scope import FOUND_BAD, REASON_TAG, STORE_TAG, StoreScope
from wal3_orchestration.framework.triggers import Workflow

ALERT_VARIABLE = "WAL3_ALERT_URL"
TIMEOUT_S = 10.0
TRIES_MAX = 3
PAUSE_S = 1.0
PERIOD_S = 30
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
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.STEP_FAILURE):
        data = None if entry.dagster_event is None else entry.dagster_event.step_failure_data
        if data is None:
            continue
        said = None if data.user_failure_data is None else data.user_failure_data.description
        message = "" if data.error is None else data.error.message.strip()
        yield f"{entry.step_key}: {said or message}"


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


workflow = Workflow(further=lambda scope: Definitions(sensors=[_sensor(scope, status) for status in _STATUSES]))
