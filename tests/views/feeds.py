"""Shared by the tests of feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tests.faults.simulator import SimProcess, Simulation
from wal3_core import FeedMessage, FeedReader, FeedWriter, MemoryStore, ReaderOptions, WriterOptions
from wal3_core.options import RetryOptions
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

T = TypeVar("T")
DEADLINE_S = 20.0
READER = ReaderOptions(poll_s_min=0.005, poll_s_max=0.01, retry=RetryOptions(attempts_max=3, pause_s_min=0.001))
# One fragment for each message.
SINGLE = WriterOptions(batch_records_max=1)
NOON_US = 1_800_000_000_000_000


class ClockRuntime(ThreadRuntime):
    """A runtime whose wall clock stands still until a test sets it."""

    def __init__(self) -> None:
        super().__init__(workers_max=4)
        self.us = NOON_US

    def now_us(self) -> int:
        return self.us


def published(store: ObjectStore, messages: Iterable[object], topic: str = "t", log: str = "f") -> list[int]:
    """Publish each message as a fragment of its own; return their offsets."""
    with FeedWriter.open_or_create(store, log, options=SINGLE) as writer:
        return [writer.publish(topic, message).result(DEADLINE_S).offset for message in messages]


def received(reader: FeedReader) -> list[object]:
    """Return what the feed holds now."""
    found = []
    while (item := reader.recv(0)) is not None:
        assert isinstance(item, FeedMessage)
        found.append(item.message)
    return found


def published_at(messages: Iterable[tuple[int, object]]) -> tuple[MemoryStore, ClockRuntime]:
    """Publish messages at seconds after noon, each as a fragment of its own, into a new log ``f``."""
    clock = ClockRuntime()
    store = MemoryStore(clock, name="clocked")
    with FeedWriter.open_or_create(store, "f", options=SINGLE, runtime=clock) as writer:
        for seconds, message in messages:
            clock.us = NOON_US + seconds * 1_000_000
            writer.publish("t", message).result(DEADLINE_S)
    return store, clock


def simulated(work: Callable[[MemoryStore, SimProcess], T]) -> T:
    """Do some work in virtual time, on a store in memory: waiting takes no time."""
    simulation = Simulation(0)
    process = SimProcess(simulation, "feeds")
    found: list[T] = []
    simulation.run(simulation.spawn(process, "main", lambda: found.append(work(MemoryStore(process), process))))
    return found[0]
