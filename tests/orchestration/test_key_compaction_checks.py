"""What the checks of key compaction find, and what they keep from being done."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, RetryPolicy

from tests.orchestration.checked import check_of, found_bad
from tests.orchestration.executed_again import compaction_sweep, execute_again
from tests.orchestration.run_requests import run_request
from tests.orchestration.test_key_compaction import append, compact_by_key, keys_of
from tests.stores import life_store
from wal3_core import CursorStore, LogPosition, LogReader
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import UnavailableError
from wal3_core.format.pass_record import PassRecord
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.assets import DELETION
from wal3_orchestration.defs.key_compaction.assets import JOB
from wal3_orchestration.framework.recorder import latest, value_of
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from conftest import Run

    from wal3_core.compaction.reports import KeyCompactionPlan
    from wal3_core.compaction.verifying import Verification

SCOPE = StoreScope()
NOW = {"resources": {"collection": {"config": {"interval_s": 0.001}}}}


def two_dirty(fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    """Make two logs that are compacted, both dirty."""
    names = ["a", "b"]
    for log in names:
        append(fleet, log, "kl", "km", "ln")
        compact_by_key(fleet, log)
    instance.add_dynamic_partitions(LOGS_NAME, names)
    return names


@pytest.fixture
def two(fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    return two_dirty(fleet, instance)


def num_replaced(store: ObjectStore, log: str) -> int:
    """Count the stored fragments that the log no longer has."""
    stored = {each.path for each in life_store(store, log).list_objects("log/")}
    return len(stored - {each.path for each in LogReader.open(store, log).scan()})


@pytest.mark.slow
def test_what_a_pass_replaced_stays_until_the_pass_is_found_to_hold(
    two: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = KeyCompactor.verify

    def lost(compactor: KeyCompactor) -> Verification | None:
        found = verify(compactor)
        assert found is not None
        return replace(found, findings=("record 2: lost",)) if compactor.log == "a" else found

    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactor, "verify", lost)
        compacted = run("", JOB.request_sweep(SCOPE))
    deleted = run("", DELETION.request_sweep(SCOPE), NOW)

    assert (compacted.success, deleted.success) == (False, False)
    (problem,) = found_bad(compacted).values()
    assert "does not hold: record 2: lost" in problem
    assert check_of(compacted, "compaction_verified").severity.value == "ERROR"
    assert [num_replaced(fleet, log) > 0 for log in two] == [True, False]

    assert run("compaction_job", run_request("a", "a")).success
    assert run("", DELETION.request_sweep(SCOPE), NOW).success
    assert [num_replaced(fleet, log) for log in two] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("left", [False, True], ids=["the store does not answer", "the run dies"])
def test_pass_is_verified_although_the_run_was_interrupted_after_it_was_installed(
    two: list[str], run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, *, left: bool
) -> None:
    """Regression: a later try found the pass installed, did not verify it, and its garbage was deleted."""
    verify, calls = KeyCompactor.verify, []

    def interrupted(compactor: KeyCompactor) -> Verification | None:
        calls.append(compactor.log)
        if len(calls) == 1:
            raise _Killed if left else UnavailableError("the store did not answer")
        return verify(compactor)

    monkeypatch.setattr(KeyCompactor, "verify", interrupted)
    monkeypatch.setattr(RetryPolicy, "calculate_delay", lambda _policy, _attempt: 0)

    result = run("", JOB.request_sweep(SCOPE))
    again = execute_again(compaction_sweep, result.run_id, instance) if left else result

    assert (result.success, again.success) == (not left, True)
    assert sorted(calls) == ["a", "a", "b"]
    for log in two:
        (installed,) = latest(instance, SCOPE.key("installed_manifest"), log, count=1)
        assert value_of(installed, "verified") is True


@pytest.mark.slow
def test_run_fails_for_a_pass_that_an_earlier_try_of_it_has_found_not_to_hold(
    two: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the retry, which another log asked for, succeeded."""
    verify, calls = KeyCompactor.verify, []

    def bad(compactor: KeyCompactor) -> Verification | None:
        calls.append(compactor.log)
        if calls == ["a", "b"]:
            message = "the store did not answer"
            raise UnavailableError(message)
        found = verify(compactor)
        assert found is not None
        return replace(found, findings=("record 2: lost",)) if compactor.log == "a" else found

    monkeypatch.setattr(KeyCompactor, "verify", bad)
    monkeypatch.setattr(RetryPolicy, "calculate_delay", lambda _policy, _attempt: 0)

    result = run("", JOB.request_sweep(SCOPE))

    assert not result.success
    assert calls == ["a", "b", "a", "b"]
    assert set(found_bad(result)) == {("a", "compaction_verified")}
    assert two


class _Killed(BaseException):
    """The end of a process, of which nothing in it takes notice."""


@pytest.mark.slow
def test_pass_whose_setsums_do_not_add_up_is_not_installed(
    two: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = PassRecord.problem

    def wrong(record: PassRecord) -> str | None:
        return problem(replace(record, proof=replace(record.proof, after=record.proof.before)))

    with monkeypatch.context() as patch:
        patch.setattr(PassRecord, "problem", wrong)
        result = run("compaction_job", run_request("a", "a"))

    assert not result.success
    assert "expected setsum" in found_bad(result)["a", "compaction_proof"]
    assert len(keys_of(fleet, "a")) == 6
    assert two


@pytest.mark.slow
def test_overdue_and_held_back_logs_are_warned_about_with_what_to_do(
    two: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    outline = KeyCompactor.outline
    CursorStore(fleet, "b").create("reader", LogPosition(3, 0))

    def old(compactor: KeyCompactor) -> KeyCompactionPlan:
        late = {"overdue_s": 7200} if compactor.log == "a" else {"held_back_s": 7200}
        return replace(outline(compactor), **late)

    monkeypatch.setattr(KeyCompactor, "outline", old)

    result = run("", JOB.request_sweep(SCOPE))

    assert result.success
    check = check_of(result, "compacted_in_time")
    assert (check.passed, check.severity.value) == (False, "WARN")
    bad = found_bad(result)
    assert "found the oldest dirty one 7200 s over it" in bad["a", "compacted_in_time"]
    assert "held back 7200 s over it: cursor reader is at offset 3" in bad["b", "compacted_in_time"]
    assert "Turn on the sensor `key_compaction`" in str(check.metadata["remedy"].value)
    assert two
