"""The names of one store's definitions, so that several stores fit into one code location.

A name is given to a store when other definitions stand beside its own: every job, sensor, schedule, pool,
resource and set of partitions then begins with it. The default scope, without a name, is the code location
that has one store and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dagster import AssetKey, DynamicPartitionsDefinition

from wal3_orchestration.partitions import GROUP, LOGS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster import DagsterInstance
    from dagster_pyspark import LazyPySparkResource

    from wal3_orchestration.resources import CollectionResource, RollUpResource, StoreResource

STORE_TAG = "wal3/store"
OWNERS = ("team:wal3",)
RUNBOOK = "docs/operations.md"


class Context(Protocol):
    """What Dagster hands to a step or a tick."""

    @property
    def instance(self) -> DagsterInstance:
        """The instance of the run or tick."""
        ...

    @property
    def resources(self) -> object:
        """The resources that the definition requires."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One store's names, and what all of its definitions carry.

    ``owners`` are e-mail addresses or ``team:NAME``. ``runbook`` is the address of docs/operations.md;
    ``store_url`` is shown, and holds no credentials.
    """

    name: str = ""
    key_prefix: tuple[str, ...] = ()
    owners: tuple[str, ...] = OWNERS
    runbook: str = RUNBOOK
    store_url: str = ""

    def named(self, name: str) -> str:
        """Return a definition's name in this scope."""
        return f"{self.name}_{name}" if self.name else name

    def key(self, asset: str) -> AssetKey:
        """Return an asset's key in this scope."""
        return AssetKey([*self.key_prefix, asset])

    def has(self, key: AssetKey) -> bool:
        """Return whether an asset's key is of this scope."""
        return tuple(key.path[:-1]) == self.key_prefix

    def keys(self, assets: Iterable[str]) -> list[AssetKey]:
        """Return assets' keys in this scope."""
        return [self.key(asset) for asset in assets]

    @property
    def group(self) -> str:
        """The group of the store's assets."""
        return self.named(GROUP)

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

    @property
    def metadata(self) -> dict[str, str]:
        """What every definition of the store shows. Assets have owners of their own; elsewhere Dagster has no field."""
        return {"store": self.store_url, "owners": ", ".join(self.owners)}

    def store(self, context: Context) -> StoreResource:
        """Return the store's resource."""
        return getattr(context.resources, self.named("store"))  # type: ignore[no-any-return]  # by its name only

    def collection(self, context: Context) -> CollectionResource:
        """Return the limits of collections, and the thresholds of checks."""
        return getattr(context.resources, self.named("collection"))  # type: ignore[no-any-return]  # by its name only

    def rollup(self, context: Context) -> RollUpResource:
        """Return when marked logs are maintained, and the thresholds of the checks of dirty logs."""
        return getattr(context.resources, self.named("rollup"))  # type: ignore[no-any-return]  # by its name only

    def spark(self, context: Context) -> LazyPySparkResource:
        """Return the Spark session's resource; the session is not started by this."""
        return getattr(context.resources, self.named("spark"))  # type: ignore[no-any-return]  # by its name only

    def known_logs(self, instance: DagsterInstance) -> list[str]:
        """Return the logs that discovery has found, in their order."""
        return list(instance.get_dynamic_partitions(self.logs_name))
