"""A copy of a feed has its subscriptions as they are, and acknowledges nothing that they have not."""

from __future__ import annotations

import pytest

from wal3_core import (
    CursorStore,
    FeedSubscription,
    LogAt,
    LogPosition,
    MemoryStore,
    SubscriptionOptions,
    copy,
    update_copy,
)

from .feeds import published
from .subscribing import AT_ONCE, UNPINNED, messages, opened, taken


def test_copy_has_the_subscription_and_acknowledges_nothing_behind_its_end(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 6))
    subscription = opened(memory_store)
    items = taken(subscription)
    for index in (1, 4):
        subscription.acknowledge(items[index])
    copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)
    published(memory_store, [6], log="g")

    copied = FeedSubscription.open(memory_store, "g", "s", options=AT_ONCE)

    assert messages(taken(copied)) == [1, 3, 4, 6]


@pytest.mark.parametrize(("before", "after"), [(UNPINNED, AT_ONCE), (AT_ONCE, UNPINNED), (AT_ONCE, AT_ONCE)])
def test_updated_copy_has_the_subscription_of_now_without_earlier_acknowledgements(
    memory_store: MemoryStore, before: SubscriptionOptions, after: SubscriptionOptions
) -> None:
    published(memory_store, range(1, 6))
    earlier = opened(memory_store, before)
    earlier.acknowledge(taken(earlier)[4])
    copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)
    FeedSubscription.remove(memory_store, "f", "s")
    now = opened(memory_store, after)
    now.acknowledge(taken(now)[1])

    for expected in (1, 0):
        updated = update_copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)
        assert updated.num_cursors == expected

    assert CursorStore(memory_store, "g").offsets() == CursorStore(memory_store, "f").offsets()
    assert messages(taken(FeedSubscription.open(memory_store, "g", "s", options=after))) == [1, 3, 4, 5]


def test_updated_copy_has_the_plain_cursor_that_took_a_subscription_s_name(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 6))
    opened(memory_store, UNPINNED)
    copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)
    FeedSubscription.remove(memory_store, "f", "s")
    CursorStore(memory_store, "f").create("s", LogPosition(3, 0))

    update_copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)

    assert CursorStore(memory_store, "g").offsets() == {"s": 3}


def test_copy_has_the_acknowledgements_of_the_last_update(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 6))
    subscription = opened(memory_store)
    items = taken(subscription)
    copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)
    subscription.acknowledge(items[3])

    update_copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)

    assert messages(taken(FeedSubscription.open(memory_store, "g", "s", options=AT_ONCE))) == [1, 2, 3, 5]
