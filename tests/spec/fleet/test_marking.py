"""Marking: an append is acknowledged when its fragment and the fragment's marker are both durable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    ClosedError,
    InvalidRequestError,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    SealedError,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
    destroy,
    seal,
)
from wal3_core.errors import UnmarkedError
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.fleet.dirty.rollup import RollUp
from wal3_core.format.marker import Marker, life_of_log
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

QUICK = RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01)
HASTY = WriterOptions(retry=QUICK, delivery_timeout_s=0.05)
LIMIT_S = 30


def markers_of(store: ObjectStore, name: str = "dirty/s") -> list[Marker]:
    """Read the markers of a dirty log."""
    return [Marker.of_record(record, what=name) for record in LogReader.open(store, name).records()]


def spans(store: ObjectStore, log: str, name: str = "dirty/s") -> list[tuple[int, int]]:
    """The offsets that a dirty log marks in a log."""
    return [(marker.start, marker.limit.offset) for marker in markers_of(store, name) if marker.log == log]


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.create(memory_store, "a")
    LogWriter.create(memory_store, "dirty/s")
    return FaultyStore(memory_store)


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


def hold(store: FaultyStore, gate: threading.Event, part: str, kind: str = "create") -> threading.Event:
    """Hold requests back until the gate opens; return what is set when the first one has come."""
    came = threading.Event()

    def before(found: str, path: str) -> None:
        if found == kind and part in path:
            came.set()
            assert gate.wait(LIMIT_S)

    store.before = before
    return came


def test_acknowledged_append_has_its_marker_at_its_place(store: ObjectStore) -> None:
    world = World(store)
    with DirtyLog.open_or_create(store, "s") as dirty, LogWriter.open_or_create(store, "a", marks=dirty) as writer:
        for number in range(3):
            position = writer.append_many([b"%d" % number] * (number + 1))
            newest = markers_of(store)[-1]
            assert newest.log == "a"
            assert newest.life == life_of_log(world.manifest().log_id)
            assert newest.start == position.offset
            assert newest.limit == world.manifest().next.position
            assert (newest.num_records, newest.reinsertions) == (number + 1, 0)


def test_append_is_not_acknowledged_before_its_marker_is_durable(faulty: FaultyStore, gate: threading.Event) -> None:
    came = hold(faulty, gate, "dirty/", "replace")
    with DirtyLog.open_or_create(faulty, "s") as dirty, LogWriter.open(faulty, "a", marks=dirty) as writer:
        future = writer.submit(b"x")
        assert came.wait(LIMIT_S)
        wait_until(lambda: World(faulty.inner).bodies() == [b"x"])
        assert not future.done()
        assert writer.stats().appends_waiting == 1
        flushed = threading.Thread(target=writer.flush)
        flushed.start()
        flushed.join(0.05)
        assert flushed.is_alive()
        gate.set()
        assert future.result(LIMIT_S).offset == 1
        flushed.join(LIMIT_S)
        assert not flushed.is_alive()
        assert writer.stats().appends_waiting == 0


def test_marker_is_written_beside_its_fragment_and_not_after_it(faulty: FaultyStore, gate: threading.Event) -> None:
    came = hold(faulty, gate, "a/Life=")
    with DirtyLog.open_or_create(faulty, "s") as dirty, LogWriter.open(faulty, "a", marks=dirty) as writer:
        future = writer.submit(b"x")
        assert came.wait(LIMIT_S)
        # The fragment is not uploaded yet.
        wait_until(lambda: spans(faulty.inner, "a") == [(1, 2)])
        assert not future.done()
        gate.set()
        future.result(LIMIT_S)


@pytest.mark.parametrize("fault", ["denied", "unavailable", "unknown"])
def test_append_whose_marker_fails_is_reported_as_in_the_log_and_unmarked(faulty: FaultyStore, fault: str) -> None:
    with (
        DirtyLog.open_or_create(faulty, "s", options=HASTY) as dirty,
        LogWriter.open(faulty, "a", options=HASTY, marks=dirty) as writer,
    ):
        writer.append(b"first")
        faulty.fail("replace", "dirty/", fault, times=1000)
        # A marker that fails before its fragment's upload has begun refuses the append instead.
        uploading = threading.Event()

        def before(kind: str, path: str) -> None:
            if kind == "create" and path.startswith("a/"):
                uploading.set()
            assert kind != "replace" or "dirty/" not in path or uploading.wait(LIMIT_S)

        faulty.before = before
        futures = [writer.submit(b"x"), writer.submit(b"y")]
        errors = [future.exception(LIMIT_S) for future in futures]
        assert [type(error) for error in errors] == [UnmarkedError] * 2
        assert [error.offset for error in errors if isinstance(error, UnmarkedError)] == [2, 3]
        assert "do not append them again" in str(errors[0])
        assert not isinstance(errors[0], NotDurableError | UnknownDurabilityError)
        assert writer.stats().appends_failed == 2
        faulty.heal()
        # Neither the writer nor the dirty log is stuck.
        assert writer.append(b"z").offset == 4
    assert World(faulty.inner).bodies() == [b"first", b"x", b"y", b"z"]


def test_append_waits_for_its_marker_no_longer_than_its_own_time(faulty: FaultyStore, gate: threading.Event) -> None:
    hold(faulty, gate, "dirty/", "replace")
    hasty = WriterOptions(delivery_timeout_s=0.3)
    with (
        DirtyLog.open_or_create(faulty, "s") as dirty,
        LogWriter.open(faulty, "a", options=hasty, marks=dirty) as writer,
    ):
        error = writer.submit(b"x").exception(LIMIT_S)
        assert isinstance(error, UnmarkedError)
        assert error.offset == 1
        assert "its marker has no answer within the append's 0.3 s" in str(error)
        gate.set()
        # The marker is late, and lands: maintenance learns of the record.
        wait_until(lambda: spans(faulty.inner, "a") == [(1, 2)])
        assert writer.append(b"y").offset == 2
    assert World(faulty.inner).bodies() == [b"x", b"y"]


def test_dirty_log_that_takes_no_markers_refuses_appends_before_anything_is_uploaded(faulty: FaultyStore) -> None:
    with DirtyLog.open_or_create(faulty, "s", lanes_max=1) as dirty, LogWriter.open(faulty, "a", marks=dirty) as writer:
        writer.append(b"x")
        seal(faulty.inner, "dirty/s", reason="no server any more")
        # Until the dirty log's writer learns of the seal, fragments are uploaded beside their markers.
        with pytest.raises((UnmarkedError, NotDurableError)):
            writer.append(b"y")
        held = World(faulty.inner).bodies()
        uploads: list[str] = []
        faulty.before = lambda kind, path: uploads.append(path) if kind == "create" else None
        with pytest.raises(NotDurableError, match="sealed") as refused:
            writer.append(b"z")
        assert isinstance(refused.value.__cause__, SealedError)
        assert uploads == []
    assert World(faulty.inner).bodies() == held


def test_destroyed_dirty_log_refuses_appends_before_anything_is_uploaded(faulty: FaultyStore) -> None:
    """Regression: each append was committed, and failed as unmarked, until the server was started again."""
    with DirtyLog.open_or_create(faulty, "s") as dirty, LogWriter.open(faulty, "a", marks=dirty) as writer:
        writer.append(b"x")
        destroy(faulty.inner, "dirty/s")
        with pytest.raises((UnmarkedError, NotDurableError)):
            writer.append(b"y")
        held = World(faulty.inner).bodies()
        for _ in range(2):
            with pytest.raises(NotDurableError, match="destroyed"):
                writer.append(b"z")
    assert World(faulty.inner).bodies() == held


def test_markers_that_wait_fail_with_the_last_lane(faulty: FaultyStore, gate: threading.Event) -> None:
    """Regression: nothing sent them any more, so their appends, and a close, waited for ever."""
    LogWriter.create(faulty.inner, "b")
    came = hold(faulty, gate, "dirty/s/manifest", "replace")
    dirty = DirtyLog.open_or_create(faulty, "s", lanes_max=1)
    first, second = (LogWriter.open(faulty, log, marks=dirty) for log in ("a", "b"))
    futures = [first.submit(b"x")]
    assert came.wait(LIMIT_S)
    futures.append(second.submit(b"y"))
    wait_until(lambda: World(faulty.inner, "b").bodies() == [b"y"])
    seal(faulty.inner, "dirty/s", reason="no server any more")
    gate.set()
    for future in futures:
        assert isinstance(future.exception(LIMIT_S), UnmarkedError)
    for each in (first, second, dirty):
        each.close()


def test_records_that_lose_their_place_are_marked_at_their_new_one(faulty: FaultyStore, gate: threading.Event) -> None:
    came = hold(faulty, gate, "a/manifest", "replace")
    with DirtyLog.open_or_create(faulty, "s") as dirty, LogWriter.open(faulty, "a", marks=dirty) as writer:
        future = writer.submit(b"mine")
        assert came.wait(LIMIT_S)
        with LogWriter.open(faulty.inner, "a") as other:
            other.append_many([b"theirs"] * 3)
        gate.set()
        assert future.result(LIMIT_S).offset == 4
    assert (4, 5) in spans(faulty.inner, "a")


def test_record_that_is_marked_again_at_its_place_counts_once(faulty: FaultyStore) -> None:
    """A collection moved the fence, or two servers took turns: the fragment was uploaded and marked again."""

    def once(marked: tuple[int, int], act: Callable[[], object]) -> None:
        """Act before the commit, when its marker is in the dirty log: a marker that waits is not written twice."""

        def before(kind: str, path: str) -> None:
            if (kind, path) == ("replace", "a/manifest/MANIFEST.json"):
                faulty.before = lambda _kind, _path: None
                wait_until(lambda: marked in spans(faulty.inner, "a"))
                act()

        faulty.before = before

    def move_fence() -> None:
        manifests = ManifestStore(log_store(faulty.inner, "a"), shared_runtime())
        manifests.change(manifests.load(), lambda each: replace(each, fence=each.fence + 1))

    with DirtyLog.open_or_create(faulty, "s") as dirty:
        with LogWriter.open(faulty, "a", marks=dirty) as writer:
            writer.append_many([b"1"] * 3)
        with LogWriter.open(faulty.inner, "a") as other:
            other.append_many([b"another lane's"] * 50)
        with LogWriter.open(faulty, "a", marks=dirty) as writer:
            once((54, 58), move_fence)
            writer.append_many([b"2"] * 4)
            with LogWriter.open(faulty, "a", marks=dirty) as other:
                once((58, 63), lambda: other.append_many([b"3"] * 5))
                writer.append_many([b"4"] * 5)

    assert spans(faulty.inner, "a") == [(1, 4), (54, 58), (54, 58), (58, 63), (58, 63), (63, 68)]
    [found] = RollUp(faulty.inner, "dirty/s").read().logs
    assert found.num_records == 3 + 4 + 5 + 5


def test_resumed_writer_has_its_undetermined_appends_marked(faulty: FaultyStore) -> None:
    """Otherwise the report says that they are in the log, and no marker says so."""
    with DirtyLog.open_or_create(faulty, "s", options=HASTY) as dirty:
        writer = LogWriter.open(faulty, "a", options=HASTY, ordered=True, marks=dirty)
        faulty.fail("replace", "dirty/", "unavailable", times=1000)
        faulty.fail("replace", "a/manifest", "applied-unknown", times=1)
        faulty.fail("get", "a/manifest", "unavailable", times=1000)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"x")
        faulty.plans = [plan for plan in faulty.plans if plan.matches("replace", "dirty/")]
        with pytest.raises(UnavailableError, match="not marked"):
            writer.resume()
        assert spans(faulty.inner, "a") == []
        faulty.heal()
        assert writer.resume().appends == 1
        writer.close()
    assert spans(faulty.inner, "a") == [(1, 2)]


def test_further_lane_takes_markers_while_the_first_is_busy(faulty: FaultyStore, gate: threading.Event) -> None:
    LogWriter.create(faulty.inner, "b")
    came = hold(faulty, gate, "dirty/s/manifest", "replace")
    with (
        DirtyLog.open_or_create(faulty, "s") as dirty,
        LogWriter.open(faulty, "a", marks=dirty) as first,
        LogWriter.open(faulty, "b", marks=dirty) as second,
    ):
        blocked = first.submit(b"x")
        assert came.wait(LIMIT_S)
        # Not behind the commit that hangs.
        assert second.append(b"y").offset == 1
        assert spans(faulty.inner, "b", "dirty/s/1") == [(1, 2)]
        assert not blocked.done()
        assert dirty.lanes == 2
        gate.set()
        blocked.result(LIMIT_S)


def test_server_that_writes_many_logs_at_once_marks_them_together(faulty: FaultyStore, gate: threading.Event) -> None:
    names = [f"log{number}" for number in range(20)]
    came = hold(faulty, gate, "dirty/s/manifest", "replace")
    with DirtyLog.open_or_create(faulty, "s", lanes_max=1) as dirty:
        writers = [LogWriter.open_or_create(faulty, name, marks=dirty) for name in names]
        futures = [writers[0].submit(b"x")]
        assert came.wait(LIMIT_S)
        futures += [writer.submit(b"x") for writer in writers[1:]]
        wait_until(lambda: all(World(faulty.inner, name).bodies() == [b"x"] for name in names))
        gate.set()
        for future in futures:
            future.result(LIMIT_S)
        for writer in writers:
            writer.close()
    marked = World(faulty.inner, "dirty/s").manifest()
    assert (marked.num_records, len(marked.fragments)) == (20, 2)


def test_closed_dirty_log_refuses_and_has_appended_all_before(faulty: FaultyStore) -> None:
    dirty = DirtyLog.open_or_create(faulty, "s")
    writer = LogWriter.open(faulty, "a", marks=dirty)
    future = writer.submit(b"x")
    future.result(LIMIT_S)
    dirty.close()
    with pytest.raises(NotDurableError, match="found it closed") as refused:
        writer.append(b"y")
    assert isinstance(refused.value.__cause__, ClosedError)
    writer.close()
    assert World(faulty.inner).bodies() == [b"x"]


@pytest.mark.parametrize("server", ["", "a/b", "log", "ü", 7])
def test_name_that_no_server_can_have_is_refused(memory_store: MemoryStore, server: object) -> None:
    with pytest.raises(InvalidRequestError):
        DirtyLog.open_or_create(memory_store, server)


def test_marks_of_another_type_are_refused(faulty: FaultyStore) -> None:
    with pytest.raises(InvalidRequestError, match="dirty log"):
        LogWriter.open(faulty, "a", marks="dirty/s")


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    waiting = threading.Event()
    for _ in range(LIMIT_S * 100):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError(f"not within {LIMIT_S} s")


def test_lane_that_could_not_be_opened_is_opened_later(
    faulty: FaultyStore, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it counted against ``lanes_max``, so that a server kept to one lane after a short outage."""
    monkeypatch.setattr("wal3_core.fleet.dirty.dirty_log._OPEN_AGAIN_S", 0.0)
    for log in ("b", "c"):
        LogWriter.create(faulty.inner, log)
    came = hold(faulty, gate, "dirty/s/manifest", "replace")
    with (
        DirtyLog.open_or_create(faulty, "s", lanes_max=2) as dirty,
        LogWriter.open(faulty, "a", marks=dirty) as first,
        LogWriter.open(faulty, "b", marks=dirty) as second,
        LogWriter.open(faulty, "c", marks=dirty) as third,
    ):
        blocked = [first.submit(b"x")]
        assert came.wait(LIMIT_S)
        faulty.fail("create", "dirty/s/1/", "denied", times=1)
        blocked.append(second.submit(b"y"))
        wait_until(lambda: faulty.fired["denied"] > 0)
        assert third.append(b"z").offset == 1
        assert dirty.lanes == 2
        gate.set()
        for future in blocked:
            future.result(LIMIT_S)
