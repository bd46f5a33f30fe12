"""The queues that benchmarks/delay_queue.py measures: wal3's, and its peers, behind one interface.

Peers that are not installed raise NotInstalledError when they are opened.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from wal3_core import open_store
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import Dequeue, Enqueue, NewItem, Release

LOG = "bench"
START_S_MAX = 120.0
# beanstalkd stops answering when it is sent some hundreds of kilobytes at once.
_WINDOW = 100


class NotInstalledError(Exception):
    """The peer's package is missing."""


class Peer(Protocol):
    """A queue in a folder. What its calls have returned is done as durably as ``promises`` says."""

    name: str
    promises: str
    # Whether several messages can be one call; and whether calls can be sent before earlier ones are answered.
    batches: bool
    sends_ahead: bool

    def put(self, values: Sequence[bytes]) -> None:
        """Enqueue."""

    def take(self, count: int) -> int:
        """Dequeue and release; return how many, which is fewer only when the queue is empty."""

    def put_ahead(self, values: Sequence[bytes]) -> None:
        """Enqueue one by one, without waiting for each answer."""

    def take_ahead(self, count: int) -> int:
        """Dequeue and release one by one, without waiting for each answer."""

    def fill(self, values: Sequence[bytes]) -> None:
        """Enqueue as fast as it can; what it promises does not matter."""

    def close(self) -> None: ...

    def num_bytes(self) -> int:
        """Return what it has on disk, after it was closed."""


