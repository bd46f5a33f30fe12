"""Damage in transit is not damage at rest: an object that arrives damaged is read a second time."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from tests.spec.compaction.test_key_rollups import roll_keys_up
from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import LOG, World
from wal3_core import (
    CorruptError,
    CursorStore,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    WriterOptions,
    copy,
    repair_log,
)
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.store.object_store import Etag, NotModified, Versioned

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
OPTIONS = WriterOptions(retry=QUICK)


@dataclass
class GarblingStore(FaultyStore):
    """Flips a bit in the next ``times`` answers whose path contains ``part``, or cuts these short."""

    part: str = ""
    times: int = 0
    cut: bool = False

    def garble(self, part: str, times: int = 1, *, cut: bool = False) -> None:
        self.part, self.times, self.cut = part, times, cut

    def _garbled(self, path: str, data: bytes) -> bytes:
        if self.times == 0 or self.part not in path:
            return data
        self.times -= 1
        if self.cut:
            return data[: len(data) // 2]
        return bytes([*data[:-2], data[-2] ^ 1, data[-1]])

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        data = super().read(path, start=start, length=length)
        return None if data is None else self._garbled(path, data)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        found = super().get(path, if_none_match=if_none_match, length_max=length_max)
        return Versioned(self._garbled(path, found.data), found.etag) if isinstance(found, Versioned) else found


@pytest.fixture
def garbling(memory_store: MemoryStore) -> GarblingStore:
    """A log of two fragments behind a store that damages chosen answers."""
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"1")
        writer.append(b"2")
    return GarblingStore(memory_store)


def bodies(store: FaultyStore) -> list[bytes | None]:
    return [record.body for record in LogReader.open(store.inner, "a").records()]


@pytest.mark.parametrize("times", [1, 2])
def test_manifest_damaged_in_transit_is_read_again_once(garbling: GarblingStore, times: int) -> None:
    counting = CountingStore(garbling)
    garbling.garble("MANIFEST", times)

    if times == 1:
        assert LogReader.open(counting, "a").manifest().num_records == 2
        assert counting.requests == {"get": 3}
    else:
        with pytest.raises(CorruptError, match="MANIFEST"):
            LogReader.open(counting, "a")
        assert counting.requests == {"get": 2}


def test_sound_manifest_is_read_once(garbling: GarblingStore) -> None:
    counting = CountingStore(garbling)

    LogWriter.open(counting, "a").close()

    assert counting.requests == {"get": 1}


def test_commit_is_resolved_by_the_second_read_of_the_manifest(garbling: GarblingStore) -> None:
    with LogWriter.open(garbling, "a", options=WriterOptions(retry=RetryOptions(attempts_max=1))) as writer:
        garbling.fail("replace", "MANIFEST", "applied-unknown")
        garbling.garble("MANIFEST")
        assert writer.append(b"3").offset == 3

    assert garbling.times == 0
    assert bodies(garbling) == [b"1", b"2", b"3"]


def test_own_upload_is_recognised_by_the_second_read(garbling: GarblingStore) -> None:
    with LogWriter.open(garbling, "a", options=OPTIONS) as writer:
        garbling.fail("create", "/log/", "applied-unknown")
        garbling.garble("/log/")
        assert writer.append(b"3").offset == 3

    assert garbling.times == 0
    assert bodies(garbling) == [b"1", b"2", b"3"]


def test_own_creation_is_recognised_by_the_second_read(memory_store: MemoryStore) -> None:
    garbling = GarblingStore(memory_store)
    garbling.fail("create", "MANIFEST", "applied-unknown")
    garbling.garble("MANIFEST")

    LogWriter.create(garbling, "a")

    assert garbling.times == 0
    assert bodies(garbling) == []


@pytest.mark.parametrize("times", [1, 2])
def test_snapshot_damaged_in_transit_is_read_again_once(memory_store: MemoryStore, times: int) -> None:
    tree = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2)
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(snapshots=tree)) as writer:
        for index in range(20):
            writer.append(b"%d" % index)
    garbling = GarblingStore(memory_store)
    reader = LogReader.open(garbling, "a")
    assert reader.manifest().snapshots
    garbling.garble("snapshot/", times)

    if times == 1:
        assert len(list(reader.records())) == 20
    else:
        with pytest.raises(CorruptError, match="snapshot"):
            list(reader.records())
    assert garbling.times == 0


@pytest.mark.parametrize("times", [1, 2])
def test_cursor_damaged_in_transit_is_read_again_once(garbling: GarblingStore, times: int) -> None:
    cursors = CursorStore(garbling, "a", retry=QUICK)
    witness = cursors.create("reader", LogPosition(2, 0))
    garbling.garble("cursor/", times)

    if times == 1:
        assert cursors.load("reader") == witness
    else:
        with pytest.raises(CorruptError, match="cursor/reader"):
            cursors.load("reader")


def test_own_move_of_a_cursor_is_recognised_by_the_second_read(garbling: GarblingStore) -> None:
    cursors = CursorStore(garbling, "a", retry=QUICK)
    witness = cursors.create("reader", LogPosition(1, 0))
    garbling.fail("replace", "cursor/", "applied-unknown")
    garbling.garble("cursor/")

    moved = cursors.save("reader", LogPosition(2, 0), witness)

    assert garbling.times == 0
    assert cursors.load("reader") == moved


@pytest.mark.parametrize("times", [1, 2])
def test_staged_fragment_damaged_in_transit_is_read_again_once(garbling: GarblingStore, times: int) -> None:
    staged = Stager(garbling, "a", options=OPTIONS).stage(pa.table([[None], [b"3"]], schema=MESSAGE_SCHEMA))
    garbling.garble(staged[0].pointer.path, times)
    once = Once("writer-nightly", "batch 7")

    if times == 1:
        install_staged(garbling, "a", staged, once=once, options=OPTIONS)
        assert bodies(garbling) == [b"1", b"2", b"3"]
    else:
        with pytest.raises(CorruptError, match="staged fragment"):
            install_staged(garbling, "a", staged, once=once, options=OPTIONS)
        assert bodies(garbling) == [b"1", b"2"]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_key_rollup_that_was_read_damaged_is_never_deleted(memory_store: MemoryStore, times: int, *, cut: bool) -> None:
    World(memory_store).plant(cursor=1)
    garbling = GarblingStore(memory_store)
    paths = roll_keys_up(memory_store)
    before = {path: life_store(memory_store, LOG).read(path) for path in paths}
    sent: list[str] = []
    garbling.before = lambda kind, path: sent.append(kind) if "/keys/" in path else None
    garbling.garble("/keys/", times, cut=cut)

    roll_keys_up(garbling)

    assert garbling.times == 0
    assert "delete" not in sent
    # Once is not enough for a new version of it.
    assert ("replace" in sent) == (times > 1)
    assert {path: life_store(memory_store, LOG).read(path) for path in paths} == before


@pytest.mark.parametrize("cut", [False, True])
def test_repair_replaces_nothing_on_the_word_of_one_read(memory_store: MemoryStore, *, cut: bool) -> None:
    world = World(memory_store)
    world.plant(cursor=1)
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "b"))
    garbling = GarblingStore(memory_store)
    pointer = LogReader.open(memory_store, LOG).scan()[0]
    snapshot = world.leaves()[0]
    sent: list[str] = []
    garbling.before = lambda kind, path: sent.append(kind) if path.startswith(f"{LOG}/") else None

    for path in (pointer.path, snapshot.path):
        # The reader reads it twice, and the repair again before it writes.
        garbling.garble(f"{LOG}/Life={LogReader.open(memory_store, LOG).manifest().log_id}/{path}", times=3, cut=cut)
        report = repair_log(LogAt(garbling, LOG), LogAt(memory_store, "b"))

        assert garbling.times == 0
        assert (report.complete, report.repaired) == (True, (path,))
        assert not {"create", "replace", "delete"} & {*sent}
