"""A name that leads to another log than before: destroyed, and created again, between any two steps of a collection.

No step fails for it, nothing of the new log is lost, and nothing keeps it from being maintained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

import pytest

from tests.orchestration.checked import check_of, recorded_by
from tests.orchestration.run_requests import run_request
from tests.orchestration.test_key_compaction import append, compact_by_key
from tests.stores import FaultyStore, damage, life_store
from wal3_core import (
    CursorStore,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    RepairReport,
    copy,
    destroy,
    repair_log,
    scrub,
)
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.fleet.outcomes import try_log
from wal3_core.fleet.survey import survey_log
from wal3_core.log.collect.collector import Collector, Plan
from wal3_core.options import CollectorOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.assets import (
    COLLECTION,
    DELETION,
    delete_log,
    orphans_of,
    prune_log,
    prune_orphans,
)
from wal3_orchestration.defs.key_compaction.assets import JOB as COMPACTION
from wal3_orchestration.defs.key_compaction.assets import install_log, merge_log
from wal3_orchestration.framework.recorder import LogResult, latest, value_of
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.framework.step import HERE
from wal3_orchestration.resources import CollectionResource

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance

    from wal3_core.compaction.verifying import Verification

pytestmark = pytest.mark.slow
SCOPE = StoreScope()
NOW = {"resources": {"collection": {"config": {"interval_s": 0.001}}}}
AT_ONCE = CollectorOptions(interval_s=0)
LOG = "alpha"
# More than a step sends.
PLACES_MAX = 60


def _write(store: ObjectStore, log: str) -> None:
    with LogWriter.open_or_create(store, log) as writer:
        for _ in range(4):
            writer.append_many([b"a record", b"another", b"a third"])


def _claim(store: ObjectStore, log: str, offset: int = 4) -> None:
    CursorStore(store, log).create("reader", LogPosition(offset, 0))


def _replace(store: ObjectStore, log: str) -> None:
    destroy(store, log, also_pinned=True)
    _write(store, log)


def _assert_whole(store: ObjectStore, log: str) -> None:
    assert scrub(store, log).sound
    assert [record.offset for record in LogReader.open(store, log).records()] == list(range(1, 13))


def _first_offset(store: ObjectStore, log: str) -> int:
    return LogReader.open(store, log).manifest().first.position.offset


def _said(instance: DagsterInstance, asset: str, label: str) -> str:
    (found,) = latest(instance, SCOPE.key(asset), LOG, count=1)
    return str(value_of(found, label))


# ---------------------------------------------------------------------- between two steps


def test_plan_of_the_log_before_is_not_carried_out_and_the_new_log_is_planned_next(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    """Also what a run does that is executed again from its failed step, days later."""
    _claim(fleet, LOG)
    assert run("collection_job", run_request(LOG, LOG), only="garbage_plan").success
    _replace(fleet, LOG)
    _claim(fleet, LOG)

    result = run("collection_job", run_request(LOG, LOG), only="pruned_manifest")

    assert result.success
    assert "not pruned: " in _said(instance, "pruned_manifest", "outcome")
    assert "which was planned for, found log" in _said(instance, "pruned_manifest", "outcome")
    _assert_whole(fleet, LOG)
    assert run("", COLLECTION.request_sweep(SCOPE, [LOG])).success
    assert _first_offset(fleet, LOG) == 4
    assert known


def test_log_that_was_replaced_after_it_was_pruned_or_announced_loses_nothing(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    announced, pruned, _ = known
    for log in (announced, pruned):
        _claim(fleet, log)
    assert run("", COLLECTION.request_sweep(SCOPE, [pruned])).success
    collector = Collector(fleet, announced)
    collector.announce(collector.plan())
    for log in (announced, pruned):
        _replace(fleet, log)

    for job in (COLLECTION, DELETION):
        assert run("", job.request_sweep(SCOPE), NOW).success

    for log in (announced, pruned):
        _assert_whole(fleet, log)


def test_range_of_partitions_leaves_out_removed_ones_and_fails_for_those_only_gone(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    first, gone, last = known
    for log in (first, last):
        _claim(fleet, log)
    destroy(fleet, gone, also_pinned=True)

    failed = run("collection_job", run_request(first, last))
    assert not failed.success
    assert [_first_offset(fleet, log) for log in (first, last)] == [1, 1]

    instance.delete_dynamic_partition(LOGS_NAME, gone)
    assert run("collection_job", run_request(first, last)).success
    assert [_first_offset(fleet, log) for log in (first, last)] == [4, 4]


# ---------------------------------------------------------------------- at each request of a step


def _prune(store: ObjectStore, plan: Plan) -> LogResult:
    return prune_log(store, LOG, plan, AT_ONCE)


def _delete(store: ObjectStore, plan: Plan) -> LogResult:
    del plan
    return delete_log(store, LOG, AT_ONCE, objects_max=1_000, keep=lambda _: None).result


def _mark(store: ObjectStore, plan: Plan) -> LogResult:
    del plan
    return prune_orphans(store, orphans_of(store, LOG, AT_ONCE), AT_ONCE)


def _survey(store: ObjectStore, plan: Plan) -> LogResult:
    del plan
    found = survey_log(store, LOG, AT_ONCE)
    # The new log has no cursor.
    return LogResult(log=LOG, refusal=None if found.unclaimed else found.refusal)


def _merge(store: ObjectStore, plan: Plan) -> LogResult:
    del plan
    return merge_log(store, LOG, CollectionResource(), None, HERE)[0]


def _install(store: ObjectStore, plan: Plan) -> LogResult:
    del plan
    return install_log(store, LOG, "", CollectionResource(), always=True)[0]


@pytest.mark.parametrize("step", [_prune, _delete, _mark, _survey, _merge, _install])
def test_log_replaced_at_any_request_of_a_step_fails_it_not_and_loses_nothing(
    memory_store: MemoryStore, step: Callable[[ObjectStore, Plan], LogResult]
) -> None:
    place = 1
    while _replaced_at(memory_store, place, step):
        place += 1
        assert place < PLACES_MAX
    assert place > 2


def _replaced_at(memory_store: MemoryStore, place: int, step: Callable[[ObjectStore, Plan], LogResult]) -> bool:
    """Do a step of a log that is replaced just before its request number ``place``; return whether it got there."""
    if place > 1:
        destroy(memory_store, LOG, also_pinned=True)
    _write(memory_store, LOG)
    collector = Collector(memory_store, LOG, options=AT_ONCE)
    _claim(memory_store, LOG, 7)
    if step is not _prune:
        collector.prune(collector.announce(collector.plan(4)))
    store, asked = FaultyStore(memory_store), 0

    def before(_kind: str, _path: str) -> None:
        nonlocal asked
        asked += 1
        if asked == place:
            _replace(memory_store, LOG)

    plan = collector.plan()
    store.before = before
    outcome = step(store, plan)
    assert outcome.refusal is None, (place, outcome.refusal)
    if asked >= place:
        _assert_whole(memory_store, LOG)
    return asked >= place


# ---------------------------------------------------------------------- between a verification and a repair


def test_log_that_is_replaced_at_any_request_of_a_repair_stays_as_it_is(memory_store: MemoryStore) -> None:
    place = 1
    while _repaired_until(memory_store, place):
        place += 1
        assert place < PLACES_MAX
    assert place > 2


def _repaired_until(memory_store: MemoryStore, place: int) -> bool:
    """Repair a damaged log that is replaced just before request number ``place``; return whether it got there."""
    backup = MemoryStore(shared_runtime(), name="backup")
    if place > 1:
        destroy(memory_store, LOG)
    _write(memory_store, LOG)
    copy(LogAt(memory_store, LOG), LogAt(backup, LOG))
    damage(life_store(memory_store, LOG), LogReader.open(memory_store, LOG).scan()[0].path)
    store, asked, at_once = FaultyStore(memory_store), 0, Lock()

    def before(_kind: str, _path: str) -> None:
        nonlocal asked
        with at_once:
            asked += 1
            if asked == place:
                _replace(memory_store, LOG)

    store.before = before
    repaired = try_log(lambda damaged: repair_log(damaged, LogAt(backup, LOG)), LogAt(store, LOG))
    # Reads ahead may still go on.
    with at_once:
        store.before = lambda _kind, _path: None
    # It may say that the name has another log by now.
    assert asked >= place or (isinstance(repaired, RepairReport) and not repaired.problems)
    _assert_whole(memory_store, LOG)
    return asked >= place


# ---------------------------------------------------------------------- what is remembered of a log


@pytest.fixture
def distrusted(fleet: ObjectStore, instance: DagsterInstance, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log whose last pass was found not to hold: nothing of it is deleted."""
    append(fleet, LOG, "kl", "km", "ln")
    compact_by_key(fleet, LOG)
    append(fleet, "beta", "kl")
    instance.add_dynamic_partitions(LOGS_NAME, [LOG, "beta"])
    verify = KeyCompactor.verify

    def lost(compactor: KeyCompactor) -> Verification | None:
        found = verify(compactor)
        assert found is not None
        return replace(found, findings=("record 2: lost",))

    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactor, "verify", lost)
        assert not run("", COMPACTION.request_sweep(SCOPE)).success
    assert not run("", DELETION.request_sweep(SCOPE), NOW).success
    return LOG


