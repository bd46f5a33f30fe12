"""A stream into logs in a world of seeded accidents, called as Spark calls it: each record arrives once.

Drivers die before, while and after they install a batch; others go on with the checkpoint; those that were thought dead
install what they have staged. Tasks run twice. Meanwhile logs begin, are sealed, go on elsewhere, and are collected.
``WAL3_TEST_OPERATIONS=5000 WAL3_TEST_SEED=2 .venv/bin/pytest tests/spark/test_stream_world.py`` is another, longer one.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.spark.logs import TREE
from tests.spark.test_sink_writer import SCHEMA
from tests.spark.test_stream_reader import OffsetJson, plain
from wal3_core import LogReader, LogWriter, UnavailableError, WriterOptions, migrate
from wal3_core.errors import CollectionRefusedError, LogError, UnknownDurabilityError
from wal3_core.log.collect.collector import Collector
from wal3_core.options import CollectorOptions
from wal3_core.spark import sink, stream
from wal3_core.spark.columns import COLUMNS, spark_schema
from wal3_core.spark.requests import StreamRequest, WriteRequest
from wal3_core.spark.sink import LogStreamSinkWriter, Staged
from wal3_core.spark.stream import LogStreamReader
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from wal3_core.log.write.once import Once
    from wal3_core.log.write.staged_appends import StagedFragment

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("WAL3_TEST_SEED", "4"))
OPERATIONS = int(os.environ.get("WAL3_TEST_OPERATIONS", "100"))
LOGS_MAX = 12
OUT = ("out/0", "out/1", "out/2")
AT_ONCE = CollectorOptions(interval_s=0)
OTHER = b"of another writer"


class DeathError(Exception):
    """The driver has died."""


class World:
    """Logs below ``p``, a query that copies them to those of OUT, and what its checkpoint holds."""

    def __init__(self, url: str, store: ObjectStore, patch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(SEED)
        self.url, self.store, self.patch = url, store, patch
        self.logs: list[str] = []
        self.sealed: set[str] = set()
        self.bodies: list[bytes] = []
        self.happened: Counter[str] = Counter()
        # The checkpoint: where each batch ends, and how many the sink has.
        self.ends: list[OffsetJson] = []
        self.committed = 0
        self.zombies: list[tuple[LogStreamSinkWriter, list[Staged], int]] = []
        self.begin_log()
        self.restart()

    # ------------------------------------------------------------------ what others do

    def append(self, log: str) -> None:
        if log in self.sealed:
            return
        with LogWriter.open_or_create(self.store, log, options=WriterOptions(snapshots=TREE)) as writer:
            for _ in range(self.random.randint(1, 3)):
                first, count = len(self.bodies), self.random.randint(1, 6)
                self.bodies += [b"%d" % number for number in range(first, first + count)]
                writer.append_many(self.bodies[first:])

    def append_to_some(self) -> None:
        self.append(self.random.choice(self.logs))

    def append_beside(self) -> None:
        with LogWriter.open_or_create(self.store, self.random.choice(OUT)) as writer:
            writer.append(OTHER)

    def begin_log(self) -> None:
        if len(self.logs) < LOGS_MAX:
            self.logs.append(f"p/{len(self.logs)}")
            self.append(self.logs[-1])

    def seal(self) -> None:
        log = self.random.choice(self.logs)
        if log not in self.sealed and len(self.logs) < LOGS_MAX:
            self.logs.append(f"{self.random.choice(['p', 'elsewhere'])}/{len(self.logs)}")
            migrate(self.store, log, self.logs[-1], reason="test")
            self.sealed.add(log)

    def collect(self) -> None:
        collector = Collector(self.store, self.random.choice(self.logs), options=AT_ONCE)
        with suppress(CollectionRefusedError):
            plan = collector.plan()
            if plan is not None:
                collector.prune(collector.announce(plan))
                self.happened["collected"] += 1

    # ------------------------------------------------------------------ drivers

    def restart(self) -> None:
        """Begin a driver with the checkpoint."""
        self.options = {
            "store": self.url,
            "prefix": "p",
            "cursor": "stream",
            "partitions": f"{self.random.randint(1, 4)}",
        }
        if self.random.random() < 0.8:
            self.options["maxRecordsPerTrigger"] = f"{self.random.randint(1, 25)}"
        self.reader = self.new_reader()
        if self.random.random() < 0.4:
            self.reader.prepareForTriggerAvailableNow()
        given = {"store": self.url, "create": "true", "writer": "copier", "routes": "routes"}
        request = WriteRequest.from_options(given, SCHEMA, overwrite=False, streaming=True)
        self.writer = LogStreamSinkWriter(request)

    def new_reader(self) -> LogStreamReader:
        return LogStreamReader(StreamRequest.from_options(self.options), spark_schema(COLUMNS))

    def batch(self) -> None:
        """Do the next batch, or begin another driver, if this one dies."""
        try:
            self.do_batch()
        except DeathError as why:
            self.happened[str(why)] += 1
            self.restart()

    def do_batch(self) -> bool:
        """Do a batch as Spark does; False when there is none."""
        number = self.committed
        if len(self.ends) == number and not self.plan(number):
            return False
        self.die("planned", 0.05)
        messages = self.run_tasks(number)
        if self.random.random() < 0.15:
            self.zombies.append((self.writer, messages, number))
            raise DeathError("thought dead")
        self.die("staged", 0.05)
        self.install(messages, number)
        self.die("installed", 0.15)
        self.committed += 1
        self.happened["batch"] += 1
        return True

    def die(self, when: str, share: float) -> None:
        if self.random.random() < share:
            raise DeathError(when)

    def start_of(self, number: int) -> OffsetJson:
        return self.ends[number - 1] if number else plain(self.reader.initialOffset())

    def plan(self, number: int) -> bool:
        start = self.start_of(number)
        end = plain(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if number:
            self.reader.commit(self.ends[number - 1])
        if end != start:
            self.ends.append(end)
        return end != start

    def run_tasks(self, number: int) -> list[Staged]:
        """Run a task for each partition, some of them twice: one attempt counts."""
        tasks = self.new_reader().partitions(self.start_of(number), self.ends[number])
        attempts = [(at, task) for at, task in enumerate(tasks) for _ in range(self.random.choice([1, 1, 2]))]
        return list({at: self.attempt(self.new_reader().read(task)) for at, task in attempts}.values())

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        def routed() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                names = [OUT[zlib.crc32(body.as_py()) % len(OUT)] for body in batch["body"]]
                yield pa.RecordBatch.from_arrays([pa.array(names), batch["body"]], names=["log", "body"])

        return replace(self.writer.write(routed()), query_id="query")

    def install(self, messages: list[Staged], number: int) -> None:
        """Install a batch; some drivers die when some logs have their rows."""
        unreachable = set(self.random.sample(OUT, 2)) if self.random.random() < 0.1 else set()
        install = sink._install_one

        def install_some(
            store: ObjectStore, once: Once | None, log: tuple[str, list[StagedFragment]]
        ) -> LogError | None:
            return UnavailableError(log[0]) if log[0] in unreachable else install(store, once, log)

        with self.patch.context() as patch:
            patch.setattr(sink, "_install_one", install_some)
            try:
                self.writer.commit(list(messages), number)
            except UnavailableError as error:
                raise DeathError("partly installed") from error

    def wake(self) -> None:
        """Let a driver that was thought dead install what it has staged."""
        if self.zombies:
            writer, messages, number = self.zombies.pop(self.random.randrange(len(self.zombies)))
            try:
                writer.commit(list(messages), number)
                self.happened["woken, and let pass"] += 1
            except UnknownDurabilityError:
                self.happened["woken, and refused"] += 1

    # ------------------------------------------------------------------ the whole

    def act(self) -> None:
        """Do one thing."""
        of_others = (self.append_to_some, self.begin_log, self.seal, self.collect, self.append_beside, self.wake)
        act = self.random.choices((*of_others, self.batch), (35, 5, 3, 5, 5, 7, 40))[0]
        act()

    def finish(self) -> None:
        """Let the query come to its end, and the last zombies wake up."""
        self.patch.setattr(self, "die", lambda _when, _share: None)
        more = True
        while more:
            self.restart()
            # Some are still thought dead.
            with suppress(DeathError):
                more = self.do_batch()
        while self.zombies:
            self.wake()

    def arrived(self) -> list[bytes]:
        readers = [LogReader.open(self.store, log) for log in OUT]
        return [each.body for reader in readers for each in reader.records() if each.body not in {OTHER, None}]


def test_each_record_arrives_once_whatever_comes_together(
    local_url: str, local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"replay: WAL3_TEST_SEED={SEED} WAL3_TEST_OPERATIONS={OPERATIONS} pytest {__file__}")
    # A few logs are many.
    monkeypatch.setattr(stream, "_PACKED_LOGS_MIN", 4)
    monkeypatch.setattr(stream, "_NAMED_SHARE", 3)
    world = World(local_url, local_store, monkeypatch)

    for _ in range(OPERATIONS):
        world.act()
    world.finish()

    print(dict(world.happened))
    assert sorted(world.arrived()) == sorted(world.bodies)
    assert world.happened["batch"] > 0
