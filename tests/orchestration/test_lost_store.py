"""If the store is gone or a different one, nothing changes: the tick fails and says what to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, Failure

from tests.orchestration.run_requests import run_request
from wal3_core import UnavailableError, open_store
from wal3_core.fleet.identity import store_identity
from wal3_core.format.paths import STORE_IDENTITY
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.dirty_logs.assets import Round, RoundKind, Rounds
from wal3_orchestration.framework import store as store_module
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.framework.store import ACCEPT_JOB

if TYPE_CHECKING:
    from conftest import Run, Tick, Write


LOGS = [f"log-{number:02}" for number in range(24)]


def _root(store: ObjectStore) -> Path:
    return Path(urlsplit(store.url).path)


def _logs(instance: DagsterInstance) -> list[str]:
    return list(instance.get_dynamic_partitions(LOGS_NAME))


def _accept(instance: DagsterInstance, **said: str | int | None) -> bool:
    config = {"ops": {"accepted_store": {"config": said}}}
    job = defs().resolve_job_def(ACCEPT_JOB)
    return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False).success


@pytest.mark.slow
def test_store_whose_folder_was_renamed_empties_nothing(
    tick: Tick, look: Tick, write: Write, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    """As when the volume is not mounted: the folder is missing or empty."""
    write("alpha")
    write("beta")
    before = look()
    _root(fleet).rename(_root(fleet).with_name("elsewhere"))

    for _ in range(3):
        with pytest.raises(Failure, match="looks after, found no identity: check that WAL3_STORE is right") as failed:
            tick(before)
    assert ACCEPT_JOB in str(failed.value.description)
    assert _logs(instance) == ["alpha", "beta"]

    _root(fleet).with_name("elsewhere").rename(_root(fleet))
    assert tick(before).skip_reason is not None
    assert _logs(instance) == ["alpha", "beta"]


@pytest.mark.slow
def test_wrong_url_of_an_existing_store_removes_no_partitions(
    tick: Tick, write: Write, fleet: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with logs of the same names, it is another store."""
    for log in ("alpha", "beta"):
        write(log)
    before = tick()
    other = _root(fleet).with_name("other")
    shutil.copytree(_root(fleet) / "alpha", other / "alpha")
    there = store_identity(open_store(other.as_uri()), create=True)
    monkeypatch.setenv("WAL3_STORE", other.as_uri())

    with pytest.raises(Failure, match=f"found store {there}"):
        tick(before)

    assert _logs(instance) == ["alpha", "beta"]


@pytest.mark.spark
def test_failed_verification_stays_failed_while_the_store_is_gone(
    tick: Tick, write: Write, run: Run, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    write("alpha")
    before = tick()
    next(_root(fleet).glob("alpha/**/FragmentSeqNo*")).unlink()
    assert not run("verification_job", run_request("alpha", "alpha")).success
    _root(fleet).rename(_root(fleet).with_name("elsewhere"))

    with pytest.raises(Failure):
        tick(before)
    again = run("verification_job", run_request("alpha", "alpha"))

    assert not again.success
    assert _logs(instance) == ["alpha"]
    assert "looks after, found no identity" in str(again.failure_data_for_node("verification"))


@pytest.mark.slow
@pytest.mark.parametrize("gone", [11, 13, 24])
def test_many_logs_gone_at_once_are_kept_until_accepted(
    tick: Tick, write: Write, fleet: ObjectStore, instance: DagsterInstance, gone: int
) -> None:
    """The limit is more than half and more than ten, or all."""
    for log in LOGS:
        write(log)
    before = tick()
    for log in LOGS[:gone]:
        shutil.rmtree(_root(fleet) / log)
    if gone <= len(LOGS) / 2:
        tick(before)
        assert _logs(instance) == LOGS[gone:]
        return

    with pytest.raises(Failure, match=f"of the 24 known logs, found {gone} of them gone: log-00, .*vanished: {gone}"):
        tick(before)
    assert _logs(instance) == LOGS

    store_id = store_identity(fleet)
    assert not _accept(instance, store_id=store_id, vanished=gone - 1)
    assert not _accept(instance, store_id="0" * 32, vanished=gone)
    assert _logs(instance) == LOGS
    assert _accept(instance, store_id=store_id, vanished=gone)
    assert _logs(instance) == LOGS[gone:]
    tick(before)
    assert _logs(instance) == LOGS[gone:]


@pytest.mark.slow
def test_another_store_is_looked_after_once_it_is_accepted(
    tick: Tick, look: Tick, write: Write, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    """The store keeps its logs, loses its identity, and gets a new one.

    A round of dirty logs of the store before, whose runs were asked for, is void: its logs are not made partitions.
    """
    for log in ("alpha", "beta"):
        write(log)
    before = look()
    rounds = Rounds(StoreScope(), instance)
    rounds.save(RoundKind.ASKED, Round(plans=(), collected={"dirty/of-the-store-before": 1}))
    fleet.delete(STORE_IDENTITY)
    with pytest.raises(Failure, match="wal3 store-id --create"):
        tick(before)

    assert rounds.load(RoundKind.ASKED) is not None
    assert _accept(instance, store_id=store_identity(fleet, create=True))

    assert rounds.load(RoundKind.ASKED) is None
    assert tick(before).skip_reason is not None
    assert _logs(instance) == ["alpha", "beta"]


@pytest.mark.slow
def test_store_unreachable_for_some_ticks_keeps_its_state(
    tick: Tick, look: Tick, write: Write, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    for log in ("alpha", "beta"):
        write(log)
    before = look()

    with monkeypatch.context() as away:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            away.setenv(name, "test")
        away.setenv("WAL3_STORE", "s3://bucket/fleet?endpoint=http://127.0.0.1:9&region=us-east-1")
        for _ in range(2):
            with pytest.raises(UnavailableError):
                tick(before)
    write("beta")
    after = tick(before)

    assert _logs(instance) == ["alpha", "beta"]
    assert [request.partition_key for request in after.run_requests or ()] == ["beta"]


@pytest.mark.slow
def test_run_waits_for_a_silent_store_as_its_url_says_a_tick_as_it_has_time(
    tick: Tick, known: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a run that began while the store did not answer failed within a minute, after all its retries."""
    tick()
    waits = []

    def watched(store: ObjectStore, *, retry: RetryOptions) -> str | None:
        waits.append(retry.timeout_s)
        return store_identity(store)

    monkeypatch.setattr(store_module, "store_identity", watched)
    tick()
    run("manifest_job", run_request("alpha", "alpha"))

    assert waits == [5, 120]
    assert known


@pytest.mark.slow
def test_store_without_logs_is_not_remembered(tick: Tick, write: Write, fleet: ObjectStore) -> None:
    tick()
    assert store_identity(fleet) is None

    write("alpha")
    tick()

    assert store_identity(fleet) is not None
