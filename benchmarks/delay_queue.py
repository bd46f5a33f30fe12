"""A delay queue beside other queues with acknowledgements, on the same disk in the same run.

python benchmarks/delay_queue.py [--parts rates disk many month] [--seconds N] [--messages N] [--items N] [--folder DIR]

rates: messages a second, one at a time, in batches, and one by one with a thousand under way. A queue is filled for
``--seconds``, or until it has ``--messages``; then it is emptied for as long. disk: bytes on disk for each message,
less the message, which is random. many: a queue of ``--items``: memory for each, and the time to open it. month: what
one item that is due in 30 days keeps on disk after ``--items`` others were released.

Peers: litequeue and persist-queue (pip install litequeue persist-queue), and beanstalkd (apt-get install beanstalkd). A
peer that is not installed is left out. What each promises is printed, as it is not the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.queue_peers import LOG, PEERS, Beanstalk, NotInstalledError, Peer, Wal3, size_of
from wal3_core import CollectorOptions, KeyCompactor, LogReader, PolicyStore, open_store
from wal3_core.log.collect.deleter import Deleter
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import NewItem

VALUE_BYTES = 278
AHEAD = 1000
FILLING = 1000
DAY_S = 86_400
PAGE_BYTES = 4096
DEADLINE_S = 1800.0
PARTS = ["rates", "disk", "many", "month"]


def values(count: int, seed: int = 1) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(VALUE_BYTES) for _ in range(count)]


def installed(folder: Path) -> list[type[Any]]:
    """Return the peers that can be opened; say which ones cannot."""
    found = []
    for number, peer in enumerate(PEERS):
        place = folder / f"probe{number}"
        place.mkdir()
        try:
            peer(place).close()
            found.append(peer)
        except NotInstalledError as error:
            print(f"{peer.name}: not installed ({error})")
    return found


# ---------------------------------------------------------------------- rates


def rate(work: Callable[[], int], seconds: float, most: int) -> tuple[int, float]:
    """Work until it finds nothing, time is up, or so many are done; return how many, and how many a second."""
    done, began_s = 0, time.perf_counter()
    while done < most and time.perf_counter() - began_s < seconds:
        found = work()
        done += found
        if not found:
            break
    return done, done / (time.perf_counter() - began_s)


def rates_of(peer: type[Any], folder: Path, batch: int | None, seconds: float, most: int) -> str:
    """Fill and empty a queue; a batch of None is one by one, with many under way."""
    folder.mkdir()
    queue, count = peer(folder), batch or AHEAD
    some = values(count)

    def put() -> int:
        (queue.put if batch else queue.put_ahead)(some)
        return count

    def take() -> int:
        found: int = (queue.take if batch else queue.take_ahead)(count)
        return found

    filled, puts = rate(put, seconds, most)
    _, takes = rate(take, seconds, filled)
    queue.close()
    return f"{puts:,.0f} / {takes:,.0f}"


def show_rates(folder: Path, peers: Sequence[type[Any]], seconds: float, most: int) -> None:
    print(f"\nMessages of {VALUE_BYTES} bytes a second: enqueue / dequeue and release\n")
    print(f"| | 1 | 1, {AHEAD:,} under way | batches of 100 | batches of 1,000 | what has returned is durable |")
    print("|---|---:|---:|---:|---:|---|")
    for peer in peers:
        cells = []
        for number, batch in enumerate((1, None, 100, 1000)):
            able = (batch == 1) or (peer.sends_ahead if batch is None else peer.batches)
            place = folder / f"{peer.__name__}{number}"
            cells.append(rates_of(peer, place, batch, seconds, most) if able else "")
        print(f"| {peer.name} | {' | '.join(cells)} | {peer.promises} |", flush=True)


# ---------------------------------------------------------------------- disk


def overhead(store_url: str, messages: int) -> float:
    """Return the bytes of a log's fragments, less those of the messages that wait, for each of these."""
    pointers = LogReader.open(open_store(store_url), LOG).scan()
    return sum(pointer.num_bytes for pointer in pointers) / messages - VALUE_BYTES


