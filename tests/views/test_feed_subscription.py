"""A subscription delivers each message until it is acknowledged, and names what it cannot deliver."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    CursorConflictError,
    CursorStore,
    Delivery,
    FeedSubscription,
    FeedWriter,
    InvalidRequestError,
    LogPosition,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    ReaderOptions,
    Stray,
    SubscriptionOptions,
    destroy,
    seal,
)
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

from .feeds import DEADLINE_S, published, simulated
from .subscribing import AT_ONCE, BY_HAND, NARROW, UNPINNED, delivered, finished, messages, opened, put_back, taken

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess


@pytest.mark.parametrize("store", ["memory", "local"], indirect=True)
def test_what_is_acknowledged_in_any_order_is_not_delivered_again_and_the_rest_is(store: ObjectStore) -> None:
    published(store, range(1, 10))
    first = opened(store)
    items = taken(first)
    for index in (8, 0, 3, 1, 5):
        first.acknowledge(items[index])

    again = opened(store)

    assert messages(items) == list(range(1, 10))
    assert again.floor == 3
    rest = taken(again)
    assert messages(rest) == [3, 5, 7, 8]
    for item in rest:
        again.acknowledge(item)
    assert again.floor == 10
    assert taken(opened(store)) == []
    assert [*CursorStore(store, "f").list()] == ["s"], "one document"


def test_subscriptions_of_other_names_go_on_at_their_own_pace(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2, 3])
    slow, fast = opened(memory_store, name="slow"), opened(memory_store, name="fast")
    for item in taken(fast):
        fast.acknowledge(item)
    published(memory_store, [4])

    assert messages(taken(fast)) == [4]
    assert messages(taken(slow)) == [1, 2, 3, 4]
    assert (slow.floor, fast.floor) == (1, 4)


def test_message_that_is_not_acknowledged_in_time_is_delivered_again_and_again() -> None:
    def work(store: MemoryStore, process: SimProcess) -> list[tuple[float, object, int]]:
        published(store, ["a", "b"])
        options = SubscriptionOptions(ack_wait_s=30.0)
        subscription = FeedSubscription.open(store, "f", "s", options=options, runtime=process)
        began_s, found = process.monotonic_s(), []
        while (item := subscription.recv(65.0 - (process.monotonic_s() - began_s))) is not None:
            assert isinstance(item, Delivery)
            found.append((round(process.monotonic_s() - began_s), item.message, item.attempt))
            if item.message == "b":
                subscription.acknowledge(item)
        return found

    assert simulated(work) == [(0, "a", 1), (0, "b", 1), (30, "a", 2), (60, "a", 3)]


def test_prefetch_bounds_what_is_delivered_and_an_acknowledgement_makes_room(memory_store: MemoryStore) -> None:
    published(memory_store, range(5))
    subscription = opened(memory_store, replace(AT_ONCE, prefetch_max=2))
    first, second = taken(subscription)

    thread = threading.Timer(0.02, lambda: subscription.acknowledge(second))
    thread.start()
    third = subscription.recv(DEADLINE_S)

    assert third is not None
    assert messages([first, second, third]) == [0, 1, 2]
    assert subscription.recv(0) is None
    thread.join(DEADLINE_S)


def test_full_subscription_waits_without_requests_until_a_message_is_due_again() -> None:
    def work(store: MemoryStore, process: SimProcess) -> tuple[float, int]:
        published(store, ["a", "b"])
        counting = CountingStore(store)
        options = SubscriptionOptions(ack_wait_s=30.0, prefetch_max=1, save_s_max=1.0)
        subscription = FeedSubscription.open(counting, "f", "s", options=options, runtime=process)
        assert subscription.recv() is not None
        process.sleep(2.0)
        counting.requests.clear()
        began_s = process.monotonic_s()
        again = subscription.recv()
        assert isinstance(again, Delivery)
        assert (again.message, again.attempt) == ("a", 2)
        return process.monotonic_s() - began_s, counting.requests.total()

    assert simulated(work) == (pytest.approx(28.0, abs=0.1), 0)


# What remembers acknowledgements.
KEEPING = ("*/wal3_core/views/feed/*", "*/wal3_core/format/cursor.py", "*/wal3_core/format/offset_ranges.py")


def held_bytes() -> int:
    """What feeds hold in memory; threads that other tests have left allocate, too."""
    filters = [tracemalloc.Filter(inclusive=True, filename_pattern=pattern) for pattern in KEEPING]
    found = tracemalloc.take_snapshot().filter_traces(filters)
    return sum(each.size for each in found.traces)


@pytest.mark.slow
def test_memory_does_not_grow_in_a_long_wait_while_one_is_not_acknowledged(
    memory_store: MemoryStore,
) -> None:
    with FeedWriter.open_or_create(memory_store, "f") as writer:
        for number in range(2000):
            writer.publish("t", number)
    subscription = opened(memory_store, replace(BY_HAND, ack_wait_s=86400, prefetch_max=2))
    held = subscription.recv(0)
    assert held is not None

    tracemalloc.start()
    try:
        for _ in range(1900):
            item = subscription.recv(0)
            assert item is not None
            subscription.acknowledge(item)
            if item.offset == 1000:
                before = held_bytes()
        grown = held_bytes() - before
    finally:
        tracemalloc.stop()

    assert grown < 900 * 50, f"{grown} bytes for 900 messages"


# ---------------------------------------------------------------------- crashes, and several processes


def test_acknowledgement_not_saved_before_a_death_is_forgotten_and_nothing_lost(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, [1, 2, 3])
    died = opened(memory_store, BY_HAND)
    for item in taken(died)[:2]:
        died.acknowledge(item)

    assert messages(taken(opened(memory_store))) == [1, 2, 3]


def test_floor_moves_over_topics_that_are_not_subscribed_to() -> None:
    def work(store: MemoryStore, process: SimProcess) -> int:
        published(store, range(5), topic="other")
        subscription = FeedSubscription.open(store, "f", "s", topics="mine/*", runtime=process)
        assert subscription.recv(0) is None
        process.sleep(6.0)
        return subscription.floor

    assert simulated(work) == 6


def test_two_processes_of_one_name_lose_no_message_and_unite_their_acknowledgements(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 7))
    one, other = opened(memory_store, BY_HAND), opened(memory_store, BY_HAND)
    ours, theirs = taken(one), taken(other)
    assert messages(ours) == messages(theirs) == list(range(1, 7))
    for subscription, item in ((one, ours[0]), (other, theirs[1]), (one, ours[3]), (other, theirs[4])):
        subscription.acknowledge(item)
    one.save()
    other.save()
    one.acknowledge(ours[5])
    one.save()

    assert one.floor == 3
    assert messages(taken(opened(memory_store))) == [3]


def test_process_that_is_overtaken_goes_on_behind_what_the_other_has_done(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    behind = opened(memory_store, BY_HAND)
    first = taken(behind)[0]
    published(memory_store, [2, 3])
    ahead = opened(memory_store)
    for item in taken(ahead):
        ahead.acknowledge(item)
    published(memory_store, [4])

    behind.acknowledge(first)
    behind.save()

    assert messages(taken(behind)) == [4]


def test_process_overtaken_between_two_polls_looks_at_the_log_before_it_goes_on(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, [1])
    seldom = replace(BY_HAND, reader=ReaderOptions(poll_s_min=3600, poll_s_max=3600))
    behind = opened(memory_store, seldom)
    first = behind.recv(DEADLINE_S)
    assert first is not None
    with ThreadRuntime(workers_max=2) as elsewhere:
        with FeedWriter.open(memory_store, "f", runtime=elsewhere) as writer:
            writer.publish("t", 2).result(DEADLINE_S)
        ahead = FeedSubscription.open(memory_store, "f", "s", options=AT_ONCE, runtime=elsewhere)
        for item in taken(ahead):
            ahead.acknowledge(item)

    behind.acknowledge(first)
    behind.save()

    assert behind.floor == 3
    assert behind.recv(0.01) is None


@pytest.mark.parametrize("created", [False, True])
def test_acknowledgement_for_a_removed_subscription_does_not_count_for_a_later_one(
    memory_store: MemoryStore, *, created: bool
) -> None:
    published(memory_store, [1, 2])
    old = opened(memory_store, BY_HAND)
    items = taken(old)
    FeedSubscription.remove(memory_store, "f", "s")
    new = opened(memory_store) if created else None

    old.acknowledge(items[0])
    with pytest.raises(CursorConflictError, match="removed meanwhile"):
        old.save()

    assert new is None or messages(taken(new)) == [1, 2]


def test_subscription_that_an_operator_has_put_back_delivers_again_from_there(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 6))
    subscription = opened(memory_store, BY_HAND)
    items = taken(subscription)
    for item in items[:3]:
        subscription.acknowledge(item)
    subscription.save()
    put_back(memory_store, 2)

    subscription.acknowledge(items[4])
    subscription.save()
    # It was delivered before, and comes again.
    subscription.acknowledge(items[2])

    assert messages(taken(subscription)) == [2, 3, 4, 5]
    assert subscription.floor == 2


def test_subscription_that_is_put_back_while_it_reads_skips_nothing(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 4))
    store = FaultyStore(memory_store, before=lambda _kind, path: run_tasks() if "Fragment" in path else None)
    subscription = opened(store, BY_HAND)
    tasks: list[Callable[[], None]] = []

    def run_tasks() -> None:
        while tasks:
            tasks.pop()()

    def operate() -> None:
        put_back(memory_store, 2)
        subscription.acknowledge(items[0])
        subscription.save()

    items = taken(subscription)
    for item in items[1:]:
        subscription.acknowledge(item)
    subscription.save()
    published(memory_store, [4])
    tasks.append(operate)

    assert messages(taken(subscription)) == [2, 3, 4]


def test_subscription_of_a_log_that_was_begun_again_is_an_error(memory_store: MemoryStore) -> None:
    published(memory_store, ["old"])
    old = opened(memory_store, BY_HAND)
    item = taken(old)[0]
    destroy(memory_store, "f", also_pinned=True)
    published(memory_store, ["new"])

    old.acknowledge(item)
    with pytest.raises(LogReplacedError):
        old.save()
    assert messages(taken(opened(memory_store))) == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_message_is_delivered_until_acknowledged_whichever_process_dies(
    memory_store: MemoryStore, seed: int
) -> None:
    """Two processes of one name die at any time; a message for which no acknowledgement was given comes again."""
    dice, sent, acknowledged = random.Random(seed), 0, set[object]()
    published(memory_store, [])
    processes = [opened(memory_store, NARROW) for _ in range(2)]
    held: list[list[Delivery]] = [[], []]
    for _ in range(400):
        at = dice.randrange(2)
        process = processes[at]
        match dice.randrange(8):
            case 0 | 1:
                published(memory_store, [sent])
                sent += 1
            case 2:
                processes[at], held[at] = opened(memory_store, NARROW), []
            case 3:
                process.save()
            case 4 | 5 | 6:
                held[at].extend(delivered(process.recv(0)))
            case 7 if held[at]:
                acknowledged.add(finished(process, held[at].pop(dice.randrange(len(held[at])))))
    last = opened(memory_store)
    while found := delivered(last.recv(0)):
        acknowledged.add(finished(last, found[0]))

    assert acknowledged == set(range(sent)), f"seed {seed}"
    assert last.floor == sent + 1


# ---------------------------------------------------------------------- opening


@pytest.mark.parametrize("options", [AT_ONCE, UNPINNED])
def test_subscription_is_opened_as_it_was_created_or_not_at_all(
    memory_store: MemoryStore, options: SubscriptionOptions
) -> None:
    published(memory_store, [1])
    FeedSubscription.open(memory_store, "f", "s", topics=["b", "a"], options=options)
    FeedSubscription.open(memory_store, "f", "s", topics=["a", "b"], options=options)

    with pytest.raises(InvalidRequestError, match="expected one to"):
        FeedSubscription.open(memory_store, "f", "s", topics="a", options=options)
    with pytest.raises(InvalidRequestError, match="pins"):
        FeedSubscription.open(
            memory_store, "f", "s", topics=["a", "b"], options=replace(options, pins=not options.pins)
        )


def test_patterns_that_would_leave_no_room_for_acknowledgements_are_refused(memory_store: MemoryStore) -> None:
    published(memory_store, range(3))
    patterns = [f"{'é' * 250}{number}" for number in range(100)]

    with pytest.raises(InvalidRequestError, match="topics: expected patterns that take at most"):
        FeedSubscription.open(memory_store, "f", "s", topics=patterns)
    assert CursorStore(memory_store, "f").list() == {}


def test_cursor_of_something_else_is_not_taken_over(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    CursorStore(memory_store, "f").create("s", LogPosition(1, 0))

    with pytest.raises(InvalidRequestError, match="found that of a consumer"):
        opened(memory_store)


def test_start_counts_when_the_subscription_is_created(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])
    FeedSubscription.open(memory_store, "f", "s", start="end")
    published(memory_store, [3])

    assert messages(taken(opened(memory_store))) == [3]


def test_item_that_was_not_delivered_is_not_acknowledged(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    subscription = opened(memory_store)
    item = taken(subscription)[0]
    assert isinstance(item, Delivery)
    subscription.acknowledge(item)
    subscription.acknowledge(item)

    with pytest.raises(InvalidRequestError, match="has delivered"):
        subscription.acknowledge(replace(item, offset=9))


def test_closed_subscription_delivers_nothing(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    with opened(memory_store, BY_HAND) as subscription:
        item = subscription.recv(0)
        assert item is not None
        subscription.acknowledge(item)

    assert subscription.floor == 2
    with pytest.raises(InvalidRequestError, match="closed"):
        subscription.recv(0)


def test_subscription_ends_once_all_messages_of_a_sealed_log_are_acknowledged(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    seal(memory_store, "f", reason="test")
    subscription = opened(memory_store)
    item = subscription.recv()
    assert item is not None
    assert subscription.recv(0) is None
    assert not subscription.ended
    subscription.acknowledge(item)

    assert subscription.recv() is None
    assert subscription.ended
    put_back(memory_store, 1)
    subscription.save()
    assert not subscription.ended


@pytest.mark.parametrize("topics", ["t", "other"])
def test_record_that_is_no_message_is_received_once_and_needs_no_acknowledgement(
    memory_store: MemoryStore, topics: str
) -> None:
    published(memory_store, [1])
    with LogWriter.open(memory_store, "f") as writer:
        writer.append(b"no message")
    published(memory_store, [2])
    with FeedSubscription.open(memory_store, "f", "s", topics=topics, options=BY_HAND) as subscription:
        items = taken(subscription)
        for item in items:
            subscription.acknowledge(item)

        strays = [item for item in items if isinstance(item, Stray)]
        assert [stray.offset for stray in strays] == [2]
        assert subscription.info().num_strays == 1
    assert subscription.floor == 4
    assert taken(FeedSubscription.open(memory_store, "f", "s", topics=topics, options=BY_HAND)) == []


@pytest.mark.slow
def test_publisher_and_subscribers_run_at_once(memory_store: MemoryStore) -> None:
    subscriptions = [opened(memory_store, name=f"s{n}") for n in range(4) if not published(memory_store, [])]
    found: list[list[object]] = [[] for _ in subscriptions]

    def receive(subscription: FeedSubscription, into: list[object]) -> None:
        while len(into) < 100:
            item = subscription.recv(DEADLINE_S)
            assert isinstance(item, Delivery)
            into.append(item.message)
            subscription.acknowledge(item)

    threads = [
        threading.Thread(target=receive, args=each, daemon=True) for each in zip(subscriptions, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    with FeedWriter.open(memory_store, "f") as writer:
        for number in range(100):
            writer.publish("t", number)
    for thread in threads:
        thread.join(DEADLINE_S)

    assert found == [list(range(100))] * 4
