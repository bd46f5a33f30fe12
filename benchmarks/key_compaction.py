"""Key compaction on Spark, beside a plain Spark aggregation of the same files; what it reads and writes; its memory.

python benchmarks/key_compaction.py [--records N] [--keys N] [--body-bytes N] [--fragments N] [--cores N] [--heap 2g]

Records have random keys of 16 bytes among ``--keys``, and random bodies. The amplification is measured with logs of
``--fragments`` fragments of 1,000 records each.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.stores import CountingStore
from wal3_core import LogReader, LogWriter, Message, WriterOptions, open_store
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.engine import Engine, LocalEngine
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.spark import SparkEngine, session_conf, use_this_python
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import Buffer, ObjectStore, PutOutcome

if TYPE_CHECKING:
    from wal3_core.compaction.reports import KeyCompactionReport

LOG = "bench"
MB = 1e6
BATCH = 65_536
SMALL_BATCH = 1000
LOOKS_S = 0.2


# ---------------------------------------------------------------------- logs


def key(number: int) -> bytes:
    return b"%016x" % number


def write(url: str, batches: Iterable[list[Message]], target: int | None = None) -> None:
    """Append each batch as a fragment; passes make fragments of about ``target`` bytes."""
    options = WriterOptions(batch_records_max=BATCH, batch_bytes_max=2**28)
    with LogWriter.open_or_create(open_store(url), LOG, options=options) as writer:
        for batch in batches:
            writer.append_many(batch)
    terms = Policy(cleanup=Cleanup.COMPACT, compacted_fragment_bytes=target)
    PolicyStore(open_store(url), LOG).change(lambda _: terms)


def write_random(url: str, *, seed: int, records: int, keys: int, body_bytes: int) -> None:
    """Append records of random keys."""
    dice = random.Random(seed)

    def batches() -> Iterator[list[Message]]:
        for at in range(0, records, BATCH):
            count = min(BATCH, records - at)
            bodies = dice.randbytes(count * body_bytes)
            yield [
                Message(bodies[n * body_bytes : (n + 1) * body_bytes], key(dice.randrange(keys))) for n in range(count)
            ]

    write(url, batches())


def write_keys(url: str, numbers: Sequence[int], *, step: int, body_bytes: int) -> None:
    """Append a record of each key, ``step`` to a fragment."""
    dice = random.Random(len(numbers))
    batches = (
        [Message(dice.randbytes(body_bytes), key(each)) for each in numbers[at : at + step]]
        for at in range(0, len(numbers), step)
    )
    # Such fragments are large enough to stay as they are.
    write(url, batches, target=max(2**16, step * body_bytes))


def write_newest_again(url: str, *, count: int, body_bytes: int) -> None:
    """Append a record of each key of the log's newest records, as a log gets whose hot keys change again and again."""
    reader = LogReader.open(open_store(url), LOG)
    limit = reader.manifest().next.position.offset
    start = max(1, limit - 4 * count)
    keys = [record.key for record in reader.records(start) if record.key is not None][-count:]
    dice = random.Random(3)
    batches = [
        [Message(dice.randbytes(body_bytes), each) for each in keys[at : at + BATCH]]
        for at in range(0, len(keys), BATCH)
    ]
    write(url, batches)


def elsewhere(work: object, *args: object, **named: object) -> None:
    """Run in a process of its own, whose memory is not counted."""
    process = get_context("spawn").Process(target=work, args=args, kwargs=named)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{work}: exit code {process.exitcode}")


# ---------------------------------------------------------------------- measures


class ByteStore(CountingStore):
    """Counts the bytes read and written, of fragments and of all else."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.moved: Counter[str] = Counter()

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        found = super().read(path, start=start, length=length)
        self.moved["read"] += len(found or b"")
        return found

    def create(self, path: str, data: Buffer) -> PutOutcome:
        self.moved["written"] += len(data)
        return super().create(path, data)


class PeakMemory:
    """Samples the resident memory of this process and of all that it has started, the JVM and its workers."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._peaks: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {peak / 2**20:,.0f}" for name, peak in sorted(self._peaks.items()) if name != "all")
        return f"{self._peaks['all'] / 2**20:,.0f} MiB (highest of each: {parts})"

    def _watch(self) -> None:
        while not self._over.wait(LOOKS_S):
            now: Counter[str] = Counter()
            for name, rss in tree():
                now[name] += rss
                now["all"] += rss
            for name, rss in now.items():
                self._peaks[name] = max(self._peaks[name], rss)


def tree() -> Iterator[tuple[str, int]]:
    """Name and resident bytes of this process and of its descendants."""
    parents, found = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        except OSError:
            continue
        if "VmRSS" in lines:
            parents[int(folder.name)] = int(lines["PPid"])
            found[int(folder.name)] = lines["Name"].strip(), int(lines["VmRSS"].split()[0]) * 1024
    mine = {int(Path("/proc/self").readlink().name)}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    me = Path("/proc/self").readlink().name
    for pid in mine & found.keys():
        name, rss = found[pid]
        yield ("driver" if str(pid) == me else "JVM" if name == "java" else "workers"), rss


@contextmanager
def session(cores: int, heap: str) -> Iterator[SparkSession]:
    use_this_python()
    builder = SparkSession.builder.appName("wal3-bench").config("spark.driver.memory", heap)
    for name, value in session_conf(f"local[{cores}]").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # The first job of a session starts its workers.
    spark.range(1000).groupBy("id").count().write.format("noop").mode("overwrite").save()
    yield spark
    spark.stop()


