"""The requests, round trips and memory of a read's start and of a full walk, by the length of the log.

Run it as ``make bench-reading``. The library's own steps build the log's tree. Fragments are real at its
beginning, where records are read; further on there are only their pointers. Every request takes a second of
virtual time, which counts as one round trip.
"""

from __future__ import annotations

import argparse
import tracemalloc

from tests.large_logs import Grower
from tests.rounds import round_trips
from tests.stores import CountingStore
from wal3_core import LogReader, MemoryStore, ReaderOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import ObjectStore


def first_record(store: MemoryStore) -> tuple[int, int, float]:
    """Count requests and round trips of virtual time up to the first record, and the memory held then, in MB."""
    counting = CountingStore(store)
    tracemalloc.start()
    records = LogReader(counting, "a", options=ReaderOptions(), runtime=shared_runtime()).records()
    next(records)
    held_mb = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    requests = counting.requests.total()

    def first(slow: ObjectStore, runtime: Runtime) -> None:
        next(LogReader(slow, "a", options=ReaderOptions(), runtime=runtime).records())

    return requests, round_trips(store, first)[1], held_mb


def full_walk(store: MemoryStore) -> tuple[int, float]:
    """Count the requests of a walk through the whole tree, and its peak memory in MB."""
    counting = CountingStore(store)
    reader = LogReader(counting, "a", options=ReaderOptions(), runtime=shared_runtime())
    tracemalloc.start()
    count = sum(1 for _ in reader.pointers())
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    assert count
    return counting.requests.total(), peak_mb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 12_000, 100_000], help="fragments")
    given = parser.parse_args()
    store = MemoryStore(shared_runtime())
    print("| fragments | requests to the first record | round trips | held then | GETs of a full walk | its peak |")
    print("|---:|---:|---:|---:|---:|---:|")
    # The oldest fragments are real: the read begins there.
    Grower(store).grow(64)
    size = 64
    grower = Grower(store, real=False)
    for wanted in given.sizes:
        grower.grow(wanted - size)
        size = wanted
        requests, rounds, held_mb = first_record(store)
        gets, peak_mb = full_walk(store)
        print(f"| {size:,} | {requests} | {rounds} | {held_mb:.1f} MB | {gets:,} | {peak_mb:.1f} MB |", flush=True)


if __name__ == "__main__":
    main()
