from __future__ import annotations

import threading

import pytest

from tests.stores import FaultyStore, damage
from wal3_core import LogWriter, list_logs
from wal3_core.errors import CorruptError, LogNotFoundError, UnavailableError
from wal3_core.fleet.identity import store_identity
from wal3_core.format.paths import STORE_IDENTITY
from wal3_core.log.maintain.destroyer import destroy, plan_destroy
from wal3_core.store.object_store import Done, ObjectStore, log_store


def test_identity_is_made_once_and_stays(store: ObjectStore) -> None:
    assert store_identity(store) is None

    first = store_identity(store, create=True)

    assert first is not None
    assert len(first) == 32
    assert store_identity(store, create=True) == store_identity(store) == first


def test_concurrent_creators_all_get_the_same_identity(store: ObjectStore) -> None:
    start, found = threading.Barrier(8, timeout=30), list[str | None]()

    def make() -> None:
        start.wait(timeout=30)
        found.append(store_identity(store, create=True))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(found) == 8
    assert set(found) == {store_identity(store)}


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "late", "conflict"])
def test_identity_created_without_an_answer_is_the_stored_one(memory_store: ObjectStore, fault: str) -> None:
    faulty = FaultyStore(memory_store)
    faulty.fail("create", STORE_IDENTITY, fault)

    made = store_identity(faulty, create=True)
    faulty.arrive()

    assert made == store_identity(memory_store)


def test_unreadable_identity_is_an_error_and_not_replaced(memory_store: ObjectStore) -> None:
    store_identity(memory_store, create=True)
    damage(memory_store, STORE_IDENTITY)

    with pytest.raises(CorruptError, match=STORE_IDENTITY):
        store_identity(memory_store, create=True)


def test_identity_that_cannot_be_written_is_an_error(
    memory_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.2)
    faulty = FaultyStore(memory_store)
    faulty.fail("create", STORE_IDENTITY, "unknown", times=99)

    with pytest.raises(UnavailableError, match=r"could not be written in \d+ tries"):
        store_identity(faulty, create=True)


def test_identity_is_no_log_s_object(store: ObjectStore) -> None:
    """Also where a store was opened below a log, or in a folder between two."""
    for log in ("teams", "teams/x"):
        LogWriter.create(store, log)
    for place in (store, log_store(store, "teams"), log_store(store, "teams/empty")):
        assert store_identity(place, create=True) is not None
    assert isinstance(store.create(f"plain/{STORE_IDENTITY}", b""), Done)

    assert list(list_logs(store)) == ["teams", "teams/x"]
    assert plan_destroy(store, "teams").num_objects == 1
    destroy(store, "teams")

    assert list(list_logs(store)) == ["teams/x"]
    assert store_identity(log_store(store, "teams")) is not None
    with pytest.raises(LogNotFoundError):
        destroy(store, "plain")
