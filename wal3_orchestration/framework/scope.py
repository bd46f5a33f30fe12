"""The names of one store's definitions, so that several stores fit into one code location.

A name is given to a store when other definitions stand beside its own: every job, sensor, schedule, pool,
resource and set of partitions then begins with it. The default scope, without a name, is the code location
that has one store and nothing else. A log's name is its partition's key, the ``/`` between its parts included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    DynamicPartitionsDefinition,
    OpExecutionContext,
    SensorEvaluationContext,
)
from dagster_pyspark import LazyPySparkResource

from wal3_orchestration.resources import CollectionResource, RollUpResource, StoreResource

# What Dagster hands to a step or a tick.
Context = AssetExecutionContext | OpExecutionContext | SensorEvaluationContext

LOGS_NAME = "log"
QUEUES_NAME = "queue"
# What the keys of logs begin with, and their group.
LOGS = "logs"
OWNERS = ("team:wal3",)
RUNBOOK = "docs/operations.md"
STORE_TAG = "wal3/store"
# Why a run was asked for.
REASON_TAG = "wal3/reason"
# dagster.yaml allows one run at a time for each value of this tag.
LOG_TAG = "wal3/log"
# The pruning sensor collects what runs with this tag have planned.
COLLECT_TAG = "wal3/collect"
# Dagster's own: which partition a run is about.
PARTITION_TAG = "dagster/partition"
# Dagster's own: which request of a sensor a run fulfils.
RUN_KEY_TAG = "dagster/run_key"
# What the reason of a run begins with that a roll-up of dirty logs asked for.
ROLLED_UP = "roll-up"
# What the reason of a run begins with that shows a log which a sweep found bad.
FOUND_BAD = "a sweep found"
# The kind of an asset by the scheme of the store's URL, with an icon in Dagster's UI.
_KINDS = {"s3": "s3", "gs": "gcs", "az": "azure"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLineage:
    """Who appends to a log and who reads it, as keys of assets: the log is an asset between them.

    ``producers`` may be defined anywhere, or nowhere. ``consumers`` are those that this code location does not define,
    such as a dashboard, or an asset of another one; an asset that it defines names the log's key in its own ``deps``.
    """

    log: str
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreScope:
    """One store's names, and what all of its definitions carry.

    ``owners`` are e-mail addresses or ``team:NAME``. ``runbook`` is the address of docs/operations.md;
    ``store_url`` is shown, and holds no credentials. ``lineage`` is of logs that are assets of their own.
    """

    name: str = ""
    key_prefix: tuple[str, ...] = ()
    owners: tuple[str, ...] = OWNERS
    runbook: str = RUNBOOK
    store_url: str = ""
    lineage: tuple[LogLineage, ...] = ()

    def named(self, name: str) -> str:
        """Return a definition's name in this scope."""
        return f"{self.name}_{name}" if self.name else name

    def key(self, asset: str) -> AssetKey:
        """Return an asset's key in this scope."""
        return AssetKey([*self.key_prefix, asset])

    def log_key(self, log: str) -> AssetKey:
        """Return the key of a log that lineage names."""
        return AssetKey([*self.key_prefix, LOGS, *log.split("/")])

    def log_tag(self, log: str) -> str:
        """Return the value of LOG_TAG for a log."""
        return f"{self.name}:{log}" if self.name else log

    def keys(self, assets: Iterable[str]) -> list[AssetKey]:
        """Return assets' keys in this scope."""
        return [self.key(asset) for asset in assets]

    @property
    def logs_name(self) -> str:
        """The name of the set of partitions."""
        return self.named(LOGS_NAME)

    @property
    def logs(self) -> DynamicPartitionsDefinition:
        """The store's logs, as partitions."""
        return DynamicPartitionsDefinition(name=self.logs_name)

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the store's assets and runs."""
        return {STORE_TAG: self.name or "default"}

    def kinds(self, uses: Iterable[str] = ()) -> set[str]:
        """Return the kinds of an asset that uses these resources: what it is, where it is, and what may do the work."""
        stored = _KINDS.get(self.store_url.partition(":")[0], "file")
        return {"parquet", stored, *(["pyspark"] if "spark" in uses else [])}

    @property
    def metadata(self) -> dict[str, str]:
        """What every definition of the store shows. Assets have owners of their own; elsewhere Dagster has no field."""
        return {"store": self.store_url, "owners": ", ".join(self.owners)}

    def _resource(self, context: Context, name: str) -> Any:  # noqa: ANN401 - by its name only
        return getattr(context.resources, self.named(name))

    def store(self, context: Context) -> StoreResource:
        """Return the store's resource."""
        return self._resource(context, "store")  # type: ignore[no-any-return]  # by its name only

    def collection(self, context: Context) -> CollectionResource:
        """Return the limits of collections, and the thresholds of checks."""
        return self._resource(context, "collection")  # type: ignore[no-any-return]  # by its name only

    def rollup(self, context: Context) -> RollUpResource:
        """Return when marked logs are maintained, and the thresholds of the checks of dirty logs."""
        return self._resource(context, "rollup")  # type: ignore[no-any-return]  # by its name only

    def spark(self, context: Context) -> LazyPySparkResource:
        """Return the Spark session's resource; the session is not started by this."""
        return self._resource(context, "spark")  # type: ignore[no-any-return]  # by its name only

    @property
    def queues(self) -> DynamicPartitionsDefinition:
        """Those of the store's logs that are delay queues, as partitions."""
        return DynamicPartitionsDefinition(name=self.named(QUEUES_NAME))

    def known_queues(self, instance: DagsterInstance) -> list[str]:
        """Return the logs that discovery has seen to be delay queues, in their order."""
        return list(instance.get_dynamic_partitions(self.named(QUEUES_NAME)))

    def known_logs(self, instance: DagsterInstance) -> list[str]:
        """Return the logs that discovery has found, in their order."""
        return list(instance.get_dynamic_partitions(self.logs_name))
