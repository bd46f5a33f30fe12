"""A feed gives every message once, in order, from any place or time on, and says where it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.spec.seals import collect as collected_to
from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    AtTime,
    CorruptError,
    FeedMessage,
    FeedMovedError,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    Gap,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    OverloadedError,
    Stray,
    SubscriptionOptions,
    WriterOptions,
    create_successor,
    destroy,
    seal,
)
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore, Versioned
from wal3_core.views.feed import feed_reader

from .feeds import DEADLINE_S, NOON_US, READER, published, published_at, received, simulated

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess

VALUES = [None, True, -1, 2**64 - 1, 1.5, "é", b"\xff\x00", b"", [1, [b"x"]], {"a": {1: None}, b"b": []}]


@pytest.mark.parametrize("store", ["memory", "local"], indirect=True)
def test_message_is_received_as_it_was_published(store: ObjectStore) -> None:
    with FeedWriter.open_or_create(store, "f") as writer:
        places = [writer.publish("a/é", value) for value in VALUES]

    reader = FeedReader.open(store, "f", options=READER)
    found = [reader.recv(0) for _ in VALUES]

    assert [each and (each.topic, each.message, each.offset) for each in found] == [
        ("a/é", value, place.result().offset) for value, place in zip(VALUES, places, strict=True)
    ]
    assert reader.recv(0) is None


@pytest.mark.parametrize("message", [object(), {1, 2}, 2**64, "\ud800", {(1, 2): 3}, datetime.now(UTC), [lambda: 1]])
def test_message_that_could_not_be_read_back_is_refused_and_nothing_is_published(
    memory_store: MemoryStore, message: object
) -> None:
    with FeedWriter.open_or_create(memory_store, "f") as writer, pytest.raises(InvalidRequestError, match="messag"):
        writer.publish("t", message)

    assert FeedReader.open(memory_store, "f").recv(0) is None


@pytest.mark.parametrize("topic", ["", "x" * 1025, "é" * 513, "\ud800", 7, b"t"])
def test_topic_is_text_of_a_bounded_size(memory_store: MemoryStore, topic: str) -> None:
    with FeedWriter.open_or_create(memory_store, "f") as writer, pytest.raises(InvalidRequestError, match="topic"):
        writer.publish(topic, 1)


def test_publisher_that_is_too_fast_learns_it_or_waits_and_no_log_has_the_message(
    memory_store: MemoryStore,
) -> None:
    store, answers = FaultyStore(memory_store), threading.Event()
    with FeedWriter.open_or_create(store, "f", options=WriterOptions(bytes_held_max=100)) as writer:
        store.before = lambda _kind, _path: answers.wait(DEADLINE_S)
        first = writer.publish("t", b"x" * 90)
        with pytest.raises(OverloadedError):
            writer.publish("t", b"y" * 90, timeout_s=0)
        answers.set()
        second = writer.publish("t", b"z" * 90, timeout_s=DEADLINE_S)
        assert first.done()
        second.result(DEADLINE_S)

    assert received(FeedReader.open(memory_store, "f")) == [b"x" * 90, b"z" * 90]


# ---------------------------------------------------------------------- times


@pytest.fixture
def clocked() -> MemoryStore:
    """A log with messages of 10, 20, 20, 20 and 30 s after noon, each in a fragment of its own."""
    return published_at([(10, "a"), (20, "b1"), (20, "b2"), (20, "b3"), (30, "c")])[0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, ["a", "b1", "b2", "b3", "c"]),
        (10, ["a", "b1", "b2", "b3", "c"]),
        (15, ["b1", "b2", "b3", "c"]),
        (20, ["b1", "b2", "b3", "c"]),
        (21, ["c"]),
        (30, ["c"]),
        (31, []),
    ],
)
def test_receiving_as_of_a_time_begins_with_the_first_message_of_that_time(
    clocked: MemoryStore, seconds: int, expected: list[str]
) -> None:
    reader = FeedReader.open(clocked, "f", start="end")

    first = reader.recv_as_of(NOON_US + seconds * 1_000_000, 0)

    assert [first.message for first in [first] if first] + received(reader) == expected


def test_time_may_be_a_datetime_of_any_time_zone_but_not_of_none(clocked: MemoryStore) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOON_US + 20_000_000)
    reader = FeedReader.open(clocked, "f", start=at.astimezone(timezone(timedelta(hours=5))))

    assert received(reader) == ["b1", "b2", "b3", "c"]
    found = reader.recv_as_of(at + timedelta(microseconds=1), 0)
    assert found is not None
    assert found.message == "c"
    with pytest.raises(InvalidRequestError, match="time zone"):
        reader.recv_as_of(at.replace(tzinfo=None))


def test_reader_that_waits_for_a_later_time_resumes_waiting_and_passes_earlier() -> None:
    store, clock = published_at([(10, "a")])
    reader = FeedReader.open(store, "f", start=AtTime(NOON_US + 30_000_000), runtime=clock)
    assert reader.recv(0) is None
    resumed = FeedReader.open(store, "f", start=reader.position, runtime=clock)

    with FeedWriter.open(store, "f", runtime=clock) as writer:
        for seconds in (20, 30):
            clock.us = NOON_US + seconds * 1_000_000
            writer.publish("t", seconds).result(DEADLINE_S)

    assert received(reader) == received(resumed) == [30]


@pytest.mark.slow
def test_reader_that_waits_for_a_time_waits_for_it_in_the_successor() -> None:
    store, clock = published_at([(10, "a")])
    reader = FeedReader.open(store, "f", start=AtTime(NOON_US + 30_000_000), runtime=clock)
    seal(store, "f", reason="full", successor="g", runtime=clock)
    create_successor(store, "f", runtime=clock)

    with pytest.raises(FeedMovedError) as moved:
        reader.recv(0)
    onwards = FeedReader.open(store, "g", start=moved.value.position, runtime=clock)

    with FeedWriter.open(store, "g", runtime=clock) as writer:
        for seconds in (20, 30, 40):
            clock.us = NOON_US + seconds * 1_000_000
            writer.publish("t", seconds).result(DEADLINE_S)
    assert received(onwards) == [30, 40]
    assert received(FeedReader.open(store, "g", start=reader.position, runtime=clock)) == [30, 40]


@pytest.mark.slow
def test_time_is_found_with_few_fragments_however_long_the_log() -> None:
    store, clock = published_at([(second, second) for second in range(300)])
    counting = CountingStore(store)
    reader = FeedReader.open(counting, "f", start="end", runtime=clock)
    counting.requests.clear()

    found = reader.recv_as_of(NOON_US + 150_000_000, 0)

    assert found is not None
    assert found.message == 150
    # The manifest, a snapshot of each depth, and the fragment with those fetched ahead of the caller.
    assert counting.requests["read"] <= 8
    assert counting.requests.total() <= 10


# ---------------------------------------------------------------------- places


def test_position_continues_after_the_last_message_also_among_those_of_one_time(clocked: MemoryStore) -> None:
    reader = FeedReader.open(clocked, "f")
    tokens = [reader.position]
    while (message := reader.recv(0)) is not None:
        assert message.position == reader.position
        tokens.append(message.position)

    messages = ["a", "b1", "b2", "b3", "c"]
    assert [received(FeedReader.open(clocked, "f", start=token)) for token in tokens] == [
        messages[index:] for index in range(6)
    ]
    assert max(map(len, tokens)) < 60


def test_position_in_a_log_that_was_begun_again_is_refused(memory_store: MemoryStore) -> None:
    published(memory_store, ["old", "older"])
    old = FeedReader.open(memory_store, "f")
    assert old.recv(0)
    destroy(memory_store, "f")
    published(memory_store, ["new", "newer"])

    with pytest.raises(LogReplacedError, match="had this name before"):
        FeedReader.open(memory_store, "f", start=old.position)
    assert received(FeedReader.open(memory_store, "f")) == ["new", "newer"]
    with pytest.raises(LogReplacedError):
        for _ in range(3):
            old.recv(0)


@pytest.mark.parametrize("token", ["", "x", "1" * 32, f"{'1' * 32}:", f"{'1' * 32}:1@", f"{'1' * 32}:-1"])
def test_text_that_is_no_position_is_refused(memory_store: MemoryStore, token: str) -> None:
    published(memory_store, [1])

    with pytest.raises(InvalidRequestError, match="start"):
        FeedReader.open(memory_store, "f", start=token)


def test_position_beyond_the_end_is_refused(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    log_id = FeedReader.open(memory_store, "f").position.partition(":")[0]

    with pytest.raises(InvalidRequestError, match="expected an offset"):
        FeedReader.open(memory_store, "f", start=f"{log_id}:9")


def test_feed_without_a_log_is_an_error(memory_store: MemoryStore) -> None:
    with pytest.raises(LogNotFoundError):
        FeedReader.open(memory_store, "f")


# ---------------------------------------------------------------------- topics


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("*", ["a/b", "a/B", "a", "b/a/c", "a[1]"]),
        ("a/*", ["a/b", "a/B"]),
        ("a/b", ["a/b"]),
        ("*a*", ["a/b", "a/B", "a", "b/a/c", "a[1]"]),
        ("?", ["a"]),
        ("a/[b-c]", ["a/b"]),
        ("a[[]1]", ["a[1]"]),
        (["a", "b/*"], ["a", "b/a/c"]),
        ("none", []),
    ],
)
def test_reader_receives_the_topics_that_match_a_pattern(
    memory_store: MemoryStore, patterns: str | list[str], expected: list[str]
) -> None:
    for topic in ("a/b", "a/B", "a", "b/a/c", "a[1]"):
        published(memory_store, [topic], topic=topic)

    reader = FeedReader.open(memory_store, "f", topics=patterns)

    assert received(reader) == expected
    assert reader.position.endswith(":6"), "what no pattern matches is passed"


@pytest.mark.parametrize("patterns", [[], "", ["a", ""], [7], ["x"] * 50 + [str(n) for n in range(100)]])
def test_patterns_are_checked(memory_store: MemoryStore, patterns: list[str]) -> None:
    published(memory_store, [1])

    with pytest.raises(InvalidRequestError, match="topics"):
        FeedReader.open(memory_store, "f", topics=patterns)


# ---------------------------------------------------------------------- waiting


def test_commit_of_the_same_process_wakes_a_reader_at_once() -> None:
    def work(store: MemoryStore, process: SimProcess) -> float:
        with FeedWriter.open_or_create(store, "f", runtime=process) as writer:
            reader = FeedReader.open(store, "f", runtime=process)
            assert reader.recv(100.0) is None, "the pauses have grown"
            process.call_later(5.0, lambda: writer.publish("t", 1) and None)
            began_s = process.monotonic_s()
            assert reader.recv() is not None
            return process.monotonic_s() - began_s

    assert simulated(work) == pytest.approx(5.0, abs=0.05)


def test_waiting_costs_one_request_a_poll_however_many_wait(memory_store: MemoryStore) -> None:
    def work(store: MemoryStore, process: SimProcess) -> int:
        published(store, [1])
        counting = CountingStore(store)
        readers = [FeedReader.open(counting, "f", start="end", runtime=process) for _ in range(50)]
        counting.requests.clear()
        for reader in readers[1:]:
            process.spawn(lambda reader=reader: reader.recv(60.0) and None)
        assert readers[0].recv(60.0) is None
        return counting.requests.total()

    assert memory_store
    # Polls grow to 2 s apart.
    assert simulated(work) <= 40


@pytest.mark.slow
def test_hundred_readers_cost_one_get_for_each_new_fragment(memory_store: MemoryStore) -> None:
    published(memory_store, ["before"])
    counting = CountingStore(memory_store)
    readers = [FeedReader.open(counting, "f", start="end", options=READER) for _ in range(100)]
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda each=each: found.extend(each.recv(DEADLINE_S) for _ in range(5)), daemon=True)
        for each in readers
    ]
    counting.requests.clear()
    for thread in threads:
        thread.start()
    published(memory_store, range(5))
    for thread in threads:
        thread.join(DEADLINE_S)

    assert sorted(message.message for message in found if isinstance(message, FeedMessage)) == [
        number for number in range(5) for _ in range(100)
    ]
    assert counting.requests["read"] == 5


def test_reader_ends_after_the_last_message_of_a_sealed_log(memory_store: MemoryStore) -> None:
    published(memory_store, [1, 2])
    seal(memory_store, "f", reason="test")

    reader = FeedReader.open(memory_store, "f")

    assert [message.message for message in reader] == [1, 2]
    assert reader.ended
    assert reader.recv() is None


@pytest.mark.slow
@pytest.mark.parametrize("follow", [FeedReader.open, partial(FeedSubscription.open, name="s")])
def test_time_to_wait_is_kept_while_messages_of_other_topics_are_passed(
    memory_store: MemoryStore, follow: Callable[..., FeedReader | FeedSubscription]
) -> None:
    for topic in ("other", "mine"):
        with FeedWriter.open_or_create(memory_store, "f") as writer:
            for number in range(20_000 if topic == "other" else 1):
                writer.publish(topic, number)
    follower = follow(memory_store, "f", topics="mine")

    began_s, calls = time.monotonic(), 1
    while (found := follower.recv(0.01)) is None:
        calls += 1
        assert time.monotonic() - began_s < DEADLINE_S

    assert not isinstance(found, Gap)
    assert found.offset == 20_001
    assert calls > 1


# ---------------------------------------------------------------------- nothing is skipped


def test_message_collected_before_it_was_received_is_an_error_each_time(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    reader = FeedReader.open(memory_store, "f", options=READER)
    assert received(reader) == [1]
    published(memory_store, range(40))
    collected_to(memory_store, "f", 30)

    for _ in range(2):
        with pytest.raises(GarbageCollectedError):
            reader.recv(0)
    with pytest.raises(GarbageCollectedError):
        FeedReader.open(memory_store, "f", start=reader.position, options=READER)
    beginning = FeedReader.open(memory_store, "f", options=READER).recv(0)
    assert beginning is not None
    assert beginning.offset == 30


def test_manifest_restored_to_an_older_version_is_an_error_not_an_endless_wait(
    memory_store: MemoryStore,
) -> None:
    published(memory_store, range(3))
    older = memory_store.get("f/manifest/MANIFEST.json")
    published(memory_store, range(3, 10))
    reader = FeedReader.open(memory_store, "f", options=READER)
    subscription = FeedSubscription.open(memory_store, "f", "s", options=SubscriptionOptions(reader=READER))
    assert received(reader) == list(range(10))
    while (item := subscription.recv(0)) is not None:
        subscription.acknowledge(item)
    subscription.close()

    newer = memory_store.get("f/manifest/MANIFEST.json")
    assert isinstance(older, Versioned)
    assert isinstance(newer, Versioned)
    memory_store.replace("f/manifest/MANIFEST.json", older.data, newer.etag)

    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="from 1 to 4, found 11"):
            reader.recv(1.0)
    with pytest.raises(CorruptError, match="found some up to 11"):
        FeedSubscription.open(memory_store, "f", "s")


@pytest.mark.parametrize(("key", "body"), [(None, b"\x01"), (b"\xff", b"\x01"), (b"t", b"\xc1"), (b"t", None)])
def test_record_that_is_no_message_is_received_once_as_a_stray_and_passed(
    memory_store: MemoryStore, key: bytes | None, body: bytes | None
) -> None:
    published(memory_store, ["before"])
    with LogWriter.open(memory_store, "f") as writer:
        offset = writer.append(body, key=key).offset
    published(memory_store, ["after"])
    reader = FeedReader.open(memory_store, "f")

    items = [reader.recv(0) for _ in range(4)]

    stray = items[1]
    assert isinstance(stray, Stray)
    assert (stray.offset, stray.reason[:8]) == (offset, "expected")
    assert [isinstance(each, FeedMessage) and each.message for each in items] == ["before", False, "after", False]
    assert reader.num_strays == 1
    assert received(FeedReader.open(memory_store, "f", start=stray.position)) == ["after"]
    assert received(FeedReader.open(memory_store, "f", start=offset + 1)) == ["after"]


def test_record_without_a_topic_is_a_stray_to_all_and_one_of_another_topic_to_none(memory_store: MemoryStore) -> None:
    published(memory_store, ["x"], topic="mine")
    with LogWriter.open(memory_store, "f") as writer:
        for body, key in ((b"no topic", None), (b"\xc1", b"theirs"), (b"\xc1", b"mine")):
            writer.append(body, key=key)
    readers = [FeedReader.open(memory_store, "f", topics=each) for each in ("mine", "theirs", "other")]

    assert [[item.offset for item in iter(partial(reader.recv, 0), None)] for reader in readers] == [
        [1, 2, 4],
        [2, 3],
        [2],
    ]
    assert [reader.num_strays for reader in readers] == [2, 2, 1]


def test_feed_is_reopened_after_its_runtime_was_closed(memory_store: MemoryStore) -> None:
    published(memory_store, [1])
    for _ in range(2):
        with ThreadRuntime(workers_max=2) as runtime:
            assert received(FeedReader.open(memory_store, "f", runtime=runtime)) == [1]


def test_reader_reads_few_large_messages_ahead(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_reader, "BYTES_TAKEN_MAX", 5_000)
    messages = [bytes([number]) * 1_000 for number in range(40)]
    published(memory_store, messages)
    reader = FeedReader.open(memory_store, "f", options=READER)

    found, ahead = [], []
    for _ in messages:
        message = reader.recv(0)
        found.append(message and message.message)
        ahead.append(sum(len(record.body or b"") for record in reader._ready))

    assert found == messages
    assert 1_000 < max(ahead) < 6_000
