from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus
from rich.console import Console

from examples.demo.__main__ import BUSY, PARTS, parts, show
from tests.programs import Program
from wal3_core import CursorStore, LogReader, LogWriter, list_logs, open_store
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import CollectorOptions
from wal3_orchestration.framework.store import read_states

ROOT = Path(__file__).parent.parent.parent


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", *arguments]
    # A new user's environment: no store is named.
    environment = {name: value for name, value in os.environ.items() if name != "WAL3_STORE"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)


def test_parts_hold_every_message_once_and_in_order() -> None:
    messages = {"long": list(range(23)), "short": [1]}

    split = list(parts(messages))

    assert len(split) == PARTS
    assert {log: [number for part in split for number in part[log]] for log in messages} == messages


def test_table_of_long_names_and_large_numbers_fits_into_80_columns() -> None:
    log = "wal3_orchestration"
    store = open_store("memory:")
    with LogWriter.open_or_create(store, log) as writer:
        writer.append_many([b"a record"])
    (state,) = states = list(read_states(store, [log]))
    console = Console(width=80, record=True, file=io.StringIO(), highlight=False, soft_wrap=True)
    collected = {"records": 123_456, "bytes": 9_876_543, "objects": 12_345}

    show(console, states, {log}, {log: collected}, {log: {"snapshots_before": 1_234, "snapshots": 12}})

    (row,) = [line for line in console.export_text().splitlines() if log in line]
    assert row.split() == [log, "1", str(state.numbers()["bytes"]), "123,456", "12,345", "1234", "to", "12", "yes"]
    # Room for millions of records and bytes.
    assert len(row.rstrip()) <= 80 - 7


@pytest.mark.spark
@pytest.mark.slow
def test_demo_starts_over_and_leaves_a_collected_verified_store_and_its_runs(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    url = (folder / "store").as_uri()
    LogWriter.create(open_store(url), "from-an-earlier-run")

    outcome = _demo("--sample", "--folder", str(folder))

    assert outcome.returncode == 0, outcome.stderr
    assert "Starting over" in outcome.stdout
    assert "make dev" in outcome.stdout
    logs = set(list_logs(open_store(url)))
    assert {"src", "slatedb", "root", "github"} <= logs
    assert "from-an-earlier-run" not in logs
    with DagsterInstance.from_config(str(folder / "dagster")) as instance:
        compacted = {log for log in logs if log.startswith("files/")}
        discovered = {log for log in logs if not log.startswith(("devices/", "dirty/"))} - compacted
        whole = ("manifest", "garbage_plan", "pruned_manifest", "deleted_garbage", "marked_orphans", "verification")
        for asset in whole:
            partitions = instance.get_materialized_partitions(AssetKey(asset))
            # The logs that are compacted by key were begun after the others had been maintained.
            assert {log for log in partitions if log not in BUSY} - compacted == discovered, asset
            assert compacted <= partitions or asset != "manifest"
            # Of the fleet, only the logs that had grown were looked at.
            assert set(BUSY) <= partitions or asset not in {"garbage_plan", "pruned_manifest"}, asset
        packed = instance.get_materialized_partitions(AssetKey("repacked_snapshots"))
        assert {"src", "slatedb"} <= packed < logs
        assert {run.status for run in instance.get_runs()} == {DagsterRunStatus.SUCCESS}
        jobs = Counter(run.job_name for run in instance.get_runs())
        # One look after every part, and one after the collection.
        assert jobs.pop("manifest_sweep") > PARTS
        assert jobs.pop("snapshot_compaction_job") == len(packed - set(BUSY))
        # Pruned garbage and marked orphans are deleted in separate runs.
        assert jobs.pop("deletion_job") == 2
        assert jobs.pop("compaction_job") == len(compacted) > 0
        assert instance.get_materialized_partitions(AssetKey("installed_manifest")) == compacted
        assert jobs.pop("maintenance_job") == len(BUSY)
        assert jobs.pop("collection_job") == 1
        assert jobs == dict.fromkeys(("orphans_job", "rollup_job", "verification_job"), 1)
        # Where the first page of the UI looks for runs.
        assert {run.tags[".dagster/repository"] for run in instance.get_runs()} == {"__repository__@wal3"}
    store = open_store(url)
    first = LogReader.open(store, "slatedb").manifest().first.position.offset
    assert first > 1
    assert min(cursor.cursor.position.offset for cursor in CursorStore(store, "slatedb").list().values()) >= first
    assert list(Deleter(store, "slatedb").documents()) == []
    assert Deleter(store, "slatedb", options=CollectorOptions(interval_s=0)).orphans() == []
    assert all(SnapshotCompactor(store, log).plan().empty for log in packed)


@pytest.mark.slow
def test_demo_in_use_is_not_deleted(tmp_path: Path) -> None:
    keep = tmp_path / "store" / "keep"
    keep.parent.mkdir()
    keep.touch()
    program = f"from examples.demo.__main__ import *\nhold(Path({str(tmp_path)!r}))\nprint('held', flush=True)\ninput()"
    with Program([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        outcome = _demo("--folder", str(tmp_path))

        holder.communicate(b"\n", timeout=600)
    assert outcome.returncode == 1
    assert "stop that first" in outcome.stderr
    assert keep.exists()
