"""Copying that is cut short, or races with what else becomes of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spec.copies import collect, data, fill, grow, manifest_of, records
from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    CorruptError,
    CursorStore,
    LogAt,
    LogExistsError,
    LogWriter,
    PinStore,
    UnavailableError,
    copy,
    scrub,
)
from wal3_core.model.position import LogPosition
from wal3_core.runtime import shared_runtime
from wal3_core.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.storage.object_store import ObjectStore


class Crashed(BaseException):
    """The process is gone."""


# ---------------------------------------------------------------------- cut short


def crash_at(store: FaultyStore, step: int, kinds: tuple[str, ...]) -> None:
    """Let the process end before the ``step``th such request: none after it has an effect."""
    left = [step]

    def before(kind: str, _path: str) -> None:
        left[0] -= kind in kinds
        if left[0] < 0:
            raise Crashed

    store.before = before


@pytest.mark.parametrize("from_offset", [None, 4])
def test_copy_that_was_cut_short_anywhere_is_no_log_and_is_finished_by_the_next(from_offset: int | None) -> None:
    origin = MemoryStore(shared_runtime())
    grow(origin, "a")
    CursorStore(origin, "a").init("reader", LogPosition(5, 0))
    steps = 0
    for step in range(200):
        store = FaultyStore(origin)
        crash_at(store, step, ("create", "replace", "delete"))
        target = f"b{step}"
        try:
            copy(LogAt(store, "a"), LogAt(store, target), from_offset=from_offset, with_cursors=True)
            break
        except Crashed:
            steps += 1
        assert_unfinished_copy_is_finished(origin, target, from_offset)

    assert steps >= 15
    assert PinStore(origin, "a").list() == {}


def assert_unfinished_copy_is_finished(store: ObjectStore, target: str, from_offset: int | None) -> None:
    if f"{target}/manifest/MANIFEST.json" in {meta.path for meta in store.list_objects(f"{target}/")}:
        # It was complete but for the pin, which is told by its reason.
        for name, pin in PinStore(store, "a").list().items():
            assert target in pin.reason
            PinStore(store, "a").delete(name)
    else:
        begun = {path: body for path, body in data(store, target).items() if path.startswith("log/")}
        counting = CountingStore(store)
        # What is appended meanwhile is not part of what was begun.
        copied = copy(LogAt(store, "a"), LogAt(counting, target), from_offset=from_offset, with_cursors=True)
        assert begun.items() <= data(store, target).items()
        assert counting.written["log"] == copied.num_bytes - sum(len(body or b"") for body in begun.values())
    first = from_offset or 1
    assert records(store, target) == records(store, "a")[first - 1 :]
    assert scrub(store, target).sound
    assert list(CursorStore(store, target).list()) == ["reader"]


def test_repeated_copy_goes_on_from_what_the_first_one_pinned(store: ObjectStore) -> None:
    fill(store, "a", 5)
    faulty = FaultyStore(store)
    crash_at(faulty, 1, ("delete",))

    def end(kind: str, path: str) -> None:
        if (kind, "MANIFEST" in path) == ("create", True) or kind == "delete":
            raise Crashed

    faulty.before, into = end, FaultyStore(store)
    into.before = end
    with pytest.raises(Crashed):
        copy(LogAt(faulty, "a"), LogAt(into, "b"))
    fill(store, "a", 5)
    collect(store, "a", 4)

    copied = copy(LogAt(store, "a"), LogAt(store, "b"))

    assert copied.resumed
    assert [record.offset for record in records(store, "b")] == [1, 2, 3, 4, 5]
    assert scrub(store, "b").sound
    assert PinStore(store, "a").list() == {}


def test_copy_that_failed_is_tried_again_from_what_it_pinned(store: ObjectStore) -> None:
    grown = grow(store, "a")
    into = FaultyStore(store)
    into.fail("create", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        copy(LogAt(store, "a"), LogAt(into, "b"))
    held = grow(store, "c")
    fill(store, "a", held)

    copied = copy(LogAt(store, "a"), LogAt(into, "b"))

    assert copied.resumed
    assert records(store, "b") == records(store, "a")[:grown]
    assert scrub(store, "b").sound
    assert PinStore(store, "a").list() == {}


# ---------------------------------------------------------------------- races


def racing(store: ObjectStore, race: Callable[[], None]) -> FaultyStore:
    """Run ``race`` once, just before the third fragment is read."""
    faulty = FaultyStore(store)
    seen = [0]

    def before(kind: str, path: str) -> None:
        if kind == "read" and path.startswith("a/log/"):
            seen[0] += 1
            if seen[0] == 3:
                race()

    faulty.before = before
    return faulty


def test_appends_that_race_are_not_copied(store: ObjectStore) -> None:
    held = grow(store, "a")

    copied = copy(LogAt(racing(store, lambda: fill(store, "a", 20)), "a"), LogAt(store, "b"))

    assert copied.num_records == held
    assert len(records(store, "b")) == held
    assert len(records(store, "a")) == held + 20
    assert scrub(store, "b").sound


def test_collection_that_races_takes_nothing_from_the_copy(store: ObjectStore) -> None:
    held = grow(store, "a")
    every = records(store, "a")

    copied = copy(LogAt(racing(store, lambda: collect(store, "a", held)), "a"), LogAt(store, "b"))

    assert copied.num_records == held
    assert records(store, "b") == every
    assert [record.offset for record in records(store, "a")] == [held]
    assert scrub(store, "b").sound


def test_log_that_appears_at_the_target_meanwhile_is_left_alone(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    other = FaultyStore(MemoryStore(shared_runtime()))

    def appear(kind: str, path: str) -> None:
        # The copy's last listing before it begins.
        if (kind, path) == ("list", "b/"):
            LogWriter.initialize(other.inner, "b")

    other.before = appear
    with pytest.raises(LogExistsError):
        copy(LogAt(memory_store, "a"), LogAt(other, "b"))

    assert manifest_of(other, "b").num_records == 0
    assert records(other, "b") == []


@pytest.mark.parametrize("begun", [False, True])
def test_log_that_appears_at_the_last_moment_wins(memory_store: MemoryStore, *, begun: bool) -> None:
    fill(memory_store, "a", 5)
    if begun:
        memory_store.create("b/snapshot/SNAPSHOT." + "0" * 64 + "." + "0" * 16, b"left by an earlier try")
    fill(memory_store, "c", 1)
    document = memory_store.read("c/manifest/MANIFEST.json")
    assert document is not None
    other = FaultyStore(memory_store)

    def appear(kind: str, path: str) -> None:
        if kind == "create" and "MANIFEST" in path:
            memory_store.create("b/manifest/MANIFEST.json", document)

    other.before = appear
    with pytest.raises(LogExistsError):
        copy(LogAt(memory_store, "a"), LogAt(other, "b"))

    assert memory_store.read("b/manifest/MANIFEST.json") == document


def test_no_log_is_begun_where_a_copy_is_under_way(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    store = FaultyStore(memory_store)
    refused: list[str] = []

    def begin(kind: str, path: str) -> None:
        if kind == "create" and path == "b/manifest/MANIFEST.json":
            store.before = lambda _kind, _path: None
            with pytest.raises(CorruptError, match="restore it") as caught:
                LogWriter.initialize(memory_store, "b")
            refused.append(str(caught.value))

    store.before = begin
    copy(LogAt(memory_store, "a"), LogAt(store, "b"))

    assert len(refused) == 1
    assert records(memory_store, "b") == records(memory_store, "a")
