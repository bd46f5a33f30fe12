"""What a step works on: the logs of a run, however the run was started.

A run of an asset works on the partitions that were chosen for it, and records each of them. A sweep, a run of
operations that a schedule or sensor starts, works on all known logs or on those that its configuration names,
and records only what changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_orchestration.store_guard import open_known

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster import AssetExecutionContext, AssetKey, DagsterInstance, OpExecutionContext

    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.resources import CollectionResource
    from wal3_orchestration.scope import Scope

LOGS_FIELD = "logs"
_NAMED_MAX = 10
# So much of what a sweep finds is held at a time, however many logs it goes over.
LOGS_PER_SLICE_MAX = 1_000


def slices(logs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield many logs in parts, so that what belongs to each is not held for all of them at once."""
    for start in range(0, len(logs), LOGS_PER_SLICE_MAX):
        yield logs[start : start + LOGS_PER_SLICE_MAX]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The logs of a step of an asset; ``swept`` says that the run is a sweep, ``last`` that no step comes after it.

    A slice of the work has some of the step's ``num_logs``.
    """

    scope: Scope
    context: AssetExecutionContext | OpExecutionContext
    asset: str
    logs: Sequence[str]
    swept: bool = False
    last: bool = True
    step_logs: int | None = None

    @classmethod
    def of_sweep(cls, scope: Scope, context: OpExecutionContext, asset: str, *, last: bool) -> Work:
        """Take the logs from the configuration: those of them that are still known; all known ones without it."""
        known, named = scope.known_logs(context.instance), context.op_config.get(LOGS_FIELD)
        logs = known if named is None else sorted(set(named) & set(known))
        left_out = sorted(set(named or ()) - set(known))
        if left_out:
            more = f" and {len(left_out) - _NAMED_MAX} more" if len(left_out) > _NAMED_MAX else ""
            said = "%d logs that the configuration names are not known, and left out: %s%s"
            context.log.warning(said, len(left_out), ", ".join(left_out[:_NAMED_MAX]), more)
        return cls(scope=scope, context=context, asset=asset, logs=logs, swept=True, last=last)

    @property
    def num_logs(self) -> int:
        """How many logs the step has: whether Spark is worth its start does not depend on the slice."""
        return len(self.logs) if self.step_logs is None else self.step_logs

    @property
    def instance(self) -> DagsterInstance:
        """The Dagster instance of the run."""
        return self.context.instance

    @property
    def key(self) -> AssetKey:
        """The asset's key."""
        return self.scope.key(self.asset)

    @property
    def limits(self) -> CollectionResource:
        """The limits of collections, and the thresholds of checks."""
        return self.scope.collection(self.context)

    def slices(self) -> Iterator[Work]:
        """Yield the work in parts, so that a sweep over many logs takes no more memory than one over some of them.

        Dagster holds the chosen partitions of a run together in any case, and records them together.
        """
        parts = slices(self.logs) if self.swept else [self.logs]
        yield from (replace(self, logs=some, step_logs=self.num_logs) for some in parts)

    def open(self) -> ObjectStore:
        """Open the store; Failure when it is not the one that the instance looks after."""
        return open_known(self.scope, self.context)
