"""One damaged manifest among 100 logs: each sweep does the 99 others, and one check is red and names the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, RunRequest

from tests.orchestration.checked import asked, found_bad, recorded_by
from wal3_core import CursorStore, LogPosition, LogReader
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import COLLECT_TAG, LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run, Tick, Write


LOGS = [f"log-{number:02}" for number in range(100)]
BAD = "log-42"
# Each with its last asset, and the check that is red; without one, the run's error names the log.
SWEEPS = (
    ("verification", "verification", "sound"),
    ("garbage_plan", "garbage_plan", "safe_to_collect"),
    ("collection", "pruned_manifest", "safe_to_collect"),
    ("deletion", "deleted_garbage", None),
    ("orphans", "marked_orphans", None),
    ("snapshot_compaction", "repacked_snapshots", None),
    ("compaction", "installed_manifest", "can_be_compacted"),
    ("delay_queue", "delay_queue", None),
)


@pytest.fixture
def hundred(write: Write, fleet: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Logs with garbage; files that are links to the first one's, as their names alone matter."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    write(LOGS[0], fragments=3)
    CursorStore(fleet, LOGS[0]).create("reader", LogPosition(4, 0))
    root = Path(urlsplit(fleet.url).path)
    for log in LOGS[1:]:
        for file in (root / LOGS[0]).rglob("*"):
            if file.is_file():
                link = root / log / file.relative_to(root / LOGS[0])
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, link)
    manifest = root / BAD / "manifest" / "MANIFEST.json"
    held = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(held[:-9])
    return LOGS


def test_ninety_nine_logs_are_served_beside_a_damaged_manifest_and_one_check_is_red(
    hundred: list[str], fleet: ObjectStore, look: Tick, run: Run, instance: DagsterInstance
) -> None:
    first = look()
    assert sorted(instance.get_dynamic_partitions(LOGS_NAME)) == hundred
    assert asked(first) == [hundred]
    assert asked(look(first)) == []

    for name, asset, red in SWEEPS:
        result = run("", RunRequest(job_name=f"{name}_sweep", tags={COLLECT_TAG: "true"}))

        assert not result.success, name
        (failure,) = result.get_step_failure_events()
        assert f"1 of 100 logs: {BAD}: " in str(failure.event_specific_data), name
        failed = [each.check_name for each in result.get_asset_check_evaluations() if not each.passed]
        # Each plan also takes most of its little log, which is a warning about the others.
        assert [each for each in failed if each != "little_garbage"] == ([] if red is None else [red]), name
        if red is not None:
            assert (BAD, red) in found_bad(result)
        assert BAD not in recorded_by(instance, result, asset), name

    others = [log for log in hundred if log != BAD]
    assert {LogReader.open(fleet, log).manifest().first.position.offset for log in others} == {4}
    assert [log for log in others if list(Deleter(fleet, log).documents())] == []
