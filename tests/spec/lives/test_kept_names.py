"""A successor's name is kept for it from before the seal, so that no other log begins there."""

from __future__ import annotations

import pytest

from tests.spec.seals import bodies, fill
from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    LogAt,
    LogError,
    LogExistsError,
    LogNotFoundError,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    Origin,
    SealedError,
    bootstrap,
    copy,
    destroy,
    list_logs,
    migrate,
    seal,
)
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import lost_manifest
from wal3_core.store.object_store import ObjectStore, log_store


def test_no_other_log_begins_under_the_successor_s_name_after_the_seal(store: ObjectStore) -> None:
    """Regression: a writer began a log under the name given by SealedError, and the sealed log could not continue."""
    fill(store, "a", b"1", b"2")
    fill(store, "other", b"another's")
    seal(store, "a", reason="full", successor="b")
    kept = "its name kept for the successor of log .*/a: run the migration of that log again"

    with pytest.raises(LogNotFoundError, match=kept):
        LogWriter.open_or_create(store, "b")
    with pytest.raises(LogNotFoundError, match=kept):
        LogReader.open(store, "b")
    for begin in (
        lambda: LogWriter.create(store, "b"),
        lambda: bootstrap(store, "b", [], Origin()),
        lambda: copy(LogAt(store, "other"), LogAt(store, "b")),
        lambda: migrate(store, "other", "b", reason="full"),
    ):
        with pytest.raises(LogExistsError, match=kept):
            begin()
    # There is no log, and no damage.
    assert list(list_logs(store)) == ["a", "other"]
    assert lost_manifest(log_store(store, "b"), shared_runtime()) is None
    assert World(store, "other").manifest().seal is None

    migrate(store, "a", "b", reason="full")
    fill(store, "b", b"3")
    assert bodies(store, "a") == [b"1", b"2", b"3"]


def test_two_logs_are_not_sealed_for_one_successor(store: ObjectStore) -> None:
    """Regression: both were, before either had begun it, and the second could never continue."""
    fill(store, "a", b"1")
    fill(store, "c", b"other")
    seal(store, "a", reason="full", successor="b")

    with pytest.raises(
        LogExistsError, match="log c: expected its successor's name to be free: .* successor of log .*/a"
    ):
        seal(store, "c", reason="full", successor="b")

    assert World(store, "c").manifest().seal is None
    migrate(store, "a", "b", reason="full")
    migrate(store, "c", "d", reason="full")
    fill(store, "d", b"more")
    assert (bodies(store, "a"), bodies(store, "c")) == ([b"1"], [b"other", b"more"])


@pytest.mark.parametrize("second", ["open_or_create", "seal"])
def test_name_that_is_taken_just_before_the_seal_keeps_the_log_open(memory_store: MemoryStore, second: str) -> None:
    """Regression: another log took the name between the check and the seal."""
    fill(memory_store, "a", b"1")
    fill(memory_store, "c", b"other")
    store = FaultyStore(memory_store)

    def take(kind: str, path: str) -> None:
        if kind in {"create", "replace"} and "MANIFEST" in path:
            store.before = lambda _kind, _path: None
            if second == "seal":
                seal(memory_store, "c", reason="full", successor="b")
            else:
                fill(memory_store, "b", b"new")

    store.before = take
    with pytest.raises(LogExistsError):
        migrate(store, "a", "b", reason="full")

    assert World(memory_store).manifest().seal is None
    fill(memory_store, "a", b"2")
    assert bodies(memory_store, "a") == [b"1", b"2"]


def test_failed_seal_leaves_the_name_kept_and_can_be_repeated(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)
    store.fail("replace", "a/manifest/MANIFEST.json", "denied")
    with pytest.raises(LogError):
        seal(store, "a", reason="full", successor="b")

    assert World(memory_store).manifest().seal is None
    fill(memory_store, "a", b"2")
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", b"3")
    assert bodies(memory_store, "a") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("successor", [None, "c"])
def test_name_is_free_again_when_the_log_is_sealed_without_naming_it(
    memory_store: MemoryStore, successor: str | None
) -> None:
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)

    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and path.startswith("a/"):
            store.before = lambda _kind, _path: None
            seal(memory_store, "a", reason="full", successor=successor)

    store.before = overtake
    with pytest.raises(SealedError):
        seal(store, "a", reason="full", successor="b")

    fill(memory_store, "b", b"free")


@pytest.mark.parametrize("quicker", ["the same call", "the same migration"])
def test_name_stays_kept_when_another_call_seals_the_log_for_it(memory_store: MemoryStore, quicker: str) -> None:
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)

    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and path.startswith("a/"):
            store.before = lambda _kind, _path: None
            seal(memory_store, "a", reason="full", sealed_by="ann", successor="b")

    store.before = overtake
    if quicker == "the same call":
        seal(store, "a", reason="full", sealed_by="ann", successor="b")
    else:
        migrate(store, "a", "b", reason="full")
    with pytest.raises(LogExistsError):
        LogWriter.create(memory_store, "b")

    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", b"2")
    assert bodies(memory_store, "a") == [b"1", b"2"]


@pytest.mark.parametrize("how", ["the log is begun again", "the name is destroyed"])
def test_name_that_was_kept_for_a_log_that_is_gone_can_be_taken(memory_store: MemoryStore, how: str) -> None:
    fill(memory_store, "a", b"1")
    seal(memory_store, "a", reason="full", successor="b")
    destroy(memory_store, "a")
    if how == "the name is destroyed":
        destroy(memory_store, "b")
        fill(memory_store, "b", b"new")
        return
    fill(memory_store, "a", b"2")

    migrate(memory_store, "a", "b", reason="again")
    fill(memory_store, "b", b"3")

    assert bodies(memory_store, "a") == [b"2", b"3"]


def test_call_that_slept_across_a_destroy_takes_the_name_from_no_later_life(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)

    def overtake(kind: str, path: str) -> None:
        if kind == "get" and path.startswith("b/"):
            store.before = lambda _kind, _path: None
            destroy(memory_store, "a")
            fill(memory_store, "a", b"2")
            seal(memory_store, "a", reason="again", successor="b")

    store.before = overtake
    with pytest.raises(LogReplacedError):
        migrate(store, "a", "b", reason="full")

    migrate(memory_store, "a", "b", reason="again")
    fill(memory_store, "b", b"3")
    assert bodies(memory_store, "a") == [b"2", b"3"]
