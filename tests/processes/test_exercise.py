"""An exercise finds nothing on a store that keeps its promises, whatever happens to requests and processes.

And it finds it when a store, or its own ledger, is tampered with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wal3_core import open_store
from wal3_core.exercise.ledger import Append, AppendOutcome, Ledger, ViolationKind
from wal3_core.exercise.load import LoadShape
from wal3_core.exercise.place import leftovers, log_name, remove, run_store
from wal3_core.exercise.running import Exercise, ExercisePlan, ExerciseProgress
from wal3_core.options import MIB

from .exercising import RoughProxy, through
from .fault_proxy import listening

if TYPE_CHECKING:
    from wal3_core.exercise.report import Summary

DEADLINE_S = 120
LOAD = LoadShape(seed=1, rate_per_s=100, logs=8, processes=2, body_bytes_max=4 * MIB, bytes_per_s=MIB)
PLAN = ExercisePlan(LOAD, duration_s=None, bytes_max=2**40, maintenance=True, late_s=60)


def loaded(url: str, folder: Path, plan: ExercisePlan, enough: Callable[[ExerciseProgress], object]) -> Exercise:
    """Put a load on a store until there was enough of it; after the deadline its processes are killed."""
    folder.mkdir()
    exercise, ended = Exercise(open_store(url), url, plan, folder), [False]
    until_s = time.monotonic() + DEADLINE_S

    def show(now: ExerciseProgress) -> None:
        ended[0] = ended[0] or bool(enough(now))

    exercise.load(lambda: ended[0] or time.monotonic() > until_s, show, lambda: time.monotonic() > until_s)
    return exercise


def some(now: ExerciseProgress) -> bool:
    return now.figures.counts["durable"] > 100


def many(now: ExerciseProgress) -> bool:
    return now.figures.counts["durable"] > 300


def checked(exercise: Exercise) -> Summary:
    summary = exercise.check(lambda _done, _total: None)
    print(summary.to_json())
    return summary


@pytest.mark.slow
def test_nothing_is_found_in_a_directory_whose_writers_are_killed(local_url: str, tmp_path: Path) -> None:
    def enough(now: ExerciseProgress) -> object:
        return many(now) and all(now.figures.counts[name] for name in ("killed", "closed", "records_collected"))

    exercise = loaded(local_url, tmp_path / "ledgers", PLAN, enough)
    summary = checked(exercise)

    assert summary.sound, summary.checked.shown
    assert summary.checked.outcomes[AppendOutcome.DURABLE] > 100
    assert summary.figures.counts["killed"] > 0
    assert summary.figures.counts["closed"] > 0
    assert summary.figures.counts["records_collected"] > 0
    assert summary.checked.sizes["followed"] > 0

    store = open_store(local_url)
    assert leftovers(store) == [exercise.run]
    assert remove(store, exercise.run, lambda _done, _total: None) > LOAD.logs
    assert leftovers(store) == []
    assert list(store.list_objects("")) == []


@pytest.mark.repeat
def test_nothing_is_found_on_s3_behind_a_network_that_leaves_puts_open(
    s3_url: str, s3_endpoint: str, tmp_path: Path
) -> None:
    def enough(now: ExerciseProgress) -> object:
        return many(now) and now.figures.counts["killed"] and now.figures.counts["unanswered"]

    with listening(RoughProxy(s3_endpoint)) as proxy:
        exercise = loaded(through(s3_url, proxy), tmp_path / "ledgers", PLAN, enough)
        summary = checked(exercise)
        print(proxy.fired)

    assert summary.sound, summary.checked.shown
    assert summary.checked.outcomes[AppendOutcome.DURABLE] > 100
    assert summary.figures.counts["killed"] > 0
    assert summary.figures.counts["unanswered"] > 0


@pytest.mark.repeat
def test_log_that_lost_its_newest_commits_is_found(local_url: str, tmp_path: Path) -> None:
    log = log_name(0)
    kept: dict[str, bytes] = {}
    store = tmp_path / "store"

    def replaced(now: ExerciseProgress) -> bool:
        """Keep the first manifest that names a record; return whether there was a later one."""
        found = [path for path in store.glob(f"exercise/*/{log}/manifest/*") if path.stat().st_size]
        if found and now.figures.counts["durable"] and not kept:
            kept[str(found[0])] = found[0].read_bytes()
        return some(now) and any(Path(path).read_bytes() != data for path, data in kept.items())

    plan = replace(PLAN, maintenance=False)
    exercise = loaded(local_url, tmp_path / "ledgers", plan, replaced)
    for path, data in kept.items():
        (tmp_path / path).write_bytes(data)
    summary = checked(exercise)

    assert kept
    assert not summary.sound
    assert summary.checked.found[ViolationKind.MISSING] > 0
    assert {each.log for each in summary.checked.shown} == {log}


@pytest.mark.repeat
def test_record_that_a_ledger_has_and_the_log_has_not_is_missing(local_url: str, tmp_path: Path) -> None:
    exercise = loaded(local_url, tmp_path / "ledgers", replace(PLAN, maintenance=False), some)
    lost = Append(
        process="p99.0",
        number=1,
        num_bytes=3,
        checksum="0" * 16,
        submitted_us=1,
        outcome=AppendOutcome.DURABLE,
        offset=10**6,
        answered_us=2**60,
    )
    ledger = Ledger(tmp_path / "ledgers", "p99.0")
    ledger.note(log_name(3), lost)
    ledger.note(log_name(3), lost)
    summary = checked(exercise)

    found = [(each.kind, each.log, each.offset, each.record) for each in summary.checked.shown]
    assert found == [(ViolationKind.MISSING, log_name(3), 10**6, "p99.0/1")]


@pytest.mark.slow
def test_log_whose_fragment_is_gone_is_unsound(local_url: str, tmp_path: Path) -> None:
    exercise = loaded(local_url, tmp_path / "ledgers", replace(PLAN, maintenance=False), some)
    place = run_store(open_store(local_url), exercise.run)
    fragment = next(each.path for each in place.list_objects(f"{log_name(0)}/") if each.path.endswith(".parquet"))
    place.delete(fragment)
    summary = checked(exercise)

    assert summary.checked.found[ViolationKind.UNSOUND] > 0
    assert summary.checked.found[ViolationKind.MISSING] > 0
    assert {each.log for each in summary.checked.shown} == {log_name(0)}
