"""A store that does not answer for a while: appends wait within bounds that the caller sets and can see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    CursorStore,
    InvalidRequestError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    OverloadedError,
    ReaderOptions,
    StoreDeniedError,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
    open_store,
)
from wal3_core.options import KIB, RetryOptions
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.retrying import RetryingStore, timeout_s_of

QUICK = RetryOptions(pause_s_min=0.001, pause_s_max=0.05)
ONE_AT_A_TIME = WriterOptions(bytes_held_max=1)
T = TypeVar("T")


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.create(memory_store, "a")
    return FaultyStore(memory_store)


def go_away(faulty: FaultyStore, seconds: float = 3600.0) -> None:
    """Answer nothing for some seconds."""
    for kind in ("create", "replace"):
        faulty.fail(kind, "", "unknown", times=1_000_000)
    for kind in ("read", "get", "head", "list"):
        faulty.fail(kind, "", "unavailable", times=1_000_000)
    back = threading.Timer(seconds, faulty.heal)
    back.daemon = True
    back.start()


def took_s(action: Callable[[], object], error: type[Exception] | None = None) -> float:
    began_s = time.monotonic()
    if error is None:
        action()
    else:
        with pytest.raises(error):
            action()
    return time.monotonic() - began_s


@pytest.mark.slow
def test_append_survives_an_outage_shorter_than_its_timeout(faulty: FaultyStore) -> None:
    """Regression: five attempts were over after a second and a half."""
    with LogWriter.open(faulty, "a") as writer:
        writer.append(b"before")
        go_away(faulty, 2.5)
        futures = [writer.submit(b"%d" % number) for number in range(20)]
        assert [future.result(30).offset for future in futures] == list(range(2, 22))

    assert World(faulty.inner).bodies() == [b"before", *(b"%d" % number for number in range(20))]


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("kind", "target"), [("create", "/log/"), ("head", "/log/"), ("replace", "MANIFEST"), ("get", "MANIFEST")]
)
def test_request_of_an_append_is_retried_for_the_append_s_timeout_alone(
    memory_store: MemoryStore, kind: str, target: str, *, ordered: bool
) -> None:
    memory_store.url = "s3://bucket?timeout_s=0.1"  # only the timeout is taken from it
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)
    options = WriterOptions(retry=QUICK, delivery_timeout_s=30)
    with LogWriter.open(faulty, "a", options=options, ordered=ordered) as writer:
        faulty.fail(kind, target, "unavailable", times=1_000_000)
        # The manifest is loaded when a CAS was refused.
        faulty.fail("replace", "MANIFEST", "conflict", times=1_000_000 if kind == "get" else 0)

        def append() -> None:
            threading.Timer(0.5, faulty.heal).start()
            writer.append(b"x")

        assert took_s(append) >= 0.5

    assert World(memory_store).bodies() == [b"x"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
def test_append_fails_when_its_time_is_over_and_not_before(faulty: FaultyStore, target: str) -> None:
    options = WriterOptions(retry=QUICK, delivery_timeout_s=0.4)
    with LogWriter.open(faulty, "a", options=options) as writer:
        for kind in ("create", "replace"):
            faulty.fail(kind, target, "unavailable" if target == "MANIFEST" else "unknown", times=1_000_000)
        waited_s = took_s(lambda: writer.append(b"x"), NotDurableError)

    assert 0.4 <= waited_s < 5


@pytest.mark.slow
def test_younger_appends_have_time_left_when_the_oldest_has_none(faulty: FaultyStore) -> None:
    options = WriterOptions(retry=QUICK, delivery_timeout_s=2.0)
    with LogWriter.open(faulty, "a", options=options) as writer:
        go_away(faulty)
        old = writer.submit(b"old")
        time.sleep(1.5)
        young = [writer.submit(b"young %d" % number) for number in range(3)]
        assert isinstance(old.exception(30), NotDurableError | UnknownDurabilityError)
        faulty.heal()
        for future in young:
            future.result(30)

    assert World(faulty.inner).bodies()[-3:] == [b"young 0", b"young 1", b"young 2"]


@pytest.mark.slow
def test_append_that_keeps_losing_its_place_ends_once_its_time_is_over(faulty: FaultyStore) -> None:
    """Regression: its time was not checked, and each round left an orphan."""
    uploads: list[str] = []

    def prune_orphans(kind: str, path: str) -> None:
        if kind == "head":
            uploads.append(path)
            time.sleep(0.05)
            faulty.inner.delete(path)

    faulty.before = prune_orphans
    options = WriterOptions(delivery_timeout_s=0.2, rebases_max=1_000_000, commit_pause_s_max=0.01)
    with LogWriter.open(faulty, "a", options=options) as writer:
        waited_s = took_s(lambda: writer.submit(b"x").result(30), NotDurableError)

    assert waited_s >= 0.2
    assert len(uploads) <= 6


@pytest.mark.slow
def test_appends_waiting_in_an_outage_are_bounded_and_visible(faulty: FaultyStore) -> None:
    options = WriterOptions(retry=QUICK, bytes_held_max=20 * KIB)
    with LogWriter.open(faulty, "a", options=options) as writer:
        idle = writer.stats()
        go_away(faulty)
        taken = 0
        with pytest.raises(OverloadedError, match=f"expected room within {20 * KIB} bytes"):
            for _ in range(100):
                writer.submit(b"x" * KIB, timeout_s=0)
                taken += 1
        time.sleep(0.2)
        away = writer.stats()
        faulty.heal()
        writer.flush()
        after = writer.stats()

    assert (idle.bytes_held, idle.appends_waiting, idle.oldest_age_s) == (0, 0, 0.0)
    assert taken == away.appends_waiting == 6
    assert 6 * KIB < away.bytes_held <= 20 * KIB
    assert away.oldest_age_s >= 0.2
    assert away.requests_retried > 0
    assert (after.appends, after.num_records, after.num_bytes, after.appends_failed) == (6, 6, 6 * KIB, 0)
    assert (after.bytes_held, after.appends_waiting) == (0, 0)
    assert after.num_fragments >= after.num_commits > 0
    assert after.commits_per_s > 0
    assert World(faulty.inner).bodies() == [b"x" * KIB] * 6


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_submit_waits_for_room_no_longer_than_its_timeout(faulty: FaultyStore, timeout_s: float) -> None:
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(30) and None if kind == "create" and "/log/" in path else None
    with LogWriter.open(faulty, "a", options=WriterOptions(bytes_held_max=1)) as writer:
        first = writer.submit(b"first")
        for _ in range(3):
            with pytest.raises(OverloadedError):
                writer.submit(b"refused", timeout_s=timeout_s)
        flushing = threading.Thread(target=writer.flush)
        flushing.start()
        gate.set()
        first.result(30)
        flushing.join(30)
        assert not flushing.is_alive()
        # The room reserved by the refused append is free again, all of it.
        writer.submit(b"second", timeout_s=0).result(30)
        assert writer.stats().bytes_held == 0

    assert World(faulty.inner).bodies() == [b"first", b"second"]


def test_append_that_gets_room_in_time_is_not_refused(faulty: FaultyStore) -> None:
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(30) and None if kind == "create" and "/log/" in path else None
    with LogWriter.open(faulty, "a", options=WriterOptions(bytes_held_max=1)) as writer:
        writer.submit(b"first")
        threading.Timer(0.1, gate.set).start()
        assert writer.submit(b"second", timeout_s=30).result(30).offset == 2


class Breaking(ThreadRuntime):
    """A process in which waiting for room itself fails."""

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        if timeout_s == 29:
            raise OverflowError("timeout value is too large")
        return super().wait(future, timeout_s)


def test_append_whose_wait_for_room_fails_is_not_begun(faulty: FaultyStore) -> None:
    """Regression: it entered the log although its caller got an error and appended it again."""
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(30) and None if kind == "create" and "/log/" in path else None
    with Breaking() as runtime, LogWriter.open(faulty, "a", options=ONE_AT_A_TIME, runtime=runtime) as writer:
        writer.submit(b"first")
        with pytest.raises(OverflowError):
            writer.submit(b"second", timeout_s=29)
        gate.set()

    assert World(faulty.inner).bodies() == [b"first"]


def test_wait_for_room_may_be_infinite(faulty: FaultyStore) -> None:
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(30) and None if kind == "create" and "/log/" in path else None
    with LogWriter.open(faulty, "a", options=ONE_AT_A_TIME) as writer:
        writer.submit(b"first")
        threading.Timer(0.1, gate.set).start()
        assert writer.submit(b"second", timeout_s=float("inf")).result(30).offset == 2


@pytest.mark.slow
def test_reads_and_cursors_survive_an_outage(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a") as writer:
        writer.append_many([b"1", b"2"])
    reader, cursors = LogReader.open(faulty, "a"), CursorStore(faulty, "a")
    for look in (
        lambda: list(reader.records()),
        lambda: LogReader.open(faulty, "a"),
        lambda: cursors.create("c", LogPosition(1, 0)),
        lambda: CursorStore(faulty, "a").load("c"),
        cursors.list,
        lambda: LogWriter.open(faulty, "a"),
    ):
        go_away(faulty, 0.3)
        assert took_s(look) >= 0.3


@pytest.mark.slow
def test_read_that_is_denied_fails_at_once_and_one_that_is_not_answered_in_time(faulty: FaultyStore) -> None:
    faulty.fail("get", "MANIFEST", "denied", times=1_000_000)
    assert took_s(lambda: LogReader.open(faulty, "a"), StoreDeniedError) < 5
    faulty.heal()
    go_away(faulty)
    options = ReaderOptions(retry=RetryOptions(timeout_s=0.3))

    with pytest.raises(UnavailableError):
        LogReader.open(faulty, "a", options=options)
    faulty.heal()


def test_interrupted_listing_continues_where_it_was(memory_store: MemoryStore) -> None:
    for number in range(5):
        memory_store.create(f"x/{number}", b"")

    class Breaking(FaultyStore):
        def list_objects(self, folder: str, *, start_after: str = "") -> object:
            for at, meta in enumerate(self.inner.list_objects(folder, start_after=start_after)):
                if at == 2:
                    raise UnavailableError("expected another page, found none")
                yield meta

    store = RetryingStore(Breaking(memory_store), QUICK, shared_runtime())

    assert [meta.path for meta in store.list_objects("x/")] == [f"x/{number}" for number in range(5)]


@pytest.mark.slow
def test_store_s_url_sets_how_long_it_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")

    def opened(options: str) -> ObjectStore:
        return open_store(f"s3://bucket/x?endpoint=http://127.0.0.1:1{options}")

    assert timeout_s_of(opened("").url) == 120
    assert timeout_s_of(opened("&timeout_s=0.2&request_timeout_s=1").url) == 0.2
    assert took_s(lambda: LogReader.open(opened("&timeout_s=0.2"), "a"), UnavailableError) < 30
    for name, value in (("timeout_s", "soon"), ("request_timeout_s", "-1"), ("timeout_s", "nan")):
        with pytest.raises(InvalidRequestError, match=f"expected {name} to be seconds"):
            opened(f"&{name}={value}")
