from __future__ import annotations

import shutil
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, SensorResult

from tests.orchestration.checked import asked, keys
from tests.stores import FaultyStore
from wal3_core import CursorStore, LogPosition, StoreDeniedError, UnavailableError, list_logs
from wal3_core.format.paths import MANIFEST
from wal3_core.store.object_store import Done, ObjectStore
from wal3_orchestration.framework.scope import LOGS_NAME
from wal3_orchestration.framework.store import UnreadableLog, read_states

if TYPE_CHECKING:
    from conftest import Tick, Write


def _folder(store: ObjectStore, log: str) -> Path:
    return Path(urlsplit(store.url).path) / log


@pytest.mark.slow
def test_logs_become_partitions_and_are_looked_at_in_one_run(
    tick: Tick, write: Write, instance: DagsterInstance
) -> None:
    for log in ("beta/one", "alpha", "beta"):
        write(log)

    result = tick()

    assert instance.get_dynamic_partitions(LOGS_NAME) == ["alpha", "beta", "beta/one"]
    assert asked(result) == [["alpha", "beta", "beta/one"]]


@pytest.mark.slow
def test_unchanged_fleet_requests_no_run_and_says_so(look: Tick, write: Write) -> None:
    write("alpha")

    result = look(look())

    assert asked(result) == []
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "1 logs, none changed"


@pytest.mark.slow
def test_only_the_log_that_was_written_to_is_looked_at_again(look: Tick, write: Write) -> None:
    for log in ("alpha", "beta", "gamma"):
        write(log)
    before = look()

    write("beta")

    assert asked(look(before)) == [["beta"]]


@pytest.mark.slow
def test_log_whose_cursor_moved_is_looked_at_again(look: Tick, write: Write, fleet: ObjectStore) -> None:
    for log in ("alpha", "beta"):
        write(log)
    before = look()

    CursorStore(fleet, "alpha").create("reader", LogPosition(2, 0))

    assert asked(look(before)) == [["alpha"]]


@pytest.mark.slow
def test_vanished_log_loses_its_partition_and_the_others_are_left_alone(
    look: Tick, write: Write, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    for log in ("alpha", "beta"):
        write(log)
    before = look()

    shutil.rmtree(_folder(fleet, "alpha"))
    result = look(before)

    assert instance.get_dynamic_partitions(LOGS_NAME) == ["beta"]
    assert asked(result) == []


@pytest.mark.slow
def test_log_recreated_under_its_name_is_looked_at_again(look: Tick, write: Write, fleet: ObjectStore) -> None:
    write("alpha")
    before = look()

    shutil.rmtree(_folder(fleet, "alpha"))
    write("alpha")

    assert asked(look(before)) == [["alpha"]]


@pytest.mark.slow
def test_repeated_tick_requests_the_same_run(tick: Tick, write: Write) -> None:
    write("alpha")

    first, second = tick(), tick()

    assert len(keys(first)) == 1
    assert keys(first) == keys(second)


@pytest.mark.slow
def test_recurring_damage_is_looked_at_again(look: Tick, write: Write, fleet: ObjectStore) -> None:
    """Dagster starts only one run per key: each change has its own key, also a recurring one."""
    write("alpha")
    path, ticks = f"alpha/{MANIFEST}", [look()]

    def note() -> None:
        ticks.append(look(ticks[-1]))

    for appended in (False, True, False):
        held = fleet.read(path)
        assert held is not None
        fleet.delete(path)
        note()
        assert isinstance(fleet.create(path, held), Done)
        if appended:
            write("alpha")
        note()

    assert [asked(each) for each in ticks] == [[["alpha"]]] * 7
    assert len({key for each in ticks for key in keys(each)}) == 7


@pytest.mark.slow
def test_tick_repeated_after_a_change_requests_the_same_run(tick: Tick, look: Tick, write: Write) -> None:
    write("alpha")
    before = look()
    write("alpha")

    first, second = tick(before), tick(before)

    assert asked(first) == [["alpha"]]
    assert keys(first) == keys(second)


@pytest.mark.slow
@pytest.mark.parametrize("cursor", ['{"token": "x", "logs": {"alpha": "0123456789abcdef"}}', "[1]", "no JSON"])
def test_cursor_of_another_form_is_ignored(look: Tick, write: Write, cursor: str) -> None:
    write("alpha")

    result = look(SensorResult(cursor=cursor))

    assert asked(result) == [["alpha"]]
    assert asked(look(result)) == []


@pytest.mark.slow
def test_damaged_manifest_hides_no_other_log(
    look: Tick, write: Write, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    for log in ("alpha", "beta"):
        write(log)
    before = look()

    manifest = next(_folder(fleet, "alpha").glob("manifest/MANIFEST*"))
    manifest.write_bytes(manifest.read_bytes()[:-9])
    write("beta")
    result = look(before)

    assert instance.get_dynamic_partitions(LOGS_NAME) == ["alpha", "beta"]
    assert asked(result) == [["alpha", "beta"]]


@pytest.mark.parametrize("kind", ["get", "list"])
def test_denied_log_hides_no_other_and_keeps_its_fingerprint(write: Write, fleet: ObjectStore, kind: str) -> None:
    for log in ("alpha", "beta", "secret"):
        write(log)
    store, denials = FaultyStore(fleet), count()

    def deny(asked: str, path: str) -> None:
        # Permission to list a store's folders does not include access to each.
        if asked == kind and path.startswith("secret/") and (asked, path) != ("list", "secret/"):
            raise StoreDeniedError(f"{path}: expected access, found 403 (request {next(denials)})")

    store.before = deny

    once, again = (list(read_states(store, list_logs(store))) for _ in range(2))

    assert [(state.log, isinstance(state, UnreadableLog)) for state in once] == [
        ("alpha", False),
        ("beta", False),
        ("secret", True),
    ]
    assert [state.fingerprint for state in once] == [state.fingerprint for state in again]


@pytest.mark.slow
def test_many_scattered_changes_request_one_run_of_the_changed_logs_alone(look: Tick, write: Write) -> None:
    logs = [f"log-{number:02}" for number in range(12)]
    for log in logs:
        write(log)
    before = look()

    for log in logs[::2]:
        write(log)

    assert asked(look(before)) == [logs[::2]]


@pytest.mark.slow
def test_silent_store_fails_the_tick_and_keeps_the_partitions(
    tick: Tick, write: Write, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("alpha")
    tick()

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("WAL3_STORE", "s3://bucket/fleet?endpoint=http://127.0.0.1:9&region=us-east-1")
    began_s = time.monotonic()
    with pytest.raises(UnavailableError):
        tick()

    # Dagster ends a tick after a minute, without naming the store.
    assert time.monotonic() - began_s < 60
    assert instance.get_dynamic_partitions(LOGS_NAME) == ["alpha"]
