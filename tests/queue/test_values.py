"""What a queue keeps in memory: an index of its items, and of their values no more than its cache may hold."""

from __future__ import annotations

import tracemalloc
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests.stores import FaultyStore
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import NewItem, QueueOptions
from wal3_core.views.queue.queue_state import Pending, Row

if TYPE_CHECKING:
    from wal3_core import MemoryStore

LOG = "q"
DEADLINE_S = 60
# No checkpoint is due: its encoding takes memory of its own.
RARELY = 10**6


class CountingStore(FaultyStore):
    """Counts the fragments that are read."""

    num_reads = 0

    def _ask(self, kind: str, path: str) -> None:
        self.num_reads += kind == "read" and "/log/" in path
        super()._ask(kind, path)


def filled(store: MemoryStore) -> list[bytes]:
    """Make a queue of three fragments: of two items that are due, of two that soon are, and of one that is not."""
    with DelayQueue.open_or_create(store, LOG) as queue:
        for delay_s in (0.0, 3000.0, 9000.0):
            queue.enqueue_many([NewItem(b"%d" % delay_s * 100, delay_s=delay_s)] * (1 if delay_s > 5000 else 2))
        queue.checkpoint()
        return [item.value for item in queue.peek(9)]


def test_values_that_are_due_soon_are_read_ahead_and_others_when_they_are_asked_for(memory_store: MemoryStore) -> None:
    values, store = filled(memory_store), CountingStore(memory_store)
    with DelayQueue.open(store, LOG, options=QueueOptions(prefetch_s=5000.0)) as queue:
        opened = store.num_reads
        for _ in range(DEADLINE_S * 50):
            assert queue.stats().pending == 5
            if store.num_reads == opened + 2:
                break
            Event().wait(0.02)

        assert [item.value for item in queue.dequeue(9)] == values[:2]
        assert [item.value for item in queue.peek(2)] == values[2:4]
        assert store.num_reads == opened + 2
        assert [item.value for item in queue.peek(3)] == values[2:]
        assert store.num_reads == opened + 3


def test_nothing_is_read_ahead_if_that_is_said(memory_store: MemoryStore) -> None:
    values, store = filled(memory_store), CountingStore(memory_store)
    with DelayQueue.open(store, LOG, options=QueueOptions(prefetch_items=0)) as queue:
        opened = store.num_reads
        assert queue.stats().pending == 5
        assert store.num_reads == opened
        assert [item.value for item in queue.dequeue(9)] == values[:2]
        assert store.num_reads == opened + 1


@pytest.mark.slow
def test_values_take_no_more_memory_than_the_cache_whether_they_wait_or_are_leased(memory_store: MemoryStore) -> None:
    store = memory_store
    options = QueueOptions(cache_bytes_max=400_000, prefetch_s=0, checkpoint_bytes=2**40, checkpoint_records=RARELY)
    with DelayQueue.open_or_create(store, LOG, options=options) as queue:
        values = queue._broker.values
        for number in range(40):
            queue.enqueue_many([NewItem(b"%d" % number * 4000)] * 10)
            assert values._num_bytes <= 400_000
        tracemalloc.start()
        try:
            for number in range(40):
                assert [item.value for item in queue.dequeue(10)] == [b"%d" % number * 4000] * 10
                assert values._num_bytes <= 400_000
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert queue.stats().leased == 400
        assert queue.stats().bytes > 2_000_000
        # The cache, the leases, and what the store in memory has got: less than the values.
        assert kept < 1_200_000


@pytest.mark.slow
def test_pending_item_takes_no_more_than_64_bytes() -> None:
    count = 24 * 4096
    tracemalloc.start()
    try:
        pending = Pending()
        for item_id in range(count):
            pending.add(Row(item_id * 7919 % 100_003, item_id, item_id, 278, 0, 0, -1))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(pending) == count
    assert taken / count <= 64
