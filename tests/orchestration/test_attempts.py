"""A run that was killed, cancelled or failed is not the last one for its log; one that fails for good is no flood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunRequest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from tests.orchestration.checked import asked, keys
from wal3_core.runtime import shared_runtime
from wal3_orchestration.definitions import defs
from wal3_orchestration.framework import triggers
from wal3_orchestration.framework.scope import LOG_TAG, RUN_KEY_TAG
from wal3_orchestration.framework.triggers import AGAIN_S_MAX, AGAIN_S_MIN, ASKED_TAG, next_attempts

if TYPE_CHECKING:
    from conftest import Tick, Write

REQUEST = RunRequest(run_key="manifest/alpha/0/state", job_name="manifest_job", partition_key="alpha")


@pytest.fixture
def memory() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def _store(instance: DagsterInstance, request: RunRequest, status: DagsterRunStatus) -> None:
    """Store a run as if the daemon had started it, and it had come to this."""
    tags = {**request.tags, RUN_KEY_TAG: str(request.run_key)}
    job = defs().resolve_job_def(str(request.job_name))
    instance.create_run_for_job(job, tags=tags, run_config=request.run_config, status=status)


def _next(instance: DagsterInstance) -> list[str | None]:
    return [each.run_key for each in next_attempts(instance, [REQUEST])]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "AGAIN_S_MIN", 0)


@pytest.mark.parametrize("end", [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED])
@pytest.mark.usefixtures("at_once")
def test_run_that_ended_in_vain_is_asked_for_again_under_a_key_of_its_own(
    memory: DagsterInstance, end: DagsterRunStatus
) -> None:
    seen = []
    for _ in range(3):
        (again,) = next_attempts(memory, [REQUEST])
        seen.append(again.run_key)
        assert _next(memory) == [again.run_key]
        _store(memory, again, end)

    assert seen == [f"{REQUEST.run_key}{end}" for end in ("", "/attempt 2", "/attempt 3")]


@pytest.mark.parametrize("status", [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTED, DagsterRunStatus.SUCCESS])
@pytest.mark.usefixtures("at_once")
def test_attempt_that_is_under_way_or_has_succeeded_keeps_its_key(
    memory: DagsterInstance, status: DagsterRunStatus
) -> None:
    for end in (DagsterRunStatus.FAILURE, status):
        (again,) = next_attempts(memory, [REQUEST])
        _store(memory, again, end)

    assert _next(memory) == [f"{REQUEST.run_key}/attempt 2"]


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTED, DagsterRunStatus.SUCCESS])
@pytest.mark.usefixtures("at_once")
def test_run_that_is_executed_again_is_the_same_attempt(memory: DagsterInstance, status: DagsterRunStatus) -> None:
    """Regression: a run executed again by someone counted as another attempt, and each tick asked for one more."""
    (again,) = next_attempts(memory, [REQUEST])
    for end in (DagsterRunStatus.FAILURE, status):
        _store(memory, again, end)

    assert _next(memory) == [REQUEST.run_key]


@pytest.mark.usefixtures("at_once")
def test_attempt_follows_the_last_one_although_an_earlier_one_was_repeated(
    memory: DagsterInstance,
) -> None:
    for end in ("", "/attempt 2", ""):
        _store(memory, _keyed(f"{REQUEST.run_key}{end}"), DagsterRunStatus.FAILURE)

    assert _next(memory) == [f"{REQUEST.run_key}/attempt 3"]


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_attempts_do_not_end_however_many_were_in_vain(memory: DagsterInstance) -> None:
    """Regression: the eleventh was the last one, as ten runs were counted at most."""
    seen = set()
    for _ in range(14):
        (again,) = next_attempts(memory, [REQUEST])
        seen.add(again.run_key)
        _store(memory, again, DagsterRunStatus.FAILURE)

    assert len(seen) == 14


def _keyed(key: str) -> RunRequest:
    return REQUEST.with_replaced_attrs(run_key=key, tags={ASKED_TAG: str(REQUEST.run_key)})


@pytest.mark.slow
def test_each_attempt_waits_longer_and_a_day_at_most(memory: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_clock(ahead_s: float) -> None:
        at_us = shared_runtime().now_us() + int(ahead_s * 10**6)
        monkeypatch.setattr(triggers, "shared_runtime", lambda: _Clock(at_us))

    def is_due(ahead_s: float) -> bool:
        set_clock(ahead_s)
        return bool(_next(memory))

    waits = [AGAIN_S_MIN * factor for factor in (1, 8, 64, 512)] + [AGAIN_S_MAX] * 2
    for wait_s in waits:
        set_clock(2 * AGAIN_S_MAX)
        (again,) = next_attempts(memory, [REQUEST])
        _store(memory, again, DagsterRunStatus.FAILURE)

        assert not is_due(wait_s - 30), wait_s
        assert is_due(wait_s + 30), wait_s


def test_attempt_is_due_at_once_when_the_clock_was_set_back(
    memory: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(memory, next_attempts(memory, [REQUEST])[0], DagsterRunStatus.FAILURE)
    assert _next(memory) == []

    back = shared_runtime().now_us() - 3600 * 10**6
    monkeypatch.setattr(triggers, "shared_runtime", lambda: _Clock(back))

    assert _next(memory) == [f"{REQUEST.run_key}/attempt 2"]


def _enqueue(instance: DagsterInstance, job: str, **tags: str) -> str:
    """Store a run that waits in the queue."""
    location = RegisteredCodeLocationOrigin("wal3")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job)
    run = instance.create_run_for_job(
        defs().resolve_job_def(job), tags=tags, status=DagsterRunStatus.QUEUED, remote_job_origin=origin
    )
    return run.run_id


def test_log_whose_run_waits_in_the_queue_is_not_asked_for_again_and_others_are(memory: DagsterInstance) -> None:
    """Regression: while the queue was full, each interval and each change added a run of the same log to it."""
    requests = [
        RunRequest(run_key=f"{job}/{log}", job_name=job, partition_key=log, tags={LOG_TAG: log})
        for job in ("deletion_job", "manifest_job")
        for log in ("alpha", "beta")
    ]
    _enqueue(memory, "deletion_job", **{LOG_TAG: "alpha"})

    asked_for = [each.run_key for each in next_attempts(memory, requests)]

    assert asked_for == ["deletion_job/beta", "manifest_job/alpha", "manifest_job/beta"]


@pytest.mark.slow
def test_changes_of_many_ticks_leave_one_run_in_a_full_queue(
    tick: Tick, write: Write, instance: DagsterInstance
) -> None:
    for log in ("alpha", "beta"):
        write(log)
    first = tick()
    waiting = _enqueue(instance, "manifest_sweep")
    write("alpha")
    write("beta")

    full = tick(first)
    instance.delete_run(waiting)

    assert (asked(first), asked(full), asked(tick(full))) == ([["alpha", "beta"]], [], [["alpha", "beta"]])


class _Clock:
    def __init__(self, at_us: int) -> None:
        self._at_us = at_us

    def now_us(self) -> int:
        return self._at_us


@pytest.mark.slow
@pytest.mark.parametrize("end", [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED])
@pytest.mark.usefixtures("at_once")
def test_log_is_looked_at_again_although_the_first_look_was_killed(
    tick: Tick, look: Tick, write: Write, instance: DagsterInstance, end: DagsterRunStatus
) -> None:
    """Regression: Dagster starts one run for each key, so the log was looked at when it changed, and not before."""
    write("alpha")
    first = tick()
    (request,) = first.run_requests or ()
    _store(instance, request, end)

    second = tick(first)

    assert (asked(first), asked(second)) == ([["alpha"]], [["alpha"]])
    assert keys(first) != keys(second)
    assert (second.run_requests or ())[0].tags[ASKED_TAG] == keys(first)[0]
    assert asked(look(look(second))) == []
