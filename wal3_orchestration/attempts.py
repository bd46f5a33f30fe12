"""Runs that did not succeed are asked for again, later each time; those that wait in the queue are not asked for twice.

Dagster starts one run for each key. A sensor names the run of a log by what it found there, so a run that was killed,
cancelled, or ended while the store did not answer would be the last one until the log changes. So another attempt has
a key of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import DagsterRunStatus, RunsFilter

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.partitions import LOG_TAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster import DagsterInstance, RunRecord, RunRequest

# The key of the first attempt: all of them have it.
ASKED_TAG = "wal3/asked"
AGAIN_S_MIN = 60
AGAIN_S_MAX = 24 * 60 * 60
# A minute, 8 minutes, an hour, 9 hours, a day: a run that fails for good is no flood of alerts.
_FACTOR = 8
_ATTEMPTS_MAX = 10
_ENDED_IN_VAIN = {DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}


def next_attempts(instance: DagsterInstance, requests: Iterable[RunRequest]) -> list[RunRequest]:
    """Return the requests under the keys of their next attempts, without those that are not due yet.

    A request for a log of which a run of that job waits in the queue is left out: that run sees what this one would.
    A tick that is repeated, or evaluated twice at once, returns the same keys. A request whose run is under way or has
    succeeded keeps that run's key: Dagster starts it once.
    """
    return [again for each in requests if not _is_queued(instance, each) for again in _next(instance, each)]


def sweep_is_queued(instance: DagsterInstance, requests: Iterable[RunRequest]) -> bool:
    """Return whether a run of one of these requests' jobs waits in the queue, whatever its logs."""
    return any(_queued(instance, name, {}) for name in {each.job_name for each in requests})


def _is_queued(instance: DagsterInstance, request: RunRequest) -> bool:
    log = request.tags.get(LOG_TAG)
    return log is not None and _queued(instance, request.job_name, {LOG_TAG: log})


def _queued(instance: DagsterInstance, job_name: str | None, tags: Mapping[str, str]) -> bool:
    found = RunsFilter(job_name=job_name, tags=dict(tags), statuses=[DagsterRunStatus.QUEUED])
    return bool(instance.get_run_records(found, limit=1))


def _next(instance: DagsterInstance, request: RunRequest) -> list[RunRequest]:
    asked = request.run_key
    assert asked is not None
    before = instance.get_run_records(
        RunsFilter(job_name=request.job_name, tags={ASKED_TAG: asked}), limit=_ATTEMPTS_MAX
    )
    vain = len(before)
    if before and before[0].dagster_run.status not in _ENDED_IN_VAIN:
        vain -= 1
    elif before and not _due(before[0], vain):
        return []
    key = f"{asked}/attempt {vain + 1}" if vain else asked
    return [request.with_replaced_attrs(run_key=key, tags={**request.tags, ASKED_TAG: asked})]


def _due(last: RunRecord, vain: int) -> bool:
    """Return whether the next attempt is due; also when the clock was set back since the last one."""
    ended_s = last.end_time or last.update_timestamp.timestamp()
    age_s = shared_runtime().now_us() / US_PER_S - ended_s
    return not 0 <= age_s < min(AGAIN_S_MAX, AGAIN_S_MIN * _FACTOR ** (vain - 1))
