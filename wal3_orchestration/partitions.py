"""Logs as partitions, and the names that runs and assets share.

A log's name is its partition's key, the ``/`` between its parts included.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dagster import (
    DefaultScheduleStatus,
    DynamicPartitionsDefinition,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

LOGS_NAME = "log"
LOGS = DynamicPartitionsDefinition(name=LOGS_NAME)

# dagster.yaml allows one run at a time for each value of this tag.
LOG_TAG = "wal3/log"
# The pruning sensor collects what runs with this tag have planned.
COLLECT_TAG = "wal3/collect"

# One group, so that the UI opens on the whole graph.
GROUP = "log_maintenance"

_RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


def cover(keys: Sequence[str], wanted: Collection[str], *, runs_max: int) -> list[tuple[str, str]]:
    """Cover the wanted partitions with at most ``runs_max`` ranges (first and last key) of as few keys as possible.

    ``keys`` are all partitions in their order. A range may include unwanted partitions between wanted
    ones: looking at a log costs a request or two, a run costs seconds.
    """
    places = [place for place, key in enumerate(keys) if key in wanted]
    if not places:
        return []
    gaps = [(after - before, before, after) for before, after in pairwise(places) if after > before + 1]
    kept = sorted(sorted(gaps, reverse=True)[: runs_max - 1], key=lambda gap: gap[1])
    starts = [places[0], *(after for _, _, after in kept)]
    lasts = [*(before for _, before, _ in kept), places[-1]]
    return [(keys[start], keys[last]) for start, last in zip(starts, lasts, strict=True)]


def range_tags(first: str, last: str) -> dict[str, str]:
    """Return the tags of a run over the partitions from ``first`` to ``last``, both included."""
    return dict(zip(_RANGE_TAGS, (first, last), strict=True))


def run_request(
    first: str, last: str, *, run_key: str | None = None, tags: Mapping[str, str] | None = None
) -> RunRequest:
    """Ask for one run over the partitions from ``first`` to ``last``, both included."""
    if first == last:
        return RunRequest(run_key=run_key, partition_key=first, tags={LOG_TAG: first, **(tags or {})})
    return RunRequest(run_key=run_key, tags={**range_tags(first, last), **(tags or {})})


def schedule_for_all_logs(
    name: str, job: UnresolvedAssetJobDefinition, cron: str, description: str, *, tags: Mapping[str, str] | None = None
) -> ScheduleDefinition:
    """Make a schedule of one run over every log; it is off until someone turns it on."""

    @schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        description=description,
        default_status=DefaultScheduleStatus.STOPPED,
    )
    def request(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        logs = context.instance.get_dynamic_partitions(LOGS_NAME)
        if not logs:
            return SkipReason("no logs: the discovery sensor has found none yet")
        return run_request(logs[0], logs[-1], tags=tags)

    return request
