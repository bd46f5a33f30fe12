"""Keyed logs, consumers by key and queues in asyncio: nothing is lost when a caller is cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.stores import FaultyStore
from tests.views.keyed_queries import LOG, OPTIONS
from wal3_core import (
    DelayQueue,
    Dequeue,
    Enqueue,
    InvalidRequestError,
    KeyedLog,
    Leased,
    MemoryStore,
    NewItem,
    QueueDefinition,
    StaleTokenError,
    TailMismatchError,
)

LIMIT_S = 60.0
THREADS = ("wal3-follow", "wal3-scan", "wal3-keyed", "wal3-consumer", "wal3-queue")


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run with a deadline, and leave no thread behind."""
    asyncio.run(asyncio.wait_for(work, LIMIT_S))
    deadline_s = time.monotonic() + LIMIT_S
    while left := [each.name for each in threading.enumerate() if each.name.startswith(THREADS)]:
        gc.collect()
        assert time.monotonic() < deadline_s, left
        time.sleep(0.01)


# ---------------------------------------------------------------------- keyed logs


def test_keyed_log_is_appended_to_read_and_counted_from_asyncio(memory_store: MemoryStore) -> None:
    async def work() -> None:
        async with await asyncio.to_thread(KeyedLog.open_or_create, memory_store, LOG, options=OPTIONS) as log:
            appends = [log.append_async(b"k%d" % (number % 3), b"%d" % number) for number in range(300)]
            positions = await asyncio.gather(*appends)
            assert sorted(each.offset for each in positions) == list(range(1, 301))
            assert (await log.append_batch_async([(b"other", None)])).offset == 301
            with pytest.raises(TailMismatchError):
                await log.append_async(b"other", b"x", expect_tail=0)
            assert (await log.append_async(b"other", b"x", expect_tail=301)).offset == 302

            scan = await log.scan_async(b"k1", 5)
            assert [record.body async for record in scan] == [b"%d" % number for number in range(4, 300, 3)]
            assert scan.next_offset == 303
            assert await log.keys_async(b"k") == [b"k0", b"k1", b"k2"]
            assert await log.tail_async(b"other") == 302
            assert await log.count_async(b"k2") == await log.count_async(b"k2", approximate=True) == 100
            assert (await log.count_bounds_async(b"k2", requests_max=9)).exact
            assert [record.key async for record in await log.scan_prefix_async(b"o")] == [b"other"] * 2
            assert len([record async for record in await log.scan_keys_async(b"k1", b"k2")]) == 100
            assert [record.offset async for record in log.follow_async(b"other", idle_s=0)] == [301, 302]
        with pytest.raises(InvalidRequestError, match="a key or a prefix, found neither"):
            log.follow_async()
        with pytest.raises(InvalidRequestError, match="closed"):
            await log.append_async(b"k", b"late")

    run(work())


@pytest.mark.slow
def test_scan_that_is_left_in_asyncio_continues_where_it_was_left(memory_store: MemoryStore) -> None:
    async def work() -> None:
        async with KeyedLog.open_or_create(memory_store, LOG) as log:
            await log.append_batch_async([(b"k", b"%d" % number) for number in range(1000)])
            scan = await log.scan_async(b"k", records_max=700)
            seen = []
            async for record in scan:
                seen.append(record.offset)
                if record.offset % 100 == 0:
                    assert scan.next_offset == record.offset + 1
                    break
            # What was read ahead is given by whatever goes on with it.
            seen += [next(scan).offset for _ in range(5)]
            seen += [record.offset async for record in scan]
            assert seen == list(range(1, 701))
            assert scan.next_offset == 701

    run(work())


def test_appends_of_one_task_are_in_order_though_the_store_is_slow_at_first(
    memory_store: MemoryStore,
) -> None:
    KeyedLog.open_or_create(memory_store, LOG).close()
    store = FaultyStore(memory_store)

    async def work() -> None:
        async with KeyedLog.open(store, LOG) as log:
            store.before = lambda _kind, _path: time.sleep(0.02)
            tasks = [asyncio.create_task(log.append_async(b"k", b"%d" % number)) for number in range(50)]
            await asyncio.gather(*tasks)
            assert [record.body async for record in await log.scan_async(b"k")] == [b"%d" % at for at in range(50)]

    run(work())


def test_consumer_by_key_follows_and_saves_from_asyncio(memory_store: MemoryStore) -> None:
    async def work() -> None:
        async with KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS) as log:
            consumer = await log.consumer_async("c", prefix=b"a")
            seen = asyncio.Queue[int]()

            async def consume() -> None:
                async for record in consumer.follow_async():
                    await consumer.finish_async(record)
                    seen.put_nowait(record.offset)

            task = asyncio.create_task(consume())
            await log.append_batch_async([(b"a1", b"1"), (b"b", b"2"), (b"a2", b"3")])
            assert [await seen.get(), await seen.get()] == [1, 3]
            assert await consumer.save_async() == 0
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await log.append_async(b"a1", b"4")
            assert await consumer.lags_async() == {b"a1": await consumer.lag_async(b"a1")} == {b"a1": 1}
            again = await log.consumer_async("c", prefix=b"a")
            assert [record.offset async for record in again.follow_async(idle_s=0)] == [4]
            await consumer.delete_async()

    run(work())


