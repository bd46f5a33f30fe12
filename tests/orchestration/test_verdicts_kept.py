"""What a run has found bad stands until one that began later finds it good, however runs overlap and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, RetryPolicy, RunRequest

from tests.orchestration.checked import check_of
from tests.orchestration.run_requests import run_request
from tests.orchestration.test_key_compaction import append
from tests.orchestration.test_key_compaction_checks import num_replaced, two_dirty
from tests.stores import damage, life_store
from wal3_core import LogReader, ScrubReport
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.options import CollectorOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs import verification
from wal3_orchestration.defs.garbage_collection import assets
from wal3_orchestration.defs.garbage_collection.assets import DELETION, DueGarbage
from wal3_orchestration.defs.key_compaction.assets import JOB
from wal3_orchestration.defs.key_compaction.checks import INSTALLED, compaction_verified
from wal3_orchestration.defs.verification import JOB as VERIFY
from wal3_orchestration.framework.log_records import LogRecords
from wal3_orchestration.framework.scope import StoreScope

if TYPE_CHECKING:
    from conftest import Run

    from wal3_core.compaction.verifying import Verification
    from wal3_orchestration.framework.recorder import LogResult

    Keep = Callable[[str], LogResult | None]

SCOPE = StoreScope()
ONE, SWEEP = run_request("a", "a"), JOB.request_sweep(SCOPE)
NOW = {"resources": {"collection": {"config": {"interval_s": 0.001}}}}


@pytest.fixture
def keyed(fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    return two_dirty(fleet, instance)


def _is_bad(instance: DagsterInstance, log: str) -> bool:
    records = LogRecords(SCOPE, instance, INSTALLED).load([log])
    return log in records and compaction_verified.name in records[log].problems


def _lost(found: Verification | None) -> Verification:
    assert found is not None
    return replace(found, findings=("record 2: lost",))


class _Slow:
    """Verifies a log; while the first verification of it lasts, another run finds a later pass bad."""

    def __init__(self, meanwhile: Callable[[], ExecuteInProcessResult]) -> None:
        self._meanwhile: Callable[[], ExecuteInProcessResult] | None = meanwhile
        self.other: ExecuteInProcessResult | None = None

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Be what verifies a log."""
        verify = KeyCompactor.verify
        patch.setattr(KeyCompactor, "verify", lambda compactor: self._judge(compactor.log, verify(compactor)))

    def _judge(self, log: str, found: Verification | None) -> Verification | None:
        if self._meanwhile is None:
            return _lost(found) if log == "a" else found
        if log == "a":
            meanwhile, self._meanwhile = self._meanwhile, None
            self.other = meanwhile()
        return found


@pytest.mark.slow
@pytest.mark.parametrize("request_slow", [ONE, SWEEP], ids=["chosen", "sweep"])
def test_run_that_verified_an_earlier_pass_does_not_replace_a_later_verdict(
    keyed: list[str],
    fleet: ObjectStore,
    run: Run,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    request_slow: RunRequest,
) -> None:
    """Regression: the slow run's verdict was recorded last, and what the later pass had replaced was deleted."""

    def compact_again() -> ExecuteInProcessResult:
        append(fleet, "a", "kl", "km", "ln")
        return run("compaction_job", ONE)

    slow = _Slow(compact_again)
    with monkeypatch.context() as patch:
        slow.patch(patch)
        result = run("compaction_job", request_slow)
    deleted = run("", DELETION.request_sweep(SCOPE), NOW)

    assert slow.other is not None
    assert not slow.other.success
    assert _is_bad(instance, "a")
    assert not check_of(result, compaction_verified.name).passed
    assert not deleted.success
    # A run that begins later, and finds the pass to hold, ends it.
    assert run("compaction_job", ONE).success
    assert not _is_bad(instance, "a")
    assert keyed


