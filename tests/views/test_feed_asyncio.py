"""Feeds and subscriptions in asyncio: what is cancelled loses no message, and leaves no thread behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from wal3_core import (
    ClosedError,
    Delivery,
    FeedMessage,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    InvalidRequestError,
    LogPosition,
    LogWriter,
    MemoryStore,
    ReaderOptions,
    Stray,
    WriterOptions,
    seal,
)

from .feeds import DEADLINE_S, published, received
from .subscribing import BY_HAND, messages, opened, taken

if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")

# Polls so rarely that whatever a test waits for within its deadline must be a wake-up.
RARE = ReaderOptions(poll_s_min=40, poll_s_max=40)
SLOW = replace(BY_HAND, ack_wait_s=3600, reader=RARE)


def run(work: Coroutine[Any, Any, T]) -> T:
    found = asyncio.run(asyncio.wait_for(work, DEADLINE_S))
    # Counted in tries, as on a busy machine a collection of garbage alone can take as long as a deadline.
    for _ in range(500):
        left = [each.name for each in threading.enumerate() if each.name.startswith("wal3-feed")]
        if not left:
            return found
        gc.collect()
        time.sleep(0.01)
    pytest.fail(f"threads are left: {left}")


async def cancelled(waiting: Awaitable[object]) -> None:
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_reader_and_subscription_are_iterated_to_the_end_of_a_sealed_log(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    with LogWriter.open(memory_store, "f") as writer:
        writer.append(b"no topic")
    published(memory_store, [2])
    seal(memory_store, "f", reason="test")

    async def work() -> tuple[list[object], list[object]]:
        reader = FeedReader.open(memory_store, "f")
        read = [item.message if isinstance(item, FeedMessage) else item.offset async for item in reader]
        given: list[object] = []
        async with opened(memory_store, BY_HAND) as subscription:
            async for item in subscription:
                given.append(item.message if isinstance(item, FeedMessage) else item)
                await subscription.acknowledge_async(item)
        reader.close()
        return read, [each for each in given if not isinstance(each, Stray)]

    assert run(work()) == ([1, 2, 2], [1, 2])
    assert opened(memory_store).floor == 4


@pytest.mark.parametrize("follow", [FeedReader.open, FeedSubscription.open])
def test_call_cancelled_while_it_waited_loses_no_message_and_wakes_the_next_one(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription]
) -> None:
    published(memory_store, [0])

    async def work() -> list[object]:
        found: list[object] = []
        if follow == FeedReader.open:
            follower = follow(memory_store, "f", start="end", options=RARE)
        else:
            follower = follow(memory_store, "f", "s", start="end", options=SLOW)
        for number in (1, 2):
            await cancelled(follower.recv_async())
            waiting = asyncio.ensure_future(follower.recv_async())
            await asyncio.sleep(0.05)
            await asyncio.to_thread(published, memory_store, [number])
            item = await waiting
            assert isinstance(item, FeedMessage)
            found.append(item.message)
        await asyncio.to_thread(follower.close)
        return found

    assert run(work()) == [1, 2]


def test_message_that_came_when_its_caller_was_cancelled_is_given_to_the_next_one(memory_store: MemoryStore) -> None:
    published(memory_store, [0, 1])
    with LogWriter.open(memory_store, "f") as writer:
        writer.append(b"no topic")

    async def work() -> tuple[list[object], list[object]]:
        reader = FeedReader.open(memory_store, "f")
        read, given = [], []
        subscription = opened(memory_store, SLOW)
        for _ in range(3):
            for follower in (reader, subscription):
                # It has returned, and no task has seen what.
                task = asyncio.ensure_future(follower.recv_async())
                await asyncio.sleep(0)
                time.sleep(0.2)  # noqa: ASYNC251 - no other task runs meanwhile
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            item = await reader.recv_async()
            assert item is not None
            read.append((item.offset, reader.num_strays))
            delivery = await subscription.recv_async()
            assert isinstance(delivery, Delivery | Stray)
            given.append((delivery.offset, delivery.attempt if isinstance(delivery, Delivery) else 1))
        reader.close()
        await subscription.close_async()
        return read, given

    assert run(work()) == ([(1, 0), (2, 0), (3, 1)], [(1, 1), (2, 1), (3, 1)])


def test_many_tasks_share_a_subscription_and_none_waits_for_those_that_receive(memory_store: MemoryStore) -> None:
    published(memory_store, [])

    async def work() -> list[object]:
        done: list[object] = []
        async with opened(memory_store, SLOW) as subscription:

            async def consume() -> None:
                item = await subscription.recv_async()
                assert isinstance(item, Delivery)
                await subscription.acknowledge_async(item)
                done.append(item.message)

            tasks = [asyncio.create_task(consume()) for _ in range(40)]
            await asyncio.sleep(0.2)
            await asyncio.to_thread(published, memory_store, range(40))
            await asyncio.gather(*tasks)
            await subscription.save_async()
            assert (await subscription.info_async()).num_pending == 0
        return done

    assert sorted(map(str, run(work()))) == sorted(map(str, range(40)))


def test_every_call_of_a_subscription_can_be_awaited(memory_store: MemoryStore) -> None:
    published(memory_store, ["a"])

    async def work() -> list[object]:
        subscription = opened(memory_store, replace(SLOW, max_deliveries=1))
        item = await subscription.recv_async(timeout_s=0)
        assert isinstance(item, Delivery)
        assert await subscription.in_progress_async(item)
        assert await subscription.nak_async(item)
        assert await subscription.recv_async(timeout_s=0) is None
        dead = await subscription.dead_letters_async()
        assert isinstance(dead[0], Delivery)
        await subscription.redeliver_async(dead[0])
        found = [await subscription.recv_async(timeout_s=0)]
        await subscription.close_async()
        with pytest.raises(ClosedError):
            await subscription.recv_async()
        return messages(each for each in found if each is not None)

    assert run(work()) == ["a"]


def test_messages_are_published_in_order_and_awaited_until_they_are_durable(memory_store: MemoryStore) -> None:
    async def work() -> list[LogPosition]:
        with FeedWriter.open_or_create(memory_store, "f", options=WriterOptions(bytes_held_max=100)) as writer:
            with pytest.raises(InvalidRequestError, match="message"):
                await writer.publish_async("t", object())
            return await asyncio.gather(*(writer.publish_async("t", bytes([n]) * 60) for n in range(20)))

    places = run(work())

    assert [place.offset for place in places] == list(range(1, 21))
    assert received(FeedReader.open(memory_store, "f")) == [bytes([n]) * 60 for n in range(20)]


def test_reader_goes_to_a_time_in_asyncio(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])

    async def work() -> object:
        reader = FeedReader.open(memory_store, "f", start="end")
        found = await reader.recv_as_of_async(0, 1.0)
        reader.close()
        return found and found.offset

    assert run(work()) == 1


def test_reader_that_is_dropped_in_asyncio_leaves_no_thread(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])

    async def work() -> object:
        async for item in FeedReader.open(memory_store, "f"):
            return item.offset
        return None

    assert run(work()) == 1
    assert taken(opened(memory_store))
