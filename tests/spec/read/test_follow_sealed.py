"""A follower of a sealed log ends after its last record, or continues in the next log when asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.spec.seals import bodies, collect, fill
from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    AtTime,
    CorruptError,
    GarbageCollectedError,
    Limits,
    LogNotFoundError,
    LogReader,
    LogWriter,
    MemoryStore,
    Origin,
    ReaderOptions,
    bootstrap,
    create_successor,
    destroy,
    follow_across,
    migrate,
    seal,
)
from wal3_core.format.position import ReadStart
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

QUICK = ReaderOptions(poll_s_min=0.01, poll_s_max=0.02)
DEADLINE_S = 20.0


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "still waiting"


# ---------------------------------------------------------------------- reading inside a sealed log


INSIDE = [Limits(offset=2), Limits(offset=4), Limits(records=3), Limits(fragments=3), Limits(records=0)]


@pytest.mark.parametrize("limits", INSIDE, ids=str)
def test_read_bounded_inside_a_sealed_log_never_reads_its_successor(store: ObjectStore, limits: Limits) -> None:
    """Regression: it failed after its last record, when the successor was missing or had been collected."""
    fill(store, "a", b"1", b"2", b"3")
    seal(store, "a", reason="full", successor="b")
    expected = bodies(store, "a", limits=limits)
    assert expected == [record.body for record in LogReader.open(store, "a").records(None, limits)]

    create_successor(store, "a")
    fill(store, "b", b"4", b"5")
    collect(store, "b", 5)
    asked: list[str] = []
    watching = FaultyStore(store, before=lambda _kind, path: asked.append(path))

    assert bodies(watching, "a", limits=limits) == expected
    assert {path.split("/")[0] for path in asked} == {"a"}


def test_read_bounded_in_time_finds_records_of_the_successor_dated_earlier(
    memory_store: MemoryStore,
) -> None:
    """Regression: a log years ahead continues at the store's time, and a limit between the two skipped its records."""
    now_us = shared_runtime().now_us()
    tomorrow_us, ahead_us = now_us + 86_400 * 10**6, now_us + 400 * 86_400 * 10**6
    bootstrap(memory_store, "a", [], Origin(timestamp_us=ahead_us, any_time=True))
    fill(memory_store, "a", b"ahead")
    migrate(memory_store, "a", "b", reason="its time is years ahead")
    fill(memory_store, "b", b"1", b"2")
    migrate(memory_store, "b", "c", reason="full")
    fill(memory_store, "c", b"3")

    assert bodies(memory_store, "a", limits=Limits(timestamp_us=tomorrow_us)) == [b"1", b"2", b"3"]
    assert bodies(memory_store, "a", limits=Limits(timestamp_us=tomorrow_us, records=2)) == [b"1", b"2"]
    assert bodies(memory_store, "a", limits=Limits(timestamp_us=now_us)) == []
    assert bodies(memory_store, "a", AtTime(ahead_us)) == [b"ahead", b"1", b"2", b"3"]
    assert bodies(memory_store, "a", AtTime(ahead_us + 1)) == []
    between = bodies(memory_store, "a", AtTime(now_us), Limits(timestamp_us=ahead_us))
    assert between == [b"1", b"2", b"3"]


