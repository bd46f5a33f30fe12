"""Appends are awaited, and a log is followed, from asyncio; cancelling leaves no thread behind."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from functools import partial

import pytest

from tests.spec.seals import collect, fill
from tests.stores import FaultyStore
from wal3_core import (
    ConditionNotMetError,
    GarbageCollectedError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    ReaderOptions,
    UnavailableError,
    seal,
)
from wal3_core.log.read.following import Calls
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

DEADLINE_S = 20.0
QUICK = ReaderOptions(poll_s_min=0.005, poll_s_max=0.01, retry=RetryOptions(attempts_max=3, pause_s_min=0.001))
# Polls so rarely that whatever a test waits for within its deadline must be a wake-up.
RARE = ReaderOptions(poll_s_min=40, poll_s_max=40)


def followers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("wal3-follow")]


def no_follower_is_left() -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while followers():
        assert time.monotonic() < deadline_s, followers()
        time.sleep(0.01)


# ---------------------------------------------------------------------- appends


def test_many_appends_are_awaited_at_once(store: ObjectStore) -> None:
    async def append_all(writer: LogWriter) -> list[LogPosition]:
        awaited = [asyncio.wrap_future(writer.submit(b"%d" % number)) for number in range(200)]
        return await asyncio.wait_for(asyncio.gather(*awaited), DEADLINE_S)

    with LogWriter.open_or_create(store, "a") as writer:
        positions = asyncio.run(append_all(writer))

    found = {record.offset: record.body for record in LogReader.open(store, "a").records()}
    assert found == {position.offset: b"%d" % number for number, position in enumerate(positions)}


def test_error_of_an_append_is_raised_where_it_is_awaited(memory_store: MemoryStore) -> None:
    async def append(writer: LogWriter) -> None:
        first, second = writer.submit(b"x"), writer.submit(b"x", expect_next=7)
        await asyncio.wait_for(asyncio.wrap_future(first), DEADLINE_S)
        with pytest.raises(ConditionNotMetError, match="7"):
            await asyncio.wait_for(asyncio.wrap_future(second), DEADLINE_S)

    with LogWriter.open_or_create(memory_store, "a") as writer:
        asyncio.run(append(writer))


def test_cancelled_wait_neither_withdraws_the_append_nor_harms_others(memory_store: MemoryStore) -> None:
    fill(memory_store, "a")
    store, held, asked = FaultyStore(memory_store), threading.Event(), threading.Event()

    def hold(kind: str, path: str) -> None:
        if kind == "create" and path.endswith(".parquet"):
            asked.set()
            assert held.wait(DEADLINE_S)

    async def append(writer: LogWriter) -> None:
        store.before = hold
        futures = [writer.submit(b"%d" % number) for number in range(5)]
        awaited = [asyncio.ensure_future(asyncio.wrap_future(future)) for future in futures]
        await asyncio.to_thread(asked.wait, DEADLINE_S)
        for each in awaited[:3]:
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited[0]
        held.set()
        await asyncio.wait_for(asyncio.gather(*awaited[3:]), DEADLINE_S)
        assert sorted(future.result(DEADLINE_S).offset for future in futures) == [1, 2, 3, 4, 5]

    with LogWriter.open(store, "a") as writer:
        asyncio.run(append(writer))

    assert [record.body for record in LogReader.open(memory_store, "a").records()] == [b"0", b"1", b"2", b"3", b"4"]


# ---------------------------------------------------------------------- following


def test_async_follower_gives_what_a_follower_gives_to_the_seal(store: ObjectStore) -> None:
    fill(store, "a", b"1", b"2")
    reader = LogReader.open(store, "a", options=QUICK)

    async def follow() -> list[object]:
        found: list[object] = []
        async with asyncio.timeout(DEADLINE_S):
            async for record in reader.follow_async():
                found.append(record)
                if len(found) == 2:
                    await asyncio.to_thread(fill, store, "a", b"3")
                if len(found) == 3:
                    await asyncio.to_thread(seal, store, "a", reason="full")
        return found

    found = asyncio.run(follow())

    assert found == list(reader.records())
    assert len(found) == 3
    no_follower_is_left()


@pytest.mark.slow
def test_async_follower_ends_when_it_was_idle_for_its_time(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 600)
    reader = LogReader.open(memory_store, "a", options=QUICK)

    async def follow() -> list[int]:
        return [record.offset async for record in reader.follow_async(300, idle_s=0)]

    assert asyncio.run(follow()) == list(range(300, 601))
    no_follower_is_left()


def test_append_in_this_process_wakes_an_async_follower(memory_store: MemoryStore) -> None:
    async def follow(writer: LogWriter) -> bytes | None:
        stream = LogReader.open(memory_store, "a", options=RARE).follow_async()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        await asyncio.wrap_future(writer.submit(b"x"))
        record = await asyncio.wait_for(waiting, DEADLINE_S)
        await stream.aclose()
        return record.body

    with LogWriter.open_or_create(memory_store, "a") as writer:
        assert asyncio.run(follow(writer)) == b"x"
    no_follower_is_left()


def test_cancelled_follower_ends_at_once_and_leaves_no_thread(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    reader = LogReader.open(memory_store, "a", options=RARE)

    async def follow(given: asyncio.Queue[int]) -> None:
        async for record in reader.follow_async():
            given.put_nowait(record.offset)

    async def cancel_all() -> None:
        given: asyncio.Queue[int] = asyncio.Queue()
        tasks = [asyncio.create_task(follow(given)) for _ in range(8)]
        for _ in tasks:
            await asyncio.wait_for(given.get(), DEADLINE_S)
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), DEADLINE_S)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        await asyncio.to_thread(no_follower_is_left)

    asyncio.run(asyncio.wait_for(cancel_all(), DEADLINE_S))


def test_follower_in_a_task_group_ends_when_another_task_fails(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    reader, given = LogReader.open(memory_store, "a", options=RARE), asyncio.Queue[int]()

    async def follow() -> None:
        async for record in reader.follow_async():
            given.put_nowait(record.offset)

    async def fail() -> None:
        await asyncio.wait_for(given.get(), DEADLINE_S)
        message = "another task"
        raise RuntimeError(message)

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            tasks.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert caught.group_contains(RuntimeError, match="another task")
    no_follower_is_left()


def test_closed_and_abandoned_followers_leave_no_thread(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")
    reader = LogReader.open(memory_store, "a", options=RARE)

    async def leave() -> None:
        closed = reader.follow_async()
        assert (await anext(closed)).offset == 1
        await closed.aclose()
        async for _ in reader.follow_async():
            break
        reader.follow_async()

    asyncio.run(asyncio.wait_for(leave(), DEADLINE_S))
    no_follower_is_left()


def test_error_of_a_read_is_raised_after_the_records_before_it(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3", b"4")
    store = FaultyStore(memory_store)
    store.fail("read", f"FragmentSeqNo={3:016x}", "unavailable", times=10**6)
    reader, found = LogReader.open(store, "a", options=QUICK), []

    async def follow() -> None:
        async for record in reader.follow_async():
            found.append(record.offset)

    with pytest.raises(UnavailableError):
        asyncio.run(asyncio.wait_for(follow(), DEADLINE_S))
    assert found == [1, 2]
    no_follower_is_left()


def test_collected_record_is_an_error_of_the_async_follower_too(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")
    collect(memory_store, "a", 3)

    async def follow() -> None:
        await anext(LogReader.open(memory_store, "a").follow_async(2))

    with pytest.raises(GarbageCollectedError, match="from 3, found 2"):
        asyncio.run(asyncio.wait_for(follow(), DEADLINE_S))
    no_follower_is_left()


# ---------------------------------------------------------------------- calls


@pytest.mark.parametrize("closed", [False, True])
def test_cancelled_call_gives_back_what_it_returned_or_is_not_made(*, closed: bool) -> None:
    calls, begun, ends = Calls("wal3-follow-test"), threading.Event(), threading.Event()
    made: list[str] = []
    given_back: queue.SimpleQueue[str] = queue.SimpleQueue()

    def call(name: str) -> str:
        made.append(name)
        begun.set()
        assert ends.wait(DEADLINE_S)
        return name

    async def run() -> str:
        tasks = [
            asyncio.create_task(calls.made(partial(call, name), give_back=given_back.put, wake=ends.set))
            for name in ("under way", "waits")
        ]
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        if closed:
            calls.close()
        for task in reversed(tasks):
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        return await calls.made(partial(call, "next"))

    assert asyncio.run(asyncio.wait_for(run(), DEADLINE_S)) == "next"
    calls.close()

    assert made == ["under way", "next"]
    assert given_back.get(timeout=DEADLINE_S) == "under way"
    assert given_back.empty()
    no_follower_is_left()
