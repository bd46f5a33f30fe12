"""A subscription counts its deliveries, also beyond its processes, puts them off, and gives up as it was asked to."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spec.seals import collect as collected_to
from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    CursorStore,
    Delivery,
    FeedSubscription,
    FeedWriter,
    Gap,
    InvalidRequestError,
    MemoryStore,
    SubscriptionOptions,
    UnavailableError,
)
from wal3_core.views.feed import outstanding

from .feeds import DEADLINE_S, published, simulated
from .subscribing import AT_ONCE, BY_HAND, UNPINNED, delivered, messages, opened, put_back, taken

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess

# Each of a message's deliveries is over at once.
HASTY = replace(BY_HAND, ack_wait_s=0.001)
TWICE = replace(HASTY, max_deliveries=2)


def given(subscription: FeedSubscription) -> Delivery:
    item = subscription.recv(DEADLINE_S)
    assert isinstance(item, Delivery)
    return item


def given_until_none_is_left(subscription: FeedSubscription) -> list[tuple[object, int]]:
    """Deliver without acknowledging, until all are dead letters."""
    found = []
    while (item := subscription.recv(0)) is not None or len(subscription._outstanding):
        if isinstance(item, Delivery):
            found.append((item.message, item.attempt))
        else:
            time.sleep(0.001)
    return found


# ---------------------------------------------------------------------- put off


def test_nak_has_a_message_delivered_at_once_or_after_its_delay() -> None:
    def work(store: MemoryStore, process: SimProcess) -> list[tuple[float, object, int]]:
        published(store, ["a", "b"])
        subscription = FeedSubscription.open(store, "f", "s", runtime=process)
        began_s, found = process.monotonic_s(), []
        while (item := subscription.recv(20.0 - (process.monotonic_s() - began_s))) is not None:
            assert isinstance(item, Delivery)
            found.append((round(process.monotonic_s() - began_s), item.message, item.attempt))
            if item.message == "b" or item.attempt == 3:
                subscription.acknowledge(item)
                continue
            assert subscription.nak(item, 7.0 if item.attempt == 2 else 0.0)
        return found

    assert simulated(work) == [(0, "a", 1), (0, "a", 2), (0, "b", 1), (7, "a", 3)]


@pytest.mark.parametrize("prefetch_max", [1, 10])
def test_nak_wakes_a_thread_that_waits(memory_store: MemoryStore, prefetch_max: int) -> None:
    published(memory_store, ["a"])
    subscription = opened(memory_store, replace(BY_HAND, ack_wait_s=3600, prefetch_max=prefetch_max))
    first = given(subscription)
    thread = threading.Timer(0.05, lambda: subscription.nak(first) and None)
    thread.start()

    again = given(subscription)

    assert (again.message, again.attempt) == ("a", 2)
    thread.join(DEADLINE_S)


def test_message_that_is_in_progress_is_delivered_again_only_when_its_time_is_over() -> None:
    def work(store: MemoryStore, process: SimProcess) -> float:
        published(store, ["a"])
        subscription = FeedSubscription.open(store, "f", "s", runtime=process)
        began_s = process.monotonic_s()
        item = subscription.recv()
        assert isinstance(item, Delivery)
        for _ in range(3):
            assert subscription.recv(20.0) is None
            assert subscription.in_progress(item)
        assert subscription.recv() is not None
        return round(process.monotonic_s() - began_s)

    assert simulated(work) == 90


def test_what_was_redelivered_or_is_done_is_not_put_off_by_those_who_had_it(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, ["a", "b"])
    subscription = opened(memory_store, replace(BY_HAND, ack_wait_s=3600))
    first, other = given(subscription), given(subscription)
    subscription.nak(first)
    again = given(subscription)

    assert not subscription.nak(first)
    assert not subscription.in_progress(first)
    assert subscription.in_progress(again)
    subscription.acknowledge(other)
    assert not subscription.nak(other)
    assert taken(subscription) == []
    with pytest.raises(InvalidRequestError, match="expected an item that it has delivered"):
        subscription.nak(replace(first, offset=99))


def test_messages_put_off_come_in_the_order_of_their_delays_and_take_no_memory() -> None:
    def work(store: MemoryStore, process: SimProcess) -> tuple[list[object], int]:
        with FeedWriter.open_or_create(store, "f", runtime=process) as writer:
            for number in range(20):
                writer.publish("t", number)
        options = SubscriptionOptions(ack_wait_s=1000.0)
        subscription = FeedSubscription.open(store, "f", "s", options=options, runtime=process)
        items = [subscription.recv() for _ in range(20)]
        for round_s in range(30):
            for item in items:
                assert isinstance(item, Delivery)
                assert subscription.nak(item, 100.0 + round_s + item.offset * 7 % 20)
        length = len(subscription._outstanding._due)
        return messages(item for _ in items if (item := subscription.recv()) is not None), length

    found, length = simulated(work)
    assert found == sorted(range(20), key=lambda number: (number + 1) * 7 % 20)
    assert length <= 2 * 20 + 16


# ---------------------------------------------------------------------- counts


def test_count_of_deliveries_outlives_the_process(memory_store: MemoryStore) -> None:
    published(memory_store, ["a", "b"])
    for attempt in (1, 3, 5):
        with opened(memory_store, replace(HASTY, prefetch_max=1)) as subscription:
            assert [given(subscription).attempt for _ in range(2)] == [attempt, attempt + 1]

    subscription = opened(memory_store)
    assert [(item.message, item.attempt) for item in taken(subscription) if isinstance(item, Delivery)] == [
        ("a", 7),
        ("b", 1),
    ]


def test_count_is_forgotten_when_an_operator_puts_the_subscription_back(memory_store: MemoryStore) -> None:
    published(memory_store, ["a"])
    with opened(memory_store, BY_HAND) as subscription:
        given(subscription)
    put_back(memory_store, 1)

    assert given(opened(memory_store)).attempt == 1


def test_counts_of_two_processes_are_united(memory_store: MemoryStore) -> None:
    published(memory_store, ["a", "b"])
    one, other = opened(memory_store, HASTY), opened(memory_store, replace(BY_HAND, ack_wait_s=3600))
    for _ in range(3):
        given(one)
    first, second = given(other), given(other)
    one.save()
    other.acknowledge(second)
    other.save()
    other.nak(first)

    assert given(other).attempt > 2


@pytest.mark.parametrize("at", range(3))
def test_message_that_ends_each_process_becomes_a_dead_letter(memory_store: MemoryStore, at: int) -> None:
    """Processes die before anything but what a delivery needs is saved."""
    published(memory_store, range(3))
    options = replace(BY_HAND, max_deliveries=3)
    done: list[object] = []
    died = 0
    for _ in range(20):
        subscription = opened(memory_store, options)
        while isinstance(item := subscription.recv(0), Delivery):
            if item.message == at:
                died += 1
                break
            subscription.acknowledge(item)
            subscription.save()
            done.append(item.message)
        else:
            break

    # A process that dies may have counted one delivery that it has not made.
    assert died in {2, 3}
    assert done == [each for each in range(3) if each != at]
    assert messages(subscription.dead_letters()) == [at]


def test_deliveries_that_are_limited_cost_one_request_for_all_messages_at_hand(memory_store: MemoryStore) -> None:
    published(memory_store, range(50))
    store = CountingStore(memory_store)
    subscription = opened(store, replace(BY_HAND, max_deliveries=5))
    store.requests.clear()

    items = taken(subscription)

    assert messages(items) == list(range(50))
    assert store.requests["replace"] == 1


def test_message_is_not_delivered_while_its_delivery_cannot_be_counted(memory_store: MemoryStore) -> None:
    published(memory_store, ["a"])
    store = FaultyStore(memory_store)
    subscription = opened(store, replace(BY_HAND, max_deliveries=5))
    store.fail("replace", "cursor", "unavailable", times=10)

    with pytest.raises(UnavailableError):
        subscription.recv(0)

    store.heal()
    assert given(subscription).attempt == 1


def test_single_delivery_is_not_used_up_by_a_process_that_died_at_another_message(memory_store: MemoryStore) -> None:
    published(memory_store, range(4))
    found = []
    for _ in range(6):
        subscription = opened(memory_store, replace(BY_HAND, max_deliveries=1))
        found += [item.message for item in delivered(subscription.recv(0))]

    assert found == [0, 1, 2, 3]
    assert messages(subscription.dead_letters()) == [0, 1, 2, 3]


# ---------------------------------------------------------------------- dead letters


def test_message_delivered_as_often_as_it_may_is_a_dead_letter_until_acknowledged(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, ["a", "b", "c"])
    subscription = opened(memory_store, TWICE)
    first = given(subscription)
    subscription.acknowledge(first)

    assert sorted(given_until_none_is_left(subscription), key=str) == [("b", 1), ("b", 2), ("c", 1), ("c", 2)]
    assert subscription.info().num_dead == 2
    subscription.close()
    assert subscription.floor == 2, "a dead letter is kept"

    again = opened(memory_store, TWICE)
    assert taken(again) == []
    dead = again.dead_letters()
    assert [(item.message, item.attempt) for item in dead if isinstance(item, Delivery)] == [("b", 2), ("c", 2)]
    again.acknowledge(dead[0])
    again.acknowledge(dead[1])
    again.save()
    assert again.floor == 4
    assert opened(memory_store, TWICE).dead_letters() == []


@pytest.mark.parametrize("reopened", [False, True])
def test_dead_letter_that_is_redelivered_has_all_its_deliveries_again(
    memory_store: MemoryStore, *, reopened: bool
) -> None:
    published(memory_store, ["a", "b"])
    subscription = opened(memory_store, TWICE)
    given_until_none_is_left(subscription)
    if reopened:
        subscription.close()
        subscription = opened(memory_store, TWICE)
    dead = subscription.dead_letters()[0]
    assert isinstance(dead, Delivery)

    subscription.redeliver(dead)

    with pytest.raises(InvalidRequestError, match="expected a dead letter"):
        subscription.redeliver(dead)
    assert given_until_none_is_left(subscription) == [("a", 1), ("a", 2)]
    assert messages(subscription.dead_letters()) == ["a", "b"]


def test_late_acknowledgement_of_a_dead_letter_counts(memory_store: MemoryStore) -> None:
    published(memory_store, ["a"])
    subscription = opened(memory_store, TWICE)
    item = given(subscription)
    given_until_none_is_left(subscription)

    subscription.acknowledge(item)
    subscription.save()

    assert subscription.dead_letters() == []
    assert subscription.floor == 2


def test_dead_letters_that_a_log_does_not_keep_are_gaps(memory_store: MemoryStore) -> None:
    published(memory_store, ["a", *range(30)])
    options = replace(UNPINNED, ack_wait_s=0.001, max_deliveries=1, prefetch_max=1)
    with opened(memory_store, options) as subscription:
        given(subscription)
        subscription.acknowledge(given(subscription))
        collected = subscription.dead_letters()
        assert messages(collected) == ["a"]
        collected_to(memory_store, "f", 20)
        assert subscription.dead_letters() == [Gap(start=1, limit=2)]
        subscription.acknowledge(subscription.dead_letters()[0])
        assert subscription.dead_letters() == []
        assert subscription.floor == 3


def test_messages_beyond_the_largest_number_of_dead_letters_are_delivered_on(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outstanding, "DEAD_MAX", 2)
    published(memory_store, range(3))
    subscription = opened(memory_store, TWICE)
    attempts = [given(subscription) for _ in range(10)]

    assert max(item.attempt for item in attempts) > 2
    assert len(subscription.dead_letters()) == 2


def test_dead_letter_that_another_process_redelivers_is_delivered(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, ["a", "b", "c"])
    one = opened(memory_store, TWICE)
    given_until_none_is_left(one)
    one.save()
    other = opened(memory_store, TWICE)
    first, second, _ = other.dead_letters()
    assert isinstance(first, Delivery)
    other.redeliver(first)
    other.acknowledge(second)
    other.save()

    one.acknowledge(one.dead_letters()[2])
    one.save()

    assert one.dead_letters() == []
    assert given(one).message == "a"
    given_until_none_is_left(one)
    one.save()
    assert messages(opened(memory_store, TWICE).dead_letters()) == ["a"]


def test_subscription_of_earlier_options_opens_and_finds_its_dead_letters(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, ["a", "b"])
    with opened(memory_store, TWICE) as subscription:
        given_until_none_is_left(subscription)

    later = opened(memory_store, AT_ONCE)

    assert taken(later) == []
    assert messages(later.dead_letters()) == ["a", "b"]
    cursor = CursorStore(memory_store, "f").load("s")
    assert cursor is not None
    assert "dead" in cursor.cursor.extension.ahead