def compacted(url: str, engine: Engine) -> tuple[float, KeyCompactionReport]:
    before = time.perf_counter()
    report = KeyCompactor(open_store(url), LOG, engine=engine).compact(force=True)
    assert report.token is not None
    assert report.proof.holds
    return time.perf_counter() - before, report


# ---------------------------------------------------------------------- runs


def throughput(folder: str, asked: argparse.Namespace) -> None:
    """Measure a full pass, the plain aggregation of the same files, and a pass over a small head."""
    url = Path(folder, "full").as_uri()
    sizes = {"keys": asked.keys, "body_bytes": asked.body_bytes}
    began = time.perf_counter()
    elsewhere(write_random, url, seed=1, records=asked.records, **sizes)
    fragments = LogReader.open(open_store(url), LOG).scan()
    num_bytes = sum(each.num_bytes for each in fragments)
    print(
        f"{asked.records:,} records of {asked.keys:,} keys, {asked.body_bytes} bytes each,"
        f" {num_bytes / MB:,.0f} MB in {len(fragments)} fragments,"
        f" written in {time.perf_counter() - began:.0f} s; {asked.cores} cores"
    )
    log_id = LogReader.open(open_store(url), LOG).manifest().log_id
    with session(asked.cores, asked.heap) as spark, PeakMemory() as peak:
        files = spark.read.parquet(f"{url}/{LOG}/Life={log_id}/log")
        before = time.perf_counter()
        files.groupBy("key").agg(sf.max("offset")).write.format("noop").mode("overwrite").save()
        plain_s = time.perf_counter() - before
        print(f"plain groupBy(key).max(offset)   {plain_s:7.1f} s {asked.records / plain_s:12,.0f} records/s")
        show_passes(url, SparkEngine(spark), asked, plain_s)
    print(f"peak resident memory of all processes together: {peak}", flush=True)
    local = Path(folder, "local").as_uri()
    elsewhere(write_random, local, seed=1, records=asked.records, **sizes)
    elsewhere(show_local, local, asked, plain_s)


def show_local(url: str, asked: argparse.Namespace, plain_s: float) -> None:
    """Make the same passes in this process, without Spark."""
    with PeakMemory() as peak:
        show_passes(url, LocalEngine(), asked, plain_s)
    print(f"peak resident memory of this process: {peak}", flush=True)


def show_passes(url: str, engine: Engine, asked: argparse.Namespace, plain_s: float) -> None:
    """Measure a full pass, one over a head of keys that were written last, and one over a head of any keys."""
    name = type(engine).__name__
    full_s, full = compacted(url, engine)
    moved = full.bytes_read + full.bytes_written
    print(
        f"{name}, full pass  {full_s:7.1f} s {asked.records / full_s:12,.0f} records/s"
        f" {moved / full_s / MB:7.1f} MB/s of fragments read and written;"
        f" {full_s / plain_s:.1f} times the plain one; {full.num_superseded:,} dropped",
        flush=True,
    )
    count = max(1, asked.records // 100)
    sizes = {"keys": asked.keys, "body_bytes": asked.body_bytes}
    heads = {
        "the newest keys again": lambda: elsewhere(write_newest_again, url, count=count, body_bytes=asked.body_bytes),
        "any keys": lambda: elsewhere(write_random, url, seed=2, records=count, **sizes),
    }
    for head, append in heads.items():
        append()
        small_s, small = compacted(url, engine)
        print(
            f"{name}, head of 1 %, {head}  {small_s:7.1f} s, {small_s / full_s:.3f} of the full pass;"
            f" read the keys of {small.plan.num_read} of {small.plan.num_fragments} fragments,"
            f" rewrote {small.plan.num_rewritten}, dropped {small.num_superseded:,}",
            flush=True,
        )


def amplification(folder: str, asked: argparse.Namespace) -> None:
    """Bytes moved per dirty byte; the engines move the same ones, so this counts those of one process."""
    held = asked.fragments * SMALL_BATCH
    dice = random.Random(5)
    heads = {
        # As many records again, of keys anywhere in the log.
        "dirty ratio 0.5": [dice.randrange(held) for _ in range(held)],
        "1 % of the fragments lose a record": range(0, held, 100 * SMALL_BATCH),
    }
    for name, numbers in heads.items():
        url = Path(folder, name.replace(" ", "-").replace("%", "")).as_uri()
        elsewhere(write_keys, url, range(held), step=SMALL_BATCH, body_bytes=asked.body_bytes)
        KeyCompactor(open_store(url), LOG).compact(force=True)
        elsewhere(write_keys, url, numbers, step=SMALL_BATCH, body_bytes=asked.body_bytes)
        store = ByteStore(open_store(url))
        report = KeyCompactor(store, LOG).compact(force=True)
        plan = report.plan
        after = sum(each.num_bytes for each in LogReader.open(open_store(url), LOG).scan())
        print(
            f"{name}: {plan.dirty_bytes / 1e3:,.0f} of {plan.held_bytes / 1e3:,.0f} kB dirty;"
            f" a byte of them makes {store.moved['read'] / plan.dirty_bytes:.2f} read"
            f" ({report.bytes_read / plan.dirty_bytes:.2f} in merges),"
            f" {store.moved['written'] / plan.dirty_bytes:.2f} written;"
            f" rewriting everything: {plan.held_bytes / plan.dirty_bytes:.2f} and {after / plan.dirty_bytes:.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"records": 10_000_000, "keys": 5_000_000, "body-bytes": 100, "fragments": 400}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--heap", default="2g", help="the JVM's heap, as spark.driver.memory takes it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        throughput(folder, asked)
        amplification(folder, asked)


if __name__ == "__main__":
    main()
