"""The definitions of one store, to merge into any project's: names can be chosen so that nothing collides."""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, TypedDict, Unpack

from dagster import AssetKey, AssetSpec, ConfigurableResource, Definitions
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource

from wal3_core import InvalidRequestError
from wal3_core.format.paths import check_log_name
from wal3_orchestration import defs
from wal3_orchestration.framework.scope import LOGS, OWNERS, RUNBOOK, LogLineage, StoreScope
from wal3_orchestration.resources import (
    CollectionResource,
    RollUpResource,
    StoreResource,
    spark_resource,
    with_few_knobs,
    without_password,
)

OWNERS_VARIABLE = "WAL3_OWNERS"
RUNBOOK_VARIABLE = "WAL3_RUNBOOK"
__all__ = ["LogLineage", "Resources", "wal3_definitions"]
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]*|")


class Resources(TypedDict, total=False):
    """The resources beside the store: Spark, and the limits of the workflows."""

    spark: LazyPySparkResource | None
    collection: CollectionResource | None
    rollup: RollUpResource | None


def wal3_definitions(
    store: StoreResource | str | None = None,
    *,
    name: str = "",
    key_prefix: str | Sequence[str] | None = None,
    owners: Sequence[str] | None = None,
    lineage: Sequence[LogLineage] = (),
    **resources: Unpack[Resources],
) -> Definitions:
    """Return everything that looks after one store, for ``Definitions.merge`` with a project's own definitions.

    ``store`` is a StoreResource, a URL or an ``EnvVar``; the environment's WAL3_STORE without it. ``name``
    begins the name of every job, sensor, schedule, pool, resource and set of partitions; ``key_prefix``
    comes before every asset's key, and is ``name`` unless given. Two stores in one code location need two
    names. ``owners`` are e-mail addresses or ``team:NAME``; without them WAL3_OWNERS, separated by commas.
    The address of docs/operations.md in links is WAL3_RUNBOOK. ``lineage`` makes logs assets, below ``logs``, between
    their producers and consumers. ``resources`` are ``spark``, ``collection`` and ``rollup``. InvalidRequestError for a
    name that Dagster would not accept, and when no store is named.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(f"name: expected letters, digits and _, beginning with a letter, found {name!r}")
    if not isinstance(store, StoreResource):
        store = StoreResource.from_environment() if store is None else StoreResource(store=store, s3=S3Resource())
    if key_prefix is None:
        key_prefix = (name,) if name else ()
    if owners is None:
        owners = [owner.strip() for owner in os.environ.get(OWNERS_VARIABLE, "").split(",") if owner.strip()] or OWNERS
    scope = StoreScope(
        name=name,
        key_prefix=(key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix),
        owners=tuple(owners),
        runbook=os.environ.get(RUNBOOK_VARIABLE) or RUNBOOK,
        # Checked at load: a code location without a store must not look like one whose store is empty.
        store_url=without_password(store.require_url()),
        lineage=tuple(lineage),
    )
    given: dict[str, ConfigurableResource[Any]] = {
        scope.named("store"): store,
        scope.named("spark"): resources.get("spark") or spark_resource(),
        scope.named("collection"): resources.get("collection") or CollectionResource(),
        scope.named("rollup"): resources.get("rollup") or RollUpResource(),
    }
    workflows = [
        import_module(f"{defs.__name__}.{module.name}").workflow for module in pkgutil.iter_modules(defs.__path__)
    ]
    around = Definitions(
        resources={each: with_few_knobs(made) for each, made in given.items()}, assets=list(_lineage(scope))
    )
    return Definitions.merge(around, *(workflow.build(scope) for workflow in workflows))


def _lineage(scope: StoreScope) -> Iterator[AssetSpec]:
    """Return the logs that lineage names, and their consumers, as assets that something else makes."""
    consumers: dict[str, list[AssetKey]] = {}
    for each in scope.lineage:
        key = scope.log_key(check_log_name(each.log))
        for consumer in each.consumers:
            consumers.setdefault(consumer, []).append(key)
        yield AssetSpec(
            key,
            deps=[AssetKey.from_user_string(producer) for producer in each.producers],
            group_name=scope.named(LOGS),
            kinds=scope.kinds(),
            description=f"The log `{each.log}`. Its partition of `manifest`, and of what follows, is about it.",
            owners=scope.owners,
            tags=scope.tags,
            metadata=scope.metadata,
        )
    for consumer, keys in consumers.items():
        yield AssetSpec(AssetKey.from_user_string(consumer), deps=keys, description="Reads logs.")
