from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from dagster import AssetKey, AssetRecordsFilter, DagsterEventType, DagsterInstance, ExecuteInProcessResult

from tests.orchestration.run_requests import run_request
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, WriterOptions, open_store
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.readable import size
from wal3_orchestration.framework.scope import LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run


KEY = AssetKey("manifest")


def _recorded(result: ExecuteInProcessResult) -> dict[str | None, dict[str, Any]]:
    """Return what the run recorded of each partition."""
    return {
        event.partition: {
            label: value.value for label, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
    }


@pytest.mark.slow
def test_recorded_numbers_are_the_manifests_on_every_store(
    store_url: str, instance: DagsterInstance, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL3_STORE", store_url)
    store = open_store(store_url)
    snapshots = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1)
    with LogWriter.open_or_create(store, "team/events", options=WriterOptions(snapshots=snapshots)) as writer:
        # The first commit after a snapshot is durable uses it: soon, but at no fixed commit.
        appended = 0
        while appended < 8 or not LogReader.open(store, "team/events").manifest().snapshots:
            writer.append_many([b"x", b"y"])
            appended += 1
    cursors = CursorStore(store, "team/events")
    cursors.create("reader", LogPosition(5, 0))
    cursors.create("tail", LogPosition(2 * appended + 1, 0))
    cursors.create("unpinned", LogPosition(1, 0), pins=False)
    instance.add_dynamic_partitions(LOGS_NAME, ["team/events"])

    result = run("manifest_job", run_request("team/events", "team/events"))

    manifest = LogReader.open(store, "team/events").manifest()
    assert manifest.snapshots
    assert _recorded(result) == {
        "team/events": {
            "size": size(manifest.num_bytes),
            "records": 2 * appended,
            "bytes": manifest.num_bytes,
            "fragments": appended,
            "snapshots": len(manifest.snapshots),
            "generation": manifest.generation,
            "next_offset": 2 * appended + 1,
            "lag/reader (records)": 2 * appended - 4,
            "lag/tail (records)": 0,
            "last_append": manifest.next.position.timestamp_us / 1e6,
            "setsum": manifest.setsum.hexdigest(),
            "sealed": False,
        }
    }
    version = instance.get_latest_data_version_record(KEY, partition_key="team/events")
    assert version is not None
    tags = version.asset_materialization.tags if version.asset_materialization else {}
    held = f"{manifest.log_id}-{manifest.generation}-{manifest.setsum.hexdigest()}"
    assert (tags or {})["dagster/data_version"] == held


@pytest.mark.slow
def test_many_logs_are_recorded_apart_by_one_run(known: list[str], run: Run, instance: DagsterInstance) -> None:
    result = run("manifest_job", run_request(known[0], known[-1]))

    assert result.success
    assert {log: seen["records"] for log, seen in _recorded(result).items()} == dict.fromkeys(known, 6)
    assert len(instance.get_runs()) == 1


@pytest.mark.slow
def test_each_log_has_labels_of_its_own_to_plot_over_time(known: list[str], run: Run) -> None:
    result = run("manifest_job", run_request(known[0], known[-1]))

    labels = [
        label
        for event in result.get_asset_observation_events()
        for label in event.asset_observation_data.asset_observation.metadata
    ]
    assert len(labels) == len(set(labels))
    assert {"alpha: records", "beta/one: records", "gamma: bytes"} <= set(labels)


@pytest.mark.slow
def test_nothing_is_handed_to_an_io_manager(known: list[str], run: Run) -> None:
    result = run("manifest_job", run_request(known[0], known[-1]))

    assert not [event for event in result.all_events if event.event_type == DagsterEventType.HANDLED_OUTPUT]


@pytest.mark.slow
def test_damaged_manifest_fails_the_run_once_and_the_other_logs_are_recorded(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    manifest = next((Path(urlsplit(fleet.url).path) / "gamma").glob("manifest/MANIFEST*"))
    manifest.write_bytes(manifest.read_bytes()[:-9])

    result = run("manifest_job", run_request(known[0], known[-1]))

    assert not result.success
    assert set(_recorded(result)) == {"alpha", "beta/one"}
    assert "1 of 3 logs: gamma: " in str(result.failure_data_for_node("manifest"))
    assert result.retry_attempts_for_node("manifest") == 0
    assert instance.get_materialized_partitions(KEY) == {"alpha", "beta/one"}


@pytest.mark.slow
def test_lost_manifest_is_distinguished_from_a_vanished_log(known: list[str], fleet: ObjectStore, run: Run) -> None:
    fleet.delete("gamma/manifest/MANIFEST.json")

    result = run("manifest_job", run_request(known[0], known[-1]))

    assert not result.success
    assert "beside Life=" in str(result.failure_data_for_node("manifest"))


@pytest.mark.slow
def test_vanished_log_fails_the_run_and_is_named(known: list[str], run: Run, instance: DagsterInstance) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["never-there"])

    result = run("manifest_job", run_request(known[0], "never-there"))

    assert not result.success
    assert "1 of 4 logs: never-there: expected a log, found none" in str(result.failure_data_for_node("manifest"))
    assert len(instance.fetch_materializations(AssetRecordsFilter(KEY), limit=9).records) == 3
