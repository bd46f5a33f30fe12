"""A copy's pin belongs to one claim on one target; no other copy relies on it, and it is deleted with the claim."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spec.copying import collect, fill, records
from tests.stores import FaultyStore, damage, life_store
from tests.world import Crashed, World
from wal3_core import (
    CorruptError,
    InvalidRequestError,
    LogAt,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    MemoryStore,
    PinStore,
    StoreDeniedError,
    UnavailableError,
    copy,
    destroy,
    open_store,
)
from wal3_core.format.vacancy import Vacancy
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, canonical_url, log_store

WAIT_S = 30


def crash() -> None:
    raise Crashed


def memory() -> MemoryStore:
    return MemoryStore(shared_runtime())


def pins(store: ObjectStore, log: str = "a") -> list[str]:
    return list(PinStore(store, log).list())


def claimed(store: ObjectStore, log: str) -> bool:
    """Whether a copy has claimed the name and not yet made it a log."""
    seen = ManifestStore(log_store(store, log), shared_runtime()).look()
    return seen is not None and isinstance(seen.document, Vacancy)


def once(store: ObjectStore, at: int, act: Callable[[], object]) -> FaultyStore:
    """Run an action once, just before the ``at``th fragment is read or written."""
    faulty, count = FaultyStore(store), [0]

    def before(kind: str, path: str) -> None:
        if kind in {"read", "create"} and "/log/" in path:
            count[0] += 1
            if count[0] == at:
                act()

    faulty.before = before
    return faulty


def cut_short(source: ObjectStore, target: ObjectStore) -> None:
    """Die at the third fragment; the fragments in flight beside it are stored too."""
    with pytest.raises(Crashed):
        copy(LogAt(source, "a"), LogAt(once(target, 3, crash), "b"))
    others = len(World(source).manifest().fragments) - 1
    deadline_s = time.monotonic() + 20
    while sum("/log/" in meta.path for meta in target.list_objects("b/")) < others:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def pin_not_deleted(source: ObjectStore, target: ObjectStore, error: Exception, times: int) -> FaultyStore:
    """Refuse the first changes that a copy makes to its pin once it is complete."""
    faulty, left = FaultyStore(source), [times]

    def before(kind: str, path: str) -> None:
        whole = "/pin/" in path and kind in {"delete", "replace"} and manifest_is_there(target)
        if whole and left[0]:
            left[0] -= 1
            raise error

    faulty.before = before
    return faulty


def manifest_is_there(store: ObjectStore) -> bool:
    seen = ManifestStore(log_store(store, "b"), shared_runtime()).look()
    return seen is not None and not isinstance(seen.document, Vacancy)


# ---------------------------------------------------------------------- to which copy a pin belongs


def test_next_backup_is_complete_though_the_pin_of_the_one_before_is_left(store: ObjectStore) -> None:
    fill(store, "a", 3)
    source = pin_not_deleted(store, store, StoreDeniedError("expected access, found 403"), times=1)
    first = copy(LogAt(source, "a"), LogAt(store, "b"))
    assert list(first.pins_left) == pins(store)
    assert first.to_json()["pins_left"] == pins(store)
    fill(store, "a", 5)
    destroy(store, "b")

    copied = copy(LogAt(store, "a"), LogAt(store, "b"))

    assert (copied.num_records, copied.resumed, copied.pins_left) == (8, False, ())
    assert records(store, "b") == records(store, "a")
    assert pins(store) == list(first.pins_left)


def test_pin_that_is_not_deleted_at_once_fails_no_copy_and_is_deleted_later(store: ObjectStore) -> None:
    fill(store, "a", 3)
    source = pin_not_deleted(store, store, UnavailableError("expected an answer, found 503"), times=2)

    copied = copy(LogAt(source, "a"), LogAt(store, "b"))

    assert copied.pins_left == ()
    assert pins(store) == []


def test_copy_whose_source_is_destroyed_once_it_is_complete_is_called_complete(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "a", 3)
    source = FaultyStore(memory_store)

    def end(_kind: str, _path: str) -> None:
        if manifest_is_there(memory_store):
            source.before = lambda _kind, _path: None
            destroy(memory_store, "a", also_pinned=True)

    source.before = end
    copied = copy(LogAt(source, "a"), LogAt(memory_store, "b"))

    assert (copied.num_records, copied.pins_left) == (3, ())
    assert len(records(memory_store, "b")) == 3


def test_copy_from_an_offset_that_a_dead_copy_had_not_pinned_starts_again(store: ObjectStore) -> None:
    fill(store, "a", 3)
    cut_short(store, store)
    fill(store, "a", 10)

    copied = copy(LogAt(store, "a"), LogAt(store, "b"), from_offset=9)

    assert (copied.first_offset, copied.next_offset, copied.resumed) == (9, 14, False)
    # The dead copy's pin was deleted with its claim.
    assert pins(store) == []


def test_backup_restarted_while_another_is_under_way_holds_the_current_records(store: ObjectStore) -> None:
    fill(store, "a", 4)

    def next_night() -> None:
        fill(store, "a", 6)
        destroy(store, "b")
        copied = copy(LogAt(store, "a"), LogAt(store, "b"))
        assert (copied.num_records, copied.resumed) == (10, False)

    with pytest.raises(LogExistsError):
        copy(LogAt(once(store, 2, next_night), "a"), LogAt(store, "b"))

    assert records(store, "b") == records(store, "a")
    assert pins(store) == []


def test_target_of_the_same_url_in_another_store_continues_no_other_copy(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 4)
    here, there = memory(), memory()
    assert here.url == there.url
    cut_short(memory_store, here)
    fill(memory_store, "a", 6)

    copied = copy(LogAt(memory_store, "a"), LogAt(there, "b"))

    assert (copied.num_records, copied.resumed) == (10, False)
    # The other copy can still be continued.
    assert copy(LogAt(memory_store, "a"), LogAt(here, "b")).resumed
    assert len(records(here, "b")) == 4
    assert pins(memory_store) == []


def test_copy_whose_pin_is_gone_starts_again(store: ObjectStore) -> None:
    fill(store, "a", 4)
    cut_short(store, store)
    [dead] = pins(store)
    PinStore(store, "a").delete(dead)
    fill(store, "a", 2)
    collect(store, "a", 3)

    copied = copy(LogAt(store, "a"), LogAt(store, "b"))

    assert not copied.resumed
    assert records(store, "b") == records(store, "a")
    assert pins(store) == []


def test_dead_copy_names_its_pin(store: ObjectStore) -> None:
    fill(store, "a", 4)
    cut_short(store, store)
    [dead] = pins(store)

    with pytest.raises(InvalidRequestError, match=f"or destroy the partial copy, and delete the pin {dead}"):
        copy(LogAt(store, "c"), LogAt(store, "b"))


# ---------------------------------------------------------------------- several calls


def test_copy_that_lost_the_race_for_the_target_takes_nothing_from_the_one_that_won(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 6)
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    copied: list[int] = []
    winner = threading.Thread(
        target=lambda: copied.append(
            copy(LogAt(once(memory_store, 1, wait), "a"), LogAt(memory_store, "b")).num_records
        )
    )
    late = FaultyStore(memory_store)

    def overtake(kind: str, path: str) -> None:
        if (kind, path) == ("create", "b/manifest/MANIFEST.json"):
            late.before = lambda _kind, _path: None
            winner.start()
            assert inside.wait(WAIT_S)

    late.before = overtake
    with pytest.raises(InvalidRequestError, match="another call began just now"):
        copy(LogAt(memory_store, "a"), LogAt(late, "b"))
    collect(memory_store, "a", 6)
    held = pins(memory_store)
    go_on.set()
    winner.join(WAIT_S)

    assert copied == [6]
    assert len(held) == 1
    assert pins(memory_store) == []


@pytest.mark.parametrize("at", [1, 3, 6])
def test_slower_copy_that_was_replaced_reports_that_and_no_damage(memory_store: MemoryStore, at: int) -> None:
    """The records it reads are collected, because no pin holds them any more."""
    fill(memory_store, "a", 6)

    def take_its_place() -> None:
        with pytest.raises(Crashed):
            copy(LogAt(memory_store, "a"), LogAt(once(memory_store, 1, crash), "b"), from_offset=4)
        collect(memory_store, "a", 6)

    with pytest.raises(LogReplacedError, match="another call has taken over"):
        copy(LogAt(once(memory_store, at, take_its_place), "a"), LogAt(memory_store, "b"))

    assert len(pins(memory_store)) == 1
    assert copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), from_offset=4).resumed
    assert pins(memory_store) == []


def test_copy_whose_pin_is_deleted_meanwhile_reports_that_and_no_damage(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 6)

    def unpin() -> None:
        [name] = pins(memory_store)
        PinStore(memory_store, "a").delete(name)
        collect(memory_store, "a", 6)

    with pytest.raises(InvalidRequestError, match="expected it to stay until the copy is whole, found it deleted"):
        copy(LogAt(once(memory_store, 1, unpin), "a"), LogAt(memory_store, "b"))


def test_copy_whose_source_is_being_destroyed_reports_that_and_no_damage(memory_store: MemoryStore) -> None:
    """The fragments it reads are deleted first, while its pin still exists."""
    fill(memory_store, "a", 6)
    dying = FaultyStore(memory_store)

    def before(kind: str, path: str) -> None:
        if kind == "delete" and "/pin/" in path:
            raise Crashed

    def end() -> None:
        dying.before = before
        with pytest.raises(Crashed):
            destroy(dying, "a", also_pinned=True)

    with pytest.raises(LogNotFoundError, match="it was destroyed"):
        copy(LogAt(once(memory_store, 1, end), "a"), LogAt(memory_store, "b"))


@pytest.mark.parametrize("fault", ["denied", "conflict"])
def test_copy_that_cannot_claim_its_target_leaves_no_pin(memory_store: MemoryStore, fault: str) -> None:
    fill(memory_store, "a", 2)
    into = FaultyStore(memory())

    def appear(kind: str, path: str) -> None:
        if (kind, path, fault) == ("create", "b/manifest/MANIFEST.json", "conflict"):
            fill(into.inner, "b", 1)

    into.before = appear
    if fault == "denied":
        into.fail("create", "MANIFEST", "denied")
    with pytest.raises((StoreDeniedError, InvalidRequestError)):
        copy(LogAt(memory_store, "a"), LogAt(into, "b"))

    assert pins(memory_store) == []


def test_nothing_is_pinned_for_a_target_that_is_taken(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 2)
    fill(memory_store, "b", 1)
    source = FaultyStore(memory_store)
    asked: list[str] = []
    source.before = lambda _kind, path: asked.append(path)

    with pytest.raises(LogExistsError):
        copy(LogAt(source, "a"), LogAt(memory_store, "b"))

    assert asked == []


# ---------------------------------------------------------------------- where it comes from, and where it goes


def test_copy_is_continued_whatever_wait_options_the_source_s_url_has(tmp_path: Path) -> None:
    url = (tmp_path / "s").as_uri()
    source, target = open_store(url), open_store((tmp_path / "t").as_uri())
    fill(source, "a", 4)
    cut_short(open_store(f"{url}?lock_wait_s=5"), target)

    assert copy(LogAt(source, "a"), LogAt(target, "b")).resumed
    with pytest.raises(InvalidRequestError, match="found itself"):
        copy(LogAt(source, "a"), LogAt(open_store(f"{url}?lock_wait_s=7"), "a"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("file:///s/a?lock_wait_s=5", "file:///s/a", True),
        ("s3://b/p?timeout_s=5&endpoint=http://e", "s3://b/p?endpoint=http%3A%2F%2Fe&request_timeout_s=1", True),
        ("s3://b/p?region=x&endpoint=http://e", "s3://b/p?endpoint=http://e&region=x&etags=unquoted", True),
        ("s3://b/p?endpoint=http://e", "s3://b/p", False),
        ("s3://b/p?region=x", "s3://b/p?region=y", False),
        ("s3://b/p?profile=x", "s3://b/p?profile=y", False),
        ("s3://b/p", "s3://b/q", False),
        ("s3://b/p", "gs://b/p", False),
    ],
)
def test_options_that_only_tune_requests_do_not_distinguish_stores(one: str, other: str, same: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert (canonical_url(one) == canonical_url(other)) == same


def test_damage_to_copied_objects_names_the_target_and_what_to_do(store: ObjectStore) -> None:
    fill(store, "a", 4)
    cut_short(store, store)
    assert claimed(store, "b")
    inside = store.list_objects("b/")
    damage(store, next(meta.path for meta in inside if "/log/" in meta.path))

    address = re.escape(log_store(store, "b").url)
    expected = rf"{address}: expected what an earlier try copied there, found it damaged: destroy"
    with pytest.raises(CorruptError, match=expected):
        copy(LogAt(store, "a"), LogAt(store, "b"))

    destroy(store, "b")
    copy(LogAt(store, "a"), LogAt(store, "b"))
    assert records(store, "b") == records(store, "a")
    assert life_store(store, "b").read(World(store, "b").manifest().fragments[0].path) is not None
