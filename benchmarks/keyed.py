"""Keyed logs: appends, scans, counts and lag, beside SlateDB doing the same on the same disk in the same run.

python benchmarks/keyed.py [--shapes 1000x10000 1000000x1] [--value-bytes N] [--scans N] [--latency-ms N]
    [--folder DIR]

A shape is a number of keys, and of records of each; records are appended round robin, 1,000 in a batch, with at most
64 batches not yet durable. SlateDB has a row for each record, under the key and the number of the
record, as RFC 0001 of open-log lays it out; it counts by scanning. Install it beside this: pip install slatedb.
Cold is a log that was just opened; the operating system has the files in memory. A scan reads all records of a key.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from tests.stores import CountingStore
from wal3_core import CursorStore, KeyCompactor, KeyedLog, LogPosition, PolicyStore, open_store
from wal3_core.store.object_store import Etag, NotModified, ObjectStore, Versioned

LOG = "bench"
BATCH = 1000
BATCHES_AHEAD = 64
MB = 1e6
Pair = tuple[bytes, bytes]
Row = tuple[str, str, str, str]
Found = dict[str, str]


class ByteStore(CountingStore):
    """Counts the bytes read, and answers each read a while later, as a remote store does."""

    def __init__(self, inner: ObjectStore, latency_s: float) -> None:
        super().__init__(inner)
        self.read_bytes = 0
        self._latency_s = latency_s

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        time.sleep(self._latency_s)
        found = super().read(path, start=start, length=length)
        self.read_bytes += len(found or b"")
        return found

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        found = super().get(path, if_none_match=if_none_match, length_max=length_max)
        self.read_bytes += len(getattr(found, "data", b""))
        return found


def key(number: int) -> bytes:
    return b"key-%012d" % number


def batches(keys: int, records: int, value_bytes: int) -> Iterator[list[Pair]]:
    """Make the records of all keys, in turn."""
    dice, batch = random.Random(1), []
    for _ in range(records):
        for number in range(keys):
            batch.append((key(number), dice.randbytes(value_bytes)))
            if len(batch) == BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def chosen(keys: int, count: int) -> list[bytes]:
    return [key(number) for number in random.Random(2).sample(range(keys), min(keys, count))]


def seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


# ---------------------------------------------------------------------- wal3


def append_all(store: ObjectStore, shape: tuple[int, int], value_bytes: int) -> None:
    waiting: deque[Future[LogPosition]] = deque()
    with KeyedLog.open_or_create(store, LOG) as log:
        for batch in batches(*shape, value_bytes):
            waiting.append(log.append_batch(batch, await_durable=False))
            if len(waiting) > BATCHES_AHEAD:
                waiting.popleft().result()
        for future in waiting:
            future.result()


def measured(store: ByteStore, log: KeyedLog, names: list[bytes], ask: Callable[[KeyedLog, bytes], int]) -> str:
    """Ask about each key; show how long one takes, and what it reads."""
    requests, read_bytes, found = store.requests.total(), store.read_bytes, 0
    took_s = cpu_s = 0.0
    for name in names:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        found += ask(log, name)
        took_s += time.perf_counter() - began_s
        cpu_s += time.process_time() - cpu_began_s
    count = len(names)
    requests, read_bytes = store.requests.total() - requests, store.read_bytes - read_bytes
    return (
        f"{took_s / count * 1000:.2f} ms ({cpu_s / count * 1000:.2f} of CPU), {found / took_s:,.0f} records/s,"
        f" {requests / count:.1f} requests, {read_bytes / count / MB:.3f} MB"
    )


def scanned(log: KeyedLog, name: bytes) -> int:
    return sum(1 for _ in log.scan(name))


def wal3(folder: Path, shape: tuple[int, int], value_bytes: int, scans: int, latency_s: float) -> tuple[Found, Found]:
    """Measure a log as it was appended, and then arranged by key."""
    plain, count = open_store((folder / "wal3").as_uri()), shape[0] * shape[1]
    found = {"append": f"{count / seconds(lambda: append_all(plain, shape, value_bytes)):,.0f} records/s"}
    CursorStore(plain, LOG).create("c", LogPosition(count // 2 + 1, 0))
    found |= queried(plain, chosen(shape[0], scans), latency_s)
    PolicyStore(plain, LOG).change(lambda policy: replace(policy, arrange_by_key=True))
    took_s = seconds(lambda: KeyCompactor(plain, LOG).compact(force=True))
    arranged = {"append": f"arranged afterwards: {count / took_s:,.0f} records/s"}
    return found, arranged | queried(plain, chosen(shape[0], scans), latency_s)


def queried(plain: ObjectStore, names: list[bytes], latency_s: float) -> Found:
    """Ask about keys, each time of a log that was just opened, and then again."""
    found = Found()
    asks: dict[str, Callable[[KeyedLog, bytes], int]] = {
        "scan of a key": scanned,
        "count": lambda log, name: log.count(name),
        "lag": lambda log, name: log.lag("c", name),
    }
    for what, ask in asks.items():
        # What an earlier log has read would be shared.
        gc.collect()
        store = ByteStore(plain, latency_s)
        log = KeyedLog.open(store, LOG)
        if what == "count":
            for requests_max in (0, 10):
                bounds = log.count_bounds(names[0], requests_max=requests_max)
                found[f"count, cold, within {requests_max} requests"] = f"from {bounds.lo:,} to {bounds.hi:,}"
        found[f"{what}, cold"] = measured(store, log, names[:1], ask)
        found[f"{what}, warm"] = measured(store, log, names[1:] or names, ask)
        del log
    return found


# ---------------------------------------------------------------------- SlateDB


async def slatedb(folder: Path, shape: tuple[int, int], value_bytes: int, scans: int) -> list[tuple[str, str]]:
    from slatedb.uniffi import DbBuilder, KeyRange, ObjectStore, WriteBatch  # noqa: PLC0415 - optional

    place = str(folder / "slatedb").lstrip("/")
    everything = KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False)
    db = await DbBuilder(place, ObjectStore.resolve("file:///")).build()
    next_of: Counter[bytes] = Counter()
    waiting: deque[object] = deque()
    began_s = time.perf_counter()
    for batch in batches(*shape, value_bytes):
        written = WriteBatch()
        for name, value in batch:
            next_of[name] += 1
            written.put(name + next_of[name].to_bytes(8, "big"), value)
        waiting.append(await db.write(written))
        if len(waiting) > BATCHES_AHEAD:
            await waiting.popleft().await_durable()
    for handle in waiting:
        await handle.await_durable()
    rows = [("append", f"{shape[0] * shape[1] / (time.perf_counter() - began_s):,.0f} records/s")]
    await db.shutdown()

    db = await DbBuilder(place, ObjectStore.resolve("file:///")).build()
    names = chosen(shape[0], scans)
    for what, some in (("cold", names[:1]), ("warm", names[1:] or names)):
        found, began_s = 0, time.perf_counter()
        for name in some:
            rows_of = await db.scan_prefix(name, everything)
            while batch_of := await rows_of.next_batch(BATCH):
                found += len(batch_of)
        took_s = time.perf_counter() - began_s
        shown = f"{took_s / len(some) * 1000:.2f} ms, {found / took_s:,.0f} records/s"
        rows += [(f"{each}, {what}", shown) for each in ("scan of a key", "count", "lag")]
    await db.shutdown()
    return rows


def compare(folder: Path, shape: tuple[int, int], value_bytes: int, scans: int, latency_s: float) -> list[Row]:
    ours, arranged = wal3(folder, shape, value_bytes, scans, latency_s)
    try:
        theirs = dict(asyncio.run(slatedb(folder, shape, value_bytes, scans)))
    except ImportError:
        theirs = dict.fromkeys(ours, "not installed")
    return [(what, shown, arranged.get(what, ""), theirs.get(what, "")) for what, shown in ours.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1000x10000", "1000000x1"], help="keys x records of each")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--scans", type=int, default=50, help="how many keys are looked at")
    parser.add_argument("--latency-ms", type=float, default=0, help="how much longer each read takes, but SlateDB's")
    parser.add_argument("--folder", help="where the stores are made")
    given = parser.parse_args()
    for text in given.shapes:
        keys, records = map(int, text.split("x"))
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            rows = compare(Path(folder), (keys, records), given.value_bytes, given.scans, given.latency_ms / 1000)
        print(f"\n{keys:,} keys with {records:,} records of {given.value_bytes} bytes each\n")
        print("| | wal3 | wal3, arranged by key | SlateDB |\n|---|---|---|---|")
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
