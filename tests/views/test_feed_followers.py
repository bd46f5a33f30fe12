"""Many followers of one log in a process: what one does or suffers changes nothing for the others."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.spec.seals import collect as collected_to
from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    ClosedError,
    Delivery,
    FeedMovedError,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    Gap,
    GarbageCollectedError,
    LogReader,
    LogReplacedError,
    MemoryStore,
    SubscriptionOptions,
    WriterOptions,
    create_successor,
    destroy,
    seal,
)
from wal3_core.views.feed import tail
from wal3_core.views.feed.tail import Poller, WaitingCall

from .feeds import DEADLINE_S, READER, SINGLE, published, received, simulated
from .subscribing import AT_ONCE, messages

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess

COUNT = 60


def _all_of(follower: FeedReader | FeedSubscription) -> list[object]:
    found: list[object] = []
    while len(found) < COUNT:
        item = follower.recv(DEADLINE_S)
        assert item is not None, f"{len(found)} messages"
        assert not isinstance(item, Gap)
        found.append(item.message)
        if isinstance(item, Delivery):
            assert isinstance(follower, FeedSubscription)
            follower.acknowledge(item)
    return found


def _leave_after_one(follower: FeedReader | FeedSubscription) -> None:
    assert follower.recv(DEADLINE_S) is not None
    if isinstance(follower, FeedSubscription):
        follower.close()


def _interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread, as soon as it runs again."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))


@pytest.mark.slow
def test_followers_get_every_message_in_order_while_others_are_slow_or_leave(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RECORDS_MAX", 7)
    published(memory_store, ["before"])
    readers = [FeedReader.open(memory_store, "f", start="end", options=READER) for _ in range(23)]
    options = SubscriptionOptions(reader=READER)
    subscriptions = [FeedSubscription.open(memory_store, "f", f"s{n}", start="end", options=options) for n in range(6)]
    slow, ended = readers.pop(), threading.Event()

    def until_interrupted(follower: FeedReader) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            _all_of(follower)
        ended.set()

    interrupted = threading.Thread(target=until_interrupted, args=(readers.pop(),), daemon=True)
    with ThreadPoolExecutor(40) as pool, FeedWriter.open(memory_store, "f", options=SINGLE) as writer:
        interrupted.start()
        left = [pool.submit(_leave_after_one, each) for each in (readers.pop(), subscriptions.pop())]
        found = [pool.submit(_all_of, each) for each in (*readers, *subscriptions)]
        for number in range(COUNT):
            writer.publish("t", number).result(DEADLINE_S)
            if number == COUNT // 2:
                _interrupt(interrupted)

        assert [each.result(DEADLINE_S) for each in found] == [list(range(COUNT))] * len(found)
        for each in left:
            each.result(DEADLINE_S)
        assert ended.wait(DEADLINE_S)
    assert _all_of(slow) == list(range(COUNT))
    held = slow._tail._recent
    assert held is not None
    assert sum(len(piece.records) for piece in held.pieces) <= 7


def test_follower_that_fails_while_it_watches_leaves_the_watch_to_another(memory_store: MemoryStore) -> None:
    def work(_: MemoryStore, process: SimProcess) -> list[str]:
        poller, done = Poller(process), []

        def failing() -> None:
            process.sleep(1.0)
            raise KeyboardInterrupt

        def first() -> None:
            with pytest.raises(KeyboardInterrupt):
                poller.wait(0, None, failing, WaitingCall())
            done.append("failed")

        def second() -> None:
            process.sleep(0.5)
            poller.wait(0, None, poller.announce, WaitingCall())
            done.append("woken")

        for each in (first, second):
            process.spawn(each)
        process.sleep(2.0)
        return done

    assert memory_store
    assert sorted(simulated(work)) == ["failed", "woken"]


@pytest.mark.parametrize("follow", [FeedReader.open, partial(FeedSubscription.open, name="s")])
def test_time_to_wait_is_kept_while_the_store_hangs_and_nothing_is_missed_then(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription]
) -> None:
    published(memory_store, [0])
    store, answers, asked = FaultyStore(memory_store), threading.Event(), []
    follower = follow(store, "f", start="end")

    def hangs(kind: str, path: str) -> None:
        asked.append((kind, path))
        assert answers.wait(DEADLINE_S), "the call has waited for the store"

    store.before = hangs
    try:
        for _ in range(5):
            assert follower.recv(0.2) is None
        assert len(asked) == 1, "one look is under way"
    finally:
        answers.set()
    published(memory_store, [1])

    found = follower.recv(DEADLINE_S)

    assert found is not None
    assert not isinstance(found, Gap)
    assert found.message == 1


def test_end_of_a_sealed_log_names_the_successor_and_where_the_feed_goes_on(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, [1, 2])
    reader = FeedReader.open(memory_store, "f")
    subscription = FeedSubscription.open(memory_store, "f", "s", options=AT_ONCE)
    seal(memory_store, "f", reason="full", successor="g")
    create_successor(memory_store, "f")
    published(memory_store, [3], log="g")

    found = [reader.recv(0), reader.recv(0)]
    items = [subscription.recv(0), subscription.recv(0)]

    assert [each and each.message for each in found] == [1, 2]
    assert subscription.recv(0) is None, "what was delivered is not acknowledged"
    for item in items:
        assert isinstance(item, Delivery)
        subscription.acknowledge(item)
    for follower in (reader, subscription):
        for _ in range(2):
            with pytest.raises(FeedMovedError, match=r"sealed at offset 3.*goes on in log g: open that one") as moved:
                follower.recv(0)
            assert moved.value.successor == "g"
        assert follower.ended
        assert received(FeedReader.open(memory_store, "g", start=moved.value.position)) == [3]
    assert received(FeedReader.open(memory_store, "g", start=reader.position)) == [3]
    onwards = FeedSubscription.open(memory_store, "g", "s", start=moved.value.position, options=AT_ONCE)
    assert messages([item for item in [onwards.recv(0)] if item is not None]) == [3]


def test_messages_of_a_successor_collected_before_the_feed_came_are_not_skipped(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, [1])
    reader = FeedReader.open(memory_store, "f")
    seal(memory_store, "f", reason="full", successor="g")
    create_successor(memory_store, "f")
    published(memory_store, [2, 3], log="g")
    collected_to(memory_store, "g", 3)
    assert reader.recv(0) is not None
    with pytest.raises(FeedMovedError) as moved:
        reader.recv(0)

    with pytest.raises(GarbageCollectedError, match="from 3, found 2"):
        FeedReader.open(memory_store, "g", start=moved.value.position)


def test_place_in_a_log_before_the_one_that_was_sealed_is_refused(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    old = FeedReader.open(memory_store, "f").position
    for log, successor in (("f", "g"), ("g", "h")):
        seal(memory_store, log, reason="full", successor=successor)
        create_successor(memory_store, log)
    published(memory_store, [2], log="h")

    with pytest.raises(LogReplacedError):
        FeedReader.open(memory_store, "h", start=old)


@pytest.mark.slow
@pytest.mark.parametrize("follow", [FeedReader.open, partial(FeedSubscription.open, name="s")])
def test_messages_of_a_quiet_log_are_received_though_each_look_takes_long(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription]
) -> None:
    def work(store: MemoryStore, process: SimProcess) -> tuple[list[object], float]:
        published(store, [0, 1])
        slow = FaultyStore(store)
        slow.before = lambda kind, _path: process.sleep(0.4) if kind == "get" else None
        follower = follow(slow, "f", runtime=process)
        process.sleep(5.0)
        began_s = process.monotonic_s()
        items = [follower.recv(60.0) for _ in range(2)]
        return messages([item for item in items if item is not None]), process.monotonic_s() - began_s

    assert memory_store
    found, waited_s = simulated(work)
    assert found == [0, 1]
    assert waited_s < 2.0


@pytest.mark.parametrize("follow", [FeedReader.open, partial(FeedSubscription.open, name="s")])
@pytest.mark.parametrize("watches", [True, False])
def test_thread_that_waits_is_woken_when_its_follower_is_closed(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription], *, watches: bool
) -> None:
    def work(store: MemoryStore, process: SimProcess) -> tuple[float, object]:
        published(store, [0])
        counting = CountingStore(store)
        first, second = (follow(counting, "f", start="end", runtime=process) for _ in range(2))
        closed, other = (first, second) if watches else (second, first)
        ends: dict[object, float] = {}

        def waits(follower: FeedReader | FeedSubscription) -> None:
            with contextlib.suppress(ClosedError):
                assert follower.recv(100.0) is None
            ends[follower] = process.monotonic_s()

        for each in (first, second):
            process.spawn(partial(waits, each))
            process.sleep(0.5)
        process.sleep(20.0)
        closed_s = process.monotonic_s()
        closed.close()
        process.sleep(200.0)
        with pytest.raises(ClosedError):
            closed.recv(0)
        assert ends[other] - closed_s > 70.0
        return ends[closed] - closed_s, None

    assert memory_store
    waited_s, _ = simulated(work)
    assert waited_s <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("follow", [FeedReader.open, partial(FeedSubscription.open, name="s")])
def test_thread_waiting_for_a_store_that_hangs_wakes_when_its_follower_closes(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription]
) -> None:
    published(memory_store, [0])
    store, answers, asked = FaultyStore(memory_store), threading.Event(), threading.Event()
    follower = follow(store, "f", start="end")

    def hangs(_kind: str, _path: str) -> None:
        asked.set()
        assert answers.wait(DEADLINE_S)

    store.before = hangs
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(follower.recv)
            assert asked.wait(DEADLINE_S)
            store.before = None
            follower.close()

            with pytest.raises(ClosedError):
                waiting.result(DEADLINE_S)
    finally:
        answers.set()


def test_full_subscription_is_woken_when_it_is_closed(memory_store: MemoryStore) -> None:
    published(memory_store, [0, 1])
    subscription = FeedSubscription.open(
        memory_store, "f", "s", options=SubscriptionOptions(prefetch_max=1, ack_wait_s=600)
    )
    assert subscription.recv(0) is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subscription.recv)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        subscription.close()

        with pytest.raises(ClosedError):
            waiting.result(DEADLINE_S)


def test_place_that_publish_gives_becomes_a_position_right_after_its_message(memory_store: MemoryStore) -> None:
    with FeedWriter.open_or_create(memory_store, "f") as writer:
        places = [writer.publish("t", number) for number in range(4)]
        positions = [writer.position_after(place.result(DEADLINE_S)) for place in places]
    reader = FeedReader.open(memory_store, "f")

    given = [(reader.recv(0), reader.position) for _ in range(4)]

    assert [position for _, position in given] == positions
    assert received(FeedReader.open(memory_store, "f", start=positions[1])) == [2, 3]
    destroy(memory_store, "f")
    published(memory_store, [5, 6, 7, 8])
    with pytest.raises(LogReplacedError):
        FeedReader.open(memory_store, "f", start=positions[1])


def test_fragments_that_followers_share_are_bounded_by_their_decoded_bytes(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some megabytes of spaces take a few kilobytes on storage."""
    monkeypatch.setattr(tail, "SHARED_BYTES_MAX", 2**20)
    published(memory_store, [" " * 400_000] * 8)
    reader = FeedReader.open(memory_store, "f")
    stored = sum(each.num_bytes for each in LogReader.open(memory_store, "f").scan())

    assert len(received(reader)) == 8

    held = [fragment.table.nbytes for fragment in reader._tail._fragments_shared._held.values()]
    assert stored < 2**18
    assert 400_000 < sum(held) <= 2**20


