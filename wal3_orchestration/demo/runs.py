"""The demo's runs: what Dagster's daemon would do later, done at once on the same instance."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    DagsterInstance,
    DeleteDynamicPartitionsRequest,
    RunRequest,
    RunsFilter,
    build_sensor_context,
)

from wal3_core.runtime import shared_runtime
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.dirty_logs.sensors import roll_up_dirty_logs
from wal3_orchestration.defs.discovery import discover
from wal3_orchestration.defs.snapshot_compaction import find_lopsided
from wal3_orchestration.framework.scope import LOGS_NAME, RUN_KEY_TAG, Scope, run_request
from wal3_orchestration.framework.store import LogState, UnreadableLog, read_states
from wal3_orchestration.resources import CollectionResource, RollUpResource, StoreResource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from dagster import ExecuteInProcessResult

    from wal3_orchestration.framework.triggers import Tick

# What Dagster calls a location's definitions, and a location that no workspace has.
_LABEL = "__repository__@this_process"
UNPLACED = {".dagster/repository": _LABEL}
_TIMEOUT_S = 60


def place(root: Path, instance: DagsterInstance) -> str | None:
    """Place the runs that carry UNPLACED; return what went wrong.

    The command loads the code location, which takes seconds: the other jobs' runs are placed as it places one job's.
    """
    runs = instance.get_runs(RunsFilter(tags=UNPLACED))
    if not runs:
        return None
    problem = _place_job(root, runs[0].job_name)
    if problem is not None:
        return problem
    placed = instance.get_run_by_id(runs[0].run_id)
    if placed is None or placed.remote_job_origin is None:
        return f"{runs[0].job_name}: expected a run with its code location, found none"
    for run in instance.get_runs(RunsFilter(tags=UNPLACED)):
        origin = placed.remote_job_origin._replace(job_name=run.job_name)
        instance.run_storage.replace_job_origin(run, origin)
    return None


def _place_job(root: Path, job: str) -> str | None:
    command = (sys.executable, "-m", "dagster", "run", "migrate-repository", "--from", _LABEL)
    place = ("-w", "workspace.yaml", "-j", job)
    try:
        done = subprocess.run(  # noqa: S603 - its own interpreter
            [*command, *place],
            cwd=root,
            input="MIGRATE\n",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{job}: expected an answer of Dagster's command line within {_TIMEOUT_S} s, found none"
    last = done.stderr.strip().splitlines()[-1:]
    return None if done.returncode == 0 else f"{job}: {' '.join(last) or 'Dagster refused'}"


_SCOPE = Scope()
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# Use Spark even for the demo's small logs, and allow half of a log to be garbage.
_LIMITS = {"spark_logs_min": 1, "spark_objects_min": 1, "fraction_max": 1.0, "fraction_alarm": 1.0}
_COLLECTION = {"resources": {"collection": {"config": _LIMITS}}}
# Look at each tick; a log is due when it has grown by some hundred records.
_ROLL_UP = RollUpResource(period_s=0, records_max=500)
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
        self._cursors: dict[Tick, str | None] = {}
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
        requests = self._tick(discover)
        for request in requests:
            self._run("manifest_job", request)
        return len(requests)

    def roll_up(self) -> list[str]:
        """Tick the sensor on the dirty logs until nothing is due, and do the runs it asks for; return their logs."""
        logs: list[str] = []
        while requests := self._tick(roll_up_dirty_logs, rollup=_ROLL_UP):
            for request in requests:
                self._run("", request)
            logs += [request.partition_key for request in requests if request.partition_key is not None]
        return sorted(set(logs))

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
        packed: dict[str, Mapping[str, object]] = {}
        for request in self._tick(find_lopsided):
            packed |= _recorded(self._run("snapshot_compaction_job", request), "compacted_snapshots")
        return {
            log: Packed(before=int(str(found["snapshots_before"])), after=int(str(found["snapshots"])))
            for log, found in packed.items()
        }

    def compact_keys(self, logs: Sequence[str]) -> None:
        """Keep the newest record of every key of some logs: one run for each plans, merges, installs and verifies."""
        for log in logs:
            self._run("compaction_job", run_request(log, log))

    def verify(self) -> list[Finding]:
        """Verify every log in one run."""
        logs = self._instance.get_dynamic_partitions(LOGS_NAME)
        result = self._run("verification_job", self._every_log(), _COLLECTION)
        sound = _recorded(result, "verification")
        judged = bool(result.get_asset_check_evaluations())
        states = read_states(self._store.open(), logs)
        return [Finding(state=state, sound=state.log in sound if judged else None) for state in states]

    def place(self, root: Path) -> str | None:
        """Let the UI's first page show the runs so far; return what went wrong."""
        return place(root, self._instance)

    def _tick(self, tick: Tick, **resources: object) -> Sequence[RunRequest]:
        """Tick a sensor where it left off, store what it reports, and return the runs that it asks for."""
        used = {"store": self._store, **resources}
        with build_sensor_context(self._instance, cursor=self._cursors.get(tick), resources=used) as context:
            result = tick(_SCOPE, context)
        for change in result.dynamic_partitions_requests or ():
            self._change_partitions(change)
        for event in result.asset_events:
            self._instance.report_runless_asset_event(event)
        self._cursors[tick] = result.cursor
        return result.run_requests or ()

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
        workflow = defs().resolve_job_def(request.job_name or job)
        asked = {RUN_KEY_TAG: request.run_key} if request.run_key else {}
        result = workflow.execute_in_process(
            instance=self._instance,
            run_config={**_QUIET, **(config or {}), **(request.run_config or {})},
            partition_key=request.partition_key,
            tags={**request.tags, **asked, **UNPLACED},
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
