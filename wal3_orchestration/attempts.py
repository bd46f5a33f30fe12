"""Runs that did not succeed are asked for again, later each time.

Dagster starts one run for each key. A sensor names the run of a log by what it found there, so a run that was killed,
cancelled, or ended while the store did not answer would be the last one until the log changes. So another attempt has
a key of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import DagsterRunStatus, RunsFilter

from wal3_core.runtime import US_PER_S, shared_runtime

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    A tick that is repeated, or evaluated twice at once, returns the same keys. A request whose run is under way or has
    succeeded keeps that run's key: Dagster starts it once.
    """
    return [again for each in requests for again in _next(instance, each)]


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