@pytest.mark.parametrize("follow", [FeedReader.open, partial(FeedSubscription.open, name="s")])
def test_call_that_does_not_wait_gives_what_was_published_before_it(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription]
) -> None:
    published(memory_store, [0, 1, 2])
    follower = follow(memory_store, "f")

    found = [follower.recv(0)]
    published(memory_store, [3])
    found += [follower.recv(0) for _ in range(4)]

    assert messages([item for item in found if item is not None]) == [0, 1, 2, 3]
    assert found[-1] is None


@pytest.mark.parametrize("limit", ["RECORDS_MAX", "BYTES_MAX", "FRAGMENTS_MAX"])
def test_news_that_is_too_large_to_share_is_read_by_each_follower(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(tail, limit, 0)
    published(memory_store, [0])
    readers = [FeedReader.open(memory_store, "f", start="end", options=READER) for _ in range(3)]
    published(memory_store, range(1, 9))

    assert [received(reader) for reader in readers] == [list(range(1, 9))] * 3
    assert readers[0]._tail._recent is not None
    assert readers[0]._tail._recent.pieces == ()


def test_records_that_followers_share_are_fetched_once(memory_store: MemoryStore) -> None:
    published(memory_store, [0])
    store = CountingStore(memory_store)
    readers = [FeedReader.open(store, "f", start="end", options=READER) for _ in range(3)]
    with FeedWriter.open(memory_store, "f", options=WriterOptions(batch_age_s_max=0.05)) as writer:
        for number in range(100):
            writer.publish("t", {"n": [number]})
    fragments = LogReader.open(memory_store, "f").scan()
    store.requests.clear()

    found = [[reader.recv(0) for _ in range(100)] for reader in readers]

    assert [[each and each.message for each in some] for some in found] == [[{"n": [n]} for n in range(100)]] * 3
    assert store.requests["read"] == len(fragments) - 1
    first = [some[0] for some in found]
    assert first[0] is not None
    first[0].message["n"].append("mine")
    assert [each and each.message for each in first[1:]] == [{"n": [0]}] * 2, "each has its own message"
