"""Many followers of one log in a process: what one does or suffers changes nothing for the others."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    Delivery,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    Gap,
    InvalidRequestError,
    LogReader,
    SubscriptionOptions,
    WriterOptions,
    initialize_successor,
    seal,
)
from wal3_core.views.feed import recent
from wal3_core.views.feed.vigil import Vigil

from .feeds import DEADLINE_S, READER, SINGLE, published, received, simulated
from .subscribing import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.simulator import SimProcess
    from wal3_core.storage.backends.memory import MemoryStore

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
def test_followers_get_every_message_in_order_while_others_are_slow_or_leave_or_are_interrupted(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "RECORDS_MAX", 7)
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
        vigil, done = Vigil(process), []

        def failing() -> None:
            process.sleep(1.0)
            raise KeyboardInterrupt

        def first() -> None:
            with pytest.raises(KeyboardInterrupt):
                vigil.wait(0, None, failing)
            done.append("failed")

        def second() -> None:
            process.sleep(0.5)
            vigil.wait(0, None, vigil.tell)
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


def test_end_of_a_sealed_log_names_the_successor_in_which_the_feed_goes_on(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])
    reader = FeedReader.open(memory_store, "f")
    subscription = FeedSubscription.open(memory_store, "f", "s", options=AT_ONCE)
    seal(memory_store, "f", reason="full", successor="g")
    initialize_successor(memory_store, "f")
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
            with pytest.raises(InvalidRequestError, match=r"sealed at offset 3.*goes on in log g: open that one"):
                follower.recv(0)
        assert follower.ended
    assert received(FeedReader.open(memory_store, "g")) == [3]


@pytest.mark.parametrize("limit", ["RECORDS_MAX", "BYTES_MAX", "FRAGMENTS_MAX"])
def test_news_that_is_too_large_to_share_is_read_by_each_follower(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(recent, limit, 0)
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
