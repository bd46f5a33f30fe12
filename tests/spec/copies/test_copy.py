"""Copying: another log of the same records at the same positions, complete or not at all."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pytest

from tests.s3_server import new_s3_url
from tests.spec.copying import collect, data, fill, fragments, grow, paths, records
from tests.stores import CountingStore, FaultyStore, damage, life_store
from tests.world import World
from wal3_core import (
    CopyReport,
    CorruptError,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogAt,
    LogExistsError,
    LogNotFoundError,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    UnavailableError,
    copy,
    open_store,
    scrub,
    seal,
)
from wal3_core.format.position import LogPosition
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore, log_store


@pytest.fixture
def other(request: pytest.FixtureRequest, store: ObjectStore) -> ObjectStore:
    """Another store of the kind of ``store``."""
    if isinstance(store, MemoryStore):
        return MemoryStore(shared_runtime(), name=uuid.uuid4().hex)
    if store.url.startswith("s3:"):
        return open_store(new_s3_url(request.getfixturevalue("s3_bucket_url")))
    return open_store((request.getfixturevalue("tmp_path") / "other").as_uri())


def test_copy_holds_the_same_bytes_at_the_same_positions(store: ObjectStore, other: ObjectStore) -> None:
    held = grow(store, "a")
    reported: list[tuple[int, int]] = []

    copied = copy(LogAt(store, "a"), LogAt(other, "x/b"), progress=lambda done, total: reported.append((done, total)))

    source, target = World(store).manifest(), World(other, "x/b").manifest()
    assert fragments(other, "x/b") == fragments(store, "a")
    assert target.fragments == source.fragments
    # Those of a life of its own: the same tree over the same records, under other names.
    assert [unnamed(pointer) for pointer in target.snapshots] == [unnamed(pointer) for pointer in source.snapshots]
    assert target.log_id != source.log_id
    assert {snapshot.path for snapshot in target.snapshots}.isdisjoint(each.path for each in source.snapshots)
    assert (target.setsum, target.pruned) == (source.setsum, source.pruned)
    assert (target.first, target.next, target.epochs) == (source.first, source.next, source.epochs)
    assert (target.seal, target.announced, target.destroying) == (None, None, False)
    assert records(other, "x/b") == records(store, "a")
    assert scrub(other, "x/b").sound
    assert reported == [(number, held) for number in range(1, held + 1)]
    assert (copied.num_records, copied.num_fragments, copied.setsum) == (held, held, source.setsum)
    assert PinStore(store, "a").list() == {}


def unnamed(pointer: SnapshotPointer) -> SnapshotPointer:
    return replace(pointer, path="")


def test_copy_is_a_log_of_its_own(store: ObjectStore) -> None:
    fill(store, "a", 3)
    seal(store, "a", reason="full")

    copy(LogAt(store, "a"), LogAt(store, "b"))
    fill(store, "b", 2)

    assert [record.offset for record in records(store, "b")] == [1, 2, 3, 4, 5]
    assert [record.offset for record in records(store, "a")] == [1, 2, 3]
    assert World(store, "b").manifest().last_epoch == World(store).manifest().last_epoch + 1
    assert scrub(store, "b").sound


def test_empty_and_entirely_collected_logs_are_copied(store: ObjectStore, other: ObjectStore) -> None:
    fill(store, "empty", 0)
    fill(store, "gone", 3)
    collect(store, "gone", 4)

    for log in ("empty", "gone"):
        copy(LogAt(store, log), LogAt(other, log))
        assert World(other, log).manifest().next == World(store, log).manifest().next
        assert scrub(other, log).sound
    fill(other, "gone", 1)

    assert [record.offset for record in records(other, "gone")] == [4]


@pytest.mark.slow
def test_copy_from_any_offset_holds_that_record_and_all_after_it(memory_store: MemoryStore) -> None:
    held = grow(memory_store, "a")
    source = World(memory_store).manifest()
    every = records(memory_store, "a")

    for offset in range(1, held + 2):
        copied = copy(LogAt(memory_store, "a"), LogAt(memory_store, f"b{offset}"), from_offset=offset)

        target = World(memory_store, f"b{offset}").manifest()
        assert copied.first_offset == offset
        assert target.first.position.offset == offset
        assert records(memory_store, f"b{offset}") == every[offset - 1 :]
        assert (target.setsum, target.next) == (source.setsum, source.next)
        assert scrub(memory_store, f"b{offset}").sound
        fill(memory_store, f"b{offset}", 1)
        assert scrub(memory_store, f"b{offset}").num_records == held + 2 - offset


def test_copy_from_an_offset_inside_a_fragment_begins_at_that_offset(store: ObjectStore, other: ObjectStore) -> None:
    other_world = World(other)
    world = World(store)
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append_many([b"1", b"2", b"3"])
        writer.append_many([b"4", b"5", b"6"])

    copied = copy(LogAt(store, "a"), LogAt(other, "a"), from_offset=5)

    assert copied == CopyReport(
        log="a",
        first_offset=5,
        next_offset=7,
        num_records=2,
        num_bytes=other_world.manifest().fragments[0].num_bytes,
        num_fragments=1,
        num_cursors=0,
        setsum=world.manifest().setsum,
        pinned_us=copied.pinned_us,
        resumed=False,
    )
    assert records(other, "a") == records(store, "a")[4:]
    assert other_world.manifest().next == world.manifest().next
    assert scrub(other, "a").sound


@pytest.mark.parametrize(
    ("offset", "error", "complaint"),
    [(9, InvalidRequestError, "from 1 to 4, found 9"), (1, GarbageCollectedError, "from 2, found 1")],
)
def test_offset_that_the_log_does_not_hold_is_refused(
    memory_store: MemoryStore, offset: int, error: type[Exception], complaint: str
) -> None:
    fill(memory_store, "a", 3)
    collect(memory_store, "a", 2)

    with pytest.raises(error, match=complaint):
        copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), from_offset=offset)

    assert paths(memory_store, "b") == set()
    assert PinStore(memory_store, "a").list() == {}


# ---------------------------------------------------------------------- targets


def test_existing_log_is_not_copied_over(store: ObjectStore) -> None:
    world = World(store, "b")
    fill(store, "a", 2)
    fill(store, "b", 1)
    before = data(store, "b"), world.manifest()

    with pytest.raises(LogExistsError, match="expected no log there"):
        copy(LogAt(store, "a"), LogAt(store, "b"))
    with pytest.raises(InvalidRequestError, match="found itself"):
        copy(LogAt(store, "a"), LogAt(store, "a"))

    assert (data(store, "b"), world.manifest()) == before


@pytest.mark.parametrize("path", ["notes.txt", "log/notes.txt", "cursor/reader.json", "policy.json"])
def test_foreign_object_in_the_target_is_left_alone_and_does_not_stop_the_copy(store: ObjectStore, path: str) -> None:
    fill(store, "a", 2)
    store.create(f"b/{path}", b"another's")

    copy(LogAt(store, "a"), LogAt(store, "b"), with_cursors=True)

    assert store.read(f"b/{path}") == b"another's"
    assert records(store, "b") == records(store, "a")
    assert scrub(store, "b").sound
    assert CursorStore(store, "b").list() == {}


def test_fragments_without_a_manifest_are_not_copied_over(store: ObjectStore) -> None:
    fill(store, "a", 2)
    fill(store, "b", 1)
    store.delete("b/manifest/MANIFEST.json")
    before = paths(store, "b")

    with pytest.raises(CorruptError, match="expected manifest/MANIFEST.json beside Life=.*found none: restore it"):
        copy(LogAt(store, "a"), LogAt(store, "b"))

    assert paths(store, "b") == before
    assert PinStore(store, "a").list() == {}


def test_name_that_another_log_is_being_copied_to_is_not_taken_over(store: ObjectStore) -> None:
    fill(store, "a", 2)
    fill(store, "c", 3)
    into = FaultyStore(store)
    into.fail("replace", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        copy(LogAt(store, "c"), LogAt(into, "b"))

    with pytest.raises(InvalidRequestError, match=r"found a copy of .*/c that is under way, or was cut short"):
        copy(LogAt(store, "a"), LogAt(store, "b"))

    copy(LogAt(store, "c"), LogAt(store, "b"))
    assert records(store, "b") == records(store, "c")


def test_logs_below_the_target_do_not_stop_the_copy(store: ObjectStore) -> None:
    fill(store, "a", 2)
    fill(store, "b/c", 1)

    copy(LogAt(store, "a"), LogAt(store, "b"))

    assert len(records(store, "b")) == 2
    assert len(records(store, "b/c")) == 1


@pytest.mark.parametrize(("source", "target"), [("../a", "b"), ("a", "../b"), ("a", "x/log")])
def test_bad_log_name_is_refused(memory_store: MemoryStore, source: str, target: str) -> None:
    fill(memory_store, "a", 1)

    with pytest.raises(InvalidRequestError, match="log name"):
        copy(LogAt(memory_store, source), LogAt(memory_store, target))


def test_missing_log_cannot_be_copied(store: ObjectStore) -> None:
    with pytest.raises(LogNotFoundError):
        copy(LogAt(store, "none"), LogAt(store, "b"))

    assert paths(store, "none") == set()


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("harm", ["flipped", "longer", "missing", "another's"])
def test_damaged_fragment_is_not_copied_and_makes_no_log(store: ObjectStore, harm: str) -> None:
    fill(store, "a", 5)
    pointers = World(store).manifest().fragments
    inside, path = life_store(store, "a"), pointers[1].path
    stored = inside.read(path)
    assert stored is not None
    match harm:
        case "flipped":
            damage(inside, path)
        case "missing":
            inside.delete(path)
        case _:
            inside.delete(path)
            inside.create(path, stored + b"x" if harm == "longer" else inside.read(pointers[0].path) or b"")

    with pytest.raises(CorruptError, match=f"fragment {pointers[1].seq_no}"):
        copy(LogAt(store, "a"), LogAt(store, "b"))

    with pytest.raises(LogNotFoundError):
        LogReader.open(store, "b")
    # The next attempt continues from there.
    [pin] = PinStore(store, "a").list().values()
    assert pin.reason == f"being copied to {log_store(store, 'b').url}"


def test_damage_in_transit_is_read_again(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    broken = [True]

    class Flaky(CountingStore):
        def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
            found = super().read(path, start=start, length=length)
            if found is not None and "/log/" in path and broken:
                broken.pop()
                return found[:-1] + b"?"
            return found

    copy(LogAt(Flaky(memory_store), "a"), LogAt(memory_store, "b"))

    assert scrub(memory_store, "b").sound


def test_store_that_never_accepts_the_copy_leaves_no_log_and_a_pin_to_continue_from(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    other = FaultyStore(MemoryStore(shared_runtime()))
    other.fail("create", "log/", "denied", times=100)

    with pytest.raises(UnavailableError):
        copy(LogAt(memory_store, "a"), LogAt(other, "b"))

    # Except the claim.
    assert paths(other, "b") == {"manifest/MANIFEST.json"}
    assert len(PinStore(memory_store, "a").list()) == 1


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict"])
@pytest.mark.parametrize("part", ["log/", "snapshot/", "MANIFEST", "cursor/"])
def test_unanswered_writes_are_resolved(memory_store: MemoryStore, fault: str, part: str) -> None:
    grow(memory_store, "a")
    CursorStore(memory_store, "a").create("reader", LogPosition(2, 0))
    other = FaultyStore(MemoryStore(shared_runtime()))
    other.fail("create", part, fault)

    copy(LogAt(memory_store, "a"), LogAt(other, "b"), with_cursors=True)

    assert other.fired[fault] == 1
    assert fragments(other, "b") == fragments(memory_store, "a")
    assert scrub(other, "b").sound


# ---------------------------------------------------------------------- cursors


def test_cursors_are_copied_when_asked_for(store: ObjectStore, other: ObjectStore) -> None:
    fill(store, "a", 5)
    cursors = CursorStore(store, "a")
    for name, offset in (("old", 1), ("first", 3), ("next", 6)):
        cursors.create(name, LogPosition(offset, 7))

    bare = copy(LogAt(store, "a"), LogAt(other, "bare"))
    copied = copy(LogAt(store, "a"), LogAt(other, "b"), from_offset=3, with_cursors=True)

    assert (bare.num_cursors, copied.num_cursors) == (0, 2)
    assert CursorStore(other, "bare").list() == {}
    found = {name: witness.cursor for name, witness in CursorStore(other, "b").list().items()}
    assert {name: (cursor.position, cursor.epoch_us) for name, cursor in found.items()} == {
        name: (cursors.list()[name].cursor.position, cursors.list()[name].cursor.epoch_us) for name in ("first", "next")
    }
    assert {cursor.log_id for cursor in found.values()} == {World(other, "b").manifest().log_id}


def test_cursor_beyond_the_copied_records_is_set_to_their_end(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)
    end = world.manifest().next.position

    def move_on(kind: str, path: str) -> None:
        if kind == "list" and "cursor/" in path and path.startswith("a/"):
            store.before = lambda _kind, _path: None
            fill(memory_store, "a", 3)
            CursorStore(memory_store, "a").create("reader", world.manifest().next.position)

    store.before = move_on
    copy(LogAt(store, "a"), LogAt(memory_store, "b"), with_cursors=True)

    witness = CursorStore(memory_store, "b").load("reader")
    assert witness is not None
    assert witness.cursor.position == end
    assert scrub(memory_store, "b").sound


@pytest.mark.slow
def test_number_of_fragments_in_flight_is_bounded(memory_store: MemoryStore) -> None:
    """While the first one is delayed, few others are read."""
    fill(memory_store, "a", 60)
    first = records_path(memory_store)
    source, target = FaultyStore(memory_store), FaultyStore(MemoryStore(shared_runtime()))
    read: list[str] = []
    meanwhile: list[int] = []

    def reading(kind: str, path: str) -> None:
        if kind == "read" and "/log/" in path:
            read.append(path)

    def writing(kind: str, path: str) -> None:
        if kind == "create" and path.endswith(first):
            until_s = time.monotonic() + 0.5
            while len(read) <= 8 and time.monotonic() < until_s:
                time.sleep(0.01)
            meanwhile.append(len(read))

    source.before, target.before = reading, writing
    copy(LogAt(source, "a"), LogAt(target, "b"))

    assert len(meanwhile) == 1
    assert meanwhile[0] <= 8
    assert len(read) == 60


def records_path(store: ObjectStore) -> str:
    """The path of the log's first fragment."""
    return LogReader.open(store, "a").scan()[0].path