@pytest.mark.repeat
@pytest.mark.slow
def test_what_a_run_of_chosen_logs_found_bad_stands_although_it_dies(
    keyed: list[str], run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was recorded at the end of the step; without it, what the pass had replaced was deleted."""
    verify = KeyCompactor.verify

    def dies_at_second(compactor: KeyCompactor) -> Verification | None:
        if compactor.log == "b":
            raise _Killed
        return _lost(verify(compactor))

    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactor, "verify", dies_at_second)
        result = run("compaction_job", run_request(*keyed))

    assert not result.success
    assert _is_bad(instance, "a")
    assert not run("", DELETION.request_sweep(SCOPE), NOW).success


@pytest.mark.slow
@pytest.mark.parametrize("request_later", [ONE, SWEEP], ids=["chosen", "sweep"])
def test_no_pass_is_made_over_one_that_does_not_hold(
    keyed: list[str],
    fleet: ObjectStore,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    request_later: RunRequest,
) -> None:
    """Regression: the next pass was verified in its place, and what the one before had replaced was deleted."""
    verify, bad = KeyCompactor.verify, set[str]()

    def first_is_bad(compactor: KeyCompactor) -> Verification | None:
        found = verify(compactor)
        assert found is not None
        if compactor.log == "a" and not bad:
            bad.add(found.token)
        return _lost(found) if found.token in bad else found

    monkeypatch.setattr(KeyCompactor, "verify", first_is_bad)
    run("", SWEEP)
    replaced = num_replaced(fleet, "a")
    for log in keyed:
        append(fleet, log, "kl", "km", "ln")

    later = run("compaction_job", request_later)
    deleted = run("", DELETION.request_sweep(SCOPE), NOW)

    assert not later.success
    assert not deleted.success
    assert num_replaced(fleet, "a") == replaced > 0
    # What was wrong is repaired, by hand: the pass that follows holds.
    KeyCompactor(fleet, "a").compact(force=True)
    assert run("compaction_job", ONE).success
    assert run("", DELETION.request_sweep(SCOPE), NOW).success
    assert num_replaced(fleet, "a") == 0


@pytest.mark.slow
def test_what_a_pass_replaced_stays_if_it_is_found_bad_during_a_deletion(
    keyed: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a deletion asked once for a thousand logs what had been found of each."""
    assert run("", SWEEP).success
    replaced, verify, delete_log = num_replaced(fleet, "b"), KeyCompactor.verify, assets.delete_log
    judged: list[bool] = []

    def slow(store: ObjectStore, log: str, options: CollectorOptions, *, objects_max: int, keep: Keep) -> DueGarbage:
        if not judged:
            with monkeypatch.context() as patch:
                patch.setattr(KeyCompactor, "verify", lambda compactor: _lost(verify(compactor)))
                judged.append(run("compaction_job", run_request("b", "b")).success)
        return delete_log(store, log, options, objects_max=objects_max, keep=keep)

    monkeypatch.setattr(assets, "delete_log", slow)
    deleted = run("", DELETION.request_sweep(SCOPE), NOW)

    assert judged == [False]
    assert not deleted.success
    assert [num_replaced(fleet, log) for log in keyed] == [0, replaced]
    assert replaced


@pytest.mark.slow
@pytest.mark.parametrize("requests", [(ONE, ONE), (ONE, SWEEP), (SWEEP, SWEEP), (SWEEP, ONE)])
def test_what_a_pass_replaced_stays_until_the_pass_of_a_run_that_died_is_verified(
    keyed: list[str],
    fleet: ObjectStore,
    run: Run,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    requests: tuple[RunRequest, RunRequest],
) -> None:
    """Regression: a later sweep, which did not execute the run again, took no notice of the pass."""
    monkeypatch.setattr(RetryPolicy, "calculate_delay", lambda _policy, _attempt: 0)
    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactor, "verify", _die)
        assert not run("compaction_job", requests[0]).success
    replaced = num_replaced(fleet, "a")

    deleted = run("", DELETION.request_sweep(SCOPE), NOW)

    assert not deleted.success
    assert num_replaced(fleet, "a") == replaced > 0
    assert "launch compaction_job for the log" in _why(deleted)
    # It is verified first, and nothing is merged over it.
    append(fleet, "a", "kl", "km", "ln")
    last = LogReader.open(fleet, "a").manifest().compaction.token
    assert run("compaction_job", requests[1]).success
    assert LogReader.open(fleet, "a").manifest().compaction.token == last
    assert LogRecords(SCOPE, instance, INSTALLED).load(["a"])["a"].unproven == ""
    assert run("", DELETION.request_sweep(SCOPE), NOW).success
    assert num_replaced(fleet, "a") == 0
    assert keyed


@pytest.mark.slow
def test_pass_that_was_never_installed_or_is_not_the_last_one_keeps_nothing(
    keyed: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactor, "install", _die)
        assert not run("", SWEEP).success
    assert LogRecords(SCOPE, instance, INSTALLED).load(["a"])["a"].unproven

    KeyCompactor(fleet, "a").compact()

    assert run("", DELETION.request_sweep(SCOPE), NOW).success
    # What is left is what the run that died has merged.
    assert num_replaced(fleet, "a") == 1
    assert keyed


def _why(failed: ExecuteInProcessResult) -> str:
    """Return what a run of one step says of its failure."""
    (step,) = failed.filter_events(lambda event: event.is_step_failure)
    return str(step.step_failure_data.error)


def _die(*_: object) -> NoReturn:
    raise _Killed


class _Killed(BaseException):
    """The end of a process, of which nothing in it takes notice."""


@pytest.mark.slow
@pytest.mark.parametrize("swept", [False, True], ids=["chosen", "sweep"])
def test_verification_read_before_the_damage_does_not_turn_the_check_green(
    known: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch, *, swept: bool
) -> None:
    scrub_log, log = verification.scrub_log, known[0]
    one = run_request(log, log)
    others: list[ExecuteInProcessResult] = []

    def slow(store: ObjectStore, name: str) -> ScrubReport:
        found = scrub_log(store, name)
        if name == log:
            monkeypatch.setattr(verification, "scrub_log", scrub_log)
            objects = life_store(fleet, log)
            damage(objects, min(each.path for each in objects.list_objects("log/")))
            others.append(run("verification_job", one))
        return found

    monkeypatch.setattr(verification, "scrub_log", slow)

    result = run("verification_job", VERIFY.request_sweep(SCOPE) if swept else one)

    assert [each.success for each in others] == [False]
    assert not check_of(result, "sound").passed
