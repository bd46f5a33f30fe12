"""The demo's runs: what Dagster's daemon would do in its own time, done at once on the same instance."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import (
    AddDynamicPartitionsRequest,
    DagsterInstance,
    DeleteDynamicPartitionsRequest,
    RunRequest,
    SensorResult,
    build_sensor_context,
)

from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.discovery import discovery
from wal3_orchestration.log_state import LogState, UnreadableLog, look_at_all
from wal3_orchestration.partitions import LOGS_NAME, run_request
from wal3_orchestration.resources import StoreResource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster import ExecuteInProcessResult

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A log as it was seen, and what its verification said; None when it said nothing."""

    state: LogState | UnreadableLog
    sound: bool | None


class Workflows:
    """The project's workflows on the instance that DAGSTER_HOME names; ``failures`` tells of the runs that failed."""

    def __init__(self, instance: DagsterInstance, store: StoreResource) -> None:
        self._instance = instance
        self._store = store
        self._cursor: str | None = None
        self.failures: list[str] = []

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Workflows]:
        """Open the instance."""
        with DagsterInstance.get() as instance:
            yield cls(instance, StoreResource.from_environment())

    def discover(self) -> int:
        """Tick the discovery sensor and do the runs it asks for; return how many."""
        with build_sensor_context(self._instance, cursor=self._cursor, resources={"store": self._store}) as context:
            result = discovery(context)
        assert isinstance(result, SensorResult)
        for change in result.dynamic_partitions_requests or ():
            self._change_partitions(change)
        for request in result.run_requests or ():
            self._run("manifest_job", request)
        self._cursor = result.cursor
        return len(result.run_requests or ())

    def verify(self) -> list[Finding]:
        """Verify every log in one run."""
        logs = self._instance.get_dynamic_partitions(LOGS_NAME)
        result = self._run("verification_job", run_request(logs[0], logs[-1]))
        sound = {check.partition: check.passed for check in result.get_asset_check_evaluations()}
        states = look_at_all(self._store.open(), logs)
        return [Finding(state=state, sound=sound.get(state.log)) for state in states]

    def _change_partitions(self, request: AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest) -> None:
        if isinstance(request, AddDynamicPartitionsRequest):
            self._instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
            return
        for key in request.partition_keys:
            self._instance.delete_dynamic_partition(request.partitions_def_name, key)

    def _run(self, job: str, request: RunRequest) -> ExecuteInProcessResult:
        result = defs.resolve_job_def(job).execute_in_process(
            instance=self._instance,
            run_config=_QUIET,
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
