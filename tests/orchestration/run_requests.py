"""Requests for runs over chosen logs, as someone makes them in Dagster's UI."""

from __future__ import annotations

from collections.abc import Mapping

from dagster import RunRequest

from wal3_orchestration.framework.scope import LOG_TAG, StoreScope

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
        tag = StoreScope(name=store_name).log_tag(first)
        return RunRequest(run_key=run_key, partition_key=first, tags={LOG_TAG: tag, **(tags or {})})
    return RunRequest(run_key=run_key, tags={**range_tags(first, last), **(tags or {})})
