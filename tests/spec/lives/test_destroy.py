"""Destroying: a log is ended and deleted entirely, and nothing else is touched."""

from __future__ import annotations

import concurrent.futures
import contextlib

import pytest

from tests.stores import FaultyStore, life_store
from tests.world import Crashed
from wal3_core import (
    CorruptError,
    CursorStore,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    NotDurableError,
    PinStore,
    SealedError,
    UnavailableError,
    copy,
    destroy,
    list_logs,
    plan_destroy,
    scrub,
    seal,
)
from wal3_core.format.paths import MANIFEST, LogId, fragment_path, life_folder
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.vacancy import Vacancy
from wal3_core.log.collect.collector import Collector
from wal3_core.options import CollectorOptions, RetryOptions, SnapshotOptions, WriterOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import FolderStore, ObjectStore, log_store

FEW = WriterOptions(
    snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2),
    retry=RetryOptions(attempts_max=2, pause_s_min=0.001),
)
NOW = CollectorOptions(without_cursors=True, fraction_max=1, interval_s=0)


def fill(store: ObjectStore, log: str, count: int) -> None:
    with LogWriter.open_or_create(store, log, options=FEW) as writer:
        for _ in range(count):
            writer.append(b"x")


def everything(store: ObjectStore, log: str) -> None:
    """Make a log that has an object of every kind."""
    fill(store, log, 12)
    CursorStore(store, log).create("reader", LogPosition(6, 0))
    PinStore(store, log).create("audit", reason="a test")
    collector = Collector(store, log, options=NOW)
    collector.prune(collector.announce(collector.plan()))
    life_store(store, log).create("policy.json", b"{}")
    life_store(store, log).create("gc/CLOCK", b"")


def paths(store: ObjectStore, log: str) -> list[str]:
    return [meta.path for meta in store.list_objects(f"{log}/")]


def life(store: ObjectStore, log: str) -> LogId:
    return LogReader.open(store, log).manifest().log_id


def remains(store: ObjectStore, log: str) -> list[str]:
    """All stored objects but the manifest, which must say that there is no log."""
    seen = ManifestStore(log_store(store, log), shared_runtime()).look()
    assert seen is not None
    assert isinstance(seen.document, Vacancy)
    assert seen.document.kind == "destroyed"
    return [path for path in paths(store, log) if path != f"{log}/{MANIFEST}"]


def test_plan_counts_every_object_and_changes_nothing(store: ObjectStore) -> None:
    everything(store, "a")
    before = {meta.path: meta for meta in store.list_objects("a/")}

    plan = plan_destroy(store, "a")

    assert {meta.path: meta for meta in store.list_objects("a/")} == before
    assert (plan.num_objects, plan.num_bytes) == (len(before), sum(meta.size for meta in before.values()))
    counted = {part.kind: part.num_objects for part in plan.parts}
    folders = [path.split("/")[1 if path == f"a/{MANIFEST}" else 2] for path in before]
    names = {"log": "fragment", "gc": "garbage", "policy.json": "policy"}
    assert counted == {names.get(folder, folder): folders.count(folder) for folder in folders}
    assert set(counted) == {"manifest", "fragment", "snapshot", "cursor", "pin", "garbage", "policy"}
    assert plan.pins == ("audit",)
    assert plan.log_id == LogReader.open(store, "a").manifest().log_id


def test_destroyed_log_is_gone_and_its_name_free(store: ObjectStore) -> None:
    everything(store, "a")
    reported: list[tuple[int, int]] = []
    total = plan_destroy(store, "a").num_objects

    deleted = destroy(store, "a", also_pinned=True, progress=lambda done, total: reported.append((done, total)))

    assert deleted == total
    assert reported == [(number, total) for number in range(1, total + 1)]
    assert remains(store, "a") == []
    with pytest.raises(LogNotFoundError):
        LogReader.open(store, "a")
    for again in (plan_destroy, destroy):
        with pytest.raises(LogNotFoundError, match="found nothing"):
            again(store, "a")
    fill(store, "a", 1)
    assert [record.offset for record in LogReader.open(store, "a").records()] == [1]


