"""The collection workflow, run by run on a real instance: plans, checks, pruning and deletion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    ExecuteInProcessResult,
    RunRequest,
    SkipReason,
    build_schedule_context,
)

from tests.orchestration.checked import found_bad
from tests.orchestration.run_requests import run_request
from tests.stores import age_out, damage, life_store
from wal3_core import CursorStore, LogPosition, LogReader, PinStore, scrub
from wal3_core.format.paths import POLICY, fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.log.collect.collector import Collector
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import Done, ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.framework.scope import COLLECT_TAG, LOG_TAG, LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run, Write


SCHEDULES = ("daily_collection", "weekly_orphans", "weekly_snapshot_compaction")


@pytest.fixture(autouse=True)
def interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned garbage can be deleted at once: nothing here waits for a clock."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")


@pytest.fixture
def long_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "3600")


def move(store: ObjectStore, log: str, offset: int, name: str = "reader") -> None:
    """Create a cursor at an offset, or move it there."""
    cursors = CursorStore(store, log)
    witness = cursors.load(name)
    position = LogPosition(offset, 0)
    if witness is None:
        cursors.create(name, position)
    else:
        cursors.save(name, position, witness)


def fragments(store: ObjectStore, log: str) -> int:
    """Count the fragments in the store."""
    return len(list(life_store(store, log).list_objects("log/")))


def first_offset(store: ObjectStore, log: str) -> int:
    return LogReader.open(store, log).manifest().first.position.offset


def recorded(result: ExecuteInProcessResult, asset: str) -> dict[str | None, dict[str, Any]]:
    """Return what a run recorded of an asset, by partition."""
    return {
        event.partition: {
            label: value.value for label, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey(asset)
    }


@pytest.mark.slow
def test_log_is_planned_pruned_and_deleted_and_each_step_reports_it(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=6)
    move(fleet, "alpha", 8)
    before = LogReader.open(fleet, "alpha").scan()

    collected = run("collection_job", run_request("alpha", "alpha"))
    left = fragments(fleet, "alpha")
    deleted = run("deletion_job", run_request("alpha", "alpha"))

    gone = sum(pointer.num_bytes for pointer in before[:2])
    setsum = (before[0].setsum + before[1].setsum).hexdigest()
    (plan,) = recorded(collected, "garbage_plan").values()
    (pruned,) = recorded(collected, "pruned_manifest").values()
    (done,) = recorded(deleted, "deleted_garbage").values()
    expected = {"records": 6, "bytes": gone, "fragments": 2, "setsum": setsum}
    assert (collected.success, deleted.success) == (True, True)
    assert {label: plan[label] for label in expected} == expected
    assert {label: pruned[label] for label in expected} == expected
    assert {label: done[label] for label in expected} == expected
    assert (plan["cutoff_cursor"], plan["cutoff_offset"], plan["due"]) == ("reader", 7, True)
    assert plan["reason"] == pruned["reason"] == done["reason"] == "cursor reader is at offset 8"
    assert plan["cutoff_offset"] == pruned["cutoff_offset"] == done["cutoff_offset"]
    assert (pruned["outcome"], pruned["garbage_documents"]) == ("pruned", 1)
    assert (done["objects"], done["documents_finished"], done["documents_left"]) == (2, 1, 0)
    assert (first_offset(fleet, "alpha"), left, fragments(fleet, "alpha")) == (7, 6, 4)
    assert found_bad(collected) == {}
    assert scrub(fleet, "alpha").sound


@pytest.mark.slow
def test_numbers_of_each_log_plot_over_time_and_nothing_is_pickled(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    for log in known:
        move(fleet, log, 4)

    results = [run(job, run_request(known[0], known[-1])) for job in ("collection_job", "deletion_job")]

    assert all(result.success for result in results)
    labels = {
        label
        for result in results
        for event in result.get_asset_observation_events()
        for label in event.asset_observation_data.asset_observation.metadata
    }
    assert {f"{log}: {label}" for log in known for label in ("records", "bytes", "fragments")} <= labels
    # What is the same each time is no plot.
    assert not {f"{log}: {label}" for log in known for label in ("wait_s", "cutoff_offset")} & labels
    kinds = {event.event_type for result in results for event in result.all_events}
    assert DagsterEventType.HANDLED_OUTPUT not in kinds
    assert DagsterEventType.LOADED_INPUT not in kinds
    for asset in ("garbage_plan", "pruned_manifest", "deleted_garbage"):
        assert instance.get_materialized_partitions(AssetKey(asset)) == set(known)
    # Pickled values would be here.
    assert list(Path(instance.storage_directory()).glob("*")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("long_interval")
def test_what_was_pruned_waits_for_its_interval(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=6)
    move(fleet, "alpha", 8)

    collected = run("collection_job", run_request("alpha", "alpha"))
    deleted = run("deletion_job", run_request("alpha", "alpha"))
    move(fleet, "alpha", 14)
    again = run("collection_job", run_request("alpha", "alpha"))

    (pruned,) = recorded(collected, "pruned_manifest").values()
    (done,) = recorded(deleted, "deleted_garbage").values()
    (more,) = recorded(again, "pruned_manifest").values()
    assert 3000 < pruned["wait_s"] <= 3600
    assert 3000 < done["wait_s"] <= 3600
    assert (done["objects"], done["documents_left"], fragments(fleet, "alpha")) == (0, 1, 6)
    assert (pruned["garbage_documents"], more["garbage_documents"], more["cutoff_offset"]) == (1, 2, 13)


@pytest.mark.slow
def test_refused_plan_stops_the_run_before_any_change_and_is_not_retried(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    move(fleet, "alpha", 4)
    age_out(fleet, "gamma")
    move(fleet, "beta/one", 1)

    result = run("collection_job", run_request(known[0], known[-1]))

    assert not result.success
    assert result.retry_attempts_for_node("garbage_plan") == 0
    assert set(recorded(result, "garbage_plan")) == {"alpha", "beta/one"}
    assert recorded(result, "pruned_manifest") == {}
    assert {first_offset(fleet, log) for log in known} == {1}
    problems = found_bad(result)
    assert set(problems) == {("gamma", "safe_to_collect"), ("gamma", "little_garbage")}
    assert "expected to collect at most 90% of its bytes" in problems["gamma", "safe_to_collect"]
    assert "found 100.0%" in problems["gamma", "safe_to_collect"]
    assert "safe_to_collect: " in str(result.failure_data_for_node("garbage_plan"))
    check = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [AssetCheckKey(AssetKey("garbage_plan"), "safe_to_collect")]
    )
    assert check


@pytest.mark.slow
def test_log_without_cursors_is_reported_and_the_others_are_collected(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    for log in ("alpha", "gamma"):
        move(fleet, log, 4)

    result = run("collection_job", run_request(known[0], known[-1]))

    assert result.success
    assert found_bad(result) == {}
    planned = recorded(result, "garbage_plan")
    assert "expected a cursor" in planned["beta/one"]["reason"]
    assert [planned[log].get("without_cursor") for log in known] == [None, 1, None]
    assert [first_offset(fleet, log) for log in known] == [4, 1, 4]
    assert recorded(result, "pruned_manifest")["beta/one"]["outcome"] == "nothing to prune"


@pytest.mark.slow
def test_log_whose_policy_lets_age_decide_is_collected_without_a_cursor(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=3)
    PolicyStore(fleet, "alpha").change(lambda policy: replace(policy, without_cursors=True, retention_s=0))
    everything = {"resources": {"collection": {"config": {"fraction_max": 1.0, "fraction_alarm": 1.0}}}}

    collected = run("collection_job", run_request("alpha", "alpha"), everything)
    run("deletion_job", run_request("alpha", "alpha"))

    (plan,) = recorded(collected, "garbage_plan").values()
    assert found_bad(collected) == {}
    assert (plan["reason"], plan["cutoff_cursor"]) == ("the first record younger than 0 s is at offset 10", "")
    assert (first_offset(fleet, "alpha"), fragments(fleet, "alpha")) == (10, 0)


@pytest.mark.slow
def test_damaged_policy_blocks_the_collection_unlike_missing_cursors(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=3)
    PolicyStore(fleet, "alpha").change(lambda policy: replace(policy, without_cursors=True, retention_s=0))
    damage(life_store(fleet, "alpha"), POLICY)

    result = run("collection_job", run_request("alpha", "alpha"))

    assert not result.success
    assert "its policy cannot be read" in found_bad(result)["alpha", "safe_to_collect"]
    assert "safe_to_collect: " in str(result.failure_data_for_node("garbage_plan"))
    assert recorded(result, "pruned_manifest") == {}


@pytest.mark.slow
def test_damaged_log_fails_the_step_and_the_others_are_pruned_and_deleted(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    for log in known:
        move(fleet, log, 4)
    run("garbage_plan_job", run_request(known[0], known[-1]))
    manifest = next((Path(urlsplit(fleet.url).path) / "alpha").glob("manifest/MANIFEST*"))
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-9])

    pruned = run("collection_job", run_request(known[0], known[-1]), only="pruned_manifest")
    deleted = run("deletion_job", run_request(known[0], known[-1]))

    manifest.write_bytes(whole)
    for result, asset in ((pruned, "pruned_manifest"), (deleted, "deleted_garbage")):
        assert not result.success
        assert set(recorded(result, asset)) == {"beta/one", "gamma"}
        assert "1 of 3 logs: alpha: " in str(result.failure_data_for_node(asset))
        assert result.retry_attempts_for_node(asset) == 0
    assert [first_offset(fleet, log) for log in known] == [1, 4, 4]
    assert [fragments(fleet, log) for log in known] == [2, 1, 1]


@pytest.mark.slow
def test_cursor_that_moves_back_after_the_check_prevents_pruning(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=6)
    move(fleet, "alpha", 8)
    run("garbage_plan_job", run_request("alpha", "alpha"))

    move(fleet, "alpha", 2)
    result = run("collection_job", run_request("alpha", "alpha"), only="pruned_manifest")

    assert not result.success
    assert "found cursor reader at 2" in str(result.failure_data_for_node("pruned_manifest"))
    assert result.retry_attempts_for_node("pruned_manifest") == 0
    assert first_offset(fleet, "alpha") == 1


@pytest.mark.slow
def test_repeated_steps_change_nothing_more(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=6)
    move(fleet, "alpha", 8)
    alpha = run_request("alpha", "alpha")
    run("collection_job", alpha)

    pruned = run("collection_job", alpha, only="pruned_manifest")
    deleted = [run("deletion_job", alpha) for _ in range(2)]
    late = run("collection_job", alpha, only="pruned_manifest")

    assert recorded(pruned, "pruned_manifest")["alpha"]["records"] == 6
    assert [recorded(result, "deleted_garbage")["alpha"]["objects"] for result in deleted] == [2, 0]
    assert recorded(late, "pruned_manifest")["alpha"]["outcome"] == "nothing to prune"
    assert (first_offset(fleet, "alpha"), fragments(fleet, "alpha")) == (7, 4)


@pytest.mark.slow
def test_announcement_of_another_process_is_carried_out(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=6)
    move(fleet, "alpha", 8)
    collector = Collector(fleet, "alpha")
    collector.announce(collector.plan())

    run("collection_job", run_request("alpha", "alpha"))

    manifest = LogReader.open(fleet, "alpha").manifest()
    assert (manifest.first.position.offset, manifest.announced) == (7, None)


@pytest.mark.slow
def test_objects_that_a_pin_holds_are_counted_and_kept(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    write("alpha", fragments=6)
    PinStore(fleet, "alpha").create("backup", reason="a copy is being made")
    move(fleet, "alpha", 8)
    run("collection_job", run_request("alpha", "alpha"))

    result = run("deletion_job", run_request("alpha", "alpha"))

    (done,) = recorded(result, "deleted_garbage").values()
    assert (done["objects"], done["objects_held_by_pins"], done["documents_left"]) == (0, 2, 1)
    assert fragments(fleet, "alpha") == 6


@pytest.mark.slow
def test_orphans_are_marked_and_then_deleted(known: list[str], fleet: ObjectStore, run: Run) -> None:
    orphan = fragment_path(FragmentSeqNo(7), "00000000deadbeef")
    assert isinstance(life_store(fleet, "alpha").create(orphan, b"never committed"), Done)

    listed = run("orphans_job", run_request(known[0], known[-1]))
    deleted = run("deletion_job", run_request(known[0], known[-1]))

    assert listed.success
    assert found_bad(listed) == {}
    assert {log: each["orphans"] for log, each in recorded(listed, "marked_orphans").items()} == {
        "alpha": 1,
        "beta/one": 0,
        "gamma": 0,
    }
    assert recorded(listed, "marked_orphans")["alpha"]["bytes"] == 15
    assert recorded(deleted, "deleted_garbage")["alpha"]["orphans"] == 1
    assert [fragments(fleet, log) for log in known] == [2, 2, 2]


@pytest.mark.spark
def test_many_logs_go_through_the_same_steps_on_spark(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    logs = [f"log-{number}" for number in range(9)]
    for log in logs:
        write(log, fragments=3)
        move(fleet, log, 4)
    instance.add_dynamic_partitions(LOGS_NAME, logs)
    everything = {"resources": {"collection": {"config": {"spark_objects_min": 1, "spark_work_s_min": 0.0}}}}

    results = [
        run(job, run_request(logs[0], logs[-1]), everything)
        for job in ("collection_job", "orphans_job", "deletion_job")
    ]

    assert [result.success for result in results] == [True] * 3
    assert {each["records"] for each in recorded(results[0], "pruned_manifest").values()} == {3}
    assert {each["objects"] for each in recorded(results[2], "deleted_garbage").values()} == {1}
    assert {fragments(fleet, log) for log in logs} == {2}
    assert all(scrub(fleet, log).sound for log in logs)


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_schedules_request_the_fleet_in_one_run_and_only_the_daily_one_collects(
    known: list[str], instance: DagsterInstance
) -> None:
    with build_schedule_context(instance) as context:
        requests = [defs().resolve_schedule_def(schedule)(context) for schedule in SCHEDULES]

    for request in requests:
        assert known
        assert isinstance(request, RunRequest)
        # A sweep without a list of logs goes over all that are known when it starts.
        assert (request.partition_key, request.run_config) == (None, {})
    assert [COLLECT_TAG in request.tags for request in requests] == [True, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_schedules_skip_while_no_log_is_known(instance: DagsterInstance) -> None:
    with build_schedule_context(instance) as context:
        for schedule in SCHEDULES:
            assert isinstance(defs().resolve_schedule_def(schedule)(context), SkipReason)


@pytest.mark.slow
def test_run_of_one_log_carries_its_tag(known: list[str]) -> None:
    assert run_request(known[1], known[1], tags={"a": "b"}).tags[LOG_TAG] == known[1]