def size_of(folder: Path) -> int:
    """Add up the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Wal3:
    """A delay queue in a directory store."""

    name = "wal3"
    promises = "all of enqueue, dequeue and release are on disk (fsync) when they return"
    batches = sends_ahead = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue = DelayQueue.open_or_create(open_store(folder.as_uri()), LOG)

    def put(self, values: Sequence[bytes]) -> None:
        self._queue.enqueue_many([NewItem(value) for value in values])

    def take(self, count: int) -> int:
        leased = self._queue.dequeue(count)
        if leased:
            self._queue.release_many([(each.id, each.token) for each in leased])
        return len(leased)

    def put_ahead(self, values: Sequence[bytes]) -> None:
        for future in [self._queue.submit(Enqueue((NewItem(value),))) for value in values]:
            future.result()

    def take_ahead(self, count: int) -> int:
        asked = [self._queue.submit(Dequeue(1)) for _ in range(count)]
        leased = deque(each for future in asked for each in future.result())
        for future in [self._queue.submit(Release(((each.id, each.token),))) for each in leased]:
            future.result()
        return len(leased)

    def fill(self, values: Sequence[bytes]) -> None:
        self.put(values)

    def checkpoint(self) -> None:
        """Write the index."""
        self._queue.checkpoint()

    def close(self) -> None:
        self._queue.close()

    def num_bytes(self) -> int:
        return size_of(self._folder)


class Lite:
    """litequeue: a table in SQLite. It has no batches: they are the caller's transactions; it pops one at a time."""

    name = "litequeue"
    promises = (
        "SQLite, WAL, synchronous=NORMAL: no fsync; a power cut loses what was acknowledged since the last checkpoint"
    )
    batches, sends_ahead = True, False
    synchronous = "NORMAL"

    def __init__(self, folder: Path) -> None:
        try:
            from litequeue import LiteQueue  # noqa: PLC0415 - optional
        except ImportError as error:
            raise NotInstalledError("pip install litequeue") from error
        self._path = folder / "queue.db"
        self._queue = LiteQueue(self._path)
        self._queue.conn.execute(f"PRAGMA synchronous = {self.synchronous}")

    def put(self, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            self._queue.put(values[0])
            return
        with self._queue.transaction():
            for value in values:
                self._queue.put(value)

    def take(self, count: int) -> int:
        popped = list(itertools.takewhile(lambda each: each is not None, (self._queue.pop() for _ in range(count))))
        if len(popped) == 1:
            self._queue.done(popped[0].message_id)
        elif popped:
            with self._queue.transaction():
                for each in popped:
                    self._queue.done(each.message_id)
        return len(popped)

    def put_ahead(self, values: Sequence[bytes]) -> None:
        raise NotImplementedError

    def take_ahead(self, count: int) -> int:
        raise NotImplementedError

    def fill(self, values: Sequence[bytes]) -> None:
        self.put(values)

    def close(self) -> None:
        self._queue.close()

    def num_bytes(self) -> int:
        return self._path.stat().st_size


class LiteFull(Lite):
    """The same, set to fsync at each commit."""

    name = "litequeue, FULL"
    promises = "the same with PRAGMA synchronous=FULL: each commit is on disk (fsync)"
    synchronous = "FULL"


class Persist:
    """persist-queue: its queue with acknowledgements in SQLite, which pickles what it is given."""

    name = "persist-queue"
    promises = "SQLite, WAL, synchronous=FULL (SQLite's default): each call is on disk (fsync); no batches"
    batches = sends_ahead = False

    def __init__(self, folder: Path) -> None:
        try:
            from persistqueue import Empty, SQLiteAckQueue  # noqa: PLC0415 - optional
        except ImportError as error:
            raise NotInstalledError("pip install persist-queue") from error
        self._folder = folder
        self._empty: type[Exception] = Empty
        self._queue = SQLiteAckQueue(str(folder))

    def put(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._queue.put(value)

    def take(self, count: int) -> int:
        for taken in range(count):
            try:
                item = self._queue.get(block=False, raw=True)
            except self._empty:
                return taken
            self._queue.ack(id=item["pqid"])
        return count

    def put_ahead(self, values: Sequence[bytes]) -> None:
        raise NotImplementedError

    def take_ahead(self, count: int) -> int:
        raise NotImplementedError

    def fill(self, values: Sequence[bytes]) -> None:
        self._queue._putter.execute("PRAGMA synchronous = OFF")  # noqa: SLF001 - else it takes an hour
        self.put(values)

    def close(self) -> None:
        self._queue.close()

    def num_bytes(self) -> int:
        return (self._folder / "data.db").stat().st_size


class Beanstalk:
    """A beanstalkd that was started for this; a batch is so many commands, up to 100 in a packet."""

    name = "beanstalkd"
    promises = (
        "binlog with -f 0: put and delete are on disk (fsync) one by one; a reservation is in memory only,"
        " and ends with the server"
    )
    batches = sends_ahead = True

    def __init__(self, folder: Path) -> None:
        program = shutil.which("beanstalkd")
        if program is None:
            raise NotInstalledError("apt-get install beanstalkd")
        self._folder = folder
        self._program = program
        self._start("-f", "0")

    def _start(self, *syncs: str) -> None:
        address = self._folder.parent / f"{self._folder.name}.socket"
        address.unlink(missing_ok=True)
        self._syncs = syncs
        self._server = subprocess.Popen([self._program, "-l", f"unix:{address}", "-b", str(self._folder), *syncs])
        self._socket = socket.socket(socket.AF_UNIX)
        until_s = time.monotonic() + START_S_MAX
        while self._socket.connect_ex(str(address)) != 0:
            assert self._server.poll() is None, "beanstalkd has ended"
            assert time.monotonic() < until_s, "beanstalkd does not answer"
            time.sleep(0.001)
        self._socket.settimeout(START_S_MAX)
        self._answers = self._socket.makefile("rb")

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.pid

    def put(self, values: Sequence[bytes]) -> None:
        for answer in self._ask([b"put 100 0 3600 %d\r\n%b\r\n" % (len(value), value) for value in values]):
            assert answer.startswith(b"INSERTED"), answer

    def take(self, count: int) -> int:
        ids = [answer.split()[1] for answer in self._ask([b"reserve-with-timeout 0\r\n"] * count) if answer]
        for answer in self._ask([b"delete %b\r\n" % each for each in ids]):
            assert answer.startswith(b"DELETED"), answer
        return len(ids)

    def put_ahead(self, values: Sequence[bytes]) -> None:
        self.put(values)

    def take_ahead(self, count: int) -> int:
        return self.take(count)

    def fill(self, values: Sequence[bytes]) -> None:
        if self._syncs != ("-F",):
            self.close()
            self._start("-F")
        self.put(values)

    def _ask(self, commands: Sequence[bytes]) -> list[bytes]:
        """Send commands, a window at a time; return a line for each, empty where there was no message."""
        found = []
        for at in range(0, len(commands), _WINDOW):
            some = commands[at : at + _WINDOW]
            self._socket.sendall(b"".join(some))
            for _ in some:
                line = self._answers.readline()
                if line.startswith(b"RESERVED"):
                    self._answers.read(int(line.split()[2]) + 2)
                found.append(b"" if line.startswith(b"TIMED_OUT") else line)
        return found

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._server.send_signal(signal.SIGTERM)
        self._server.wait(START_S_MAX)

    def num_bytes(self) -> int:
        """Count what is written: its files are made longer in advance."""
        return sum(len(path.read_bytes().rstrip(b"\0")) for path in self._folder.glob("binlog.*"))


PEERS: tuple[Any, ...] = (Wal3, Lite, LiteFull, Persist, Beanstalk)
