"""A log beside what else keeps records durably, on one disk and on one S3 server, in one run: ``make bench-peers``.

python benchmarks/peers.py [--seconds N] [--records N] [--value-bytes N] [--folder DIR] [--plot FILE.svg]

One caller appends random values: one after another for some seconds, each waiting until it is durable; then batches of
1,000, each waiting; then everything is read in order by one that has just opened it. Durable is on the disk what the
peer calls so, for wal3 and SQLite after fsync; on S3, an answered PUT. Queues are read by taking everything out, which
takes litequeue longer for each message the more there are: they get fewer. Peers that are not installed are left out:
pip install slatedb litequeue persist-queue; and for the plot matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import boto3

from benchmarks.queue_peers import LiteFull, NotInstalledError, Persist, size_of
from tests.s3_server import s3_server, use_endpoint
from wal3_core import LogReader, LogWriter, open_store

LOG = "bench"
BATCH = 1000
MB = 1e6


class Peer(Protocol):
    """Something that keeps values in the order of their appends, in a place of its own."""

    def append(self, values: Sequence[bytes]) -> None:
        """Return when all are durable."""

    def replay(self) -> tuple[int, int]:
        """Read everything in order; return how many values, and their bytes."""

    def close(self) -> None: ...


class Wal3:
    """A log, verified when it is read."""

    def __init__(self, place: str) -> None:
        self._store = open_store(place)
        self._writer = LogWriter.open_or_create(self._store, LOG)

    def append(self, values: Sequence[bytes]) -> None:
        self._writer.append_many(values)

    def replay(self) -> tuple[int, int]:
        count = num_bytes = 0
        for batch in LogReader.open(self._store, LOG).batches():
            count += len(batch)
            num_bytes += sum(map(len, batch["body"].to_pylist()))
        return count, num_bytes

    def close(self) -> None:
        self._writer.close()


class Slate:
    """SlateDB, a key-value store on object storage: keys are numbers. It flushes every 100 ms."""

    flush_at_once = False

    def __init__(self, place: str) -> None:
        try:
            from slatedb import uniffi  # noqa: PLC0415 - optional
        except ImportError as error:
            raise NotInstalledError("pip install slatedb") from error
        self._slate: Any = uniffi
        self._loop = asyncio.Runner()
        at = urlsplit(place)
        root = "file:///" if at.scheme == "file" else f"s3://{at.netloc}"
        self._db = self._loop.run(self._build(at.path.strip("/"), root))
        self._next = 0

    async def _build(self, path: str, root: str) -> Any:  # noqa: ANN401 - the package ships no types
        return await self._slate.DbBuilder(path, self._slate.ObjectStore.resolve(root)).build()

    def append(self, values: Sequence[bytes]) -> None:
        self._loop.run(self._append(values))

    async def _append(self, values: Sequence[bytes]) -> None:
        batch = self._slate.WriteBatch()
        for value in values:
            batch.put(self._next.to_bytes(8, "big"), value)
            self._next += 1
        # The options' default is to wait until it is durable.
        written = await self._db.write(batch)
        if self.flush_at_once:
            await self._db.flush()
        await written.await_durable()

    def replay(self) -> tuple[int, int]:
        return self._loop.run(self._replay())

    async def _replay(self) -> tuple[int, int]:
        slate, count, num_bytes = self._slate, 0, 0
        everything = slate.KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False)
        rows = await self._db.scan(everything)
        while found := await rows.next_batch(BATCH):
            count += len(found)
            num_bytes += sum(len(row.value) for row in found)
        return count, num_bytes

    def close(self) -> None:
        self._loop.run(self._db.shutdown())
        self._loop.close()


class SlateFlushed(Slate):
    """The same, and each write asks for a flush."""

    flush_at_once = True


class Sqlite:
    """A table of SQLite in WAL mode with synchronous=FULL; a batch is a transaction."""

    def __init__(self, place: str) -> None:
        folder = Path(urlsplit(place).path)
        self._database = sqlite3.connect(folder / "log.db", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS log (offset INTEGER PRIMARY KEY, value BLOB)")

    def append(self, values: Sequence[bytes]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO log (value) VALUES (?)", ((value,) for value in values))
        self._database.execute("COMMIT")

    def replay(self) -> tuple[int, int]:
        count = num_bytes = 0
        for (value,) in self._database.execute("SELECT value FROM log ORDER BY offset"):
            count, num_bytes = count + 1, num_bytes + len(value)
        return count, num_bytes

    def close(self) -> None:
        self._database.close()


class _Queue:
    """A queue; it is read once, by taking everything."""

    def __init__(self, queue: Any) -> None:  # noqa: ANN401 - the queues have no common base
        self._queue = queue

    def append(self, values: Sequence[bytes]) -> None:
        self._queue.put(values)

    def replay(self) -> tuple[int, int]:
        count = 0
        while taken := self._queue.take(BATCH):
            count += taken
        return count, -1

    def close(self) -> None:
        self._queue.close()


def _queue(kind: type[Any]) -> Callable[[str], Peer]:
    return lambda place: _Queue(kind(Path(urlsplit(place).path)))


ON_DISK: dict[str, Callable[[str], Peer]] = {
    "wal3": Wal3,
    "SlateDB": Slate,
    "SlateDB, flushed at once": SlateFlushed,
    "SQLite, WAL, FULL": Sqlite,
    "litequeue, FULL": _queue(LiteFull),
    "persist-queue": _queue(Persist),
}
# Each is given a fraction of the time, and of the records.
QUEUES = {"litequeue, FULL", "persist-queue"}
QUEUES_SHARE = 0.02
ON_S3: dict[str, Callable[[str], Peer]] = {
    "wal3": Wal3,
    "SlateDB": Slate,
    "SlateDB, flushed at once": SlateFlushed,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is done with each."""

    seconds: float
    records: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one peer in one place. ``p50_ms`` is of single appends; ``overhead_bytes`` of a value on storage."""

    place: str
    peer: str
    single: float
    p50_ms: float
    batched: float
    replayed: float
    overhead_bytes: float

    def row(self) -> str:
        figures = (
            f"{self.single:,.0f}",
            f"{self.p50_ms:,.1f} ms",
            f"{self.batched:,.0f}",
            f"{self.replayed:,.0f}",
            f"{self.overhead_bytes:,.0f}",
        )
        return f"| {self.place} | {self.peer} | {' | '.join(figures)} |"


def measured(where: str, name: str, make: Callable[[str], Peer], place: str, limits: Limits) -> Figures:
    """Append one by one, then in batches, then read everything."""
    dice, times = random.Random(1), list[float]()
    peer = make(place)
    peer.append([dice.randbytes(limits.value_bytes)])
    until_s = time.perf_counter() + limits.seconds
    while (began_s := time.perf_counter()) < until_s:
        peer.append([dice.randbytes(limits.value_bytes)])
        times.append(time.perf_counter() - began_s)
    batches, took_s = 0, 0.0
    # A slow one is measured by fewer.
    while batches * BATCH < limits.records and took_s < 4 * limits.seconds:
        values = [dice.randbytes(limits.value_bytes) for _ in range(BATCH)]
        began_s = time.perf_counter()
        peer.append(values)
        took_s += time.perf_counter() - began_s
        batches += 1
    peer.close()
    count = 1 + len(times) + batches * BATCH
    # Taking everything out of a queue changes what is stored.
    stored = stored_bytes(place)
    again = make(place)
    began_s = time.perf_counter()
    found, num_bytes = again.replay()
    replay_s = time.perf_counter() - began_s
    again.close()
    assert found == count, f"{name}: {count} values were appended, {found} were read"
    assert num_bytes in (-1, count * limits.value_bytes), f"{name}: {num_bytes} bytes were read"
    return Figures(
        place=where,
        peer=name,
        single=len(times) / sum(times),
        p50_ms=statistics.median(times) * 1000,
        batched=batches * BATCH / took_s,
        replayed=count / replay_s,
        overhead_bytes=stored / count - limits.value_bytes,
    )


def stored_bytes(place: str) -> int:
    """Add up what is stored in a place."""
    at = urlsplit(place)
    if at.scheme == "file":
        return size_of(Path(at.path))
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=at.netloc, Prefix=at.path.strip("/"))
    return sum(each["Size"] for page in pages for each in page.get("Contents", ()))


def compare(
    where: str, root: str, peers: dict[str, Callable[[str], Peer]], limits: Limits, rows: list[Figures]
) -> None:
    for name, make in peers.items():
        place = f"{root}/{uuid.uuid4().hex}"
        if place.startswith("file:"):
            Path(urlsplit(place).path).mkdir()
        share = QUEUES_SHARE if name in QUEUES else 1
        less = Limits(limits.seconds * share, int(limits.records * share), limits.value_bytes)
        try:
            rows.append(measured(where, name, make, place, less))
        except NotInstalledError as error:
            print(f"{name}: left out: {error}", flush=True)
        else:
            print(rows[-1].row(), flush=True)


def plot(rows: list[Figures], path: str) -> None:
    """Draw batched writes and replays."""
    import matplotlib as mpl  # noqa: PLC0415 - optional

    mpl.use("svg")
    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "wal3"
    from matplotlib import pyplot as plt  # noqa: PLC0415 - optional

    figure, axes = plt.subplots(1, 2, figsize=(9, 0.4 * len(rows) + 1), sharey=True, layout="constrained")
    names = [f"{row.peer} ({row.place})" for row in rows]
    colours = ["#c0502e" if row.peer == "wal3" else "#8a94a0" for row in rows]
    for axis, title, figures in (
        (axes[0], "durable appends, batches of 1,000", [row.batched for row in rows]),
        (axes[1], "read in order", [row.replayed for row in rows]),
    ):
        bars = axis.barh(names, figures, color=colours)
        axis.bar_label(bars, [f" {each:,.0f}" for each in figures], fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("records per second", fontsize=8)
        axis.set_xlim(0, max(figures) * 1.25)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="of single appends; of batches four times as many")
    parser.add_argument("--records", type=int, default=200_000, help="appended in batches, at most")
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--folder", help="on the disk to measure")
    parser.add_argument("--plot", help="draw the figures into this SVG file")
    given = parser.parse_args()
    limits, rows = Limits(given.seconds, given.records, given.value_bytes), list[Figures]()
    print("| place | | single appends/s | p50 | in batches, records/s | read, records/s | bytes more than the value |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        compare("disk", Path(folder).as_uri(), ON_DISK, limits, rows)
    with s3_server() as endpoint:
        # SlateDB reads the environment by other names than boto3.
        os.environ |= {"AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true"}
        compare("S3", use_endpoint(endpoint), ON_S3, limits, rows)
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