def test_writer_of_a_destroyed_log_reports_that(store: ObjectStore) -> None:
    fill(store, "a", 3)
    writer = LogWriter.open(store, "a", options=FEW)
    other = LogWriter.open(store, "a", options=FEW)
    faulty = FaultyStore(store)
    kinds: list[str] = []

    def append(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith(MANIFEST):
            kinds.append(kind)
            if len(kinds) == 3:
                with pytest.raises(SealedError, match="being destroyed"):
                    writer.append(b"announced")
        if kind == "delete" and kinds[-1] != "delete":
            kinds.append(kind)
            with pytest.raises(NotDurableError, match="it was destroyed"):
                other.append(b"gone")

    faulty.before = append
    destroy(faulty, "a")

    # The announcement, the seal, the vacancy, and then the deletes.
    assert kinds == ["replace", "replace", "replace", "delete"]
    writer.close()
    other.close()
    assert remains(store, "a") == []


def test_logs_beside_and_below_are_not_touched(store: ObjectStore) -> None:
    others = ("a-b", "ab", "a/b", "a/deep/below/c", "a/logs")
    for log in ("a", *others):
        fill(store, log, 3)
    # A log that lost its manifest is one, too.
    store.delete("a/logs/manifest/MANIFEST.json")
    before = {log: paths(store, log) for log in others}

    deleted = destroy(store, "a")

    assert deleted >= 4
    assert {log: paths(store, log) for log in others} == before
    assert len(list(LogReader.open(store, "a/b").records())) == 3
    assert {"a-b", "ab", "a/b", "a/deep/below/c"} <= set(list_logs(store))


@pytest.mark.parametrize(
    "path",
    [
        "/notes.txt",
        "/policy.json",
        "/zebra",
        "/~tilde",
        "/manifest/MANIFEST.json.bak",
        "/log/notes.txt",
        "/Life=0/x",
        "policy.json.bak",
        "log/notes.txt",
        "log/Bucket=0000000000000000/Writer=x/FragmentSeqNo=0000000000000001.parquet",
        "log/Bucket=0000000000001000/Writer=0123456789abcdef/FragmentSeqNo=0000000000000001.parquet",
        "snapshot/SNAPSHOT.x",
        "snapshot/~",
        "cursor/deep/reader.json",
        "cursor/reader.json.bak",
        "pin/audit",
        "gc/x",
        "junk/file",
        "/junk/file",
        "/a folder/log/x",
        "/a folder/file",
    ],
)
def test_object_that_no_log_has_is_named_and_stops_everything(store: ObjectStore, path: str) -> None:
    everything(store, "a")
    fill(store, "a/below", 1)
    # Within the life's folder, or under the log's root.
    path = path.removeprefix("/") if path.startswith("/") else f"{life_folder(life(store, 'a'))}{path}"
    store.create(f"a/{path}", b"another's")
    before = paths(store, "a")

    for refused in (plan_destroy, destroy):
        with pytest.raises(InvalidRequestError) as caught:
            refused(store, "a")
        assert f"expected only a log's objects, found {path}: move or delete" in str(caught.value)

    assert paths(store, "a") == before
    assert LogReader.open(store, "a").manifest().seal is None


def test_first_ten_of_many_unknown_objects_are_named(store: ObjectStore) -> None:
    fill(store, "a", 1)
    for number in range(12):
        life_store(store, "a").create(f"cursor/{number:02}.txt", b"")

    with pytest.raises(InvalidRequestError, match=r"found [^ ]*cursor/00\.txt, .*cursor/09\.txt and more: move"):
        plan_destroy(store, "a")


def test_unknown_object_that_appears_meanwhile_stops_it(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)

    inside = FolderStore(memory_store, f"a/{life_folder(life(memory_store, 'a'))}")

    def appear(kind: str, _path: str) -> None:
        if kind == "replace":
            inside.create("log/notes.txt", b"another's")

    store.before = appear
    with pytest.raises(InvalidRequestError, match=r"log/notes\.txt"):
        destroy(store, "a")

    assert inside.read("log/notes.txt") == b"another's"


def test_log_that_is_being_copied_is_not_destroyed(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)
    refused: list[str] = []

    def interfere(kind: str, path: str) -> None:
        if kind == "replace" and path == "b/manifest/MANIFEST.json" and not refused:
            with pytest.raises(InvalidRequestError, match="expected no pins") as caught:
                destroy(memory_store, "a")
            refused.append(str(caught.value))

    store.before = interfere
    copy(LogAt(memory_store, "a"), LogAt(store, "b"))

    assert len(refused) == 1
    assert len(list(LogReader.open(memory_store, "b").records())) == 3


@pytest.mark.slow
def test_destruction_that_was_cut_short_anywhere_is_finished_by_the_next() -> None:
    steps = 0
    for step in range(200):
        origin = MemoryStore(shared_runtime())
        everything(origin, "a")
        fill(origin, "a/below", 1)
        store = FaultyStore(origin)
        left = [step]

        def crash(kind: str, _path: str, left: list[int] = left) -> None:
            left[0] -= kind in {"replace", "delete"}
            if left[0] < 0:
                raise Crashed

        store.before = crash
        try:
            destroy(store, "a", also_pinned=True)
            break
        except Crashed:
            steps += 1
        # The announcement, the seal, the vacancy, and then the deletes.
        if step <= 1:
            fill(origin, "a", 1)
        elif step == 2:
            with LogWriter.open(origin, "a", options=FEW) as writer, pytest.raises(SealedError):
                writer.append(b"late")
        else:
            with pytest.raises(LogNotFoundError, match="it was destroyed"):
                LogReader.open(origin, "a")
        if any(not path.startswith("a/below/") for path in paths(origin, "a") if path != f"a/{MANIFEST}"):
            destroy(origin, "a", also_pinned=True)
        assert [path for path in remains(origin, "a") if not path.startswith("a/below/")] == []
        assert len(list(LogReader.open(origin, "a/below").records())) == 1

    assert steps >= 20


def test_objects_of_a_lost_manifest_are_destroyed_too(store: ObjectStore) -> None:
    everything(store, "a")
    store.delete("a/manifest/MANIFEST.json")

    assert plan_destroy(store, "a").log_id == ""
    destroy(store, "a", also_pinned=True)

    assert remains(store, "a") == []
    LogWriter.create(store, "a")


def test_unfinished_copy_is_destroyed(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    store = FaultyStore(memory_store)
    store.fail("replace", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        copy(LogAt(memory_store, "a"), LogAt(store, "b"))

    destroy(memory_store, "b")

    assert remains(memory_store, "b") == []
    assert len(list(LogReader.open(memory_store, "a").records())) == 5


def test_sealed_log_is_destroyed(store: ObjectStore) -> None:
    fill(store, "a", 2)
    seal(store, "a", reason="full", successor="b")

    destroy(store, "a")

    assert remains(store, "a") == []


def test_uploads_that_were_under_way_are_deleted_too(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)
    inside = FolderStore(memory_store, f"a/{life_folder(life(memory_store, 'a'))}")
    stored = next(meta.path for meta in inside.list_objects("log/"))
    late = iter(["0123456789abcdef", "fedcba9876543210"])

    def upload(kind: str, path: str) -> None:
        if kind == "delete" and "/log/" in path and (token := next(late, None)) is not None:
            inside.create(stored.replace(stored.split("Writer=")[1][:16], token), b"late")

    store.before = upload
    destroy(store, "a")

    assert next(late, None) is None
    assert remains(memory_store, "a") == []


def test_objects_that_never_stop_appearing_end_it_with_an_error_that_says_so(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 1)
    store = FaultyStore(memory_store)
    inside = FolderStore(memory_store, f"a/{life_folder(life(memory_store, 'a'))}")
    number = iter(range(10_000))

    def upload(kind: str, path: str) -> None:
        if kind == "delete" and "/log/" in path:
            token = f"{next(number):016x}"
            inside.create(fragment_path(FragmentSeqNo(1), token), b"late")

    store.before = upload
    with pytest.raises(UnavailableError, match="kept appearing"):
        destroy(store, "a")

    assert len(remains(memory_store, "a")) == 1


def test_two_destroyers_at_once_both_succeed_or_find_nothing(store: ObjectStore) -> None:
    fill(store, "a", 10)

    def attempt(_number: int) -> str:
        try:
            destroy(store, "a")
        except LogNotFoundError:
            return "found nothing"
        return "destroyed"

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(attempt, range(3)))

    assert "destroyed" in answers
    assert set(answers) <= {"destroyed", "found nothing"}
    assert remains(store, "a") == []


@pytest.mark.parametrize("request_", range(30))
def test_log_that_was_begun_again_meanwhile_is_left_alone(memory_store: MemoryStore, request_: int) -> None:
    """Whatever the call was about to do when another one destroyed the log and began it again."""
    fill(memory_store, "a", 5)
    store = FaultyStore(memory_store)
    left = [request_]

    def begin_again(_kind: str, _path: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            with contextlib.suppress(LogNotFoundError):
                destroy(memory_store, "a")
            fill(memory_store, "a", 2)
            CursorStore(memory_store, "a").create("reader", LogPosition(1, 0))

    store.before = begin_again
    try:
        destroy(store, "a")
    except (LogReplacedError, LogNotFoundError):
        assert left[0] < 0

    if left[0] < 0:
        found = ManifestStore(log_store(memory_store, "a"), shared_runtime()).look()
        assert found is not None
        if isinstance(found.document, Vacancy):
            # It had made no request yet: the new log is the one it was asked to destroy.
            assert request_ == 0
        else:
            assert len(list(LogReader.open(memory_store, "a").records())) == 2
            assert list(CursorStore(memory_store, "a").list()) == ["reader"]
            assert scrub(memory_store, "a").sound


def test_log_whose_manifest_is_damaged_is_not_destroyed(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 2)
    memory_store.delete("a/manifest/MANIFEST.json")
    memory_store.create("a/manifest/MANIFEST.json", b"{}")
    before = paths(memory_store, "a")

    with pytest.raises(CorruptError, match="MANIFEST"):
        destroy(memory_store, "a")

    assert paths(memory_store, "a") == before


def test_unanswered_delete_is_retried(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    store = FaultyStore(memory_store)
    store.fail("delete", "/log/", "unavailable", times=3)

    destroy(store, "a")

    assert store.fired["unavailable"] == 3
    assert remains(memory_store, "a") == []


@pytest.mark.parametrize("log", ["../a", "", "a/log", "pin"])
def test_bad_log_name_is_refused(memory_store: MemoryStore, log: str) -> None:
    with pytest.raises(InvalidRequestError, match="log name"):
        destroy(memory_store, log)
