"""Two things at once that are right alone: records of others, failed appends, clocks, damage, seals, lost callers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from tests.queue.test_never_stopped import LOG, YEAR_S, SkewedRuntime, stray
from tests.stores import damage, life_path
from tests.world import ClockStore
from wal3_core import (
    DelayQueue,
    KeyCompactor,
    Leased,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    NewItem,
    NotDurableError,
    QueueDefinition,
    SealedError,
    seal,
)
from wal3_core.runtime import shared_runtime
from wal3_core.views.queue.encoding import DEAD, NEVER, NO_TOKEN, STATE, VALUE, StateRecord, id_key, state_body
from wal3_core.views.queue.operations import Enqueue, ItemStats, Purge

LIMIT_S = 30
HOUR_S = 3600
FINISHED: dict[str, Callable[[DelayQueue, Leased], object]] = {
    "release": lambda queue, item: queue.release(item.id, item.token),
    "extend": lambda queue, item: queue.extend(item.id, item.token, 300),
    "requeue": lambda queue, item: queue.requeue(item.id, item.token, delay_s=5),
    "bury": lambda queue, item: queue.bury(item.id, item.token),
}


@pytest.fixture
def runtime() -> Iterator[SkewedRuntime]:
    with SkewedRuntime() as runtime:
        yield runtime


@pytest.mark.parametrize("what", FINISHED)
@pytest.mark.parametrize("between", ["a record of others", "a failed append"])
def test_lease_goes_on_though_its_turn_is_done_again_after_the_clock_has_jumped(
    runtime: SkewedRuntime, what: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    with DelayQueue.open_or_create(store, LOG, QueueDefinition(lease_s=300), runtime=runtime) as queue:
        queue.enqueue(b"job")
        (item,) = queue.dequeue()
        runtime.skew_s = HOUR_S
        store.pass_s(HOUR_S)
        queue.enqueue(b"later", delay_s=10**6)
        if between == "a failed append":

            def fail(*_: object, **__: object) -> None:
                monkeypatch.undo()
                raise NotDurableError("refused")

            monkeypatch.setattr(LogWriter, "append_many", fail)
            with pytest.raises(NotDurableError):
                FINISHED[what](queue, item)
        else:
            with LogWriter.open(store, LOG) as writer:
                writer.append(b"stray", key=b"stray")

        FINISHED[what](queue, item)

        assert queue.dequeue() == []


@pytest.mark.parametrize("damaged", [True, False])
def test_items_with_one_dedupe_key_after_damage_are_removed_as_any_others(
    memory_store: MemoryStore, *, damaged: bool
) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue(b"old", dedupe_key=b"K")
        (item,) = queue.dequeue(lease_s=600)
        end = LogReader.open(memory_store, LOG).manifest().next.position.offset
        queue.release(item.id, item.token)
        queue.enqueue(b"new", dedupe_key=b"K")
    torn = next(iter(LogReader.open(memory_store, LOG).pointers(end)))
    damage(memory_store, life_path(memory_store, LOG, torn.path))
    if not damaged:
        DelayQueue.repair(memory_store, LOG, without_damaged=True)

    with DelayQueue.open(memory_store, LOG) as queue:
        assert queue.purge(leased=True) == 2
        assert not queue.enqueue(b"again", dedupe_key=b"K").duplicate
        assert [item.value for item in queue.dequeue(9)] == [b"again"]


def test_refused_calls_of_a_sealed_queue_leave_room_for_others(memory_store: MemoryStore) -> None:
    DelayQueue.open_or_create(memory_store, LOG).close()
    seal(memory_store, LOG, reason="moved")
    large = Enqueue((NewItem(bytes(2**20)),))

    with DelayQueue.open(memory_store, LOG) as queue:
        for _ in range(80):
            with pytest.raises(SealedError):
                queue.submit(large, timeout_s=0).result(LIMIT_S)
        with pytest.raises(SealedError):
            queue.checkpoint()
        assert queue.stats().pending == 0


def test_tombstone_of_others_under_an_item_s_key_stops_nothing(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b")])
        queue.dequeue()
        stray(memory_store, Message(None, id_key(VALUE, 1)))

        queue.enqueue(b"c")
    with DelayQueue.open(memory_store, LOG) as queue:
        assert [item.value for item in queue.dequeue(9)] == [b"b", b"c"]


def items(queue: DelayQueue) -> list[ItemStats]:
    """Look at the first items; when a lease ends is known to a few milliseconds."""
    return [replace(queue.item(item_id), lease_until_us=None) for item_id in range(1, 5)]


@pytest.mark.parametrize("behind_checkpoint", [True, False])
@pytest.mark.parametrize("num_more", [1, 5000], ids=["recent", "in arrays"])
def test_what_others_records_displace_is_written_again_before_compaction_drops_it(
    memory_store: MemoryStore, *, behind_checkpoint: bool, num_more: int
) -> None:
    """Regression: the value of an item could never be read, and its count of deliveries began again."""
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue_many([NewItem(value, priority=0) for value in (b"dead", b"leased", b"back")])
        queue.enqueue_many([NewItem(b"pending", dedupe_key=b"K"), *[NewItem(b"more", priority=9)] * num_more])
        dead, leased, back = queue.dequeue(3, lease_s=600)
        queue.bury(dead.id, dead.token)
        queue.requeue(back.id, back.token)
        before = items(queue)
        if behind_checkpoint:
            queue.checkpoint()
        stray(
            memory_store, *(Message(b"\x7f", id_key(kind, item_id)) for kind in (VALUE, STATE) for item_id in range(7))
        )
        queue.enqueue(b"last", priority=255)
        queue.checkpoint()
        KeyCompactor(memory_store, LOG).compact(force=True)

    with DelayQueue.open(memory_store, LOG) as queue:
        assert items(queue) == before
        assert [letter.value for letter in queue.dead()] == [b"dead"]
        assert queue.enqueue(b"again", dedupe_key=b"K").duplicate
        queue.release(leased.id, leased.token)
        values = [item.value for item in queue.dequeue(10_000)]
        assert values == [b"back", *[b"more"] * num_more, b"pending", b"last"]
        assert queue.stats().pending == 0


def test_state_that_others_wrote_before_its_item_is_none_of_it(memory_store: MemoryStore) -> None:
    state = StateRecord(DEAD, 0, 7, NEVER, NEVER, NO_TOKEN)
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue(b"a")
        stray(memory_store, Message(state_body(state), id_key(STATE, 2)))
        queue.enqueue(b"b")

    with DelayQueue.open(memory_store, LOG) as queue:
        assert [(item.value, item.deliveries) for item in queue.dequeue(2)] == [(b"a", 1), (b"b", 1)]


def test_idle_broker_writes_what_records_of_others_displace(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue(b"a")
    at = stray(memory_store, Message(b"", id_key(VALUE, 1)))

    with DelayQueue.open(memory_store, LOG):
        deadline_s = time.monotonic() + LIMIT_S
        while not list(LogReader.open(memory_store, LOG).records(at + 2)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    keys = [record.key for record in LogReader.open(memory_store, LOG).records(at + 2)]
    assert keys[:2] == [id_key(VALUE, 1), id_key(STATE, 1)]


@pytest.mark.slow
def test_repair_of_many_items_keeps_how_long_each_was_to_wait(runtime: SkewedRuntime) -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    with (
        mock.patch("wal3_core.views.queue.broker.QueueClock._limit_ms", return_value=1e17),
        DelayQueue.open_or_create(store, LOG, QueueDefinition(lease_s=100), runtime=runtime) as queue,
    ):
        runtime.skew_s = 10 * YEAR_S
        queue.enqueue_many([NewItem(b"a") for _ in range(100)])
        for item in queue.dequeue(100):
            queue.requeue(item.id, item.token, delay_s=86_400)
        for _ in range(15):
            queue.enqueue_many([NewItem(b"b", delay_s=2 * 86_400) for _ in range(1000)])
    runtime.skew_s = 0

    assert DelayQueue.repair(store, LOG, runtime=runtime).retimed == 15_100

    with DelayQueue.open(store, LOG, runtime=runtime) as queue:
        assert (queue.stats().due, queue.stats().scheduled) == (0, 15_100)


def test_operation_whose_caller_is_cancelled_is_done_without_a_word(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go, append = threading.Event(), threading.Event(), LogWriter.append_many

    def slowly(self: LogWriter, *arguments: Any, **more: Any) -> object:  # noqa: ANN401 - as they are
        begun.set()
        may_go.wait(LIMIT_S)
        return append(self, *arguments, **more)

    async def cancel(queue: DelayQueue, operation: Enqueue | Purge) -> None:
        begun.clear()
        may_go.clear()
        asked = asyncio.create_task(queue.submit_async(operation))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        may_go.set()

    async def cancel_two() -> None:
        async with DelayQueue.open_or_create(memory_store, LOG) as queue:
            monkeypatch.setattr(LogWriter, "append_many", slowly)
            await cancel(queue, Enqueue((NewItem(b"a"),)))
            assert (await queue.stats_async()).pending == 1
            await cancel(queue, Purge())
            assert (await queue.stats_async()).pending == 0

    with caplog.at_level(logging.ERROR):
        asyncio.run(cancel_two())

    assert caplog.text == ""
