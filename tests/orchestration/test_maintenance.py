"""Maintenance of marked logs is one run, whose halves do not wait for each other, and records what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult

from tests.orchestration.checked import found_bad, recorded_by
from tests.orchestration.run_requests import run_request
from tests.stores import age_out
from wal3_core import CorruptError, CursorStore, LogPosition, LogReader, LogWriter, WriterOptions
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactionReport, SnapshotCompactor
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.assets import PLANNING
from wal3_orchestration.defs.maintenance import MAINTENANCE, request_maintenance
from wal3_orchestration.defs.snapshot_compaction import JOB as COMPACTION
from wal3_orchestration.defs.verification import JOB as VERIFY
from wal3_orchestration.framework.assets import RUNS_OF_ONE_LOG_MAX
from wal3_orchestration.framework.scope import ROLLED_UP, StoreScope
from wal3_orchestration.framework.step import HERE

if TYPE_CHECKING:
    from conftest import Run, Write


pytestmark = pytest.mark.slow

SCOPE = StoreScope()
WAYS = pytest.mark.parametrize("swept", [False, True], ids=["chosen", "swept"])
SMALL = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1))


def _claim(store: ObjectStore, *logs: str) -> None:
    for log in logs:
        CursorStore(store, log).create("reader", LogPosition(4, 0))


def _first_offset(store: ObjectStore, log: str) -> int:
    return LogReader.open(store, log).manifest().first.position.offset


def _make_lopsided(store: ObjectStore, log: str) -> None:
    with LogWriter.open_or_create(store, log, options=SMALL) as writer:
        for _ in range(40):
            writer.append_many([b"x"])


def _break(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        message = "found damage"
        raise CorruptError(message)

    monkeypatch.setattr(owner, name, fail)


def _maintain(run: Run, logs: list[str], *, swept: bool) -> ExecuteInProcessResult:
    if swept:
        return run("", MAINTENANCE.request_sweep(SCOPE, logs))
    return run("maintenance_job", run_request(logs[0], logs[-1]))


def _num_snapshots(store: ObjectStore, log: str) -> int:
    return len(LogReader.open(store, log).manifest().snapshots)


@WAYS
def test_log_whose_snapshots_cannot_be_compacted_is_collected_and_the_run_fails(
    known: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch, *, swept: bool
) -> None:
    _claim(fleet, *known)
    _break(monkeypatch, SnapshotCompactor, "compact")

    result = _maintain(run, known, swept=swept)

    assert not result.success
    assert [_first_offset(fleet, log) for log in known] == [4, 4, 4]


@WAYS
def test_log_that_cannot_be_planned_has_its_snapshots_compacted_and_the_run_fails(
    known: list[str], fleet: ObjectStore, run: Run, *, swept: bool
) -> None:
    _claim(fleet, "alpha", "beta/one")
    _make_lopsided(fleet, "gamma")
    age_out(fleet, "gamma")
    before = _num_snapshots(fleet, "gamma")

    result = _maintain(run, known, swept=swept)

    assert not result.success
    assert ("gamma", "safe_to_collect") in found_bad(result)
    assert _first_offset(fleet, "gamma") == 1
    assert _num_snapshots(fleet, "gamma") < before


def test_sweep_records_the_logs_to_which_something_was_done_and_why(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    _claim(fleet, "alpha")
    _make_lopsided(fleet, "gamma")
    reason = f"{ROLLED_UP} 12ab: dirty/server-1 to 7"
    logs = [*known, *(f"none-{number}" for number in range(RUNS_OF_ONE_LOG_MAX))]

    (request,) = request_maintenance(SCOPE, logs, reason)
    result = run("", request)

    assert result.success
    compacted, pruned = (recorded_by(instance, result, each) for each in ("repacked_snapshots", "pruned_manifest"))
    assert (set(compacted), set(pruned)) == ({"gamma", ""}, {"alpha", ""})
    assert {each["why"] for each in (*compacted.values(), *pruned.values())} == {reason}
    assert compacted[""]["logs"] == pruned[""]["logs"] == 3
    assert compacted[""]["total steps"] == compacted["gamma"]["steps"] > 0
    assert pruned[""]["total records"] == pruned["alpha"]["records"] == 3
    # The page of the partitions shows them.
    assert instance.get_materialized_partitions(AssetKey("repacked_snapshots")) == {"gamma"}


def test_nothing_to_do_is_recorded_only_of_a_log_that_was_left_with_something_to_do(
    known: list[str], run: Run, instance: DagsterInstance, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, compact = COMPACTION.request_sweep(SCOPE), SnapshotCompactor.compact

    def leave(compactor: SnapshotCompactor) -> SnapshotCompactionReport:
        done = compact(compactor)
        return replace(done, after=replace(done.after, needs_compaction=True))

    runs = [run("", sweep)]
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotCompactor, "compact", leave)
        runs += [run("", sweep), run("", sweep)]
    runs.append(run("", sweep))
    write("alpha")
    runs.append(run("", sweep))

    recorded = [set(recorded_by(instance, each, "repacked_snapshots")) - {""} for each in runs]
    assert recorded == [set(), set(known), set(), set(known), set()]


def test_each_sweep_evaluates_each_check_also_where_nothing_changed(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    """Regression: Dagster showed a check as not evaluated after a sweep that had repeated nothing."""
    _claim(fleet, *known)
    some = PLANNING.request_sweep(SCOPE, known[:2])
    found = [_checks(run("", some)) for _ in range(2)]
    found.append(_checks(run("", PLANNING.request_sweep(SCOPE))))

    CursorStore(fleet, "alpha").delete("reader")
    age_out(fleet, "alpha")
    found.append(_checks(run("", some)))
    found.append(_checks(run("", PLANNING.request_sweep(SCOPE, known[2:]))))
    _claim(fleet, "alpha")
    found.append(_checks(run("", some)))

    all_passed = dict.fromkeys(("safe_to_collect", "little_garbage", "collected_in_time", "cursors_move"), True)
    failed = {**all_passed, "safe_to_collect": False, "little_garbage": False}
    assert found == [all_passed, all_passed, all_passed, failed, failed, all_passed]


def _checks(result: ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def test_verification_by_a_sweep_says_what_was_verified_and_once_how(
    known: list[str], run: Run, instance: DagsterInstance
) -> None:
    recorded = recorded_by(instance, run("", VERIFY.request_sweep(SCOPE)), "verification")

    assert {label for log in known for label in recorded[log]} == {"records", "setsum"}
    assert recorded[""]["done_by"] == HERE
    assert recorded[""]["total bytes"] > 0
