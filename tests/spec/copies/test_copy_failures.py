"""Copies that are cut short, or that race with changes to the source or the target."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.spec.copying import collect, data, fill, grow, records
from tests.stores import CountingStore, FaultyStore
from tests.world import Crashed, World
from wal3_core import (
    CursorStore,
    InvalidRequestError,
    LogAt,
    LogExistsError,
    LogNotFoundError,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    PinStore,
    PolicyStore,
    UnavailableError,
    copy,
    scrub,
)
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import Manifest
from wal3_core.format.position import LogPosition
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, PutOutcome, log_store

# ---------------------------------------------------------------------- cut short


@dataclass
class QueueingStore(FaultyStore):
    """Takes one PUT after the other: when one is the last of a process, those before it have ended."""

    turn: threading.Lock = field(default_factory=threading.Lock)

    def _put(self, kind: str, path: str, apply: Callable[[], PutOutcome]) -> PutOutcome:
        with self.turn:
            return super()._put(kind, path, apply)


def crash_at(store: FaultyStore, step: int, kinds: tuple[str, ...]) -> None:
    """End the process before the ``step``th such request: no later request has an effect."""
    left = [step]

    def before(kind: str, _path: str) -> None:
        left[0] -= kind in kinds
        if left[0] < 0:
            raise Crashed

    store.before = before


@pytest.mark.slow
@pytest.mark.parametrize("from_offset", [None, 4])
def test_copy_that_was_cut_short_anywhere_is_no_log_and_is_finished_by_the_next(from_offset: int | None) -> None:
    origin = MemoryStore(shared_runtime())
    grow(origin, "a")
    CursorStore(origin, "a").create("reader", LogPosition(5, 0))
    steps = 0
    for step in range(200):
        store = QueueingStore(origin)
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
    seen = ManifestStore(log_store(store, target), shared_runtime()).look()
    if seen is None or not isinstance(seen.document, Manifest):
        begun = {path: body for path, body in data(store, target).items() if "/log/" in path}
        counting = CountingStore(store)
        # Records appended meanwhile are not part of the copy.
        copied = copy(LogAt(store, "a"), LogAt(counting, target), from_offset=from_offset, with_cursors=True)
        assert begun.items() <= data(store, target).items()
        assert counting.written["log"] == copied.num_bytes - sum(len(body or b"") for body in begun.values())
    first = from_offset or 1
    assert records(store, target) == records(store, "a")[first - 1 :]
    assert scrub(store, target).sound
    assert list(CursorStore(store, target).list()) == ["reader"]
    pins = PinStore(store, "a").list()
    # A pin that no claim names, not yet or no longer, shows its purpose by its reason; no other copy relies on it.
    claimed = seen is not None and not isinstance(seen.document, Manifest)
    assert len(pins) <= (0 if claimed else 1)
    for name, pin in pins.items():
        assert pin.reason == f"being copied to {log_store(store, target).url}"
        PinStore(store, "a").delete(name)


def test_repeated_copy_continues_from_what_the_first_one_pinned(store: ObjectStore) -> None:
    fill(store, "a", 5)
    faulty = FaultyStore(store)
    crash_at(faulty, 1, ("delete",))

    def end(kind: str, path: str) -> None:
        if (kind, "MANIFEST" in path) == ("replace", True) or kind == "delete":
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


def test_failed_copy_can_be_repeated_from_what_it_pinned(store: ObjectStore) -> None:
    grown = grow(store, "a")
    into = FaultyStore(store)
    into.fail("replace", "MANIFEST", "denied")
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
        if kind == "read" and "/log/" in path:
            seen[0] += 1
            if seen[0] == 3:
                race()

    faulty.before = before
    return faulty


def test_concurrent_appends_are_not_copied(store: ObjectStore) -> None:
    held = grow(store, "a")

    copied = copy(LogAt(racing(store, lambda: fill(store, "a", 20)), "a"), LogAt(store, "b"))

    assert copied.num_records == held
    assert len(records(store, "b")) == held
    assert len(records(store, "a")) == held + 20
    assert scrub(store, "b").sound


def test_concurrent_collection_deletes_nothing_that_the_copy_needs(store: ObjectStore) -> None:
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
        # Before it claims the name.
        if (kind, path) == ("create", "b/manifest/MANIFEST.json"):
            other.before = lambda _kind, _path: None
            LogWriter.create(other.inner, "b")

    other.before = appear
    with pytest.raises(InvalidRequestError, match="another call began just now"):
        copy(LogAt(memory_store, "a"), LogAt(other, "b"))

    assert World(other, "b").manifest().num_records == 0
    assert records(other, "b") == []


def test_no_log_is_begun_where_a_copy_is_under_way(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    store = FaultyStore(memory_store)
    refused: list[str] = []

    def begin(kind: str, path: str) -> None:
        if kind == "replace" and path == "b/manifest/MANIFEST.json":
            store.before = lambda _kind, _path: None
            with pytest.raises(LogExistsError, match="found a copy of .* that is under way") as caught:
                LogWriter.create(memory_store, "b")
            refused.append(str(caught.value))
            with pytest.raises(LogNotFoundError, match="found a copy of .* that is under way"):
                LogReader.open(memory_store, "b")

    store.before = begin
    copy(LogAt(memory_store, "a"), LogAt(store, "b"))

    assert len(refused) == 1
    assert records(memory_store, "b") == records(memory_store, "a")


# ---------------------------------------------------------------------- the same copy twice


def with_cursors(store: ObjectStore) -> None:
    fill(store, "a", 20)
    CursorStore(store, "a").create("billing", LogPosition(5, 0))


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, 50))
def test_slower_one_of_two_equal_copies_changes_nothing_of_the_finished_copy(
    memory_store: MemoryStore, step: int
) -> None:
    """Whatever it was about to do when the other one finished and the copy came into use."""
    with_cursors(memory_store)
    slow = FaultyStore(memory_store)
    left, live, overtaken = [step], dict[str, Cursor](), list[tuple[str, str]]()

    def overtake(kind: str, path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            overtaken.append((kind, path))
            copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), with_cursors=True)
            fill(memory_store, "b", 2)
            cursors = CursorStore(memory_store, "b")
            witness = cursors.load("billing")
            assert witness is not None
            cursors.save("billing", LogPosition(15, 0), witness)
            cursors.create("audit", LogPosition(2, 0))
            live.update({name: witness.cursor for name, witness in cursors.list().items()})

    slow.before = overtake
    try:
        copy(LogAt(memory_store, "a"), LogAt(slow, "b"), with_cursors=True)
    except (LogExistsError, LogReplacedError, InvalidRequestError):
        assert left[0] <= 0
    else:
        # It had finished everything but deleting its pin; or it asked to make the copy a log, which both made the same,
        # and the refusal cannot tell whether a repeated request of its own came first.
        assert overtaken in ([], [("replace", "b/manifest/MANIFEST.json")])

    if left[0] <= 0:
        assert {name: witness.cursor for name, witness in CursorStore(memory_store, "b").list().items()} == live
        assert len(records(memory_store, "b")) == 22
    assert scrub(memory_store, "b").sound


def test_copy_that_is_taken_over_is_finished_by_the_one_that_took_it(memory_store: MemoryStore) -> None:
    with_cursors(memory_store)
    slow = FaultyStore(memory_store)

    def overtake(kind: str, path: str) -> None:
        if kind == "create" and "/cursor/" in path:
            slow.before = lambda _kind, _path: None
            # The other copy gets as far as claiming the target.
            into.before = stop
            with pytest.raises(Crashed):
                copy(LogAt(memory_store, "a"), LogAt(into, "b"), with_cursors=True)

    def stop(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith("MANIFEST.json"):
            into.before = lambda later, _path: crash() if later == "create" else None

    def crash() -> None:
        raise Crashed

    into = FaultyStore(memory_store)
    slow.before = overtake
    with pytest.raises(LogReplacedError, match="another call has taken over"):
        copy(LogAt(memory_store, "a"), LogAt(slow, "b"), with_cursors=True)

    with pytest.raises(LogNotFoundError, match="is under way, or was cut short"):
        LogReader.open(memory_store, "b")
    copied = copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), with_cursors=True)
    assert copied.resumed
    assert records(memory_store, "b") == records(memory_store, "a")
    assert list(CursorStore(memory_store, "b").list()) == ["billing"]
    assert PinStore(memory_store, "a").list() == {}


def test_copy_with_other_arguments_starts_again_and_leaves_nothing_of_the_one_before(memory_store: MemoryStore) -> None:
    with_cursors(memory_store)
    into = FaultyStore(memory_store)
    into.fail("replace", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        copy(LogAt(memory_store, "a"), LogAt(into, "b"), with_cursors=True)

    copied = copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), from_offset=11)

    assert not copied.resumed
    assert [record.offset for record in records(memory_store, "b")] == list(range(11, 21))
    assert CursorStore(memory_store, "b").list() == {}
    assert len(ManifestStore(log_store(memory_store, "b"), shared_runtime()).lives()) == 1


def test_policy_is_copied(store: ObjectStore) -> None:
    """A restored backup keeps its retention."""
    fill(store, "a", 2)
    PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=1000, percent_max=50))

    copy(LogAt(store, "a"), LogAt(store, "b"))

    policy = PolicyStore(store, "b").load()
    assert (policy.retention_s, policy.percent_max, policy.without_cursors) == (1000, 50, False)
    assert policy.log_id == World(store, "b").manifest().log_id
