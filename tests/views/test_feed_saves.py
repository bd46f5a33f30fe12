"""What a subscription has acknowledged is saved, once, and stays saved."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.stores import FaultyStore
from wal3_core import (
    CursorConflictError,
    FeedSubscription,
    MemoryStore,
    SubscriptionOptions,
    UnavailableError,
)

from .feeds import published, simulated
from .subscribing import AT_ONCE, BY_HAND, messages, opened, put_back, taken

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess


def test_save_without_an_answer_is_made_once_and_nothing_is_lost(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2, 3])
    store = FaultyStore(memory_store)
    subscription = opened(store, BY_HAND)
    items = taken(subscription)
    subscription.acknowledge(items[0])
    store.fail("replace", "cursor/", "lost")
    subscription.save()
    store.fail("replace", "cursor/", "unavailable", times=50)
    subscription.acknowledge(items[1])
    with pytest.raises(UnavailableError):
        subscription.save()
    store.heal()
    subscription.close()

    assert subscription.floor == 3
    assert messages(taken(opened(memory_store))) == [3]


def test_save_that_failed_is_made_again_without_a_further_call() -> None:
    def work(store: MemoryStore, process: SimProcess) -> tuple[int, int]:
        published(store, [1])
        faulty = FaultyStore(store)
        options = replace(AT_ONCE, save_s_max=5.0)
        subscription = FeedSubscription.open(faulty, "f", "s", options=options, runtime=process)
        item = subscription.recv(0)
        assert item is not None
        faulty.fail("replace", "cursor/", "unavailable", times=50)
        with pytest.raises(UnavailableError):
            subscription.acknowledge(item)
        faulty.heal()
        before = subscription.floor
        process.sleep(6.0)
        return before, subscription.floor

    assert simulated(work) == (1, 2)


def test_close_that_failed_saves_when_it_is_called_again(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])
    store = FaultyStore(memory_store)
    subscription = opened(store, BY_HAND)
    subscription.acknowledge(taken(subscription)[0])
    store.fail("replace", "cursor/", "unavailable", times=50)
    with pytest.raises(UnavailableError):
        subscription.close()
    store.heal()

    subscription.close()

    assert messages(taken(opened(memory_store))) == [2]


def test_acknowledgement_after_the_end_is_saved(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])
    subscription = opened(memory_store, BY_HAND)
    items = taken(subscription)
    subscription.close()

    subscription.acknowledge(items[0])

    assert messages(taken(opened(memory_store))) == [2]


def test_save_finds_that_the_subscription_was_put_back_or_removed_with_no_news(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, [1, 2])
    subscription = opened(memory_store)
    for item in taken(subscription):
        subscription.acknowledge(item)
    put_back(memory_store, 1)

    subscription.save()

    assert messages(taken(subscription)) == [1, 2]
    FeedSubscription.remove(memory_store, "f", "s")
    with pytest.raises(CursorConflictError, match="removed meanwhile"):
        subscription.save()


def test_acknowledgements_are_saved_by_time_without_a_further_call() -> None:
    def work(store: MemoryStore, process: SimProcess) -> int:
        published(store, [1, 2])
        options = SubscriptionOptions(save_s_max=5.0)
        subscription = FeedSubscription.open(store, "f", "s", options=options, runtime=process)
        for _ in range(2):
            item = subscription.recv()
            assert item is not None
            subscription.acknowledge(item)
        assert subscription.floor == 1
        process.sleep(6.0)
        return subscription.floor

    assert simulated(work) == 3
