"""The library's figures, each beside its peer or limit, measured in one run: ``make bench``.

It prints append throughput beside the SHA3-256 limit of one core and raw Parquet encoding;
append latency; scan throughput; what a million appends cost on S3 at three rates, in simulated time; bytes of manifest
and snapshots written per commit as a log grows.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.latency import open_loop
from tests.s3_server import s3_server, use_endpoint
from tests.stores import CountingStore
from wal3_core import LogReader, LogWriter, MemoryStore, ReaderOptions, open_store
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Epoch
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import Setsum
from wal3_core.log.tree.shape import build_snapshot, plan_roll
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import Done, ObjectStore, Versioned, log_store

MB = 1e6
VOLUME = 192 * 2**20
ROUNDS = 3
MEMORY_FOLDER = Path("/dev/shm")
console = Console(width=140)


def best(action: Callable[[], object]) -> float:
    """Seconds of the quickest of a few rounds: the machine's noise only slows."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def sha3_limit() -> float:
    data = os.urandom(32 * 2**20)
    return len(data) / MB / best(lambda: hashlib.sha3_256(data).digest())


def sha3_of_each(bodies: list[bytes]) -> float:
    sha3 = hashlib.sha3_256
    return sum(map(len, bodies)) / MB / best(lambda: [sha3(body).digest() for body in bodies])


def raw_parquet(bodies: list[bytes]) -> float:
    def encode() -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table({"body": pa.array(bodies, pa.binary())}), sink, compression="zstd", use_dictionary=False
        )

    return sum(map(len, bodies)) / MB / best(encode)


def synced_write(folder: Path) -> float:
    """Write and sync files of a fragment's size: the directory's own rate."""
    data = os.urandom(8 * 2**20)

    def write() -> None:
        for number in range(8):
            with (folder / f"synced-{number}").open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

    return 8 * len(data) / MB / best(write)


def throughput(folders: dict[str, Path]) -> None:
    table = Table(title="Throughput, MB/s (1 MB = 1e6 bytes of random record bodies); SHA3-256 on one core")
    for name in (
        "store",
        "record",
        "append",
        "append of tables",
        "verified scan",
        "unverified scan",
        "SHA3 at length",
        "SHA3 by record",
        "raw Parquet",
        "synced write",
        "append / SHA3",
        "scan / SHA3",
    ):
        table.add_column(name, justify="right")
    for name, folder in folders.items():
        for size in (100, 1024, 8192):
            table.add_row(name, f"{size:,} B", *_throughput_row(folder, size))
    console.print(table)
    console.print("The last two columns: the share of SHA3 at length, and of SHA3 by record.\n")


