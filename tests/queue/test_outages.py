"""Calls end while the store does not answer, and what they say afterwards is right."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import wait
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from tests.queue.pair import StandingRuntime
from tests.queue.test_crashes import DEADLINE_S, HASTY, LOG
from tests.stores import FaultyStore
from wal3_core.errors import ClosedError, LogError, UnknownDurabilityError
from wal3_core.store.object_store import Done
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import Dequeue, Enqueue, NewItem, Purge, QueueDefinition

if TYPE_CHECKING:
    from wal3_core import MemoryStore

ALWAYS = 1_000_000


@pytest.fixture
def store(memory_store: MemoryStore) -> FaultyStore:
    return FaultyStore(memory_store)


@pytest.fixture
def queue(store: FaultyStore) -> Iterator[DelayQueue]:
    with DelayQueue.open_or_create(store, LOG, options=HASTY) as queue:
        yield queue
        store.heal()


def deny(store: FaultyStore) -> None:
    for kind in ("create", "replace"):
        store.fail(kind, "", "denied", times=ALWAYS)


def test_purge_counts_nothing_of_an_earlier_one_that_failed(store: FaultyStore, queue: DelayQueue) -> None:
    for _ in range(3):
        queue.enqueue(b"x", delay_s=1000.0)
    deny(store)
    with pytest.raises(LogError):
        queue.submit(Purge()).result(DEADLINE_S)
    store.heal()

    assert queue.purge() == 3
    queue.enqueue(b"x")
    assert queue.purge() == 1


@pytest.mark.slow
def test_purge_of_several_turns_counts_all_of_them(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG, options=HASTY) as queue:
        for _ in range(3):
            queue.enqueue_many([NewItem(b"")] * 10_000)

        both = [queue.submit(Purge()) for _ in range(2)]

        assert [future.result(DEADLINE_S) for future in both] == [30_000, 0]


def test_checkpoint_that_cannot_be_written_is_an_error(store: FaultyStore, queue: DelayQueue) -> None:
    queue.enqueue(b"x")
    deny(store)
    errors: list[LogError] = []

    def ask() -> None:
        try:
            queue.checkpoint()
        except LogError as error:
            errors.append(error)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    store.heal()

    assert len(errors) == 1
    queue.checkpoint()


def test_append_that_lands_once_its_queue_was_loaded_again_changes_nothing(
    store: FaultyStore, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.views.queue.broker.FENCE_CHECK_S", 0.0)
    queue.enqueue(b"first")
    store.fail("replace", "manifest", "late", times=ALWAYS)
    with pytest.raises(UnknownDurabilityError):
        queue.enqueue(b"lost")
    store.heal()
    assert queue.stats().pending == 1

    assert not any(isinstance(outcome, Done) for outcome in store.arrive())

    queue.enqueue(b"second")
    assert [each.value for each in queue.peek(3)] == [b"first", b"second"]


@pytest.mark.slow
def test_dequeue_ends_after_its_timeout_though_the_store_does_not_answer(store: FaultyStore, queue: DelayQueue) -> None:
    waiting = queue.submit(Dequeue(1, timeout_s=0.3))
    deny(store)
    with pytest.raises(LogError):
        queue.enqueue(b"x", delay_s=1000.0)

    assert wait([waiting], DEADLINE_S).done
    assert isinstance(waiting.exception(), LogError)
    store.heal()
    assert queue.dequeue() == []


def test_close_ends_the_calls_that_wait_though_the_store_does_not_answer(store: FaultyStore) -> None:
    queue = DelayQueue.open_or_create(store, LOG, options=HASTY)
    waiting = queue.submit(Dequeue(1, timeout_s=float("inf")))
    deny(store)
    with pytest.raises(LogError):
        queue.enqueue(b"x", delay_s=1000.0)

    queue.close()

    assert isinstance(waiting.exception(DEADLINE_S), LogError)


def test_part_of_a_millisecond_counts_as_a_whole_one(memory_store: MemoryStore) -> None:
    with StandingRuntime() as runtime:
        DelayQueue.create(memory_store, LOG, QueueDefinition(lease_s=0.0014), runtime=runtime)
        now_us = runtime.now_us()
        with DelayQueue.open(memory_store, LOG, options=HASTY, runtime=runtime) as queue:
            assert queue.definition.lease_s == 0.002
            assert queue.enqueue(b"x", delay_s=0.0004).deadline_us == now_us + 1000
            assert queue.enqueue(b"x", deadline_us=now_us + 1).deadline_us == now_us + 1000
            queue.enqueue(b"x")
            (leased,) = queue.dequeue()
            assert leased.lease_until_us == now_us + 2000
            assert queue.extend(leased.id, leased.token, 1.0011) == now_us + 1_002_000


@pytest.mark.parametrize("kind", ["create", "replace", "get", "read"])
def test_calls_and_close_end_once_a_store_that_hung_answers(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("wal3_core.views.queue.broker.FENCE_CHECK_S", 0.0)
    free = Event()
    queue = DelayQueue.open_or_create(store, LOG, options=HASTY)
    queue.enqueue(b"before")

    def hang(asked: str, _path: str) -> None:
        if asked == kind:
            free.wait(DEADLINE_S)

    store.before = hang
    futures = [
        queue.submit(Enqueue((NewItem(b"meanwhile"),))),
        queue.submit(Dequeue(1, timeout_s=DEADLINE_S)),
        queue.submit(Dequeue(1, timeout_s=DEADLINE_S)),
    ]
    asking, closing = Thread(target=queue.stats, daemon=True), Thread(target=queue.close, daemon=True)
    for thread in (asking, closing):
        thread.start()
        thread.join(0.05)
    free.set()
    for thread in (asking, closing):
        thread.join(DEADLINE_S)
        assert not thread.is_alive()

    assert wait(futures, DEADLINE_S).not_done == set()
    assert [item.value for future in futures[1:] for item in future.result(0)] == [b"before", b"meanwhile"]
    with DelayQueue.open(store, LOG, options=HASTY) as again:
        assert again.stats().leased == 2


def test_forked_process_does_nothing_with_the_queue(queue: DelayQueue) -> None:
    queue.enqueue(b"of the parent")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for call in (queue.dequeue, queue.stats, lambda: queue.enqueue(b"of the child")):
                with pytest.raises(ClosedError):
                    call()
            queue.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert [item.value for item in queue.dequeue(9)] == [b"of the parent"]


def test_interrupted_dequeue_leaves_the_line(queue: DelayQueue) -> None:
    interrupted = Event()

    def once(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        while not queue.stats().waiting:
            time.sleep(0.01)
        # Python takes notice of a signal that comes just before a thread begins to wait when the wait ends, or with the
        # next one.
        while not interrupted.wait(0.2):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, once)
    thread = Thread(target=interrupt, daemon=True)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            queue.dequeue(timeout_s=DEADLINE_S)
        thread.join(DEADLINE_S)
    finally:
        signal.signal(signal.SIGINT, before)
    queue.enqueue(b"x")
    assert [item.deliveries for item in queue.dequeue()] == [1]
