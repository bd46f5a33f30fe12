"""Builds the assets and checks of one store, and the operations that do the same for many logs.

Names, owners, tags, descriptions and links are added here, so that no definition lacks them.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckSpec,
    AssetExecutionContext,
    AssetsDefinition,
    BackfillPolicy,
    Field,
    FreshnessPolicy,
    In,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    Out,
    Output,
    asset,
    op,
)

from wal3_orchestration.runbook import Section, link
from wal3_orchestration.scope import Scope
from wal3_orchestration.work import LOGS_FIELD, Work

if TYPE_CHECKING:
    from wal3_orchestration.recording import Event

Step = Callable[[Work], Iterator["Event"]]
# The output and the input that only order the operations of a sweep.
DONE, AFTER = "done", "after"

_DAGSTER = Section.DAGSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAsset:
    """An asset of every log: its name and step, the assets before it, its checks, and the resources it uses."""

    name: str
    step: Step
    description: str
    deps: tuple[str, ...] = ()
    uses: tuple[str, ...] = ("store",)
    checks: tuple["LogCheck", ...] = ()
    pool: str | None = None
    freshness: FreshnessPolicy | None = None
    section: Section = _DAGSTER

    def build(self, scope: Scope) -> AssetsDefinition:
        """Return the asset of one store."""

        @asset(
            key=scope.key(self.name),
            deps=scope.keys(self.deps),
            check_specs=[check.build(scope) for check in self.checks],
            partitions_def=scope.logs,
            group_name=scope.group,
            backfill_policy=BackfillPolicy.single_run(),
            pool=None if self.pool is None else scope.named(self.pool),
            # A step with checks may end without a materialization of a log that failed one.
            output_required=not self.checks,
            kinds={"wal3", "pyspark"} if "spark" in self.uses else {"wal3"},
            description=self.description,
            owners=scope.owners,
            tags=scope.tags,
            metadata={**scope.metadata, "runbook": link(scope, self.section)},
            freshness_policy=self.freshness,
            required_resource_keys={scope.named(name) for name in self.uses},
        )
        def compute(context: AssetExecutionContext) -> Iterator[object]:
            yield from self.step(Work(scope=scope, context=context, asset=self.name, logs=context.partition_keys))

        return compute

    def build_operation(self, scope: Scope, name: str, *, first: bool, last: bool) -> OpDefinition:
        """Return the operation that does the asset's step in a sweep: ``first`` waits for none, none for ``last``."""
        logs = Field([str], is_required=False, description="The logs; all known ones without it.")

        @op(
            name=name,
            ins={} if first else {AFTER: In(Nothing)},
            out={DONE: Out(Nothing)},
            config_schema={LOGS_FIELD: logs},
            pool=None if self.pool is None else scope.named(self.pool),
            description=self.description,
            tags=scope.tags,
            required_resource_keys={scope.named(name) for name in self.uses},
        )
        def compute(context: OpExecutionContext) -> Iterator[object]:
            yield from self.step(Work.of_sweep(scope, context, self.name, last=last))
            yield Output(None, output_name=DONE)

        return compute


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """A check of an asset over all known logs; its failure names the bad ones, a section and a command."""

    name: str
    asset: str
    description: str
    section: Section
    # LOG stands for the log's name.
    next_command: tuple[str, ...]
    blocking: bool = False

    def build(self, scope: Scope) -> AssetCheckSpec:
        """Return the check of one store."""
        return AssetCheckSpec(
            self.name,
            asset=scope.key(self.asset),
            blocking=self.blocking,
            description=self.description,
            metadata={"runbook": link(scope, self.section)},
        )
