"""The definitions of one store, to merge into any project's: names can be chosen so that nothing collides."""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Sequence
from importlib import import_module

from dagster import Definitions
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource

from wal3_core import InvalidRequestError
from wal3_orchestration import defs
from wal3_orchestration.framework.scope import OWNERS, RUNBOOK, StoreScope
from wal3_orchestration.resources import (
    CollectionResource,
    RollUpResource,
    StoreResource,
    spark_resource,
    without_password,
)

OWNERS_VARIABLE = "WAL3_OWNERS"
RUNBOOK_VARIABLE = "WAL3_RUNBOOK"
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]*|")


def wal3_definitions(  # noqa: PLR0913 - one for each resource
    store: StoreResource | str | None = None,
    *,
    name: str = "",
    key_prefix: str | Sequence[str] | None = None,
    owners: Sequence[str] | None = None,
    spark: LazyPySparkResource | None = None,
    collection: CollectionResource | None = None,
    rollup: RollUpResource | None = None,
) -> Definitions:
    """Return everything that looks after one store, for ``Definitions.merge`` with a project's own definitions.

    ``store`` is a StoreResource, a URL or an ``EnvVar``; the environment's WAL3_STORE without it. ``name``
    begins the name of every job, sensor, schedule, pool, resource and set of partitions; ``key_prefix``
    comes before every asset's key, and is ``name`` unless given. Two stores in one code location need two
    names. ``owners`` are e-mail addresses or ``team:NAME``; without them WAL3_OWNERS, separated by commas.
    The address of docs/operations.md in links is WAL3_RUNBOOK. InvalidRequestError for a name that
    Dagster would not accept, and when no store is named.
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
    )
    resources = {
        scope.named("store"): store,
        scope.named("spark"): spark or spark_resource(),
        scope.named("collection"): collection or CollectionResource(),
        scope.named("rollup"): rollup or RollUpResource(),
    }
    workflows = [
        import_module(f"{defs.__name__}.{module.name}").workflow for module in pkgutil.iter_modules(defs.__path__)
    ]
    return Definitions.merge(Definitions(resources=resources), *(workflow.build(scope) for workflow in workflows))
