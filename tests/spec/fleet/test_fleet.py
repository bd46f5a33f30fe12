"""A fleet: many logs written from one process, opened when they are used and closed for others."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from tests.spec.fleet.test_marking import spans, wait_until
from tests.stores import CountingStore, FaultyStore
from tests.world import World
from wal3_core import (
    AppendReplacedError,
    ClosedError,
    InvalidRequestError,
    LogNotFoundError,
    LogWriter,
    MemoryStore,
    Message,
    NotDurableError,
    OverloadedError,
    RollUp,
    RollUpOptions,
    SealedError,
    WriterOptions,
    destroy,
    seal,
)
from wal3_core.fleet.fleet import Fleet, OpenLogs, Use
from wal3_core.options import FleetOptions, RetryOptions
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

LIMIT_S = 30
HASTY = WriterOptions(retry=RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01), delivery_timeout_s=0.05)


def creating(logs_open_max: int = 5000, **options: int) -> FleetOptions:
    return FleetOptions(logs_open_max=logs_open_max, creates=True, **options)


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    return FaultyStore(memory_store)


def held(store: FaultyStore, part: str) -> tuple[threading.Event, threading.Event]:
    """Hold uploads to a folder back; return the gate, and what is set when the first one has come."""
    gate, came = threading.Event(), threading.Event()

    def before(kind: str, path: str) -> None:
        if kind == "create" and part in path:
            came.set()
            assert gate.wait(LIMIT_S)

    store.before = before
    return gate, came


def test_each_log_gets_its_records_in_order_and_its_markers(store: ObjectStore) -> None:
    logs = [f"tenant/{number}" for number in range(5)]
    with Fleet.open(store, server="s", options=creating(logs_open_max=2)) as fleet:
        for number in range(3):
            for log in logs:
                assert fleet.append(log, b"%d" % number).offset == number + 1
        assert fleet.append_many(logs[0], [b"x", Message(b"y", b"k")]).offset == 4
        stats = fleet.stats()
        assert (stats.appends, stats.appends_failed, stats.logs_open) == (16, 0, 2)
        assert stats.logs_opened == stats.logs_closed + 2
    assert World(store, logs[0]).bodies() == [b"0", b"1", b"2", b"x", b"y"]
    assert World(store, logs[4]).bodies() == [b"0", b"1", b"2"]
    assert spans(store, logs[4]) == [(1, 2), (2, 3), (3, 4)]


def test_log_is_opened_once_by_one_get_for_any_number_of_callers(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    counting = CountingStore(memory_store)
    with Fleet.open(counting) as fleet, ThreadPoolExecutor(16) as threads:
        positions = list(threads.map(lambda n: fleet.append("a", b"%d" % n).offset, range(64)))
    assert sorted(positions) == list(range(1, 65))
    assert counting.requests["get"] == 1


def test_open_log_without_appends_makes_no_requests(memory_store: MemoryStore) -> None:
    counting = CountingStore(memory_store)
    with Fleet.open(counting, options=creating()) as fleet:
        for number in range(20):
            fleet.append(f"log{number}", b"x")
        before = counting.requests.copy()
        threading.Event().wait(0.1)
        assert counting.requests == before


def test_missing_log_is_named_and_the_next_append_looks_again(memory_store: MemoryStore) -> None:
    with Fleet.open(memory_store) as fleet:
        for _ in range(2):
            with pytest.raises(LogNotFoundError, match="orders"):
                fleet.append("orders", b"x")
        assert fleet.stats().logs_open == 0
        LogWriter.create(memory_store, "orders")
        assert fleet.append("orders", b"x").offset == 1


def test_log_with_work_is_never_closed_for_another(faulty: FaultyStore) -> None:
    with Fleet.open(faulty, options=creating(logs_open_max=2)) as fleet:
        fleet.append("a", b"1")
        fleet.append("b", b"1")
        gate, came = held(faulty, "a/Life=")
        future = fleet.submit("a", b"2")
        assert came.wait(LIMIT_S)
        # Closes b, although a was idle before.
        fleet.append("c", b"1")
        fleet.append("d", b"1")
        assert not future.done()
        gate.set()
        assert future.result(LIMIT_S).offset == 2
        assert fleet.stats().logs_opened == 4


def test_caller_waits_for_an_open_log_to_become_idle(faulty: FaultyStore) -> None:
    with Fleet.open(faulty, options=creating(logs_open_max=1)) as fleet:
        fleet.append("a", b"1")
        gate, came = held(faulty, "a/Life=")
        future = fleet.submit("a", b"2")
        assert came.wait(LIMIT_S)
        with pytest.raises(OverloadedError, match="1 open logs"):
            fleet.submit("b", b"x", timeout_s=0.01)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(fleet.append, "b", b"1")
            gate.set()
            assert waiting.result(LIMIT_S).offset == 1
        future.result(LIMIT_S)
    assert World(faulty.inner, "b").bodies() == [b"1"]


def test_held_writer_keeps_its_log_open(memory_store: MemoryStore) -> None:
    with Fleet.open(memory_store, options=creating(logs_open_max=2)) as fleet:
        with fleet.writer("a") as writer:
            assert writer.append(b"1").offset == 1
            for log in "bcd":
                fleet.append(log, b"x")
            assert writer.submit_many([b"2", b"3"]).result(LIMIT_S).offset == 2
            assert fleet.stats().logs_opened == 4
        for log in "ef":
            fleet.append(log, b"x")
        fleet.append("a", b"4")
        assert fleet.stats().logs_opened == 7
    assert World(memory_store).bodies() == [b"1", b"2", b"3", b"4"]


def test_bytes_of_all_logs_together_are_bounded(faulty: FaultyStore) -> None:
    with Fleet.open(faulty, options=creating(bytes_held_max=2000)) as fleet:
        fleet.append("a", b"")
        fleet.append("b", b"")
        gate, came = held(faulty, "/log/")
        future = fleet.submit("a", bytes(1000))
        assert came.wait(LIMIT_S)
        with pytest.raises(OverloadedError, match="2000 bytes"):
            fleet.submit("b", bytes(1000), timeout_s=0)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(fleet.append, "b", bytes(1000))
            gate.set()
            assert waiting.result(LIMIT_S).offset == 2
        assert future.result(LIMIT_S).offset == 2
        # Larger than the limit: alone.
        assert fleet.append("a", bytes(5000)).offset == 3
        wait_until(lambda: fleet.stats().bytes_held == 0)


def test_log_that_was_replaced_is_opened_anew(memory_store: MemoryStore) -> None:
    with Fleet.open(memory_store, server="s", options=creating()) as fleet:
        fleet.append("a", b"old")
        destroy(memory_store, "a")
        LogWriter.create(memory_store, "a")
        with pytest.raises(AppendReplacedError):
            fleet.append("a", b"lost")
        assert fleet.append("a", b"new").offset == 1
    assert World(memory_store).bodies() == [b"new"]


def test_name_of_a_sealed_and_destroyed_log_can_be_used_again(memory_store: MemoryStore) -> None:
    """Regression: the fleet refused the new log's appends for the seal of the one before, until it was closed."""
    with Fleet.open(memory_store, options=creating()) as fleet:
        fleet.append("a", b"old")
        seal(memory_store, "a", reason="moved")
        for _ in range(2):
            with pytest.raises(SealedError):
                fleet.append("a", b"late")
        destroy(memory_store, "a")
        LogWriter.create(memory_store, "a")
        assert fleet.append("a", b"new").offset == 1
    assert World(memory_store).bodies() == [b"new"]


