"""Logs are compacted by key in three steps; a bad log blocks no other, and a step that is repeated does no harm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult, RetryPolicy

from tests.orchestration.checked import check_of, found_bad, recorded_by
from tests.orchestration.executed_again import compaction_sweep, execute_again
from tests.orchestration.run_requests import run_request
from tests.stores import life_store
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, Message, scrub, seal
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import CorruptError, UnavailableError
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.key_compaction.assets import JOB
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.framework.step import HERE, ON_SPARK

if TYPE_CHECKING:
    from conftest import Run

    from wal3_core.compaction.reports import KeyCompactionReport

SCOPE = StoreScope()
FIVE = ["a", "b", "c", "d", "e"]


def append(store: ObjectStore, log: str, *batches: str) -> None:
    """Append each batch as a fragment: a letter is a key with a body, a capital one a tombstone."""
    with LogWriter.open_or_create(store, log) as writer:
        for batch in batches:
            writer.append_many(
                [Message(None if letter.isupper() else b"x" * 50, letter.lower().encode()) for letter in batch]
            )


def compact_by_key(store: ObjectStore, log: str, **terms: int) -> None:
    PolicyStore(store, log).change(lambda _: Policy(cleanup=Cleanup.COMPACT, **terms))


@pytest.fixture
def five(fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    """Five logs that are compacted, each with two superseded records."""
    for log in FIVE:
        append(fleet, log, "kl", "km", "ln")
        compact_by_key(fleet, log)
    instance.add_dynamic_partitions(LOGS_NAME, FIVE)
    return FIVE


def keys_of(store: ObjectStore, log: str) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for record in LogReader.open(store, log).records()]


def metadata_of(result: ExecuteInProcessResult, asset: str) -> dict[str, dict[str, Any]]:
    """Return what a run of partitions recorded of an asset, by log."""
    return {
        str(event.partition): {
            label: value.value for label, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey(asset)
    }


COMPACTED = [(3, b"k"), (4, b"m"), (5, b"l"), (6, b"n")]


@pytest.mark.slow
def test_job_compacts_a_log_and_records_numbers_that_plot(five: list[str], fleet: ObjectStore, run: Run) -> None:
    result = run("compaction_job", run_request(five[0], five[0]))

    assert result.success
    assert keys_of(fleet, "a") == COMPACTED
    assert keys_of(fleet, "b") == [(1, b"k"), (2, b"l"), *COMPACTED]
    planned, merged, installed = (
        metadata_of(result, name)["a"] for name in ("compaction_plan", "merged_fragments", "installed_manifest")
    )
    assert (planned["dirty (%)"], planned["overdue (s)"], planned["chosen"], planned["rank"]) == (100, 0, True, 1)
    assert planned["cause"] == "100 % of its bytes are dirty"
    assert (merged["superseded"], merged["expired"], merged["done_by"]) == (2, 0, HERE)
    assert merged["bytes_read"] == planned["dirty_bytes"] > merged["bytes_written"] > 0
    assert merged["amplification"] == pytest.approx(1 + merged["bytes_written"] / merged["bytes_read"])
    assert (installed["installed"], installed["verified"], installed["garbage_documents"]) == (True, True, 1)
    assert (installed["superseded"], installed["pass"], installed["clean_limit"]) == (2, 1, 7)
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == dict.fromkeys(
        ("can_be_compacted", "compacted_in_time", "compaction_proof", "compaction_verified"), True
    )


@pytest.mark.spark
def test_large_log_is_compacted_on_spark(five: list[str], fleet: ObjectStore, run: Run) -> None:
    on_spark = {"resources": {"collection": {"config": {"spark_bytes_min": 1}}}}

    result = run("compaction_job", run_request(five[0], five[0]), on_spark)

    assert result.success
    assert keys_of(fleet, "a") == COMPACTED
    assert metadata_of(result, "merged_fragments")["a"]["done_by"] == ON_SPARK
    assert metadata_of(result, "installed_manifest")["a"]["verified"] is True


@pytest.mark.slow
def test_log_that_is_not_due_or_not_compacted_by_key_is_left_alone(
    five: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    append(fleet, "plain", "kk")
    instance.add_dynamic_partitions(LOGS_NAME, ["plain"])
    run("compaction_job", run_request("a", "a"))
    before = LogReader.open(fleet, "a").manifest()

    again, plain = (run("compaction_job", run_request(log, log)) for log in ("a", "plain"))

    assert (again.success, plain.success) == (True, True)
    assert LogReader.open(fleet, "a").manifest().generation == before.generation
    assert metadata_of(again, "merged_fragments")["a"]["token"] == ""
    assert metadata_of(again, "installed_manifest")["a"]["installed"] is False
    assert "expected a policy that compacts" in metadata_of(plain, "compaction_plan")["plain"]["reason"]
    assert len(keys_of(fleet, "plain")) == 2
    assert five


@pytest.mark.slow
def test_sweep_compacts_the_most_urgent_logs_first_and_no_more_than_allowed(
    five: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tombstones expire at once; lags are over after a second.
    append(fleet, "d", "Mk")
    compact_by_key(fleet, "d", delete_retention_s=0)
    KeyCompactor(fleet, "d").compact()
    compact_by_key(fleet, "e", max_compaction_lag_s=1)
    KeyCompactor(fleet, "c").compact()
    append(fleet, "c", "klm" * 100)
    # The largest of those that are as dirty.
    append(fleet, "a", "kkk")
    order: list[str] = []
    merge = KeyCompactor.merge

    def watched(compactor: KeyCompactor) -> KeyCompactionReport:
        order.append(compactor.log)
        return merge(compactor)

    monkeypatch.setattr(KeyCompactor, "merge", watched)
    few = {"resources": {"collection": {"config": {"compactions_max": 3}}}}
    # Longer than the largest lag.
    time.sleep(2)

    first = run("", JOB.request_sweep(SCOPE), few)
    recorded = recorded_by(instance, first, "compaction_plan")
    second = run("", JOB.request_sweep(SCOPE), few)

    assert (first.success, second.success) == (True, True)
    assert order[:3] == ["e", "d", "a"]
    assert sorted(order[3:]) == ["b", "c"]
    assert [log for log in five if recorded[log].get("chosen")] == ["a", "d", "e"]
    assert sorted(recorded_by(instance, first, "merged_fragments")) == ["", "a", "d", "e"]
    assert sorted(recorded_by(instance, second, "installed_manifest")) == ["", "b", "c"]
    assert all(scrub(fleet, log).sound for log in five)


@pytest.mark.slow
def test_damaged_log_among_five_fails_the_sweep_and_blocks_no_other(
    five: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    _first_fragment(fleet, "b").unlink()
    CursorStore(fleet, "d").create("reader", LogPosition(7, 0))
    (cursor,) = Path(unquote(urlsplit(life_store(fleet, "d").url).path)).rglob("reader.json*")
    cursor.write_bytes(b"torn")

    result = run("", JOB.request_sweep(SCOPE))

    assert not result.success
    assert [keys_of(fleet, log) for log in ("a", "c", "e")] == [COMPACTED] * 3
    bad = found_bad(result)
    assert set(bad) == {("d", "can_be_compacted"), ("b", "compaction_proof")}
    assert (
        "expected a file, found none" in bad["b", "compaction_proof"] or "MissingError" in bad["b", "compaction_proof"]
    )
    assert check_of(result, "compaction_proof").severity.value == "ERROR"
    assert recorded_by(instance, result, "installed_manifest")[""]["not done"] == 2

    cursor.unlink()
    assert len(run("", JOB.request_sweep(SCOPE)).get_step_failure_events()) == 1
    assert keys_of(fleet, "d") == COMPACTED
    assert five


def _first_fragment(store: ObjectStore, log: str) -> Path:
    root = Path(unquote(urlsplit(life_store(store, log).url).path))
    return min((file for file in root.rglob("*.parquet") if "Bucket" in str(file)), key=lambda file: file.name)


@pytest.mark.slow
def test_run_that_dies_between_two_steps_is_continued_by_the_next(
    five: list[str], fleet: ObjectStore, run: Run
) -> None:
    request = run_request("a", "a")
    planned = run("compaction_job", request, only="compaction_plan")
    merged = run("compaction_job", request, only="merged_fragments")
    assert (planned.success, merged.success) == (True, True)
    assert len(keys_of(fleet, "a")) == 6

    installed = [run("compaction_job", request, only="installed_manifest") for _ in range(2)]

    assert keys_of(fleet, "a") == COMPACTED
    done = [metadata_of(each, "installed_manifest")["a"] for each in installed]
    assert [(each["installed"], each["installed_before"]) for each in done] == [(True, False), (False, True)]
    assert five


@pytest.mark.slow
def test_pass_that_a_cursor_overtakes_is_no_failure_and_is_planned_again(
    five: list[str], fleet: ObjectStore, run: Run
) -> None:
    request = run_request("a", "a")
    for step in ("compaction_plan", "merged_fragments"):
        run("compaction_job", request, only=step)
    CursorStore(fleet, "a").create("late", LogPosition(3, 0))

    overtaken = run("compaction_job", request, only="installed_manifest")
    for meta in list(life_store(fleet, "a").list_objects("compaction/")):
        # As a collection does, an interval later.
        life_store(fleet, "a").delete(meta.path)
    later = run("compaction_job", request, only="installed_manifest")
    again = run("compaction_job", request)

    assert (overtaken.success, later.success, again.success) == (True, True, True)
    assert metadata_of(later, "installed_manifest")["a"]["overtaken"] == "what it left was deleted as orphans"
    found = metadata_of(overtaken, "installed_manifest")["a"]
    assert (found["installed"], found["overtaken"]) == (False, "cursors below offset 7: {'late': 3}")
    assert metadata_of(again, "compaction_plan")["a"]["reason"] == "cursor late is at offset 3"
    assert keys_of(fleet, "a")[-4:] == COMPACTED
    assert five


@pytest.mark.slow
def test_retry_of_the_merge_merges_no_log_again(
    five: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, calls = KeyCompactor.merge, []

    def once(compactor: KeyCompactor) -> KeyCompactionReport:
        calls.append(compactor.log)
        if calls.count("c") == 1 and compactor.log == "c":
            message = "the store did not answer"
            raise UnavailableError(message)
        return merge(compactor)

    monkeypatch.setattr(KeyCompactor, "merge", once)
    monkeypatch.setattr(RetryPolicy, "calculate_delay", lambda _policy, _attempt: 0)

    result = run("", JOB.request_sweep(SCOPE))

    assert result.success
    assert sorted(calls) == sorted([*five, "c"])
    assert [keys_of(fleet, log) for log in five] == [COMPACTED] * 5


@pytest.mark.slow
def test_sealed_log_is_compacted(five: list[str], fleet: ObjectStore, run: Run) -> None:
    seal(fleet, "a", reason="a test")

    assert run("compaction_job", run_request("a", "a")).success
    assert keys_of(fleet, "a") == COMPACTED
    assert five


@pytest.mark.slow
def test_run_executed_again_from_its_failed_step_installs_what_was_merged(
    five: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it succeeded, and installed nothing. Also when it fails once more."""

    def fail(_: KeyCompactor, token: str) -> None:
        raise CorruptError(f"pass {token}")

    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactor, "install", fail)
        first = run("", JOB.request_sweep(SCOPE))
        second = execute_again(compaction_sweep, first.run_id, instance)
    third = execute_again(compaction_sweep, second.run_id, instance)

    assert [each.success for each in (first, second, third)] == [False, False, True]
    assert [keys_of(fleet, log) for log in five] == [COMPACTED] * 5
