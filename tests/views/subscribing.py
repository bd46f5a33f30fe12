"""Shared by the tests of subscriptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core import (
    CursorStore,
    Delivery,
    FeedMessage,
    FeedSubscription,
    Gap,
    LogPosition,
    Stray,
    SubscriptionOptions,
)
from wal3_core.store.object_store import ObjectStore

from .feeds import READER

if TYPE_CHECKING:
    from wal3_core.views.feed.outstanding import Item

# Saves only when it is asked to.
BY_HAND = SubscriptionOptions(save_acks_max=10**6, save_s_max=3600, reader=READER)
AT_ONCE = replace(BY_HAND, save_acks_max=1)
NARROW = replace(BY_HAND, prefetch_max=7)
UNPINNED = replace(AT_ONCE, pins=False)


def opened(store: ObjectStore, options: SubscriptionOptions = AT_ONCE, name: str = "s") -> FeedSubscription:
    return FeedSubscription.open(store, "f", name, options=options)


def taken(subscription: FeedSubscription) -> list[Item]:
    found = []
    while (item := subscription.recv(0)) is not None:
        found.append(item)
    return found


def put_back(store: ObjectStore, offset: int, name: str = "s") -> None:
    """Move the subscription's cursor, as an operator does."""
    cursors = CursorStore(store, "f")
    witness = cursors.load(name)
    assert witness is not None
    cursors.save(name, LogPosition(offset, 0), witness)


def messages(items: Iterable[Item | FeedMessage]) -> list[object]:
    found: list[object] = []
    for item in items:
        assert not isinstance(item, Stray)
        found.append((item.start, item.limit) if isinstance(item, Gap) else item.message)
    return found


def delivered(item: Item | None) -> list[Delivery]:
    assert not isinstance(item, Gap | Stray)
    return [] if item is None else [item]


def finished(subscription: FeedSubscription, item: Delivery) -> object:
    subscription.acknowledge(item)
    return item.message
