"""Runs that did not succeed are asked for again, later each time; those that wait in the queue are not asked for twice.

Dagster starts one run for each key. A sensor names the run of a log by what it found there, so a run that was killed,
cancelled, or ended while the store did not answer would be the last one until the log changes. So another attempt has
a key of its own. A run that is executed again, by someone or by Dagster's own retries, has the key of the one that it
repeats: it is the same attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import DagsterRunStatus, RunsFilter

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.partitions import LOG_TAG, RUN_KEY_TAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster import DagsterInstance, RunRecord, RunRequest

# The key of the first attempt: all of them have it.
ASKED_TAG = "wal3/asked"
AGAIN_S_MIN = 60
AGAIN_S_MAX = 24 * 60 * 60
# A minute, 8 minutes, an hour, 9 hours, a day: a run that fails for good is no flood of alerts.
_FACTOR = 8
# So many of the newest runs tell which attempt was the last one.
_RUNS_MAX = 10
_ATTEMPT = "/attempt "
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
    runs = instance.get_run_records(RunsFilter(job_name=request.job_name, tags={ASKED_TAG: asked}), limit=_RUNS_MAX)
    number = max((_attempt(each, asked) for each in runs), default=1)
    if runs and runs[0].dagster_run.status in _ENDED_IN_VAIN:
        if not _due(runs[0], number):
            return []
        number += 1
    key = f"{asked}{_ATTEMPT}{number}" if number > 1 else asked
    return [request.with_replaced_attrs(run_key=key, tags={**request.tags, ASKED_TAG: asked})]


def _attempt(run: RunRecord, asked: str) -> int:
    """Return which attempt a run was."""
    number = run.dagster_run.tags.get(RUN_KEY_TAG, "").removeprefix(asked).removeprefix(_ATTEMPT)
    return int(number) if number.isdecimal() else 1


def _due(last: RunRecord, number: int) -> bool:
    """Return whether the attempt after this one is due; also when the clock was set back since then."""
    ended_s = last.end_time or last.update_timestamp.timestamp()
    age_s = shared_runtime().now_us() / US_PER_S - ended_s
    return not 0 <= age_s < min(AGAIN_S_MAX, AGAIN_S_MIN * _FACTOR ** (number - 1))
