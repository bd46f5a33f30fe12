"""A sweep over many logs holds what it found of a slice of them, and says the same as if it held all of it."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from dagster import DagsterInstance, build_op_context

from tests.orchestration.checked import check_of, found_bad, recorded_by
from tests.stores import life_store
from wal3_core import CursorStore, LogPosition, LogReader, destroy
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.discovery import JOB as LOOK
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION
from wal3_orchestration.defs.key_compaction.assets import JOB as COMPACT
from wal3_orchestration.defs.verification import JOB as VERIFY
from wal3_orchestration.framework import recorder, step
from wal3_orchestration.framework.checks import CheckResult
from wal3_orchestration.framework.recorder import LogResult
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from conftest import Run, Write


SLICE = 4
# A sweep shows the first ten logs that it recorded, in a table.
SHOWN = 10


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LOGS_PER_SLICE_MAX", SLICE)


@pytest.fixture
def logs(instance: DagsterInstance, write: Write, fleet: ObjectStore) -> list[str]:
    """Logs of six slices, each with a cursor after its first three records."""
    names = [f"log-{number:02}" for number in range(6 * SLICE)]
    for log in names:
        write(log, fragments=2)
        CursorStore(fleet, log).create("reader", LogPosition(4, 0))
    instance.add_dynamic_partitions(LOGS_NAME, names)
    return names


@pytest.mark.slow
@pytest.mark.usefixtures("sliced")
def test_sweep_in_slices_finds_the_damaged_and_the_gone_and_does_the_others(
    logs: list[str], run: Run, instance: DagsterInstance, fleet: ObjectStore
) -> None:
    gone, damaged = [logs[1], logs[13]], [logs[5], logs[23]]
    for log in gone:
        destroy(fleet, log)
    for log in damaged:
        store = life_store(fleet, log)
        store.delete(next(meta.path for meta in store.list_objects("log/")))
    left = [log for log in logs if log not in gone]

    looked, verified, collected = (run("", job.request_sweep(StoreScope())) for job in (LOOK, VERIFY, COLLECTION))

    assert (looked.success, verified.success, collected.success) == (True, False, True)
    assert set(recorded_by(instance, looked, "manifest")) == {*left, ""}
    whole = {asset: recorded_by(instance, each, asset)[""] for each, asset in _swept(looked, verified, collected)}
    assert {asset: (each["logs"], each["recorded"], each["not done"]) for asset, each in whole.items()} == {
        "manifest": (22, 22, 0),
        "verification": (22, 20, 2),
        "garbage_plan": (22, 22, 0),
        "pruned_manifest": (22, 22, 0),
    }
    assert {each["gone"] for each in whole.values()} == {2}
    assert (whole["manifest"]["total records"], whole["verification"]["total records"]) == (22 * 6, 20 * 6)
    assert whole["pruned_manifest"]["total records"] == 22 * 3
    assert set(found_bad(verified)) == {(log, "sound") for log in damaged}
    sound = check_of(verified, "sound")
    assert [sound.metadata[label].value for label in ("judged", "bad")] == ["22 of 22 logs", 2]
    assert "2 of 24 logs: log-05: sound: 1 problem" in str(
        verified.failure_data_for_node("verification_sweep_verification")
    )
    assert {LogReader.open(fleet, log).manifest().first.position.offset for log in left} == {4}


def _swept(looked: Any, verified: Any, collected: Any) -> list[tuple[Any, str]]:  # noqa: ANN401 - results of Dagster
    return [
        (looked, "manifest"),
        (verified, "verification"),
        (collected, "garbage_plan"),
        (collected, "pruned_manifest"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize(
    "job",
    [COLLECTION, *(pytest.param(job, marks=pytest.mark.repeat) for job in (LOOK, VERIFY, COMPACT))],
    ids=lambda job: job.name,
)
def test_sweep_holds_what_it_found_of_one_slice_of_its_logs(
    logs: list[str],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    job: Any,  # noqa: ANN401 - a job
) -> None:
    """Regression: memory grew by 3 to 6 KiB for each log of a sweep."""
    # With so few logs, each is plotted by itself at the end.
    monkeypatch.setattr(recorder, "PLOTTED_LOGS_MAX", 0)
    held: list[tuple[int, int]] = []
    add = recorder.Recorder.add
    # Of other tests of this process.
    earlier = _found_alive()

    def counting(self: Any, *found: Any, **more: Any) -> None:  # noqa: ANN401 - handed on
        add(self, *found, **more)
        alive = [each for each in _found_alive() if not any(each is other for other in earlier)]
        outcomes = sum(isinstance(each, LogResult) for each in alive)
        held.append((outcomes, len({each.log for each in alive if isinstance(each, CheckResult)})))

    monkeypatch.setattr(recorder.Recorder, "add", counting)

    assert run("", job.request_sweep(StoreScope())).success

    assert len(held) >= len(logs) // SLICE
    assert max(outcomes for outcomes, _ in held) <= SLICE + SHOWN
    assert max(judged for _, judged in held) <= SLICE + 1


def _found_alive() -> list[LogResult | CheckResult]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, LogResult | CheckResult)]


@pytest.mark.usefixtures("sliced")
def test_slice_knows_how_many_logs_its_step_has_and_what_was_measured() -> None:
    """Regression: with a limit above the size of a slice, Spark was never used."""
    names = [f"log-{number}" for number in range(10)]
    whole = step.Step(scope=StoreScope(), context=build_op_context(), asset="manifest", logs=names, swept=True)

    found = list(whole.slices())

    assert [log for each in found for log in each.logs] == names
    assert [(len(each.logs), each.num_logs) for each in found] == [(4, 10), (4, 10), (2, 10)]
    assert all(each.work is whole.work for each in found)
    (chosen,) = replace(whole, swept=False).slices()
    assert (list(chosen.logs), chosen.num_logs) == (names, 10)