def test_pass_of_the_log_before_that_does_not_hold_keeps_no_garbage_of_the_new_log(
    distrusted: str, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    """Regression: the new log's garbage was refused for ever, as the new log was never compacted."""
    _replace(fleet, distrusted)
    _claim(fleet, distrusted)
    assert run("", COLLECTION.request_sweep(SCOPE, [distrusted])).success

    deleted = run("", DELETION.request_sweep(SCOPE), NOW)
    compacted = run("", COMPACTION.request_sweep(SCOPE))

    assert deleted.success
    assert recorded_by(instance, deleted, "deleted_garbage")[distrusted]["objects"] > 0
    assert compacted.success
    assert check_of(compacted, "compaction_verified").passed


def test_pass_that_does_not_hold_keeps_the_garbage_while_its_log_cannot_be_read(
    distrusted: str, fleet: ObjectStore, run: Run
) -> None:
    path = f"{distrusted}/manifest/MANIFEST.json"
    held = fleet.read(path)
    assert held is not None
    fleet.delete(path)
    assert not run("", DELETION.request_sweep(SCOPE), NOW).success
    fleet.create(path, held)

    deleted = run("", DELETION.request_sweep(SCOPE), NOW)

    assert not deleted.success
    assert not run("", COMPACTION.request_sweep(SCOPE, ["beta"])).get_asset_check_evaluations()
