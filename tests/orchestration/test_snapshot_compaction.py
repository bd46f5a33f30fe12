"""Trees that writers left lopsided are found, repacked, and described."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult, SensorResult, build_sensor_context

from tests.orchestration.run_requests import run_request
from wal3_core import LogWriter, WriterOptions, scrub
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.snapshot_compaction import find_lopsided
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.resources import StoreResource

if TYPE_CHECKING:
    from conftest import Run


# Snapshots of two where the default is 16.
SMALL = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1))


def _make_lopsided(store: ObjectStore, log: str) -> None:
    with LogWriter.open_or_create(store, log, options=SMALL) as writer:
        for _ in range(40):
            writer.append_many([b"x"])


def _tick(instance: DagsterInstance) -> SensorResult:
    with build_sensor_context(instance, resources={"store": StoreResource.from_environment()}) as context:
        result = find_lopsided(StoreScope(), context)
    assert isinstance(result, SensorResult)
    return result


def _recorded(result: ExecuteInProcessResult) -> dict[str | None, dict[str, object]]:
    return {
        event.partition: {
            label: value.value for label, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey("repacked_snapshots")
    }


@pytest.mark.slow
def test_lopsided_tree_is_requested_once_and_packed(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    assert _tick(instance).run_requests == []
    _make_lopsided(fleet, known[0])

    (request,), (again,) = (_tick(instance).run_requests or () for _ in range(2))
    result = run("snapshot_compaction_job", request)

    assert (request.partition_key, request.run_key) == (known[0], again.run_key)
    (numbers,) = _recorded(result).values()
    assert result.success
    assert numbers["needs_compaction"] is False
    assert numbers["steps"] != 0
    assert isinstance(numbers["snapshots"], int)
    assert isinstance(numbers["snapshots_before"], int)
    assert numbers["snapshots"] < numbers["snapshots_before"]
    assert _tick(instance).run_requests == []
    assert scrub(fleet, known[0]).sound


@pytest.mark.slow
def test_damaged_log_hides_no_other(known: list[str], fleet: ObjectStore, run: Run) -> None:
    manifest = next((Path(urlsplit(fleet.url).path) / "gamma").glob("manifest/MANIFEST*"))
    manifest.write_bytes(manifest.read_bytes()[:-9])

    result = run("snapshot_compaction_job", run_request(known[0], known[-1]))

    assert not result.success
    assert set(_recorded(result)) == {"alpha", "beta/one"}
    assert "1 of 3 logs: gamma: " in str(result.failure_data_for_node("repacked_snapshots"))


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_fleet_without_lopsided_trees_is_reported(instance: DagsterInstance) -> None:
    skipped = _tick(instance).skip_reason

    assert skipped is not None
    assert skipped.skip_message == "3 logs, none with a lopsided tree"
