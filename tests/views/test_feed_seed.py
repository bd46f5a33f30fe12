"""The first draft of a message log had these faults; a feed has none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stores import CountingStore
from wal3_core import FeedReader, FeedWriter, LogReader, MemoryStore, WriterOptions

from .feeds import DEADLINE_S, NOON_US, published_at, received, simulated

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess


def test_fragment_is_the_one_that_holds_the_time_and_not_the_first_older_one() -> None:
    store, _ = published_at([(second, second) for second in (10, 20, 30, 40)])

    found = FeedReader.open(store, "f", start="end").recv_as_of(NOON_US + 30_000_000, 0)

    assert found is not None
    assert found.message == 30


def test_messages_of_exactly_the_time_are_received_all_of_them() -> None:
    store, _ = published_at([(10, "before"), (20, "x"), (20, "y"), (20, "z")])
    reader = FeedReader.open(store, "f", start="end")

    first = reader.recv_as_of(NOON_US + 20_000_000, 0)

    assert first is not None
    assert [first.message, *received(reader)] == ["x", "y", "z"]


def test_fragment_has_the_time_of_its_messages_and_not_that_of_the_rotation_before() -> None:
    """A file that was named when the one before was full had a name hours before its first message."""
    store, _ = published_at([(10, "full"), (7200, "hours later")])

    starts = [pointer.start.timestamp_us - NOON_US for pointer in LogReader.open(store, "f").scan()]
    found = FeedReader.open(store, "f", start="end").recv_as_of(NOON_US + 3_600_000_000, 0)

    assert starts == [10_000_000, 7_200_000_000]
    assert found is not None
    assert found.message == "hours later"


def test_reader_at_the_end_waits_without_spinning() -> None:
    def work(store: MemoryStore, process: SimProcess) -> tuple[int, float]:
        FeedWriter.open_or_create(store, "f", runtime=process).close()
        counting = CountingStore(store)
        reader = FeedReader.open(counting, "f", runtime=process)
        counting.requests.clear()
        began_s = process.monotonic_s()
        assert reader.recv(600.0) is None
        return counting.requests.total(), process.monotonic_s() - began_s

    requests, waited_s = simulated(work)

    assert waited_s == pytest.approx(600.0, abs=0.1)
    assert requests <= 310, "one every two seconds"


def test_reader_that_goes_on_to_new_fragments_while_it_waits_passes_none_of_them() -> None:
    """At a file's end the path was advanced twice, and the file between was never read."""

    def work(store: MemoryStore, process: SimProcess) -> list[object]:
        with FeedWriter.open_or_create(store, "f", runtime=process) as writer:
            reader = FeedReader.open(store, "f", runtime=process)
            found = []
            for number in range(8):
                assert reader.recv(0) is None
                # Several fragments come between two looks.
                for part in range(3):
                    process.wait(writer.publish("t", (number, part)), DEADLINE_S)
                found.extend(received(reader))
            return found

    assert simulated(work) == [[number, part] for number in range(8) for part in range(3)]


def test_single_message_is_durable_after_the_batch_s_age_and_needs_no_second_one() -> None:
    def work(store: MemoryStore, process: SimProcess) -> float:
        options = WriterOptions(batch_age_s_max=3.0)
        with FeedWriter.open_or_create(store, "f", options=options, runtime=process) as writer:
            writer.publish("t", "wakes the log")
            began_s = process.monotonic_s()
            process.wait(writer.publish("t", "alone"), DEADLINE_S)
            return process.monotonic_s() - began_s

    assert simulated(work) <= 3.5
