"""The work of the tests' processes and threads: append from several callers at once, or follow."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.processes.journal import Journal
from wal3_core import LogReader, LogWriter, ReaderOptions, Record, UnavailableError, WriterOptions, open_store
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


LOG = "log-under-test"
PARTS_MAX = 3
LAST_READ_S_MAX = 60.0

# Small enough that a few records make a fragment, and a few fragments roll into snapshots of both depths.
SMALL = WriterOptions(
    batch_records_max=4,
    batch_age_s_max=0.001,
    contentions_max=1000,
    retry=RetryOptions(attempts_max=5, pause_s_min=0.005, pause_s_max=0.1),
    snapshots=SnapshotOptions(
        fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=3, snapshot_pointers_max=12
    ),
)
FOLLOWING = ReaderOptions(poll_s_min=0.005, poll_s_max=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of one writing process; ``appends`` per caller, None for endless; ``waits`` for a message to begin."""

    url: str
    journals: Path
    number: int
    log: str = LOG
    callers: int = 4
    appends: int | None = None
    waits: bool = False
    options: WriterOptions = SMALL


class Teller:
    """The process's end of the pipe, shared by its threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def say_once(self, word: str) -> None:
        with self._lock:
            if word not in self._said:
                self._said.add(word)
                self._connection.send((word, None))


def write(connection: Connection, job: Job) -> None:
    """Append from several callers; send ``open``, ``acked`` at the first acknowledgement, and ``done``."""
    write_to(open_store(job.url), connection, job)


def write_to(store: ObjectStore, connection: Connection, job: Job) -> None:
    journal = Journal(job.journals / f"{job.number:06d}")
    teller = Teller(connection)
    with LogWriter.open_or_create(store, job.log, options=job.options) as writer:
        teller.say_once("open")
        if job.waits:
            connection.recv()

        def call(caller: int) -> None:
            chance = random.Random(f"{job.number}/{caller}")
            for index in count() if job.appends is None else range(job.appends):
                parts = chance.choice([1, 1, 2, PARTS_MAX])
                if journal.append(f"{job.number}/{caller}/{index}", parts, writer.append_many) == "acked":
                    teller.say_once("acked")

        with ThreadPoolExecutor(job.callers) as pool:
            for ended in wait([pool.submit(call, caller) for caller in range(job.callers)], None, FIRST_EXCEPTION).done:
                ended.result()
    teller.say_once("done")


@dataclass
class Follower:
    """A thread that follows the log from its beginning until the block ends, and keeps the records it read."""

    store: ObjectStore
    seen: list[Record] = field(default_factory=list)
    unanswered: int = 0

    def __enter__(self) -> Self:
        self._left = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._following = self._pool.submit(self._follow)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._pool.shutdown()

    def records(self) -> list[Record]:
        """Stop following, read the rest, and return all records read."""
        self._left.set()
        self._following.result()
        return self.seen

    def _follow(self) -> None:
        last, until_s = False, None
        while not last:
            last = self._left.is_set()
            try:
                reader = LogReader.open(self.store, LOG, options=FOLLOWING)
                start = self.seen[-1].offset + 1 if self.seen else None
                for record in reader.records(start) if last else reader.follow(start, idle_s=0.2):
                    self.seen.append(record)
            except UnavailableError:
                self.unanswered += 1
                if last:
                    # A store that never answers again would keep the test, and all others of its process.
                    until_s = until_s or time.monotonic() + LAST_READ_S_MAX
                    if time.monotonic() > until_s:
                        raise
                last = False
                self._left.wait(0.02)
