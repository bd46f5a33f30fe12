"""Requests of collections, with documents that wait for their interval, and with many busy consumers.

Each request to the store takes ``--request-s`` seconds, as it does over a network; counts do not depend on it.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from wal3_core import CursorStore, LogPosition, LogWriter, open_store
from wal3_core.errors import LogError
from wal3_core.log.collect.collector import collect
from wal3_core.options import CollectorOptions

_KINDS = frozenset({"read", "get", "create", "replace", "head", "list_objects", "delete"})
WAITING = (1, 2, 50, 100, 300)
CONSUMERS, RECORDS, PLANS = 200, 2000, 10


class Slow:
    """A store that counts and delays its requests."""

    def __init__(self, inner: object, request_s: float) -> None:
        self._inner = inner
        self._request_s = request_s
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        method = getattr(self._inner, name)
        if name not in _KINDS:
            return method

        def request(*arguments: object, **more: object) -> object:
            self.requests[name] += 1
            time.sleep(self._request_s)
            return method(*arguments, **more)

        return request


def waiting(request_s: float) -> None:
    """Collect a few fragments at a time; count a collection's requests as more documents wait."""
    inner = open_store("memory:waiting")
    slow, writer, cursors = Slow(inner, request_s), LogWriter.open_or_create(inner, "a"), CursorStore(inner, "a")
    witness = cursors.create("c", LogPosition(1, 0))
    options = CollectorOptions(fraction_max=1)
    print("| documents that wait | requests | of them PUTs | seconds |\n|---:|---:|---:|---:|")
    for number in range(1, max(WAITING) + 1):
        position = [writer.append(b"x") for _ in range(3)][-1]
        witness = cursors.save("c", position, witness)
        measured = number in WAITING
        slow.requests.clear()
        began_s = time.monotonic()
        collect(slow if measured else inner, "a", options=options)
        if measured:
            puts = slow.requests["create"] + slow.requests["replace"]
            print(f"| {number} | {slow.requests.total()} | {puts} | {time.monotonic() - began_s:.2f} |", flush=True)
    writer.close()


def consumers(request_s: float) -> None:
    """Collect while consumers save as fast as they can."""
    inner = open_store("memory:consumers")
    slow, stop = Slow(inner, request_s), threading.Event()
    with LogWriter.open_or_create(inner, "a") as writer:
        for _ in range(RECORDS):
            writer.append(b"x")
    laggard = CursorStore(inner, "a")
    witness = laggard.create("laggard", LogPosition(1, 0))

    def consume(number: int) -> int:
        saves, cursors = 0, CursorStore(Slow(inner, request_s), "a")
        seen = cursors.create(f"c{number}", LogPosition(1, 0))
        while not stop.is_set():
            saves += 1
            seen = cursors.save(f"c{number}", LogPosition(min(saves + 1, RECORDS), 0), seen)
        return saves

    with ThreadPoolExecutor(CONSUMERS) as threads:
        busy = [threads.submit(consume, number) for number in range(CONSUMERS)]
        time.sleep(2)
        carried_out, took_s = 0, list[float]()
        for number in range(PLANS):
            witness = laggard.save("laggard", LogPosition(number + 2, 0), witness)
            slow.requests.clear()
            began_s = time.monotonic()
            try:
                done = collect(slow, "a", options=CollectorOptions(orphans_max=0))
                carried_out += not done.plan.empty
            except LogError as error:
                print(f"{type(error).__name__}: {error}")
            took_s.append(time.monotonic() - began_s)
        stop.set()
        saves = sum(each.result() for each in busy)
    print(f"{carried_out} of {PLANS} plans carried out beside {CONSUMERS} consumers and {saves:,} saves,")
    print(f"{slow.requests.total()} requests and {sorted(took_s)[PLANS // 2]:.2f} s each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request-s", type=float, default=0.015, help="how long a request takes")
    given = parser.parse_args()
    waiting(given.request_s)
    consumers(given.request_s)
