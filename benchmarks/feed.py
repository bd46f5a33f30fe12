"""What a feed costs a message server: replay rate, and the time from a publish to its receipt.

Run it as ``make bench-feed``. ``fan-out`` puts each message into a queue in memory for each subscriber: what a server
does without a memory, and what it loses when it ends. With the feed, subscribers are readers in the publisher's
process. Each message is published when the one before was received by all, or at a rate.
"""

from __future__ import annotations

import argparse
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from tests.s3_server import s3_server, use_endpoint
from wal3_core import FeedReader, FeedWriter, ObjectStore, WriterOptions, open_store

DEADLINE_S = 60.0
PAYLOAD = b"x" * 100


def replay(store: ObjectStore, count: int) -> float:
    """Publish messages, and return how many a second one reader receives of them."""
    log = uuid.uuid4().hex
    with FeedWriter.open_or_create(store, log, options=WriterOptions(batch_age_s_max=0.1)) as writer:
        for number in range(count):
            writer.publish("bench/topic", [number, PAYLOAD])
    reader = FeedReader.open(store, log)
    began_s = time.perf_counter()
    for _ in range(count):
        assert reader.recv(DEADLINE_S) is not None
    return count / (time.perf_counter() - began_s)


def latency(publish: Callable[[float], object], receive: list[Callable[[], float]], count: int, pause_s: float) -> str:
    """Publish at a rate; return p50 and p99 of the milliseconds until each subscriber had each message."""
    took_s: list[list[float]] = [[] for _ in receive]

    def receiving(index: int) -> None:
        for _ in range(count):
            sent_s = receive[index]()
            took_s[index].append(time.perf_counter() - sent_s)

    threads = [threading.Thread(target=receiving, args=(index,), daemon=True) for index in range(len(receive))]
    for thread in threads:
        thread.start()
    for _ in range(count):
        publish(time.perf_counter())
        time.sleep(pause_s)
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a subscriber has not received everything"
    each = [seconds * 1000 for found in took_s for seconds in found]
    return f"{median(each):.2f} | {quantiles(each, n=100)[98]:.2f}"


def fan_out(subscribers: int, count: int, pause_s: float) -> str:
    """Measure queues in memory."""
    queues: list[queue.SimpleQueue[float]] = [queue.SimpleQueue() for _ in range(subscribers)]

    def publish(sent_s: float) -> None:
        for each in queues:
            each.put(sent_s)

    return latency(publish, [lambda each=each: each.get(timeout=DEADLINE_S) for each in queues], count, pause_s)


def through_feed(store: ObjectStore, subscribers: int, count: int, pause_s: float) -> str:
    """Measure readers of a feed."""
    log = uuid.uuid4().hex
    with FeedWriter.open_or_create(store, log) as writer:
        readers = [FeedReader.open(store, log, start="end") for _ in range(subscribers)]

        def received(reader: FeedReader) -> float:
            message = reader.recv(DEADLINE_S)
            assert message is not None
            return float(message.message[0])

        receive = [lambda each=each: received(each) for each in readers]
        return latency(lambda sent_s: writer.publish("bench/topic", [sent_s, PAYLOAD]), receive, count, pause_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replayed", type=int, default=100_000, help="messages")
    parser.add_argument("--published", type=int, default=200, help="messages")
    parser.add_argument("--subscribers", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--pause-s", type=float, default=0.02, help="between two messages")
    given = parser.parse_args()
    with ExitStack() as stack:
        disk = Path(stack.enter_context(TemporaryDirectory(dir=os.environ.get("WAL3_BENCH_DIR"))))
        endpoint = stack.enter_context(s3_server())
        stores = {
            "directory": open_store(disk.as_uri()),
            "S3 (MiniStack)": open_store(f"{use_endpoint(endpoint)}/{uuid.uuid4().hex}"),
        }
        print("| store | replayed messages/s |\n|---|---:|")
        for name, store in stores.items():
            print(f"| {name} | {replay(store, given.replayed):,.0f} |", flush=True)
        print("\n| path | subscribers | p50 ms | p99 ms |\n|---|---:|---:|---:|")
        for subscribers in given.subscribers:
            terms = subscribers, given.published, given.pause_s
            print(f"| fan-out, no memory | {subscribers} | {fan_out(*terms)} |", flush=True)
            for name, store in stores.items():
                print(f"| feed, {name} | {subscribers} | {through_feed(store, *terms)} |", flush=True)


if __name__ == "__main__":
    main()