def show_wal3_disk(folder: Path, batch: int, count: int) -> None:
    """Enqueue; compact; release a half, and compact again. Compaction goes as far as the newest checkpoint."""
    folder.mkdir()
    url, some = folder.as_uri(), values(count)
    queue = Wal3(folder)
    for at in range(0, count, batch):
        queue.put(some[at : at + batch])
    cells = [overhead(url, count)]
    queue.checkpoint()
    KeyCompactor(open_store(url), LOG).compact(force=True)
    cells.append(overhead(url, count))
    for _ in range(0, count // 2, batch):
        queue.take(batch)
    cells.append(overhead(url, count - count // 2))
    queue.checkpoint()
    queue.close()
    KeyCompactor(open_store(url), LOG).compact(force=True)
    cells.append(overhead(url, count - count // 2))
    shown = " | ".join(f"{each:.1f}" for each in cells)
    print(f"| wal3, fragments of {batch:,} | {shown} |", flush=True)


def show_disk(folder: Path, peers: Sequence[type[Any]], count: int) -> None:
    print(f"\nBytes on disk for each message that waits, less its {VALUE_BYTES}; {count:,} messages\n")
    print("| | enqueued | compacted | a half was released | compacted |\n|---|---:|---:|---:|---:|")
    for batch in (1, 100, 1000):
        show_wal3_disk(folder / f"wal3-{batch}", batch, count // 20 if batch == 1 else count)
    for peer in peers:
        if peer is not Wal3:
            place = folder / peer.__name__
            place.mkdir()
            queue = peer(place)
            fill(queue, count)
            queue.close()
            print(f"| {peer.name} | {queue.num_bytes() / count - VALUE_BYTES:.1f} | | | |", flush=True)


# ---------------------------------------------------------------------- many


def fill(queue: Peer, count: int) -> None:
    """Enqueue many, as fast as it can."""
    some = values(FILLING)
    for at in range(0, count, FILLING):
        queue.fill(some[: count - at])


def fill_scheduled(url: str, count: int) -> None:
    """Enqueue many with random delays: the order of deadlines is not that of the log."""
    dice, some = random.Random(2), values(FILLING)
    with DelayQueue.open_or_create(open_store(url), LOG) as queue:
        for at in range(0, count, FILLING):
            queue.enqueue_many([NewItem(each, delay_s=dice.uniform(60, DAY_S)) for each in some[: count - at]])


def resident_bytes(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES


def opened(url: str, count: int, *, traced: bool) -> tuple[float, float, float]:
    """In a process of its own: return the seconds of opening, and bytes of memory for each item: now, and at most."""
    # What the first use imports and allocates is no item's.
    DelayQueue.create(open_store("memory:"), "small")
    DelayQueue.open(open_store("memory:"), "small").close()
    store = open_store(url)
    gc.collect()
    if traced:
        tracemalloc.start()
    before, began_s = resident_bytes(), time.perf_counter()
    queue = DelayQueue.open(store, LOG)
    took_s = time.perf_counter() - began_s
    assert queue.stats().pending == count
    gc.collect()
    if traced:
        now, peak = tracemalloc.get_traced_memory()
    else:
        now, peak = resident_bytes() - before, peak_bytes() - before
    queue.close()
    return took_s, now / count, peak / count


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def apart(url: str, count: int, *, traced: bool = False) -> tuple[float, float, float]:
    """Open it in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply_async(opened, (url, count), {"traced": traced}).get(DEADLINE_S)


def show_many(folder: Path, peers: Sequence[type[Any]], count: int) -> None:
    print(f"\nA queue of {count:,} messages that wait\n")
    print("| | seconds to open | bytes of memory for each | at most, while it opens |\n|---|---:|---:|---:|")
    place = folder / "wal3-many"
    url = place.as_uri()
    fill_scheduled(url, count)
    for what in ("closed", "compacted"):
        if what == "compacted":
            KeyCompactor(open_store(url), LOG).compact(force=True)
        took_s, now, peak = apart(url, count)
        print(f"| wal3, {what} | {took_s:.2f} | {now:.0f} resident | {peak:.0f} |", flush=True)
    _, now, peak = apart(url, count, traced=True)
    print(f"| wal3, measured by tracemalloc | | {now:.0f} | {peak:.0f} |")
    print(f"| wal3, size of its folder: {size_of(place) / 1e6:,.0f} MB | | | |")
    for peer in peers:
        if peer is not Wal3:
            show_peer_many(folder / f"{peer.__name__}-many", peer, count)


def show_peer_many(folder: Path, peer: type[Any], count: int) -> None:
    folder.mkdir()
    queue = peer(folder)
    fill(queue, count)
    queue.close()
    began_s = time.perf_counter()
    queue = peer(folder)
    assert queue.take(1) == 1
    took_s = time.perf_counter() - began_s
    memory = f"{resident_bytes(queue.pid) / count:.0f} resident" if isinstance(queue, Beanstalk) else "on disk"
    queue.close()
    print(f"| {peer.name}, until the first is dequeued | {took_s:.2f} | {memory} | |", flush=True)


# ---------------------------------------------------------------------- month


def show_month(folder: Path, count: int) -> None:
    """Release all items but one, compact, and delete what passes have replaced; without waiting for an hour."""
    store = open_store(folder.as_uri())
    some, batch = values(10 * FILLING), 10 * FILLING
    print(f"\nOne item that is due in 30 days, and {count:,} that were enqueued and released\n")
    print("| | records | bytes of fragments | on disk beside them |\n|---|---:|---:|---:|")
    with DelayQueue.open_or_create(store, LOG) as queue:
        PolicyStore(store, LOG).change(lambda policy: replace(policy, delete_retention_s=0))
        queue.enqueue(some[0], delay_s=30 * DAY_S)
        for _ in range(0, count, batch):
            queue.enqueue_many([NewItem(each) for each in some])
            queue.release_many([(each.id, each.token) for each in queue.dequeue(batch)])
        show_log(folder, "released")
        queue.checkpoint()
        began_s = time.perf_counter()
        # The first pass drops the items, and the second one their tombstones.
        for _ in range(2):
            KeyCompactor(store, LOG).compact(force=True)
        took_s = time.perf_counter() - began_s
        deleter = Deleter(store, LOG, options=CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1e9))
        for path in [meta.path for meta in deleter.documents()]:
            deleter.delete(path)
        show_log(folder, f"compacted in {took_s:.1f} s")
        assert queue.stats().scheduled == 1


def show_log(folder: Path, what: str) -> None:
    pointers = list(LogReader.open(open_store(folder.as_uri()), LOG).scan())
    records, num_bytes = (sum(getattr(each, name) for each in pointers) for name in ("num_records", "num_bytes"))
    print(f"| {what} | {records:,} | {num_bytes:,} | {size_of(folder) - num_bytes:,} |", flush=True)


@contextlib.contextmanager
def place_for(folder: str | None, part: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{part}-") as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--messages", type=int, default=100_000, help="at most, of each measurement")
    parser.add_argument("--items", type=int, default=1_000_000, help="in a queue of many")
    parser.add_argument("--folder", help="where the queues are made")
    given = parser.parse_args()
    with place_for(given.folder, "probe") as folder:
        peers = installed(folder)
    for part in given.parts:
        with place_for(given.folder, part) as folder:
            if part == "rates":
                show_rates(folder, peers, given.seconds, given.messages)
            elif part == "disk":
                show_disk(folder, peers, given.messages)
            elif part == "many":
                show_many(folder, peers, given.items)
            else:
                show_month(folder, given.items)


if __name__ == "__main__":
    main()