# ---------------------------------------------------------------------- queues


@pytest.mark.slow
def test_queue_is_used_from_asyncio(memory_store: MemoryStore) -> None:
    async def work() -> None:
        async with await asyncio.to_thread(DelayQueue.open_or_create, memory_store, "q") as queue:
            added = await asyncio.gather(*(queue.submit_async(Enqueue((NewItem(b"%d" % at),))) for at in range(300)))
            assert sorted(each.id for (each,) in added) == list(range(1, 301))
            values = [item.value async for item in queue.follow_async(idle_s=0)]
            assert sorted(values) == sorted(b"%d" % number for number in range(300))
            assert (await queue.stats_async()).leased == 300
            assert await queue.purge_async(leased=True) == 300

            first = await queue.enqueue_async(b"later", delay_s=1000)
            await queue.enqueue_many_async([NewItem(b"now"), NewItem(b"too")])
            (now, too) = await queue.dequeue_async(2, lease_s=50)
            await queue.release_async(now.id, now.token)
            await queue.requeue_async(too.id, too.token, delay_s=100)
            assert [each.value for each in await queue.peek_async(3)] == [b"too", b"later"]
            assert (await queue.item_async(first.id)).value_bytes == 5
            with pytest.raises(StaleTokenError):
                await queue.extend_async(now.id, now.token, 5)
            await queue.checkpoint_async()
        with pytest.raises(InvalidRequestError, match="closed"):
            await queue.enqueue_async(b"late")

    run(work())


@pytest.mark.slow
def test_producers_are_served_while_thousands_of_tasks_wait_for_an_item(memory_store: MemoryStore) -> None:
    async def work() -> None:
        async with DelayQueue.open_or_create(memory_store, "q") as queue:
            waiting = [asyncio.create_task(queue.dequeue_async(timeout_s=LIMIT_S)) for _ in range(2000)]
            await queue.enqueue_many_async([NewItem(b"x")] * 2000)
            assert {len(items) for items in await asyncio.gather(*waiting)} == {1}

    run(work())


def test_follower_of_a_queue_ends_when_the_queue_is_closed(memory_store: MemoryStore) -> None:
    async def work() -> None:
        queue = DelayQueue.open_or_create(memory_store, "q")
        given = asyncio.Queue[Leased]()

        async def follow() -> None:
            async for item in queue.follow_async():
                given.put_nowait(item)

        task = asyncio.create_task(follow())
        await queue.enqueue_async(b"x")
        assert (await given.get()).value == b"x"
        await queue.close_async()
        await task

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.002, 0.005, 0.01, 0.02, 0.05])
def test_dequeue_that_is_cancelled_at_any_moment_loses_no_delivery(memory_store: MemoryStore, after_s: float) -> None:
    """Each item is handed out once to a caller who has it, and counts as often."""
    DelayQueue.create(memory_store, "q", QueueDefinition(lease_s=1000, max_deliveries=1))
    store = FaultyStore(memory_store, before=lambda kind, _path: time.sleep(0.002 * (kind == "create")))

    async def work() -> None:
        async with DelayQueue.open(store, "q") as queue:
            await queue.enqueue_many_async([NewItem(b"%d" % number) for number in range(60)])
            tasks = [asyncio.create_task(queue.dequeue_async(2, timeout_s=LIMIT_S)) for _ in range(20)]
            await asyncio.sleep(after_s)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            # Also those whose answer came at that moment.
            got = [item for items in ends if isinstance(items, list) for item in items]
            while len(got) < 60:
                got += await queue.dequeue_async(60, timeout_s=LIMIT_S)
            assert sorted(item.id for item in got) == list(range(1, 61))
            assert {item.deliveries for item in got} == {1}

    run(work())


def test_dequeue_that_is_cancelled_when_it_has_its_answer_gives_it_back(memory_store: MemoryStore) -> None:
    async def work() -> None:
        async with DelayQueue.open_or_create(memory_store, "q", QueueDefinition(lease_s=1000)) as queue:
            await queue.enqueue_async(b"x")
            loop, task = asyncio.get_running_loop(), asyncio.create_task(queue.dequeue_async())
            await asyncio.sleep(0)
            # The loop stands still until the answer is there.
            deadline_s = time.monotonic() + LIMIT_S
            while queue.stats().leased == 0:
                assert time.monotonic() < deadline_s
                queue.submit(Dequeue(1)).cancel()
            assert loop.is_running()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (item,) = await queue.dequeue_async(timeout_s=LIMIT_S)
            assert (item.value, item.deliveries) == (b"x", 1)

    run(work())
