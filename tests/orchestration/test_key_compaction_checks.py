"""What the checks of key compaction find, and what they keep from being done."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.orchestration.checked import check_of, found_bad
from tests.orchestration.test_key_compaction import append, compact_by_key, keys_of
from tests.stores import life_store
from wal3_core import CursorStore, LogPosition, LogReader
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.model.pass_record import PassRecord
from wal3_orchestration.defs.garbage_collection.assets import DELETION
from wal3_orchestration.defs.key_compaction.assets import JOB
from wal3_orchestration.partitions import LOGS_NAME, run_request
from wal3_orchestration.scope import Scope

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance

    from wal3_core.compaction.reports import KeyCompactionPlan
    from wal3_core.compaction.verifying import Verification
    from wal3_core.storage.object_store import ObjectStore

SCOPE = Scope()
NOW = {"resources": {"collection": {"config": {"interval_s": 0.001}}}}


@pytest.fixture
def two(fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    """Two logs that are compacted, both dirty."""
    names = ["a", "b"]
    for log in names:
        append(fleet, log, "kl", "km", "ln")
        compact_by_key(fleet, log)
    instance.add_dynamic_partitions(LOGS_NAME, names)
    return names


def num_replaced(store: ObjectStore, log: str) -> int:
    """Count the stored fragments that the log no longer has."""
    stored = {each.path for each in life_store(store, log).list_objects("log/")}
    return len(stored - {each.path for each in LogReader.open(store, log).scan()})


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


def test_overdue_log_and_one_that_a_cursor_holds_back_are_warned_about_with_what_to_do(
    two: list[str], fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    outline = KeyCompactor.outline
    CursorStore(fleet, "b").init("reader", LogPosition(3, 0))

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