def test_log_that_was_destroyed_is_created_again_by_a_fleet_that_creates(memory_store: MemoryStore) -> None:
    """Regression: its appends failed until the fleet was closed."""
    with Fleet.open(memory_store, options=creating()) as fleet:
        fleet.append("a", b"old")
        destroy(memory_store, "a")
        with pytest.raises(NotDurableError, match="destroyed"):
            fleet.append("a", b"lost")
        assert fleet.append("a", b"new").offset == 1
    assert World(memory_store).bodies() == [b"new"]


def test_log_that_fails_disturbs_no_other(faulty: FaultyStore) -> None:
    with Fleet.open(faulty, options=FleetOptions(creates=True, writer=HASTY)) as fleet:
        fleet.append("bad", b"1")
        faulty.fail("create", "bad/Life=", "denied", times=10_000)
        failed = fleet.submit("bad", b"2")
        for number in range(5):
            assert fleet.append(f"good{number}", b"x").offset == 1
        assert isinstance(failed.exception(LIMIT_S), Exception)
        faulty.heal()
        assert fleet.append("bad", b"3").offset == 2


def test_close_waits_for_what_was_submitted_and_refuses_more(faulty: FaultyStore) -> None:
    fleet = Fleet.open(faulty, server="s", options=creating())
    fleet.append("a", b"1")
    gate, came = held(faulty, "a/Life=")
    future = fleet.submit("a", b"2")
    assert came.wait(LIMIT_S)
    closing = threading.Thread(target=fleet.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.set()
    closing.join(LIMIT_S)
    assert future.done()
    with pytest.raises(ClosedError):
        fleet.append("a", b"3")
    assert World(faulty.inner).bodies() == [b"1", b"2"]


def test_flush_waits_for_every_log(faulty: FaultyStore) -> None:
    with Fleet.open(faulty, options=creating()) as fleet:
        futures = [fleet.submit(f"log{number % 7}", b"x") for number in range(50)]
        fleet.flush()
        assert all(future.done() for future in futures)


@pytest.mark.parametrize("log", ["", "a//b", "log", 7, b"a"])
def test_name_that_no_log_can_have_is_refused(memory_store: MemoryStore, log: object) -> None:
    with Fleet.open(memory_store, options=creating()) as fleet, pytest.raises(InvalidRequestError):
        fleet.append(log, b"x")


@pytest.mark.parametrize("log", ["dirty/s", "dirty/s/1", "dirty/laundry"])
def test_fleet_appends_to_no_dirty_log(memory_store: MemoryStore, log: str) -> None:
    """Regression: one record that is no marker stops the roll-ups of all logs that are marked there."""
    with Fleet.open(memory_store, server="s", options=creating()) as fleet:
        fleet.append("a", b"x")
        for append in (fleet.append, fleet.submit, lambda log, body: fleet.append_many(log, [body])):
            with pytest.raises(InvalidRequestError, match="where servers mark what they append"):
                append(log, b"x")
        with pytest.raises(InvalidRequestError):
            fleet.writer(log)
        assert fleet.append("dirty", b"x").offset == 1
    assert RollUp(memory_store, "dirty/s", options=RollUpOptions(take_all=True)).read().selected == ("a", "dirty")


@pytest.mark.parametrize("records", [[], ["x"], [None], [Message(None)]])
def test_append_that_is_refused_leaves_nothing_held(memory_store: MemoryStore, records: list[bytes]) -> None:
    with Fleet.open(memory_store, options=creating()) as fleet:
        with pytest.raises(InvalidRequestError):
            fleet.append_many("a", records)
        stats = fleet.stats()
        assert (stats.bytes_held, stats.appends_waiting) == (0, 0)


def test_records_without_an_end_are_refused(memory_store: MemoryStore) -> None:
    """Regression: all of them were taken before the first was checked."""
    with Fleet.open(memory_store, options=creating()) as fleet, pytest.raises(InvalidRequestError, match="at least"):
        fleet.append_many("a", itertools.repeat(b"x"))


def test_caller_that_knows_an_outcome_finds_it_counted(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the next append could reach the writer whose log was replaced, and fail in the same way."""
    count = OpenLogs.end

    def late(logs: OpenLogs, use: Use, error: BaseException | None) -> None:
        threading.Event().wait(0.05)
        count(logs, use, error)

    monkeypatch.setattr(OpenLogs, "end", late)
    with Fleet.open(memory_store, options=creating()) as fleet:
        fleet.append("a", b"1")
        assert fleet.stats().appends == 1
        destroy(memory_store, "a")
        LogWriter.create(memory_store, "a")

        with pytest.raises(AppendReplacedError):
            fleet.append("a", b"lost")
        assert fleet.append("a", b"new").offset == 1

        future = fleet.submit("a", b"2")
        fleet.flush()
        assert future.done()


def test_callback_of_one_append_waits_for_another_in_the_same_commit(faulty: FaultyStore) -> None:
    """Regression: the callback that passed the second outcome on stood behind the first one's, which waited for it."""
    gate, came = held(faulty, "/log/")
    answers: SimpleQueue[int] = SimpleQueue()
    with Fleet.open(faulty, options=creating()) as fleet:
        first = fleet.submit("a", b"alone")
        assert came.wait(LIMIT_S)
        futures = [fleet.submit("a", b"together") for _ in range(8)]
        for future in futures:
            future.add_done_callback(lambda _: answers.put(sum(each.result(LIMIT_S).offset for each in futures)))
        futures[0].add_done_callback(lambda _: fleet.flush())
        gate.set()
        assert first.result(LIMIT_S).offset == 1
        assert [answers.get(timeout=LIMIT_S) for _ in futures] == [sum(range(2, 10))] * 8


@pytest.mark.parametrize("server", [None, "s"])
@pytest.mark.parametrize("num_logs", [1, 30])
def test_callbacks_that_append_and_wait_may_keep_every_worker_of_callbacks_busy(
    num_logs: int, server: str | None
) -> None:
    """Regression: an outcome, and that of its marker, was passed on by a callback behind those that waited for it."""
    runtime = ThreadRuntime(workers_max=4)
    logs = [f"tenant/{number % num_logs}" for number in range(30)]
    answers: SimpleQueue[int] = SimpleQueue()
    all_begun = threading.Event()
    fleet = Fleet.open(MemoryStore(runtime), server=server, options=creating(), runtime=runtime)

    def again(log: str) -> None:
        all_begun.wait(LIMIT_S)
        answers.put(fleet.submit(log, b"y").result(LIMIT_S).offset)

    for log in logs:
        fleet.append(log, b"x")
        fleet.submit(log, b"x").add_done_callback(lambda _, log=log: again(log))  # type: ignore[misc]  # of a default
    all_begun.set()
    assert all(answers.get(timeout=LIMIT_S) > 2 for _ in logs)
    fleet.close()
