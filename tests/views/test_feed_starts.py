"""A feed is begun at any place, also by its topics and its messages' own times; a subscription counts what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgpack
import pytest

from tests.compacted_logs import compact, delete_objects
from tests.spec.seals import collect as collected_to
from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    AtTime,
    CursorStore,
    Delivery,
    FeedMessage,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    GarbageCollectedError,
    InvalidRequestError,
    Levels,
    LogWriter,
    MemoryStore,
    Stray,
)
from wal3_core.format.offset_ranges import RANGES_MAX
from wal3_core.views.feed import feed_subscription
from wal3_core.views.feed.messages import packed, unpacked_or_error
from wal3_core.views.feed.topics import Pattern, topic_filter

from .feeds import DEADLINE_S, NOON_US, ClockRuntime, published, received
from .subscribing import AT_ONCE, BY_HAND, UNPINNED, messages, taken

if TYPE_CHECKING:
    from wal3_core.views.feed.feed_reader import FeedStart

TOPICS = ("a", "b", "a", "c/x", "b", "a", "c/y", "c/x")


@pytest.fixture
def topical(memory_store: MemoryStore) -> MemoryStore:
    """A log whose message at each offset is that offset, under one of some topics; two in each fragment."""
    with FeedWriter.open_or_create(memory_store, "f") as writer:
        for number, topic in enumerate(TOPICS, start=1):
            writer.publish(topic, number)
            if number % 2 == 0:
                writer.flush()
    return memory_store


def read(store: MemoryStore, start: FeedStart, topics: Pattern | Sequence[Pattern]) -> list[object]:
    return received(FeedReader.open(store, "f", start=start, topics=topics))


def subscribed(store: MemoryStore, start: FeedStart, topics: Pattern | Sequence[Pattern]) -> list[object]:
    with FeedSubscription.open(store, "f", "s", start=start, topics=topics, options=BY_HAND) as subscription:
        return messages(taken(subscription))


# ---------------------------------------------------------------------- places


@pytest.mark.parametrize("follow", [read, subscribed])
@pytest.mark.parametrize(
    ("start", "topics", "expected"),
    [
        (1, "*", [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, "*", [6, 7, 8]),
        (9, "*", []),
        (2, "a", [3, 6]),
        ("last", "*", [8]),
        ("last", "a", [6]),
        ("last", ["a", "b"], [6]),
        ("last", "c/*", [8]),
        ("last", "none", []),
        ("last_per_topic", "*", [5, 6, 7, 8]),
        ("last_per_topic", "a", [6]),
        ("last_per_topic", ["a", "c/*"], [6, 7, 8]),
        ("last_per_topic", "none", []),
    ],
)
def test_feed_is_begun_at_an_offset_at_the_last_message_or_at_each_topic_s_last(
    topical: MemoryStore,
    follow: Callable[[MemoryStore, FeedStart, Pattern | Sequence[Pattern]], list[object]],
    start: FeedStart,
    topics: str | list[str],
    expected: list[int],
) -> None:
    assert follow(topical, start, topics) == expected


@pytest.mark.parametrize("start", ["last", "last_per_topic"])
def test_what_is_published_after_the_start_was_looked_up_is_received_too(topical: MemoryStore, start: str) -> None:
    reader = FeedReader.open(topical, "f", start=start, topics="a")
    subscription = FeedSubscription.open(topical, "f", "s", start=start, topics="a", options=AT_ONCE)
    published(topical, [9, 10], topic="a")

    assert received(reader) == [6, 9, 10]
    assert messages(taken(subscription)) == [6, 9, 10]


def test_subscription_begun_at_each_topic_s_last_message_delivers_no_other_later(
    topical: MemoryStore,
) -> None:
    open_it = partial(FeedSubscription.open, topical, "f", "s", start="last_per_topic", options=AT_ONCE)
    subscription = open_it()
    items = taken(subscription)
    subscription.acknowledge(items[1])

    again = open_it()

    assert (again.floor, messages(taken(again))) == (5, [5, 7, 8])
    assert again.info().num_pending == 0


def test_subscription_to_more_topics_than_its_cursor_has_room_for_is_refused(
    topical: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_subscription, "RANGES_MAX", 1)
    assert RANGES_MAX == 2000

    with pytest.raises(InvalidRequestError, match="last_per_topic"):
        FeedSubscription.open(topical, "f", "s", start="last_per_topic", topics=["a", "b", "c/y"])
    assert CursorStore(topical, "f").list() == {}


@pytest.mark.slow
def test_last_message_is_found_with_few_requests_and_without_bodies(memory_store: MemoryStore) -> None:
    published(memory_store, range(300))
    store = CountingStore(memory_store)
    reader = FeedReader.open(store, "f", start="last")

    assert store.requests["read"] <= 3
    assert received(reader) == [299]


def test_topic_whose_last_record_is_a_tombstone_has_no_last_message(topical: MemoryStore) -> None:
    with LogWriter.open(topical, "f") as writer:
        writer.append(None, key=b"a")
        writer.append(b"no topic")

    assert [item.offset for item in iter(partial(FeedReader.open(topical, "f", start="last").recv, 0), None)] == [
        8,
        9,
        10,
    ]
    last = FeedReader.open(topical, "f", start="last_per_topic", topics=["a", "b"])
    assert [item.offset for item in iter(partial(last.recv, 0), None)] == [5, 6]


def test_last_of_each_topic_is_looked_up_again_when_fragments_were_replaced(
    memory_store: MemoryStore,
) -> None:
    for number, topic in enumerate(TOPICS, start=1):
        published(memory_store, [number], topic=topic)
    store, tasks = FaultyStore(memory_store), [partial(replace_first_fragments, memory_store)]
    store.before = lambda _kind, path: tasks.pop()() if tasks and "Fragment" in path else None

    assert received(FeedReader.open(store, "f", start="last_per_topic")) == [5, 6, 7, 8]
    assert not tasks


def replace_first_fragments(store: MemoryStore) -> None:
    delete_objects(store, "f", compact(store, "f", drop=[1], groups=[(0, 3)]))


@pytest.mark.parametrize("start", [0, -1, True, 1.5, 99])
def test_offset_that_is_none_of_the_log_is_refused_and_named(topical: MemoryStore, start: int) -> None:
    for follow in (FeedReader.open, partial(FeedSubscription.open, name="s")):
        with pytest.raises(InvalidRequestError, match="start"):
            follow(topical, "f", start=start)


def test_offset_that_was_collected_is_refused(memory_store: MemoryStore) -> None:
    published(memory_store, range(30))
    collected_to(memory_store, "f", 20)

    with pytest.raises(GarbageCollectedError):
        FeedReader.open(memory_store, "f", start=5)
    assert received(FeedReader.open(memory_store, "f", start=25)) == list(range(24, 30))


# ---------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a/*", ["a/b", "a/bc"]),
        ("a/b*", ["a/b", "a/bc"]),
        ("a/?", ["a/b"]),
        ("a/[bx]", ["a/b"]),
        ("*", ["a", "x"]),
        ("*/*", ["a/b", "a/bc", "x/b"]),
        ("a/**", ["a", "a/b", "a/bc", "a/b/c", "a/b/c/b", "a//b"]),
        ("**/b", ["a/b", "a/b/c/b", "x/b", "a//b"]),
        ("a/**/b", ["a/b", "a/b/c/b", "a//b"]),
        ("a/*/b", ["a//b"]),
        ("**/*/**/c/*", ["a/b/c/b"]),
        ("**", ["a", "a/b", "a/bc", "a/b/c", "a/b/c/b", "x", "x/b", "a//b"]),
    ],
)
def test_pattern_of_levels_matches_within_one_and_across(pattern: str, expected: list[str]) -> None:
    topics = ["a", "a/b", "a/bc", "a/b/c", "a/b/c/b", "x", "x/b", "a//b"]
    takes = topic_filter((Levels(pattern),))

    assert [topic for topic in topics if takes(topic)] == expected


def test_text_and_levels_are_patterns_of_one_reader_and_text_keeps_its_meaning(topical: MemoryStore) -> None:
    assert read(topical, 1, "*") == list(range(1, 9))
    assert read(topical, 1, Levels("*")) == [1, 2, 3, 5, 6]
    assert read(topical, 1, ["b", Levels("c/*")]) == [2, 4, 5, 7, 8]


@pytest.mark.parametrize("pattern", ["a**", "a/**b", "***", "", 7])
def test_pattern_of_levels_has_its_stars_alone(pattern: str) -> None:
    with pytest.raises(InvalidRequestError, match="topic|pattern"):
        Levels(pattern)


def test_many_stars_are_matched_in_bounded_time() -> None:
    takes = topic_filter((Levels("/".join(["**", "a"] * 100)),))

    assert not takes("/".join(["a"] * 400) + "/b")


def test_subscription_of_levels_is_another_than_that_of_the_same_text(topical: MemoryStore) -> None:
    assert subscribed(topical, 1, Levels("c/*")) == [4, 7, 8]

    with pytest.raises(InvalidRequestError, match="Levels"):
        FeedSubscription.open(topical, "f", "s", topics="c/*", options=BY_HAND)
    assert subscribed(topical, 1, [Levels("c/*")]) == [4, 7, 8]


# ---------------------------------------------------------------------- own times


@pytest.fixture
def timed() -> tuple[MemoryStore, ClockRuntime]:
    """Two fragments, committed 20 and 40 s after noon, of messages with times of their own, and without."""
    clock = ClockRuntime()
    store = MemoryStore(clock, name="timed")
    with FeedWriter.open_or_create(store, "f", runtime=clock) as writer:
        for committed_s, seconds in ((20, (10, 12, None, 15)), (40, (18, 35, 30, 90))):
            clock.us = NOON_US + committed_s * 1_000_000
            for each in seconds:
                own = None if each is None else NOON_US + each * 1_000_000
                writer.publish("t", each, timestamp=own)
            writer.flush()
    return store, clock


ALL = [10, 12, None, 15, 18, 35, 30, 90]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, ALL),
        (10, ALL),
        (11, ALL[1:]),
        (13, ALL[2:]),
        (20, ALL[2:]),
        (21, ALL[5:]),
        (35, ALL[5:]),
        (36, ALL[7:]),
        (40, ALL[7:]),
        (41, []),
    ],
)
def test_time_is_found_within_a_batch_by_the_messages_own_times(
    timed: tuple[MemoryStore, ClockRuntime], seconds: int, expected: list[int]
) -> None:
    store, clock = timed
    at = AtTime(NOON_US + seconds * 1_000_000)
    reader = FeedReader.open(store, "f", start=at, runtime=clock)
    subscription = FeedSubscription.open(store, "f", "s", start=at, options=AT_ONCE, runtime=clock)

    assert received(reader) == expected
    assert messages(taken(subscription)) == expected
    found = reader.recv_as_of(at, 0)
    assert (found and [found.message] if isinstance(found, FeedMessage) else []) == expected[:1]


def test_message_has_its_own_time_which_is_none_of_the_future(timed: tuple[MemoryStore, ClockRuntime]) -> None:
    store, clock = timed
    items = list(iter(partial(FeedReader.open(store, "f", runtime=clock).recv, 0), None))

    assert [isinstance(item, FeedMessage) and (item.published_us - NOON_US) / 1e6 for item in items] == [
        *(10, 12, 20, 15),
        *(18, 35, 30, 40),
    ]


def test_reader_that_waits_for_a_time_of_a_message_resumes_waiting_for_it(
    timed: tuple[MemoryStore, ClockRuntime],
) -> None:
    store, clock = timed
    reader = FeedReader.open(store, "f", start=AtTime(NOON_US + 39_000_000), runtime=clock, topics=["t", "u"])
    with FeedWriter.open(store, "f", runtime=clock) as writer:
        writer.publish("other", 0)
        writer.publish("u", 38, timestamp=NOON_US + 38_000_000)
        writer.publish(
            "u", 39, timestamp=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOON_US + 39 * 10**6)
        )
    alone = FeedReader.open(store, "f", start=AtTime(NOON_US + 39_000_000), runtime=clock, topics=["u", "none"])
    waiting = FeedReader.open(store, "f", start=AtTime(NOON_US + 39_000_000), runtime=clock, topics="none")
    assert waiting.recv(0) is None
    resumed = FeedReader.open(store, "f", start=waiting.position, runtime=clock, topics="u")

    assert received(reader) == [90, 38, 39]
    assert received(alone) == received(resumed) == [39]


def test_message_with_a_time_is_one_for_programs_that_decode_bodies_themselves() -> None:
    data = packed({"a": b"x"}, 1_700_000_000_123_456)
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    message, own = unpacker

    assert (message, own.to_unix_nano()) == ({"a": b"x"}, 1_700_000_000_123_456_000)
    assert unpacked_or_error(data) == ({"a": b"x"}, 1_700_000_000_123_456, None)
    assert unpacked_or_error(packed(1)) == (1, None, None)
    for wrong in (data + b"\x00", packed(1) + packed(2), packed(1) + b"\xc1", b""):
        assert unpacked_or_error(wrong)[2] is not None


@pytest.mark.parametrize("timestamp", ["1", 1.5, -1, True, datetime(2020, 1, 1)])  # noqa: DTZ001 - that is what is wrong
def test_own_time_is_checked(memory_store: MemoryStore, timestamp: int) -> None:
    with (
        FeedWriter.open_or_create(memory_store, "f") as writer,
        pytest.raises(InvalidRequestError, match="timestamp"),
    ):
        writer.publish("t", 1, timestamp=timestamp)


# ---------------------------------------------------------------------- what is left


def test_info_counts_messages_of_the_subscription_s_topics_alone(topical: MemoryStore) -> None:
    with LogWriter.open(topical, "f") as writer:
        writer.append(b"no topic")
        writer.append(None, key=b"a")
    published(topical, ["not read"] * 3, topic="a")
    subscription = FeedSubscription.open(topical, "f", "s", topics=["a", "b"], options=BY_HAND)

    found = subscription.info()
    assert (found.num_pending, found.num_ack_pending, found.num_redelivered) == (8, 0, 0)
    first, second = (subscription.recv(DEADLINE_S) for _ in range(2))
    assert isinstance(first, Delivery)
    assert isinstance(second, Delivery)
    subscription.acknowledge(first)
    subscription.nak(second)
    assert subscription.recv(DEADLINE_S) is not None
    found = subscription.info()
    assert (found.num_pending, found.num_ack_pending, found.num_redelivered) == (6, 1, 1)
    for item in taken(subscription):
        if not isinstance(item, Stray):
            subscription.acknowledge(item)
    found = subscription.info()
    assert (found.num_pending, found.num_ack_pending, found.num_strays, found.ack_floor) == (0, 1, 2, 1)
    subscription.save()
    assert subscription.info().ack_floor == 2


def test_info_of_a_subscription_that_does_not_pin_counts_what_the_log_still_has(memory_store: MemoryStore) -> None:
    published(memory_store, range(30))
    subscription = FeedSubscription.open(memory_store, "f", "s", options=UNPINNED)
    collected_to(memory_store, "f", 20)

    assert subscription.info().num_pending == 11
