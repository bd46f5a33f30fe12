"""A log is created once, and opened with one GET."""

from __future__ import annotations

import concurrent.futures

import pytest

from tests.stores import CountingStore, FaultyStore, IgnoringStore
from wal3_core import (
    InvalidRequestError,
    LogExistsError,
    LogNotFoundError,
    LogReader,
    LogWriter,
    MemoryStore,
    StoreDeniedError,
    UnsuitableStoreError,
    list_logs,
    open_store,
)
from wal3_core.store.object_store import ObjectStore


def test_created_log_is_empty_and_starts_at_offset_one(store: ObjectStore) -> None:
    LogWriter.create(store, "a")

    reader = LogReader.open(store, "a")
    assert reader.manifest().next.position.offset == 1
    assert list(reader.records()) == []


def test_second_create_fails_and_leaves_log_untouched(store: ObjectStore) -> None:
    LogWriter.create(store, "a")
    with LogWriter.open(store, "a") as writer:
        writer.append(b"kept")

    with pytest.raises(LogExistsError):
        LogWriter.create(store, "a")

    assert [record.body for record in LogReader.open(store, "a").records()] == [b"kept"]


def test_one_of_many_racing_creators_wins(store: ObjectStore) -> None:
    def create(_: int) -> bool:
        try:
            LogWriter.create(store, "a")
        except LogExistsError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))

    assert won.count(True) == 1


def test_create_whose_reply_was_lost_succeeds_once_it_sees_its_own_log(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    store.fail("create", "MANIFEST", "applied-unknown")

    LogWriter.create(store, "a")

    assert store.fired["applied-unknown"] == 1
    with LogWriter.open(store, "a") as writer:
        assert writer.append(b"x").offset == 1


@pytest.mark.parametrize("ignored", [{"create"}, {"replace"}, {"create", "replace"}])
def test_store_that_ignores_conditions_is_refused_and_left_without_a_log(
    memory_store: MemoryStore, ignored: set[str]
) -> None:
    with pytest.raises(UnsuitableStoreError, match="conditions"):
        LogWriter.create(IgnoringStore(memory_store, ignored=frozenset(ignored)), "a")

    assert list(memory_store.list_objects("")) == []


def test_missing_log_is_named_by_writer_and_reader_with_how_to_create_it(store: ObjectStore) -> None:
    said = r"^log \S+/no/such: .*\(`wal3 init no/such`, or LogWriter.create\)$"

    with pytest.raises(LogNotFoundError, match=said):
        LogWriter.open(store, "no/such")
    with pytest.raises(LogNotFoundError, match=said):
        LogReader.open(store, "no/such")


def test_open_or_create_makes_the_log_once(store: ObjectStore) -> None:
    for body in (b"1", b"2"):
        with LogWriter.open_or_create(store, "a") as writer:
            writer.append(body)

    assert [record.body for record in LogReader.open(store, "a").records()] == [b"1", b"2"]


def test_opening_costs_one_get_and_no_put(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    store = CountingStore(memory_store)

    with LogWriter.open(store, "a"):
        pass
    LogReader.open(store, "a")

    assert store.requests == {"get": 2}


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a b", "ä", "a.b", "x" * 501, "log", "a/cursor", "a/manifest/b"],
)
def test_bad_log_name_is_refused_before_anything_is_requested(memory_store: MemoryStore, name: str) -> None:
    store = CountingStore(memory_store)

    with pytest.raises(InvalidRequestError, match="log name"):
        LogWriter.create(store, name)
    with pytest.raises(InvalidRequestError, match="log name"):
        LogReader.open(store, name)
    assert not store.requests


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://x/y", "s3://", "file://host/x", "file:relative", "s3://b/p?bad=1", "file:///x?y=1"]
)
def test_bad_store_url_is_refused_with_what_is_expected(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="store URL"):
        open_store(url)


def test_logs_are_found_at_every_depth_and_below_a_prefix(store: ObjectStore) -> None:
    for name in ["b", "a", "a/x", "a/y/z", "c-d/e"]:
        with LogWriter.open_or_create(store, name) as writer:
            writer.append(b"x")

    assert list(list_logs(store)) == ["a", "a/x", "a/y/z", "b", "c-d/e"]
    assert list(list_logs(store, "a")) == ["a", "a/x", "a/y/z"]
    assert list(list_logs(store, "c-d/")) == ["c-d/e"]
    assert list(list_logs(store, "none")) == []


@pytest.mark.slow
def test_discovery_of_small_logs_costs_a_request(memory_store: MemoryStore) -> None:
    for name in ["a", "b", "c"]:
        with LogWriter.open_or_create(memory_store, name) as writer:
            for _ in range(50):
                writer.append(b"x")
    store = CountingStore(memory_store)

    assert list(list_logs(store)) == ["a", "b", "c"]

    assert store.requests == {"list": 1}


def test_store_that_denies_access_says_so_at_once(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    store.fail("create", "MANIFEST", "denied")

    with pytest.raises(StoreDeniedError, match="403"):
        LogWriter.create(store, "a")
