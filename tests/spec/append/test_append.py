"""Appends are acknowledged once, in order and whole."""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from tests.stores import CountingStore, FaultyStore
from tests.world import World
from wal3_core import (
    ClosedError,
    InvalidRequestError,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    SealedError,
    WriterOptions,
)
from wal3_core.format.manifest import Seal
from wal3_core.options import FRAGMENT_BYTES_MAX, FRAGMENT_RECORDS_MAX, KIB
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

DONE_S_MAX = 30


class GatedStore(FaultyStore):
    """Holds every upload of a fragment until the gate is opened."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.before = lambda kind, path: self._hold() if kind == "create" and "/log/" in path else None

    def _hold(self) -> None:
        assert self.gate.wait(30)


def test_appended_records_read_back_at_their_positions(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        positions = [writer.append(b"body %d" % index) for index in range(5)]

    records = list(LogReader.open(store, "a").records())
    assert [position.offset for position in positions] == [1, 2, 3, 4, 5]
    assert [(record.offset, record.timestamp_us) for record in records] == [
        (position.offset, position.timestamp_us) for position in positions
    ]
    assert [record.body for record in records] == [b"body %d" % index for index in range(5)]


def test_keys_tombstones_and_empty_bodies_are_distinguished(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append_many([Message(b"1", b"k"), b"plain", Message(None, b"k"), Message(b"", b""), b""])

    assert [(record.key, record.body) for record in LogReader.open(store, "a").records()] == [
        (b"k", b"1"),
        (None, b"plain"),
        (b"k", None),
        (b"", b""),
        (None, b""),
    ]


def test_records_appended_together_are_adjacent_and_in_one_fragment(memory_store: MemoryStore) -> None:
    options = WriterOptions(batch_bytes_max=100)
    with (
        LogWriter.open_or_create(memory_store, "a", options=options) as writer,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        groups = list(pool.map(lambda n: writer.append_many([b"%d" % n] * 50), range(20)))

    reader = LogReader.open(memory_store, "a")
    found = [record.body for record in reader.records()]
    for number, position in enumerate(groups):
        assert found[position.offset - 1 : position.offset + 49] == [b"%d" % number] * 50
    edges = [pointer.start.offset for pointer in reader.scan()]
    assert all((edge - 1) % 50 == 0 for edge in edges)


def test_many_callers_share_fragments_and_each_gets_its_own_position(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer, concurrent.futures.ThreadPoolExecutor(16) as pool:
        positions = list(pool.map(lambda n: writer.append(b"%d" % n), range(200)))

    found = World(store).bodies()
    assert sorted(position.offset for position in positions) == list(range(1, 201))
    assert all(found[position.offset - 1] == b"%d" % number for number, position in enumerate(positions))
    assert len(LogReader.open(store, "a").scan()) < 150


def test_submitted_records_keep_their_order(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(batch_bytes_max=200)) as writer:
        futures = [writer.submit(b"%05d" % index) for index in range(2000)]
        offsets = [future.result().offset for future in futures]

    assert offsets == list(range(1, 2001))
    assert World(memory_store).bodies() == [b"%05d" % index for index in range(2000)]


def test_closing_makes_everything_submitted_durable(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        futures = [writer.submit(b"%d" % index) for index in range(100)]

    assert all(future.done() for future in futures)
    assert len(World(store).bodies()) == 100
    with pytest.raises(ClosedError):
        writer.append(b"late")


def test_timestamps_never_run_backwards_whatever_the_clock_does(memory_store: MemoryStore) -> None:
    class BackwardsRuntime(ThreadRuntime):
        now = 1_700_000_000_000_000

        def now_us(self) -> int:
            BackwardsRuntime.now -= 60_000_000
            return BackwardsRuntime.now

    with BackwardsRuntime() as runtime, LogWriter.open_or_create(memory_store, "a", runtime=runtime) as writer:
        times = [writer.append(b"x").timestamp_us for _ in range(10)]

    assert times == sorted(times)
    with LogWriter.open(memory_store, "a") as writer:
        assert writer.append(b"x").timestamp_us >= times[-1]


def test_one_commit_carries_every_fragment_that_is_ready(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    options = WriterOptions(batch_bytes_max=1 * KIB, uploads_max=8)
    with LogWriter.open_or_create(store, "a", options=options) as writer:
        store.requests.clear()
        for _ in range(400):
            writer.submit(b"x" * 512)
        writer.flush()

    assert store.requests["create"] >= 200
    assert store.requests["replace"] < store.requests["create"]


def test_cancelling_a_submitted_append_is_not_possible(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        future = writer.submit(b"x")
        assert not future.cancel()

    assert World(memory_store).bodies() == [b"x"]


@pytest.mark.slow
def test_callers_wait_instead_of_filling_the_memory(memory_store: MemoryStore) -> None:
    held = []
    options = WriterOptions(bytes_held_max=10 * KIB, batch_bytes_max=1 * KIB)
    LogWriter.create(memory_store, "a")
    store = GatedStore(memory_store)
    with LogWriter.open(store, "a", options=options) as writer:

        def submit_all() -> None:
            for index in range(100):
                writer.submit(b"x" * KIB)
                held.append(index)

        thread = threading.Thread(target=submit_all)
        thread.start()
        time.sleep(0.3)
        waiting = len(held)
        store.gate.set()
        thread.join(30)

    # Each record takes its own KiB and a little over two more.
    assert waiting == 3
    assert len(World(memory_store).bodies()) == 100


def test_callback_that_raises_keeps_no_other_caller_from_the_outcome(memory_store: MemoryStore) -> None:
    """Regression: an exception that ends a thread stopped the callbacks, and the callers behind waited forever."""
    store = GatedStore(memory_store)
    LogWriter.create(memory_store, "a")
    writer = LogWriter.open(store, "a")

    futures = [writer.submit(b"%d" % number) for number in range(3)]
    futures[0].add_done_callback(lambda _: sys.exit("a caller's"))
    store.gate.set()

    assert [future.result(30).offset for future in futures] == [1, 2, 3]
    writer.close()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_callers_who_wait_for_room_are_served_in_the_order_they_came(memory_store: MemoryStore) -> None:
    """Regression: small appends repeatedly overtook a large one that had waited longer."""
    store = GatedStore(memory_store)
    LogWriter.create(memory_store, "a")
    big, small = b"b" * 8 * KIB, b"s"
    with LogWriter.open(store, "a", options=WriterOptions(bytes_held_max=12 * KIB)) as writer:
        writer.submit(b"first" * 600)
        waiting = writer._loop.admission
        wait_until(lambda: not waiting)
        threads = []
        for number, body in enumerate((big, small, big, small), start=1):
            threads.append(threading.Thread(target=writer.submit, args=(body,)))
            threads[-1].start()
            wait_until(lambda number=number: len(waiting) == number)
        store.gate.set()
        for thread in threads:
            thread.join(30)

    assert World(memory_store).bodies()[1:] == [big, small, big, small]


def test_flush_waits_for_outcomes_that_are_being_delivered(memory_store: MemoryStore) -> None:
    store = GatedStore(memory_store)
    LogWriter.create(memory_store, "a")
    called, go_on, flushed = threading.Event(), threading.Event(), []

    def dawdle(_: object) -> None:
        called.set()
        go_on.wait(30)

    with LogWriter.open(store, "a", options=WriterOptions(batch_age_s_max=60)) as writer:
        writer.submit(b"first")
        slow, behind = writer.submit(b"slow"), writer.submit(b"behind")
        slow.add_done_callback(dawdle)
        store.gate.set()
        assert called.wait(30)

        def flush() -> None:
            writer.flush()
            flushed.append(behind.done())

        thread = threading.Thread(target=flush)
        thread.start()
        time.sleep(0.1)
        go_on.set()
        thread.join(30)

    assert flushed == [True]


def test_writer_keeps_nothing_of_appends_that_were_delivered(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        future = writer.submit(b"x")
        future.result(DONE_S_MAX)
        delivered = weakref.ref(future)
        del future

        # The worker that delivered it may not have ended its step.
        until_s = time.monotonic() + DONE_S_MAX
        while delivered() is not None and time.monotonic() < until_s:
            gc.collect()
            time.sleep(0.01)

        assert delivered() is None


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ([], "at least one record"),
        ([b"x" * 101], "at most 100 bytes"),
        ([Message(b"x" * 60, b"k" * 60)], "at most 100 bytes"),
        ([Message(None, None)], "found neither"),
        (["text"], "expected bytes, found str"),
        ([Message(b"ok"), "no"], "record 1 of 2.*str"),
        ([b"x" * 90] * 5, "to append together"),
        ([b""] * 11, "to append together"),
    ],
)
def test_bad_input_is_refused_by_name_and_other_callers_are_unaffected(
    memory_store: MemoryStore, records: list[bytes], match: str
) -> None:
    options = WriterOptions(record_bytes_max=100, fragment_bytes_max=300, batch_records_max=10)
    with LogWriter.open_or_create(memory_store, "a", options=options) as writer:
        before = writer.submit(b"before")
        with pytest.raises(InvalidRequestError, match=match):
            writer.append_many(records)
        after = writer.append(b"after")

    assert (before.result().offset, after.offset) == (1, 2)
    assert World(memory_store).bodies() == [b"before", b"after"]


def test_sealed_log_refuses_appends_and_names_its_successor(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append(b"1")
        manifests = ManifestStore(log_store(store, "a"), shared_runtime())
        base = manifests.load()
        seal = Seal(reason="moving", sealed_by="operator", timestamp_us=1, successor="b")
        assert isinstance(manifests.install(base.manifest.apply_seal(seal), base), Installed)

        with pytest.raises(SealedError, match="moving; it goes on in b"):
            writer.append(b"2")
        with pytest.raises(SealedError, match="moving"):
            writer.append(b"3")

    assert World(store).bodies() == [b"1"]


def test_oldest_record_waits_no_longer_than_the_batch_age(memory_store: MemoryStore) -> None:
    """A batch that never fills is written nevertheless."""
    options = WriterOptions(
        batch_bytes_max=FRAGMENT_BYTES_MAX, batch_records_max=FRAGMENT_RECORDS_MAX, batch_age_s_max=0.05
    )
    with LogWriter.open_or_create(memory_store, "a", options=options) as writer:
        for _ in range(20):
            futures = [writer.submit(b"x") for _ in range(3)]
            for future in futures:
                future.result(10)


@pytest.mark.slow
def test_slow_store_is_asked_for_fewer_and_larger_commits(memory_store: MemoryStore) -> None:
    def commit_sizes(cas_s: float) -> tuple[int, int]:
        """Append a record a millisecond for a second; count commits and fragments."""
        log = f"log{cas_s}".replace(".", "-")
        LogWriter.create(memory_store, log)
        store = FaultyStore(memory_store)
        commits = []

        def slow_down(kind: str, path: str) -> None:
            if kind == "replace" and "MANIFEST" in path:
                commits.append(path)
                time.sleep(cas_s)

        store.before = slow_down
        with LogWriter.open(store, log, options=WriterOptions(batch_age_s_max=0.002)) as writer:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                writer.submit(b"x")
                time.sleep(0.001)
        manifest = LogReader.open(memory_store, log).manifest()
        return len(commits), manifest.next.seq_no - 1

    quick_commits, _ = commit_sizes(0.0)
    slow_commits, slow_fragments = commit_sizes(0.1)

    assert slow_commits <= 15
    assert quick_commits > 2 * slow_commits
    # Cutting every two milliseconds would give as many fragments per commit as may be in flight.
    assert slow_fragments <= 5 * slow_commits