def test_read_one_record_beyond_a_sealed_log_reads_its_successor(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")
    seal(memory_store, "a", reason="full", successor="b")

    for limits in (Limits(offset=4), Limits(records=3)):
        with pytest.raises(LogNotFoundError, match="create the successor"):
            bodies(memory_store, "a", limits=limits)


# ---------------------------------------------------------------------- following up to a seal


def test_follower_of_a_sealed_log_ends_after_its_last_record(store: ObjectStore) -> None:
    """Regression: it waited forever."""
    fill(store, "a", b"1", b"2")
    seal(store, "a", reason="full")
    found: list[bytes | None] = []

    ended(in_thread(lambda: found.extend(record.body for record in LogReader.open(store, "a").follow())))

    assert found == [b"1", b"2"]


@pytest.mark.parametrize("successor", [None, "b"])
def test_follower_notices_the_seal_while_it_waits(store: ObjectStore, successor: str | None) -> None:
    fill(store, "a", b"1")
    reader, found = LogReader.open(store, "a", options=QUICK), []
    following = reader.following()
    came = threading.Event()

    def follow() -> None:
        for record in following.records():
            found.append(record.body)
            came.set()

    thread = in_thread(follow)
    assert came.wait(DEADLINE_S)
    fill(store, "a", b"2")
    seal(store, "a", reason="full", successor=successor)
    ended(thread)

    assert found == [b"1", b"2"]
    assert following.sealed is not None
    assert following.sealed.seal is not None
    assert (following.sealed.seal.successor, following.start) == (successor, 3)


def test_follower_reads_what_was_appended_between_its_last_look_and_the_seal(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    store, looks = FaultyStore(memory_store), iter(range(100))

    def move_on(kind: str, path: str) -> None:
        if kind == "get" and path.endswith("MANIFEST.json") and next(looks) == 2:
            fill(memory_store, "a", b"2", b"3")
            seal(memory_store, "a", reason="full")

    store.before = move_on

    assert [record.body for record in LogReader.open(store, "a", options=QUICK).follow()] == [b"1", b"2", b"3"]


def test_idle_follower_ends_and_says_that_the_log_continues(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    following = LogReader.open(memory_store, "a", options=QUICK).following()

    assert next(following.records()).body == b"1"
    assert following.sealed is None
    assert len(list(LogReader.open(memory_store, "a", options=QUICK).follow(idle_s=0.05))) == 1


# ---------------------------------------------------------------------- following into successors


def across(store: ObjectStore, start: ReadStart = None, *, idle_s: float = 0.1) -> list[bytes | None]:
    return [record.body for record in follow_across(store, "a", start, idle_s=idle_s, options=QUICK)]


def chain(store: ObjectStore) -> None:
    """1, 2 in a; 3 in b; 4 in c, which is open."""
    for log, successor, held in (("a", "b", (b"1", b"2")), ("b", "c", (b"3",)), ("c", None, (b"4",))):
        fill(store, log, *held)
        if successor is not None:
            migrate(store, log, successor, reason="a test")


@pytest.mark.parametrize(
    ("start", "expected"),
    [(None, "1234"), (2, "234"), (3, "34"), (4, "4"), (5, ""), (AtTime(0), "1234"), (AtTime(2**62), "")],
)
def test_follower_continues_in_the_successor_when_asked_to(
    memory_store: MemoryStore, start: ReadStart, expected: str
) -> None:
    chain(memory_store)

    assert b"".join(body or b"" for body in across(memory_store, start)).decode() == expected


def test_follower_waits_for_a_successor_that_is_yet_to_be_created(store: ObjectStore) -> None:
    fill(store, "a", b"1")
    seal(store, "a", reason="full", successor="b")
    found: list[bytes | None] = []
    came = threading.Event()

    def follow() -> None:
        for record in follow_across(store, "a", idle_s=DEADLINE_S, options=QUICK):
            found.append(record.body)
            came.set()
            if len(found) == 3:
                return

    thread = in_thread(follow)
    assert came.wait(DEADLINE_S)
    create_successor(store, "a")
    fill(store, "b", b"2")
    migrate(store, "b", "c", reason="again")
    fill(store, "c", b"3")
    ended(thread)

    assert found == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_follower_that_waits_for_a_successor_polls_seldom_and_ends_when_idle(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    seal(memory_store, "a", reason="full", successor="b")
    store = CountingStore(memory_store)

    assert across(store, idle_s=0.3) == [b"1"]

    assert 5 < store.requests["get"] < 40


def test_follower_across_ends_at_a_seal_that_names_no_successor(memory_store: MemoryStore) -> None:
    chain(memory_store)
    seal(memory_store, "c", reason="the end")

    found: list[bytes | None] = []
    ended(in_thread(lambda: found.extend(record.body for record in follow_across(memory_store, "a", options=QUICK))))

    assert found == [b"1", b"2", b"3", b"4"]


def test_follower_never_mistakes_another_log_for_the_successor(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    seal(memory_store, "a", reason="full", successor="b")
    destroy(memory_store, "b")
    LogWriter.create(memory_store, "b")

    with pytest.raises(CorruptError, match="expected it to go on from log a"):
        across(memory_store)


def test_follower_never_skips_a_gap_between_two_logs(memory_store: MemoryStore) -> None:
    chain(memory_store)
    collect(memory_store, "c", 5)

    with pytest.raises(GarbageCollectedError, match="from 5, found 4"):
        across(memory_store)


def test_follower_of_a_missing_log_says_so(memory_store: MemoryStore) -> None:
    with pytest.raises(LogNotFoundError, match="create the log first"):
        across(memory_store)