def _throughput_row(folder: Path, size: int) -> list[str]:
    store = open_store(folder.as_uri())
    volume = VOLUME // 4 if size == 100 else VOLUME
    group = [os.urandom(size) for _ in range(4 * 2**20 // size)]
    groups = volume // (size * len(group))
    rows = pa.table({"body": pa.array(group, pa.binary())})
    appended, from_tables, verified, unverified, limits = [], [], [], [], []
    for _ in range(ROUNDS):
        limits.append(sha3_limit())
        log = f"bench-{uuid.uuid4().hex}"
        with LogWriter.open_or_create(store, log) as writer:
            appended.append(_timed(partial(_repeat, writer, partial(writer.submit_many, group), groups)))
        with LogWriter.open_or_create(store, f"{log}-from-tables") as writer:
            from_tables.append(_timed(partial(_repeat, writer, partial(writer.submit_table, rows), groups)))
        for times, verify in ((verified, True), (unverified, False)):
            reader = LogReader.open(store, log, options=ReaderOptions(verify=verify))
            times.append(_timed(lambda reader=reader: [len(batch) for batch in reader.batches()]))
    total = groups * len(group) * size / MB
    limit, each = max(limits), sha3_of_each(group)
    append, scan = total / min(appended), total / min(verified)
    figures = [
        append,
        total / min(from_tables),
        scan,
        total / min(unverified),
        limit,
        each,
        raw_parquet(group),
        synced_write(folder),
    ]
    shares = [f"{rate / limit:.2f}, {rate / each:.2f}" for rate in (append, scan)]
    return [*(f"{figure:,.0f}" for figure in figures), *shares]


def _repeat(writer: LogWriter, submit: Callable[[], object], groups: int) -> None:
    for _ in range(groups):
        submit()
    writer.flush()


def singles(folders: dict[str, Path]) -> None:
    table = Table(title="Single records of 100 B from one thread: submit of each, then flush")
    for name in ("store", "records/s", "CPU of the caller, µs", "CPU of the process, µs"):
        table.add_column(name, justify="right")
    body, count = os.urandom(100), 100_000
    for name, folder in folders.items():
        with LogWriter.open_or_create(open_store(folder.as_uri()), f"singles-{uuid.uuid4().hex}") as writer:
            writer.append(body)
            began = time.perf_counter(), time.thread_time(), time.process_time()
            for _ in range(count):
                writer.submit(body)
            caller = time.thread_time() - began[1]
            writer.flush()
            elapsed, process = time.perf_counter() - began[0], time.process_time() - began[2]
        figures = (caller / count * 1e6, process / count * 1e6)
        table.add_row(name, f"{count / elapsed:,.0f}", *(f"{figure:.1f}" for figure in figures))
    console.print(table)


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def latency(stores: dict[str, ObjectStore]) -> None:
    table = Table(title="Append latency, 100 B records, milliseconds")
    for name in ("store", "callers", "p50", "p99", "appends/s", "two PUTs p50", "p50 / two PUTs"):
        table.add_column(name, justify="right")
    for name, store in stores.items():
        for callers in (1, 64):
            times, pairs, elapsed = _append_times(store, callers)
            quantiles, pair = statistics.quantiles(times, n=100), statistics.median(pairs)
            table.add_row(
                name,
                str(callers),
                f"{quantiles[49] * 1e3:.2f}",
                f"{quantiles[98] * 1e3:.2f}",
                f"{len(times) / elapsed:,.0f}",
                f"{pair * 1e3:.2f}",
                f"{quantiles[49] / pair:.2f}",
            )
    console.print(table)


class _Pair:
    """What an append asks of a store: a fragment created, a manifest replaced, of the sizes that they have then."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self._folder, self._count = store, f"pair-{uuid.uuid4().hex}/", 0
        store.create(f"{self._folder}manifest", b"")
        found = store.get(f"{self._folder}manifest")
        assert isinstance(found, Versioned)
        self._etag = found.etag

    def put(self) -> None:
        self._count += 1
        self._store.create(f"{self._folder}{self._count}", os.urandom(700))
        outcome = self._store.replace(f"{self._folder}manifest", os.urandom(5000), self._etag)
        assert isinstance(outcome, Done)
        self._etag = outcome.etag


def _append_times(store: ObjectStore, callers: int) -> tuple[list[float], list[float], float]:
    """Return how long appends took, how long pairs of PUTs did between those of one caller, and all of the appends."""
    body, pair = os.urandom(100), _Pair(store)
    with LogWriter.open_or_create(store, f"latency-{uuid.uuid4().hex}") as writer:

        def call(_: int) -> list[float]:
            return [_timed(lambda: writer.append(body)) for _ in range(30)]

        call(0)
        if callers == 1:
            both = [(_timed(lambda: writer.append(body)), _timed(pair.put)) for _ in range(300)]
            times = [append for append, _ in both]
            return times, [put for _, put in both], sum(times)
        pairs = [_timed(pair.put) for _ in range(30)]
        with ThreadPoolExecutor(callers) as pool:
            began = time.perf_counter()
            times = [each for caller in pool.map(call, range(callers)) for each in caller]
            return times, pairs, time.perf_counter() - began


def manifest_bytes() -> None:
    table = Table(title="Bytes written per commit of one fragment: manifest, and snapshots besides (must be flat)")
    for name in ("fragments in the log", "manifest", "snapshots", "together", "commits measured"):
        table.add_column(name, justify="right")
    for count in (100, 10_000, 100_000):
        store = CountingStore(MemoryStore(shared_runtime(), name=uuid.uuid4().hex))
        grow(store, count)
        commits = 512
        with LogWriter.open(store, "a") as writer:
            store.written.clear()
            for _ in range(commits):
                writer.append(b"x")
        manifest, snapshots = (store.written[name] / commits for name in ("manifest", "snapshot"))
        table.add_row(
            f"{count:,}", f"{manifest:,.0f}", f"{snapshots:,.0f}", f"{manifest + snapshots:,.0f}", f"{commits:,}"
        )
    console.print(table)


def grow(store: ObjectStore, count: int) -> None:
    """Give a log the manifest and the snapshots it has after ``count`` one-fragment commits."""
    LogWriter.create(store, "a")
    manifests, options = ManifestStore(log_store(store, "a"), shared_runtime()), SnapshotOptions()
    snapshots = SnapshotStore(manifests, shared_runtime(), loaded_max=options.loaded_max)
    token, setsum = "0" * 16, Setsum.of([b"x"])
    base = manifests.load()
    manifest = base.manifest
    for number in range(1, count + 1):
        start = LogPosition(number, manifest.next.position.timestamp_us + 1000)
        pointer = FragmentPointer(
            path=fragment_path(FragmentSeqNo(number), token),
            first_seq_no=FragmentSeqNo(number),
            seq_no=FragmentSeqNo(number),
            start=start,
            limit=LogPosition(number + 1, start.timestamp_us),
            setsum=setsum,
            num_bytes=1000,
            num_records=1,
        )
        manifest = manifest.apply_fragments(Epoch(1, token, FragmentSeqNo(1)), [pointer])
        while (roll := plan_roll(manifest, options)) is not None:
            snapshot = build_snapshot(roll, manifest, snapshots.load)
            manifest = manifest.apply_snapshot(snapshots.write(snapshot, RetryOptions()), roll)
    assert isinstance(manifests.install(manifest, base), Installed)


def main() -> None:
    with ExitStack() as stack:
        disk = Path(stack.enter_context(TemporaryDirectory(dir=os.environ.get("WAL3_BENCH_DIR"))))
        folders = {"disk": disk}
        if MEMORY_FOLDER.is_dir():
            # Without a disk only the library's own cost is left.
            folders["memory"] = Path(stack.enter_context(TemporaryDirectory(dir=MEMORY_FOLDER)))
        throughput(folders)
        singles(folders)
        endpoint = stack.enter_context(s3_server())
        s3 = open_store(f"{use_endpoint(endpoint)}/{uuid.uuid4().hex}")
        latency({"disk": open_store(disk.as_uri()), "S3 (MiniStack)": s3})
    open_loop((1, 100, 10_000), (0.01,), spread=0.0, seconds=2)
    manifest_bytes()


if __name__ == "__main__":
    main()
