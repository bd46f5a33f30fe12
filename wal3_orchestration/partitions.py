"""Logs as partitions, and the names that runs and assets share.

A log's name is its partition's key, the ``/`` between its parts included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGS_NAME = "log"

# dagster.yaml allows one run at a time for each value of this tag.
LOG_TAG = "wal3/log"
# The pruning sensor collects what runs with this tag have planned.
COLLECT_TAG = "wal3/collect"

# Dagster's own: which request of a sensor a run fulfils.
RUN_KEY_TAG = "dagster/run_key"
# What the reason of a run begins with that a roll-up of dirty logs asked for.
ROLLED_UP = "roll-up"

# One group, so that the UI opens on the whole graph.
GROUP = "log_maintenance"

_RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


def range_tags(first: str, last: str) -> dict[str, str]:
    """Return the tags of a run over the partitions from ``first`` to ``last``, both included."""
    return dict(zip(_RANGE_TAGS, (first, last), strict=True))


def run_request(
    first: str, last: str, *, run_key: str | None = None, tags: Mapping[str, str] | None = None, store_name: str = ""
) -> RunRequest:
    """Ask for one run over the partitions from ``first`` to ``last``, both included.

    ``store_name`` is the scope's name: logs of two stores may have the same name.
    """
    if first == last:
        one = f"{store_name}:{first}" if store_name else first
        return RunRequest(run_key=run_key, partition_key=first, tags={LOG_TAG: one, **(tags or {})})
    return RunRequest(run_key=run_key, tags={**range_tags(first, last), **(tags or {})})
