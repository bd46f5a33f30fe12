"""An older manifest is restored under those who follow a log, and others append before they look again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.views.feeds import DEADLINE_S
from tests.views.keyed_queries import LOG, TREE, restored_under
from wal3_core import (
    Consumer,
    ConsumerOptions,
    Delivery,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    InvalidRequestError,
    KeyedLog,
    LogReader,
    MemoryStore,
    ReaderOptions,
    SnapshotCompactor,
    SnapshotCompactorOptions,
    SubscriptionOptions,
)

RARELY = ReaderOptions(poll_s_min=0.001, poll_s_max=0.002)


def follow(store: MemoryStore) -> Iterator[int]:
    return (record.offset for record in LogReader.open(store, LOG, options=RARELY).follow(idle_s=DEADLINE_S))


def follow_key(store: MemoryStore) -> Iterator[int]:
    return (record.offset for record in KeyedLog.open(store, LOG).follow(b"t", idle_s=DEADLINE_S))


def receive(store: MemoryStore) -> Iterator[int]:
    reader = FeedReader.open(store, LOG, options=RARELY)
    while (delivery := reader.recv(DEADLINE_S)) is not None:
        yield delivery.offset


def consume(store: MemoryStore) -> Iterator[int]:
    options = ConsumerOptions(reader=RARELY, idle_s=DEADLINE_S, batch_records_max=1)
    with Consumer(store, LOG, "c", options=options) as consumer:
        for record in consumer:
            yield record.offset


def subscribe(store: MemoryStore) -> Iterator[int]:
    options = SubscriptionOptions(reader=RARELY, save_s_max=0)
    subscription = FeedSubscription.open(store, LOG, "s", options=options)
    while (item := subscription.recv(DEADLINE_S)) is not None:
        assert isinstance(item, Delivery)
        yield item.offset
        subscription.acknowledge(item)


FOLLOWERS = [follow, follow_key, receive, consume, subscribe]


def append(store: MemoryStore, count: int, text: str) -> None:
    """Append messages to a feed, each a fragment, and roll them into snapshots."""
    with FeedWriter.open_or_create(store, LOG, options=TREE) as writer:
        for number in range(count):
            writer.publish("t", f"{text} {number}").result(DEADLINE_S)


@pytest.mark.parametrize("num_later", [3, 4, 9, 30])
@pytest.mark.parametrize("following", FOLLOWERS)
def test_follower_of_a_log_that_was_restored_and_has_grown_beyond_its_place_is_told(
    memory_store: MemoryStore, following: Callable[[MemoryStore], Iterator[int]], num_later: int
) -> None:
    append(memory_store, 5, "common")
    offsets = following(memory_store)

    def gone() -> None:
        append(memory_store, 3, "gone")
        assert [next(offsets) for _ in range(8)] == list(range(1, 9))
        # It has looked for more, and found nothing: the place is the log's end.
        append(memory_store, 1, "gone")
        assert next(offsets) == 9

    restored_under(memory_store, gone)
    append(memory_store, num_later + 1, "other")

    with pytest.raises(InvalidRequestError, match="older manifest was restored|expected an offset from 1 to 10"):
        list(offsets)


def test_reader_and_consumer_that_were_told_of_a_restore_are_told_again(memory_store: MemoryStore) -> None:
    append(memory_store, 3, "common")
    reader = FeedReader.open(memory_store, LOG, options=RARELY)
    options = ConsumerOptions(reader=RARELY, idle_s=0.1, auto_commit=False)
    with Consumer(memory_store, LOG, "c", options=options) as consumer:

        def gone() -> None:
            append(memory_store, 2, "gone")
            assert len([reader.recv(DEADLINE_S) for _ in range(5)]) == len([next(consumer) for _ in range(5)]) == 5
            with pytest.raises(StopIteration):
                next(consumer)
            assert reader.recv(0.1) is None

        restored_under(memory_store, gone)
        append(memory_store, 5, "other")

        for _ in range(3):
            with pytest.raises(InvalidRequestError, match="older manifest was restored"):
                next(consumer)
            with pytest.raises(InvalidRequestError, match="older manifest was restored"):
                reader.recv(DEADLINE_S)


def test_new_reader_gets_what_a_restored_log_holds_also_at_a_generation_seen(
    memory_store: MemoryStore,
) -> None:
    append(memory_store, 5, "common")
    reader = FeedReader.open(memory_store, LOG, options=RARELY)

    def gone() -> None:
        for _ in range(2):
            append(memory_store, 1, "gone")
            while reader.recv(0) is not None:
                pass

    restored_under(memory_store, gone)
    generation = LogReader.open(memory_store, LOG).manifest().generation + 2
    append(memory_store, 2, "other")
    assert LogReader.open(memory_store, LOG).manifest().generation == generation

    position = reader.position.replace(":8", ":7")
    again = FeedReader.open(memory_store, LOG, start=position, options=RARELY)
    found = again.recv(0)
    assert found is not None
    assert found.message == "other 1"
    with pytest.raises(InvalidRequestError, match="older manifest was restored"):
        reader.recv(0)


@pytest.mark.parametrize("following", FOLLOWERS)
def test_follower_goes_on_whatever_maintenance_does(
    memory_store: MemoryStore, following: Callable[[MemoryStore], Iterator[int]]
) -> None:
    append(memory_store, 5, "first")
    offsets = following(memory_store)
    seen = [next(offsets) for _ in range(5)]

    for number in range(6):
        append(memory_store, 7, f"more {number}")
        SnapshotCompactor(memory_store, LOG, options=SnapshotCompactorOptions(snapshots=TREE.snapshots)).compact()
        seen += [next(offsets) for _ in range(7)]

    # Nothing is given twice: what is appended next is given next.
    append(memory_store, 1, "last")
    assert [*seen, next(offsets)] == list(range(1, 49))
