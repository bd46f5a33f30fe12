"""Scrub names every bad object and still checks the rest."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.stores import LOG_ID, FaultyStore, damage, life_store
from wal3_core import (
    CorruptError,
    CursorStore,
    Limits,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    WriterOptions,
    list_logs,
    scrub,
)
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import Boundary
from wal3_core.format.snapshot import sum_setsums
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)


def fill(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for number in range(30):
            writer.append_many([b"%d" % number] * 4)


@pytest.fixture
def filled(memory_store: MemoryStore) -> MemoryStore:
    fill(memory_store)
    return memory_store


def test_sound_log_scrubs_clean_and_is_counted(store: ObjectStore) -> None:
    fill(store)
    CursorStore(store, "a").create("reader", LogPosition(50, 0))

    report = scrub(store, "a")

    manifest = LogReader.open(store, "a").manifest()
    assert report.sound
    assert (report.num_records, report.num_fragments, report.num_bytes) == (120, 30, manifest.num_bytes)
    assert report.num_snapshots > 2
    assert report.setsum == manifest.setsum.hexdigest()


def test_every_damaged_object_is_named_and_the_rest_is_counted(filled: MemoryStore) -> None:
    fragments = LogReader.open(filled, "a").scan()
    damage(life_store(filled, "a"), fragments[3].path)
    life_store(filled, "a").delete(fragments[29].path)
    CursorStore(filled, "a").create("reader", LogPosition(50, 0))
    damage(life_store(filled, "a"), "cursor/reader.json", 50)

    report = scrub(filled, "a")

    assert not report.sound
    assert sorted(problem.path for problem in report.problems) == sorted(
        [fragments[3].path, fragments[29].path, "cursor/reader.json"]
    )
    assert report.num_fragments == 28
    assert report.num_records == 28 * 4
    assert all(str(problem.message).strip() for problem in report.problems)


def test_lost_snapshot_is_named_once(filled: MemoryStore) -> None:
    victim = LogReader.open(filled, "a").manifest().snapshots[0]
    life_store(filled, "a").delete(victim.path)

    report = scrub(filled, "a")

    assert [problem.path for problem in report.problems] == [victim.path]


def test_unreadable_manifest_is_reported_and_is_no_crash(filled: MemoryStore) -> None:
    damage(filled, "a/manifest/MANIFEST.json")

    report = scrub(filled, "a")

    assert [problem.path for problem in report.problems] == ["manifest/MANIFEST.json"]


def test_fragment_collected_during_the_scrub_is_not_a_problem(filled: MemoryStore) -> None:
    store = FaultyStore(filled)
    collected: list[str] = []
    first = threading.Lock()

    def collect(kind: str, path: str) -> None:
        """When it is read, prune the manifest up to the newest fragment but one."""
        if kind == "read" and "/log/" in path and first.acquire(blocking=False):
            manifests = ManifestStore(log_store(filled, "a"), shared_runtime())
            base = manifests.load()
            gone, kept = base.manifest.pointers[:-1], base.manifest.fragments[-1]
            below = LogReader.open(filled, "a").scan(None, Limits(offset=kept.start.offset))
            collected.extend(pointer.path for pointer in below)
            pruned = replace(
                base.manifest,
                snapshots=(),
                fragments=(kept,),
                pruned=sum_setsums(gone),
                first=Boundary(kept.first_seq_no, kept.start),
                num_bytes=kept.num_bytes,
                num_records=kept.num_records,
            )
            assert isinstance(manifests.install(pruned, base), Installed)
            for each in collected:
                life_store(filled, "a").delete(each)

    store.before = collect

    report = scrub(store, "a")

    assert len(collected) == 29
    assert report.problems == ()


def test_lost_manifest_is_damage_and_never_a_new_log(filled: MemoryStore) -> None:
    filled.delete("a/manifest/MANIFEST.json")

    report = scrub(filled, "a")

    assert [problem.path for problem in report.problems] == ["manifest/MANIFEST.json"]
    assert list(list_logs(filled)) == ["a"]
    for make in (LogWriter.create, LogWriter.open_or_create, LogWriter.open, LogReader.open):
        with pytest.raises(CorruptError, match="restore it, or destroy what is left"):
            make(filled, "a")


def test_log_that_is_created_while_it_is_looked_for_has_lost_no_manifest(memory_store: MemoryStore) -> None:
    def create(kind: str, _path: str) -> None:
        if kind == "list":
            store.before = lambda _kind, _path: None
            fill(memory_store)

    store = FaultyStore(memory_store, before=create)

    with pytest.raises(LogNotFoundError):
        scrub(store, "a")

    assert scrub(store, "a").sound


def test_cursor_beyond_the_end_is_a_problem(filled: MemoryStore) -> None:
    cursor = Cursor(position=LogPosition(999, 0), epoch_us=0, writer="w", generation=1, log_id=LOG_ID)
    life_store(filled, "a").create("cursor/lost.json", cursor.to_bytes())

    report = scrub(filled, "a")

    assert [problem.path for problem in report.problems] == ["cursor/lost.json"]


def test_scrub_of_no_log_is_an_error(memory_store: MemoryStore) -> None:
    with pytest.raises(LogNotFoundError):
        scrub(memory_store, "a")


def test_progress_is_reported_up_to_the_end(filled: MemoryStore) -> None:
    reported: list[tuple[int, int]] = []

    scrub(filled, "a", progress=lambda done, total: reported.append((done, total)))

    assert reported[-1] == (120, 120)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
