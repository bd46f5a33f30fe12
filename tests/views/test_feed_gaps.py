"""A subscription keeps its messages, or gets gaps for those that are gone; never a silent skip."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compacted_logs import compact
from tests.spec.seals import collect as collected_to
from wal3_core import (
    Collector,
    CollectorOptions,
    CursorStore,
    FeedSubscription,
    Gap,
    GarbageCollectedError,
    LogAt,
    LogPosition,
    MemoryStore,
    SubscriptionOptions,
    copy,
    scrub,
    update_copy,
)
from wal3_core.fleet.dirty.back_pressure import measure
from wal3_core.format.cursor import Owner
from wal3_core.runtime import shared_runtime
from wal3_core.views.feed.subscribed import Subscribed

from .feeds import published
from .subscribing import AT_ONCE, UNPINNED, messages, opened, put_back, taken


def test_subscription_that_pins_keeps_its_messages(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 30))
    subscription = opened(memory_store)
    items = taken(subscription)
    for item in items[:19]:
        subscription.acknowledge(item)

    plan = Collector(memory_store, "f", options=CollectorOptions(fraction_max=1)).plan()

    assert plan.first.position.offset == 20


def test_subscription_that_does_not_pin_gets_a_gap_for_what_was_collected(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 30))
    subscription = opened(memory_store, UNPINNED)
    first = subscription.recv(0)
    assert first is not None
    subscription.acknowledge(first)
    collected_to(memory_store, "f", 20)

    later = opened(memory_store, UNPINNED)
    gap = later.recv(0)

    assert gap == Gap(start=2, limit=20)
    assert isinstance(gap, Gap)
    assert messages(taken(later)) == list(range(20, 30))
    again = opened(memory_store, UNPINNED)
    assert again.recv(0) == gap, "it comes until it is acknowledged"
    again.acknowledge(gap)
    assert again.floor == 20
    assert messages(taken(opened(memory_store, UNPINNED)))[0] == 20


def test_gap_leaves_out_what_is_acknowledged(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 30))
    subscription = opened(memory_store, UNPINNED)
    items = taken(subscription)
    for item in items[4:9]:
        subscription.acknowledge(item)
    collected_to(memory_store, "f", 20)

    assert messages(taken(opened(memory_store, UNPINNED))) == [(1, 5), (10, 20), *range(20, 30)]


def test_gap_is_not_acknowledged_by_a_message_delivered_at_its_offset_before(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, range(1, 30))
    subscription = opened(memory_store, replace(UNPINNED, save_acks_max=10**6))
    items = taken(subscription)
    for item in items:
        subscription.acknowledge(item)
    subscription.save()
    put_back(memory_store, 2)
    collected_to(memory_store, "f", 20)
    published(memory_store, [30])
    subscription.acknowledge(taken(subscription)[0])
    subscription.save()
    gap = subscription.recv(0)
    assert gap == Gap(start=2, limit=20)

    subscription.acknowledge(items[1])
    subscription.save()

    assert isinstance(gap, Gap)
    assert subscription.floor == 2
    subscription.acknowledge(gap)
    subscription.save()
    assert subscription.floor == 20


def test_messages_a_running_subscription_did_not_read_before_collection_are_a_gap(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, [1])
    subscription = opened(memory_store, UNPINNED)
    assert messages(taken(subscription)) == [1]
    published(memory_store, range(2, 30))
    collected_to(memory_store, "f", 20)

    assert messages(taken(subscription)) == [(2, 20), *range(20, 30)]


@pytest.mark.parametrize("options", [AT_ONCE, UNPINNED])
def test_what_another_process_acknowledged_may_be_collected_before_it_is_read_here(
    memory_store: MemoryStore, options: SubscriptionOptions
) -> None:
    published(memory_store, range(1, 30))
    behind, ahead = opened(memory_store, options), opened(memory_store, options)
    for item in taken(ahead)[:19]:
        ahead.acknowledge(item)
    collected_to(memory_store, "f", 20)

    assert messages(taken(behind)) == list(range(20, 30))


def test_subscription_that_pins_raises_for_what_was_collected_after_all(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    subscription = opened(memory_store)
    assert messages(taken(subscription)) == [1]
    published(memory_store, range(2, 30))
    FeedSubscription.remove(memory_store, "f", "s")
    collected_to(memory_store, "f", 20)

    for _ in range(2):
        with pytest.raises(GarbageCollectedError):
            subscription.recv(0)


def test_subscription_that_does_not_pin_is_no_claim_and_no_fault(memory_store: MemoryStore) -> None:
    published(memory_store, range(1, 30))
    opened(memory_store, UNPINNED)
    collected_to(memory_store, "f", 20)

    assert scrub(memory_store, "f").problems == ()
    assert CursorStore(memory_store, "f").offsets() == {}
    assert [*CursorStore(memory_store, "f").list()] == ["s"]
    runtime = shared_runtime()
    assert measure(memory_store, "f", unprocessed_max=1000, runtime=runtime, whole=True).consumer is None


def test_unpinned_subscription_gets_a_gap_for_messages_compacted_away(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, range(1, 8))
    unpinned, pinned = opened(memory_store, UNPINNED, name="unpinned"), opened(memory_store, name="later")
    compact(memory_store, "f", drop=[3, 4, 7], groups=[(1, 4), (5, 7)])

    assert messages(taken(unpinned)) == [1, 2, (3, 5), 5, 6, (7, 8)]
    # No pass takes what a cursor pins: here a test has, and the readers of what is left go on.
    assert messages(taken(pinned)) == [1, 2, 5, 6]


@pytest.mark.parametrize("moved", [False, True])
def test_cursor_that_begins_to_pin_where_the_log_was_collected_is_refused(
    memory_store: MemoryStore, *, moved: bool
) -> None:
    published(memory_store, range(1, 30))
    cursors = CursorStore(memory_store, "f")
    witness = cursors.create("s", LogPosition(1, 0), owner=Owner.SUBSCRIPTION, pins=False)
    if moved:
        witness = cursors.save("s", LogPosition(2, 0), witness)
    collected_to(memory_store, "f", 20)

    with pytest.raises(GarbageCollectedError, match="it is now at 20"):
        cursors.carry("s", replace(witness.cursor, position=LogPosition(3, 0), pins=True), witness)

    assert cursors.offsets() == {"s": 20}


@pytest.mark.parametrize("updated", [False, True])
def test_copy_has_the_subscription_that_does_not_pin_and_its_gap(memory_store: MemoryStore, *, updated: bool) -> None:
    published(memory_store, range(1, 30))
    if not updated:
        opened(memory_store, UNPINNED)
    collected_to(memory_store, "f", 20)
    copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)
    if updated:
        extension = Subscribed(token="0" * 16, topics=("*",)).extension(1)
        CursorStore(memory_store, "f").create(
            "s", LogPosition(1, 0), owner=Owner.SUBSCRIPTION, pins=False, extension=extension
        )
        update_copy(LogAt(memory_store, "f"), LogAt(memory_store, "g"), with_cursors=True)

    copied = FeedSubscription.open(memory_store, "g", "s", start="end", options=UNPINNED)

    assert messages(taken(copied))[:2] == [(1, 20), 20]
    assert scrub(memory_store, "g").problems == ()
