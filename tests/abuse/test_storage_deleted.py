"""Dagster's storage is deleted: maintenance goes on from what the store says, whatever was under way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance

from tests.abuse.daemon import eager_daemon, eventually, under_way
from tests.orchestration.conftest import QUIET
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, Message, scrub
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.deployment import settings
from wal3_orchestration.framework.scope import COLLECT_TAG, LOGS_NAME

if TYPE_CHECKING:
    from conftest import Write


COLLECTED = ["planned", "announced", "pruned"]
LOGS = [*COLLECTED, "merged"]


@pytest.fixture
def half_done(write: Write, fleet: ObjectStore, dagster_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log in each stage of a collection and of a key compaction; and an instance that knows of all that."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    for log in COLLECTED:
        write(log, fragments=4)
        CursorStore(fleet, log).create("reader", LogPosition(7, 0))
    with LogWriter.open_or_create(fleet, "merged") as writer:
        for _ in range(3):
            writer.append_many([Message(b"a body", b"a key")])
    PolicyStore(fleet, "merged").change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    with DagsterInstance.from_config(str(dagster_home)) as first:
        first.add_dynamic_partitions(LOGS_NAME, LOGS)
        plans = defs().resolve_job_def("garbage_plan_sweep")
        assert plans.execute_in_process(instance=first, tags={COLLECT_TAG: "true"}, raise_on_error=False).success
    Collector(fleet, "announced").announce(Collector(fleet, "announced").plan())
    collector = Collector(fleet, "pruned")
    assert isinstance(collector.prune(collector.announce(collector.plan())), PrunedGarbage)
    assert KeyCompactor(fleet, "merged").merge().token
    return dagster_home


def _is_done(store: ObjectStore, log: str) -> bool:
    manifest = LogReader.open(store, log).manifest()
    first = 3 if log == "merged" else 7
    # Of the compacted log the newest record of the key is left.
    kept = next(LogReader.open(store, log).records(manifest.first.position.offset)).offset
    return kept == first and manifest.announced is None and not list(Deleter(store, log).documents())


def test_new_storage_finds_the_logs_and_finishes_what_was_half_done(
    half_done: Path, fleet: ObjectStore, tmp_path: Path
) -> None:
    shutil.rmtree(half_done)
    half_done.mkdir()
    (half_done / "dagster.yaml").write_text(settings() + QUIET)
    output = tmp_path / "daemon.log"

    with DagsterInstance.from_config(str(half_done)) as second, eager_daemon(output):
        eventually(lambda: set(second.get_dynamic_partitions(LOGS_NAME)) == set(LOGS), output)
        # What the daily schedule does.
        plans = defs().resolve_job_def("garbage_plan_sweep")
        assert plans.execute_in_process(instance=second, tags={COLLECT_TAG: "true"}, raise_on_error=False).success
        eventually(lambda: all(_is_done(fleet, log) for log in LOGS), output)
        eventually(lambda: under_way(second) == [], output)

    assert all(scrub(fleet, log).sound for log in LOGS)
