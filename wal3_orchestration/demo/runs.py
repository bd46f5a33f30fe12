"""The demo's runs: what Dagster's daemon would do later, done at once on the same instance."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    DagsterInstance,
    DeleteDynamicPartitionsRequest,
    RunRequest,
    SensorResult,
    build_sensor_context,
)

from wal3_core.runtime import shared_runtime
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.discovery import discover
from wal3_orchestration.defs.snapshot_compaction import find_lopsided
from wal3_orchestration.log_state import LogState, UnreadableLog, read_states
from wal3_orchestration.partitions import LOGS_NAME, run_request
from wal3_orchestration.resources import CollectionResource, StoreResource
from wal3_orchestration.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import ExecuteInProcessResult

_SCOPE = Scope()
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# Use Spark even for the demo's small logs, and allow half of a log to be garbage.
_LIMITS = {"spark_logs_min": 1, "spark_objects_min": 1, "fraction_max": 1.0, "fraction_alarm": 1.0}
_COLLECTION = {"resources": {"collection": {"config": _LIMITS}}}
_COLLECTED = {"records": "records", "num_bytes": "bytes", "objects": "objects"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A log's state, and whether its verification found it sound; None without a result."""

    state: LogState | UnreadableLog
    sound: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What collections took from a log so far: records pruned, bytes and objects deleted."""

    records: int = 0
    num_bytes: int = 0
    objects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The number of snapshots in a log's tree, before and after compaction."""

    before: int
    after: int


class Workflows:
    """The project's workflows on the instance that DAGSTER_HOME names; ``failures`` names the runs that failed."""

    def __init__(self, instance: DagsterInstance, store: StoreResource) -> None:
        self._instance = instance
        self._store = store
        self._cursor: str | None = None
        self._interval_s = CollectionResource().waiting_s
        self.failures: list[str] = []

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Workflows]:
        """Open the instance."""
        with DagsterInstance.get() as instance:
            yield cls(instance, StoreResource.from_environment())

    def discover(self) -> int:
        """Tick the discovery sensor and do the runs it requests; return how many."""
        with build_sensor_context(self._instance, cursor=self._cursor, resources={"store": self._store}) as context:
            result = discover(_SCOPE, context)
        assert isinstance(result, SensorResult)
        for change in result.dynamic_partitions_requests or ():
            self._change_partitions(change)
        for request in result.run_requests or ():
            self._run("manifest_job", request)
        self._cursor = result.cursor
        return len(result.run_requests or ())

    def collect(self) -> dict[str, Collected]:
        """Collect every log: one run plans, verifies and prunes, another deletes once the interval is over."""
        self._run("collection_job", self._every_log(), _COLLECTION)
        deleted = self._delete()
        return {
            log: Collected(**{name: int(str(found[label])) for name, label in _COLLECTED.items()})
            for log, found in deleted.items()
        }

    def sweep(self) -> int:
        """Mark orphans, and delete them once the interval is over; return how many objects were deleted."""
        # Only objects older than the interval are considered.
        shared_runtime().sleep(self._interval_s)
        self._run("orphans_job", self._every_log(), _COLLECTION)
        return sum(int(str(found["objects"])) for found in self._delete().values())

    def _delete(self) -> dict[str, Mapping[str, object]]:
        # The deletion sensor would tick again later instead.
        shared_runtime().sleep(self._interval_s)
        return _recorded(self._run("deletion_job", self._every_log(), _COLLECTION), "deleted_garbage")

    def compact(self) -> dict[str, Packed]:
        """Tick the sensor that finds lopsided trees, and do the runs it requests."""
        with build_sensor_context(self._instance, resources={"store": self._store}) as context:
            result = find_lopsided(_SCOPE, context)
        assert isinstance(result, SensorResult)
        packed: dict[str, Mapping[str, object]] = {}
        for request in result.run_requests or ():
            packed |= _recorded(self._run("snapshot_compaction_job", request), "compacted_snapshots")
        return {
            log: Packed(before=int(str(found["snapshots_before"])), after=int(str(found["snapshots"])))
            for log, found in packed.items()
        }

    def verify(self) -> list[Finding]:
        """Verify every log in one run."""
        logs = self._instance.get_dynamic_partitions(LOGS_NAME)
        result = self._run("verification_job", self._every_log(), _COLLECTION)
        sound = {check.partition: check.passed for check in result.get_asset_check_evaluations()}
        states = read_states(self._store.open(), logs)
        return [Finding(state=state, sound=sound.get(state.log)) for state in states]

    def _every_log(self) -> RunRequest:
        logs = self._instance.get_dynamic_partitions(LOGS_NAME)
        return run_request(logs[0], logs[-1])

    def _change_partitions(self, request: AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest) -> None:
        if isinstance(request, AddDynamicPartitionsRequest):
            self._instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
            return
        for key in request.partition_keys:
            self._instance.delete_dynamic_partition(request.partitions_def_name, key)

    def _run(self, job: str, request: RunRequest, config: Mapping[str, object] | None = None) -> ExecuteInProcessResult:
        workflow = defs().resolve_job_def(job)
        result = workflow.execute_in_process(
            instance=self._instance,
            run_config={**_QUIET, **(config or {})},
            partition_key=request.partition_key,
            tags=request.tags,
            raise_on_error=False,
        )
        if not result.success:
            self.failures.append(f"{job} {result.run_id}: {_cause(result)}")
        return result


def _cause(result: ExecuteInProcessResult) -> str:
    failures = [event.step_failure_data.error for event in result.get_step_failure_events()]
    return "; ".join(error.message.strip() for error in failures if error is not None) or "see the run in Dagster's UI"


def _recorded(result: ExecuteInProcessResult, asset: str) -> dict[str, Mapping[str, object]]:
    """Return what a run recorded of an asset, by log."""
    return {
        str(event.partition): {
            label: value.value for label, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey(asset)
    }
