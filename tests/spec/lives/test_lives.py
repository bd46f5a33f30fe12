"""A name's lives: destroyed and begun again, or restored. A witness or request of one life does nothing to another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.spec.copying import FEW, NOW, fill, fragments, grow, paths, records
from tests.stores import FaultyStore, life_store
from tests.world import World
from wal3_core import (
    AppendReplacedError,
    Collector,
    CorruptError,
    CursorStore,
    Deleter,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    NotDurableError,
    PinStore,
    PolicyStore,
    ReaderOptions,
    SnapshotCompactor,
    UnavailableError,
    UnknownDurabilityError,
    copy,
    destroy,
    list_logs,
    pinned_records,
    scrub,
    seal,
)
from wal3_core.format.paths import MANIFEST, life_folder
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import FolderStore, ObjectStore, log_store

SECONDS_MAX = 30.0


def begin_again(store: ObjectStore, count: int = 0) -> None:
    destroy(store, "a")
    fill(store, "a", count)


def restore(store: ObjectStore) -> None:
    """Back the log up, destroy it, and restore it."""
    backup = MemoryStore(shared_runtime())
    copy(LogAt(store, "a"), LogAt(backup, "a"))
    destroy(store, "a")
    copy(LogAt(backup, "a"), LogAt(store, "a"))


def once(store: ObjectStore, kind: str, part: str, act: Callable[[], None]) -> FaultyStore:
    """Run an action just before the first request of a kind whose path contains a part."""
    faulty = FaultyStore(store)

    def before(asked: str, path: str) -> None:
        if asked == kind and part in path:
            faulty.before = lambda _kind, _path: None
            act()

    faulty.before = before
    return faulty


# ---------------------------------------------------------------------- ids


def test_every_life_of_a_name_has_an_id_of_its_own(store: ObjectStore) -> None:
    world = World(store)
    ids = set()
    fill(store, "a", 2)
    for _ in range(2):
        ids.add(world.manifest().log_id)
        begin_again(store, 2)
        ids.add(world.manifest().log_id)
        restore(store)

    assert len(ids) == 4


def test_two_restores_of_one_backup_have_no_version_in_common(store: ObjectStore) -> None:
    """Regression: they had the same bytes, so a swap meant for one life succeeded in the other."""
    fill(store, "a", 3)
    backup, versions = MemoryStore(shared_runtime()), []
    copy(LogAt(store, "a"), LogAt(backup, "a"))
    for _ in range(2):
        destroy(store, "a")
        copy(LogAt(backup, "a"), LogAt(store, "a"))
        versions.append(store.get(f"a/{MANIFEST}"))
        Collector(store, "a").prune_orphans([], "a test")
        versions.append(store.get(f"a/{MANIFEST}"))

    assert len({version.etag for version in versions if version is not None and hasattr(version, "etag")}) == 4


def test_no_two_installs_of_the_same_manifest_have_the_same_bytes(store: ObjectStore) -> None:
    fill(store, "a", 1)
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    base = manifests.load()
    installed = manifests.install(base.manifest, base)
    again = manifests.install(base.manifest, manifests.load())

    assert installed.manifest.writer != again.manifest.writer


def test_every_document_names_its_log(store: ObjectStore) -> None:
    held = grow(store, "a")
    CursorStore(store, "a").create("reader", LogPosition(held, 0))
    PinStore(store, "a").create("audit", reason="a test")
    collector = Collector(store, "a", options=NOW)
    collector.announce(collector.plan())
    PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=1))
    log_id = World(store).manifest().log_id

    for meta in store.list_objects("a/"):
        if not meta.path.endswith((".parquet", "CLOCK")):
            assert f'"log_id":"{log_id}"'.encode() in (store.read(meta.path) or b""), meta.path
        assert meta.path == f"a/{MANIFEST}" or meta.path.startswith(f"a/{life_folder(log_id)}")


# ---------------------------------------------------------------------- writers


def test_writer_that_slept_across_a_restore_commits_nothing_onto_it(store: ObjectStore) -> None:
    """Regression: it linked a deleted snapshot and acknowledged, and the log could not be read any more."""
    fill(store, "a", 3)
    with LogWriter.open(store, "a", options=FEW) as writer:
        for _ in range(6):
            writer.append(b"x")
        restore(store)

        for _ in range(2):
            with pytest.raises(AppendReplacedError, match="destroyed and created again, or restored"):
                writer.append(b"after")

    assert len(records(store, "a")) == 9
    assert scrub(store, "a").sound


def test_writer_that_slept_before_its_cas_commits_nothing_onto_a_new_log(store: ObjectStore) -> None:
    """The old log's end was the new one's, so the commit fitted."""
    fill(store, "a", 0)
    faulty = once(store, "replace", MANIFEST, lambda: begin_again(store))
    with LogWriter.open(faulty, "a", options=FEW) as writer, pytest.raises(AppendReplacedError):
        writer.append(b"precious")

    assert records(store, "a") == []
    assert scrub(store, "a").sound


def test_commit_that_went_unanswered_before_the_log_was_replaced_is_unknown(store: ObjectStore) -> None:
    fill(store, "a", 2)
    faulty = FaultyStore(store)
    faulty.fail("replace", MANIFEST, "applied-unknown")
    asked: list[str] = []

    def before(kind: str, path: str) -> None:
        asked.append(f"{kind} {path}")
        if asked[-2:] == [f"replace a/{MANIFEST}", f"get a/{MANIFEST}"]:
            begin_again(store, 1)

    with LogWriter.open(faulty, "a", options=FEW) as writer:
        faulty.before = before
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"x")
        with pytest.raises(AppendReplacedError):
            writer.append(b"y")

    assert len(records(store, "a")) == 1


def test_writer_of_a_deleted_log_reports_that_and_continues_with_no_other(store: ObjectStore) -> None:
    fill(store, "a", 2)
    with LogWriter.open(store, "a", options=FEW) as writer:
        destroy(store, "a")
        with pytest.raises(NotDurableError, match="it was destroyed"):
            writer.append(b"x")
        fill(store, "a", 1)
        with pytest.raises(AppendReplacedError):
            writer.append(b"y")

    assert len(records(store, "a")) == 1


# ---------------------------------------------------------------------- readers


def test_follower_of_a_log_begun_again_ends_and_skips_none_of_the_new_records(store: ObjectStore) -> None:
    fill(store, "a", 3)
    followed = LogReader.open(store, "a", options=ReaderOptions(poll_s_min=0.01)).follow(idle_s=SECONDS_MAX)
    found = [next(followed).offset for _ in range(3)]

    begin_again(store, 5)
    with pytest.raises(LogReplacedError):
        next(followed)

    assert found == [1, 2, 3]


def test_read_that_has_begun_never_continues_in_another_life(store: ObjectStore) -> None:
    fill(store, "a", 9)
    read = LogReader.open(store, "a", options=ReaderOptions(prefetch_fragments=1)).records()
    next(read)

    begin_again(store, 9)
    with pytest.raises(LogReplacedError):
        list(read)


@pytest.mark.parametrize("again", [begin_again, restore])
def test_reader_of_a_replaced_log_reports_that(store: ObjectStore, again: Callable[[ObjectStore], None]) -> None:
    fill(store, "a", 3)
    reader = LogReader.open(store, "a")
    again(store)

    for read in (reader.manifest, reader.scan, lambda: list(reader.records())):
        with pytest.raises(LogReplacedError):
            read()


# ---------------------------------------------------------------------- cursors, pins, policies


def test_cursors_of_a_replaced_log_have_no_effect(store: ObjectStore) -> None:
    fill(store, "a", 4)
    cursors = CursorStore(store, "a")
    witness = cursors.create("reader", LogPosition(4, 0))
    cursors.create("still", LogPosition(2, 0))
    begin_again(store, 1)

    acts: list[Callable[[], object]] = [
        lambda: cursors.load("reader"),
        lambda: cursors.save("reader", LogPosition(4, 0), witness),
        lambda: cursors.create("other", LogPosition(4, 0)),
        lambda: cursors.delete("reader"),
        cursors.list,
    ]
    for act in acts:
        with pytest.raises(LogReplacedError):
            act()

    assert CursorStore(store, "a").list() == {}
    with pytest.raises(LogReplacedError, match="which had this name before"):
        CursorStore(store, "a").save("reader", LogPosition(1, 0), witness)


def test_pins_and_policies_of_a_replaced_log_have_no_effect(store: ObjectStore) -> None:
    fill(store, "a", 4)
    pins, policies = PinStore(store, "a"), PolicyStore(store, "a")
    pins.list()
    policies.load()
    begin_again(store, 1)

    acts: list[Callable[[], object]] = [
        lambda: pins.create("audit", reason="a test"),
        lambda: pins.load("audit"),
        lambda: pins.delete("audit"),
        pins.list,
        policies.load,
        lambda: policies.change(lambda policy: replace(policy, retention_s=1)),
    ]
    for act in acts:
        with pytest.raises(LogReplacedError):
            act()

    assert PinStore(store, "a").list() == {}
    assert PolicyStore(store, "a").load().retention_s is None


@pytest.mark.parametrize("sealed", [False, True])
def test_pin_made_while_a_log_is_destroyed_holds_or_is_refused(store: ObjectStore, *, sealed: bool) -> None:
    for number in range(1, 14):
        fill(store, "a", 3)
        faulty, left, made = FaultyStore(store), [number], list[bool]()

        def pin(_kind: str, _path: str, left: list[int] = left, made: list[bool] = made) -> None:
            left[0] -= 1
            if left[0] == 0:
                with contextlib.suppress(InvalidRequestError):
                    made.append(PinStore(store, "a").create("audit", reason="a test").complete)

        faulty.before = pin
        if sealed:
            seal(store, "a", reason="full")
        with contextlib.suppress(InvalidRequestError):
            destroy(faulty, "a")
        if made:
            # It came in time, so it holds.
            assert len(list(pinned_records(store, "a", "audit"))) == 3
            destroy(store, "a", also_pinned=True)
        assert list(list_logs(store)) == []


# ---------------------------------------------------------------------- maintenance


def test_plan_for_one_life_is_not_carried_out_on_another(store: ObjectStore) -> None:
    fill(store, "a", 6)
    plan = Collector(store, "a", options=NOW).plan(4)
    restore(store)

    for collector in (Collector(store, "a", options=NOW), Collector(store, "a", options=NOW, log_id=plan.log_id)):
        for act in (collector.verify, collector.announce):
            with pytest.raises(LogReplacedError):
                act(plan)

    assert len(records(store, "a")) == 6


def test_deleter_that_slept_across_a_restore_deletes_nothing_of_the_restored_log(store: ObjectStore) -> None:
    """Objects that are garbage in one life make up another one, restored from an older backup."""
    grow(store, "a")
    backup = MemoryStore(shared_runtime())
    copy(LogAt(store, "a"), LogAt(backup, "a"))
    before = records(store, "a")
    collector = Collector(store, "a", options=NOW)
    path = collector.announce(collector.plan(len(before)))
    collector.prune(path)

    def bring_back() -> None:
        destroy(store, "a")
        copy(LogAt(backup, "a"), LogAt(store, "a"))

    Deleter(once(store, "delete", "/log/", bring_back), "a", options=NOW).delete(path)

    assert records(store, "a") == before
    assert scrub(store, "a").sound


@pytest.mark.slow
def test_packer_that_slept_across_a_restore_changes_nothing(store: ObjectStore) -> None:
    unrolled = replace(FEW, snapshots=replace(FEW.snapshots, fragments_kept=999), batch_records_max=1)
    with LogWriter.open_or_create(store, "a", options=unrolled) as writer:
        for future in [writer.submit(b"x") for _ in range(90)]:
            future.result(SECONDS_MAX)
    faulty = once(store, "replace", MANIFEST, lambda: restore(store))

    with pytest.raises(LogReplacedError):
        SnapshotCompactor(faulty, "a").compact()

    assert len(records(store, "a")) == 90
    assert scrub(store, "a").sound


def test_document_of_another_life_is_recognised(store: ObjectStore) -> None:
    fill(store, "a", 3)
    CursorStore(store, "a").create("reader", LogPosition(2, 0))
    stored = life_store(store, "a").read("cursor/reader.json")
    assert stored is not None
    begin_again(store, 3)
    life_store(store, "a").create("cursor/reader.json", stored)

    with pytest.raises(CorruptError, match="expected a document of log"):
        CursorStore(store, "a").load("reader")


# ---------------------------------------------------------------------- late requests


def test_first_put_of_a_create_after_the_log_was_destroyed_restores_nothing(
    store: ObjectStore,
) -> None:
    faulty = FaultyStore(store)
    faulty.fail("create", MANIFEST, "late")
    LogWriter.create(faulty, "a")
    destroy(store, "a")

    faulty.arrive()

    assert list(list_logs(store)) == []
    with pytest.raises(LogNotFoundError, match="it was destroyed"):
        LogReader.open(store, "a")


def test_log_that_is_destroyed_while_it_is_probed_stays_destroyed(store: ObjectStore) -> None:
    for number in range(1, 8):
        faulty, left = FaultyStore(store), [number]

        def race(_kind: str, _path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0 and "a" in list_logs(store):
                destroy(store, "a")
                left.append(0)

        faulty.before = race
        LogWriter.create(faulty, "a")

        assert list(list_logs(store)) == ([] if len(left) > 1 else ["a"])
        if len(left) == 1:
            destroy(store, "a")


@pytest.mark.slow
def test_writes_after_a_destroy_s_last_listing_do_no_harm_and_the_next_deletes_them(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.2)
    fill(store, "a", 3)
    inside = FolderStore(store, f"a/{life_folder(World(store).manifest().log_id)}")
    faulty = FaultyStore(store)
    for folder in ("cursor/", "pin/", "/log/"):
        faulty.fail("create", folder, "late", times=10_000)
    cursors, pins, writer = CursorStore(faulty, "a"), PinStore(faulty, "a"), LogWriter.open(faulty, "a", options=FEW)
    for act in (
        lambda: cursors.create("late", LogPosition(1, 0)),
        lambda: pins.create("late", reason="a test"),
        lambda: writer.append(b"late"),
    ):
        with pytest.raises((UnavailableError, NotDurableError)):
            act()
    destroy(store, "a")
    faulty.arrive()
    assert len(list(inside.list_objects(""))) >= 3

    fill(store, "a", 2)
    assert CursorStore(store, "a").list() == {}
    assert PinStore(store, "a").list() == {}
    assert [record.offset for record in records(store, "a")] == [1, 2]
    assert scrub(store, "a").sound
    destroy(store, "a")

    assert paths(store, "a") == {MANIFEST}
    writer.close()


def test_delete_that_arrives_after_a_restore_deletes_nothing_of_it(store: ObjectStore) -> None:
    """Except for the life's folder, a copied fragment has the same path as in the life before."""
    grow(store, "a")
    deleted = [meta.path for meta in store.list_objects("a/") if "/log/" in meta.path or "/cursor/" in meta.path]
    restore(store)
    before = fragments(store, "a")

    for path in deleted:
        store.delete(path)

    assert fragments(store, "a") == before
    assert scrub(store, "a").sound


# ---------------------------------------------------------------------- names


def test_destroyed_names_are_not_listed_and_empty_logs_are(store: ObjectStore) -> None:
    fill(store, "a", 2)
    fill(store, "a/below", 1)
    LogWriter.create(store, "empty")
    for log in ("gone", "gone/too"):
        fill(store, log, 1)
        destroy(store, log)

    assert list(list_logs(store)) == ["a", "a/below", "empty"]
    destroy(store, "a")
    assert list(list_logs(store)) == ["a/below", "empty"]


def test_two_who_begin_a_log_over_a_destroyed_one_begin_one(store: ObjectStore) -> None:
    fill(store, "a", 1)
    destroy(store, "a")
    outcomes: list[str] = []

    def begin() -> None:
        try:
            LogWriter.create(store, "a")
        except Exception as error:  # noqa: BLE001 - looked at below
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("begun")

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)

    assert sorted(outcomes) == ["LogExistsError"] * 3 + ["begun"]
