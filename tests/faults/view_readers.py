"""Feeds and keyed logs read in a story: nothing is skipped but what a pass of key compaction has dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.store import LOG, SimStore
from tests.faults.view_consumers import PREFIX, READING, STRAY, TOPIC, TOPICS
from wal3_core import (
    FeedReader,
    GarbageCollectedError,
    KeyedLog,
    KeyedOptions,
    LogError,
    LogNotFoundError,
    Record,
    Stray,
)
from wal3_core.views.feed.messages import packed

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess


@dataclass
class Course:
    """One way through the log: the offset that it has come to, 0 before it has begun."""

    place: int = 0

    def see(
        self, stage: Stage, record: Record, wanted: Callable[[bytes], bool], *, as_of_s: float | None = None
    ) -> None:
        """Check a record, and that none was skipped before it but those that were dropped, by ``as_of_s`` if given."""
        held = stage.world.oracle.records[record.offset - 1]
        assert (record.body, record.key) == (held.body, held.key), f"altered: {record}"
        assert record.offset >= self.place, f"given twice: {record}, at {self.place}"
        self.pass_to(stage, record.offset, wanted, as_of_s=as_of_s)
        self.place = record.offset + 1
        stage.world.fired["read"] += 1

    def pass_to(
        self, stage: Stage, limit: int, wanted: Callable[[bytes], bool], *, as_of_s: float | None = None
    ) -> None:
        """Check that all that is wanted up to an offset was dropped."""
        oracle, until_s = stage.world.oracle, stage.simulation.now_s if as_of_s is None else as_of_s
        for offset in range(self.place, limit):
            key = oracle.records[offset - 1].key
            skipped = key is not None and wanted(key) and oracle.dropped.get(offset, until_s + 1) > until_s
            assert not skipped, f"skipped: {offset}, between {self.place} and {limit}"
        self.place = max(self.place, limit)


def _first(stage: Stage) -> int:
    manifest = stage.world.oracle.manifest
    assert manifest is not None
    return manifest.first.position.offset


def _place_of(reader: FeedReader) -> int:
    return int(reader.position.partition(":")[2])


def _of_prefix(key: bytes) -> bool:
    return key.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class Looking:
    """Reads the log as a feed and by key, in one process, from where it was or from its beginning."""

    rounds: int
    options: KeyedOptions
    # Of a feed reader: the place of its token.
    feed: Course = field(default_factory=Course)
    tokens: list[str] = field(default_factory=list)
    prefix: Course = field(default_factory=Course)

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice, store = process.random, SimStore(stage.world, process)
        ways = (self._receive, self._receive, self._scan, self._follow, self._count)
        for _ in range(self.rounds):
            stage.simulation.pause(dice.random())
            with contextlib.suppress(LogNotFoundError):
                self._look(stage, store, dice, dice.choice(ways))

    def _look(
        self, stage: Stage, store: SimStore, dice: Random, way: Callable[[Stage, SimStore, Random], None]
    ) -> None:
        try:
            way(stage, store, dice)
        except GarbageCollectedError:
            stage.world.fired["read too late"] += 1
            self.tokens.clear()
            self.prefix.place = 0
        except LogError as error:
            stage.excuse(error)

    def _receive(self, stage: Stage, store: SimStore, dice: Random) -> None:
        start = self.tokens.pop() if self.tokens else "beginning"
        reader = FeedReader.open(store, LOG, start=start, topics=TOPIC, options=READING, runtime=store.process)
        if start == "beginning":
            self.feed.place = _place_of(reader)
        try:
            for _ in range(dice.randrange(1, 30)):
                message = reader.recv(dice.choice((0.0, 0.0, 0.5, 3.0)))
                if message is None:
                    break
                if isinstance(message, Stray):
                    held = stage.world.oracle.records[message.offset - 1]
                    assert (held.body or b"").startswith(STRAY), f"no stray: {message}"
                    record = Record(message.offset, message.timestamp_us, held.key, held.body)
                else:
                    body = packed(message.message)
                    record = Record(message.offset, message.timestamp_us, message.topic.encode(), body)
                self.feed.see(stage, record, _of_prefix)
                assert reader.position == message.position
        finally:
            self.tokens[:] = [reader.position]
            self.feed.pass_to(stage, _place_of(reader), _of_prefix)

    def _opened(self, store: SimStore) -> KeyedLog:
        return KeyedLog.open(store, LOG, options=self.options, runtime=store.process)

    def _scan(self, stage: Stage, store: SimStore, dice: Random) -> None:
        """Continue the scan of a prefix: it has all that the log held when it began, or raises."""
        log = self._opened(store)
        scan = log.scan_prefix(PREFIX, self.prefix.place or None, records_max=dice.choice((None, 1, 5)))
        # What is dropped later it has, or it raises.
        made_s = stage.simulation.now_s
        if scan.start > self.prefix.place:
            # What was collected since the last scan is not given, and the scan says so.
            stage.world.fired["read too late"] += self.prefix.place > 0
            self.prefix.place = scan.start
        pause_s = dice.choice((0.0, 0.0, 1.0))
        for record in scan:
            self.prefix.see(stage, record, _of_prefix, as_of_s=made_s)
            stage.simulation.pause(pause_s)
        self.prefix.pass_to(stage, scan.next_offset, _of_prefix, as_of_s=made_s)

    def _follow(self, stage: Stage, store: SimStore, dice: Random) -> None:
        log, key = self._opened(store), dice.choice(TOPICS).encode()
        course = Course(_first(stage))
        for record in log.follow(key, start=course.place, idle_s=dice.choice((0.0, 2.0))):
            course.see(stage, record, lambda each: each == key)
            if dice.random() < 0.05:
                break

    def _count(self, stage: Stage, store: SimStore, dice: Random) -> None:
        """Count a key's records in a fixed range: as many as there were at some moment of the call."""
        key, log = dice.choice(TOPICS).encode(), self._opened(store)
        # The life that was opened: a writer may have begun it meanwhile.
        oracle = stage.world.oracle
        assert oracle.manifest is not None
        first, limit = oracle.manifest.first.position.offset, oracle.manifest.next.position.offset
        offsets = [at for at in range(first, limit) if oracle.records[at - 1].key == key]
        before = sum(at not in oracle.dropped for at in offsets)
        count = log.count(key, first, limit)
        after = _held(oracle, offsets)
        assert after <= count <= before, f"counted {count} of {key!r}, of {before} and then {after}"
        bounds = log.count_bounds(key, first, limit, requests_max=dice.choice((0, 3)))
        least = _held(oracle, offsets)
        assert bounds.lo <= before, f"{bounds}, of {before}"
        assert bounds.hi >= least, f"{bounds}, of {least}"
        stage.world.fired["counted"] += 1


def _held(oracle: Oracle, offsets: Sequence[int]) -> int:
    """How many of some records the log has now: the others were compacted or, at its beginning, collected."""
    assert oracle.manifest is not None
    first = oracle.manifest.first.position.offset
    return sum(at >= first and at not in oracle.dropped for at in offsets)
