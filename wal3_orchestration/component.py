"""The definitions of one store as a component, for a project of `dg` that is written in YAML.

A folder of the project's ``defs`` has a file ``defs.yaml``: its ``type`` is ``wal3_orchestration.component.Wal3Store``,
and its ``attributes`` are the fields below.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the class below.
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster import Component, ComponentLoadContext, Definitions, Resolvable

from wal3_orchestration.embedding import wal3_definitions
from wal3_orchestration.resources import CollectionResource, RollUpResource


@dataclass
class Wal3Store(Component, Resolvable):
    """Everything that looks after one store of logs: assets, checks, sensors and schedules.

    ``store`` is its URL, WAL3_STORE without it. ``collection`` and ``rollup`` are fields of these resources. The other
    fields are those of ``wal3_definitions``, which takes ``lineage`` and Spark's resource as well.
    """

    store: str | None = None
    name: str = ""
    key_prefix: Sequence[str] | None = None
    owners: Sequence[str] | None = None
    collection: dict[str, Any] = field(default_factory=dict)
    rollup: dict[str, Any] = field(default_factory=dict)

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return the store's definitions."""
        del context
        return wal3_definitions(
            self.store,
            name=self.name,
            key_prefix=self.key_prefix,
            owners=self.owners,
            collection=CollectionResource(**self.collection),
            rollup=RollUpResource(**self.rollup),
        )
