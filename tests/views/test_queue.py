"""A delay queue: what each operation does, what is kept over restarts, and which broker has it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from tests.stores import FaultyStore
from wal3_core import (
    Cleanup,
    ClosedError,
    CursorStore,
    DelayQueue,
    FencedError,
    InvalidRequestError,
    ItemState,
    Leased,
    LogError,
    LogExistsError,
    LogNotFoundError,
    LogWriter,
    MemoryStore,
    NewItem,
    Peeked,
    PolicyStore,
    QueueDefinition,
    QueueFullError,
    QueueOptions,
    StaleTokenError,
    UnknownItemError,
    is_queue,
    read_queue_dead,
    read_queue_definition,
    read_queue_head,
    read_queue_item,
    read_queue_stats,
)
from wal3_core.runtime import US_PER_S
from wal3_core.views.queue.operations import Dequeue, Enqueued, GiveBack

LIMIT_S = 30
# What the policy of a new queue says of compactions.
OF_COMPACTIONS = ("delete_retention_s", "compacted_fragment_bytes", "receipt_retention_s")


@pytest.fixture
def queue(memory_store: MemoryStore) -> Iterator[DelayQueue]:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        yield queue


def values(queue: DelayQueue, count: int = 100) -> list[bytes]:
    """Hand out what is due."""
    return [item.value for item in queue.dequeue(count)]


def test_items_come_by_priority_then_deadline_then_id(queue: DelayQueue) -> None:
    now_us = queue.enqueue(b"d").deadline_us
    queue.enqueue_many(
        [
            NewItem(b"b", deadline_us=now_us - 5000, priority=1),
            NewItem(b"a", deadline_us=now_us - 9000, priority=1),
            NewItem(b"c", deadline_us=now_us - 5000, priority=1),
            NewItem(b"later", delay_s=1000),
        ]
    )

    assert [peeked.value for peeked in queue.peek(9)] == [b"a", b"b", b"c", b"d", b"later"]
    assert values(queue) == [b"a", b"b", b"c", b"d"]
    assert values(queue) == []


def test_deadline_before_the_last_dequeued_one_is_advanced(queue: DelayQueue) -> None:
    first = queue.enqueue(b"first")
    assert values(queue) == [b"first"]
    late = queue.enqueue(b"late", deadline_us=first.deadline_us - 1000)
    other = queue.enqueue(b"other", deadline_us=first.deadline_us - 1000, priority=7)

    assert (late.deadline_us, late.advanced) == (first.deadline_us, True)
    assert (other.deadline_us, other.advanced) == (first.deadline_us - 1000, False)


def test_waiting_calls_are_served_in_their_order(queue: DelayQueue) -> None:
    served: list[tuple[int, bytes]] = []

    def wait(number: int) -> None:
        (item,) = queue.dequeue(timeout_s=LIMIT_S)
        served.append((number, item.value))

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while queue.stats().waiting <= number:
            pass
    for number in range(3):
        queue.enqueue(b"%d" % number)
    for thread in threads:
        thread.join(LIMIT_S)

    assert sorted(served) == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_call_that_gave_up_does_not_count_as_waiting(queue: DelayQueue) -> None:
    gone, other = (queue.submit(Dequeue(timeout_s=LIMIT_S)) for _ in range(2))
    while queue.stats().waiting < 2:
        pass
    gone.cancel()

    assert queue.stats().waiting == 1
    other.cancel()


def test_items_come_until_their_values_are_too_large_together(queue: DelayQueue, memory_store: MemoryStore) -> None:
    """Whatever the definition allows by now."""
    queue.enqueue_many([NewItem(bytes(size)) for size in (40, 40, 40, 100, 1)])

    def sizes(items: Iterable[Leased | Peeked]) -> list[int]:
        return [len(item.value) for item in items]

    assert sizes(queue.peek(9, bytes_max=80)) == [40, 40]
    assert sizes(read_queue_head(memory_store, "q", 9, bytes_max=80)) == [40, 40]
    taken = [queue.submit(Dequeue(9, bytes_max=80)).result(LIMIT_S) for _ in range(5)]
    assert [sizes(items) for items in taken] == [[40, 40], [40], [100], [1], []]
    for item in (item for items in taken for item in items):
        queue.bury(item.id, item.token)
    assert sizes(queue.dead(bytes_max=119)) == [40, 40]
    assert sizes(read_queue_dead(memory_store, "q", after=3, bytes_max=1)) == [100]


def test_item_that_is_given_back_counts_as_not_handed_out(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q", QueueDefinition(max_deliveries=1)) as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b")])
        first, second = queue.dequeue(2)
        queue.submit(GiveBack(((first.id, first.token), (second.id, "stale")))).result(LIMIT_S)
        assert queue.item(2).state is ItemState.LEASED
    with DelayQueue.open(memory_store, "q") as queue:
        (again,) = queue.dequeue(9)
        assert (again.value, again.deliveries, again.deadline_us) == (b"a", 1, first.deadline_us)


def test_item_that_is_not_due_is_waited_for(queue: DelayQueue) -> None:
    queue.enqueue(b"soon", delay_s=0.05)
    (item,) = queue.dequeue(timeout_s=LIMIT_S)
    assert item.value == b"soon"


def test_released_item_is_gone_and_its_id_is_not_used_again(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue(b"x")
        (item,) = queue.dequeue()
        queue.release(item.id, item.token)
        with pytest.raises(StaleTokenError, match="no lease"):
            queue.release(item.id, item.token)
        with pytest.raises(UnknownItemError):
            queue.item(item.id)
    with DelayQueue.open(memory_store, "q") as queue:
        assert (queue.stats().pending, queue.stats().bytes, queue.stats().last_id) == (0, 0, 1)
        assert queue.enqueue(b"y").id == 2


def test_release_of_several_is_all_or_none(queue: DelayQueue) -> None:
    queue.enqueue_many([NewItem(b"a"), NewItem(b"b")])
    first, second = queue.dequeue(2)
    with pytest.raises(StaleTokenError, match="another lease"):
        queue.release_many([(first.id, first.token), (second.id, "00" * 8)])
    assert queue.stats().leased == 2
    queue.release_many([(first.id, first.token), (second.id, second.token)])
    assert queue.stats().leased == 0


def test_lease_outlives_its_broker_and_the_item_comes_back_when_it_ends(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue(b"x")
        (item,) = queue.dequeue(lease_s=0.2)
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.item(1).deliveries == 1
        (again,) = queue.dequeue(timeout_s=LIMIT_S)
        assert (again.id, again.deliveries) == (1, 2)
        assert again.deadline_us == item.lease_until_us
        with pytest.raises(StaleTokenError):
            queue.release(item.id, item.token)


def test_requeued_item_has_its_new_time_and_value_after_a_restart(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue(b"old", dedupe_key=b"k")
        (item,) = queue.dequeue()
        back = queue.requeue(item.id, item.token, delay_s=0, value=b"newer")
        before = queue.item(1)
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.item(1) == before
        assert queue.enqueue(b"x", dedupe_key=b"k").duplicate
        (again,) = queue.dequeue()
        assert (again.value, again.deliveries, again.deadline_us) == (b"newer", 2, back.deadline_us)
        assert again.enqueued_us == item.enqueued_us


def test_item_that_came_back_too_often_is_buried_and_can_be_kicked(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q", QueueDefinition(max_deliveries=1)) as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b"), NewItem(b"c")])
        first, second, third = queue.dequeue(3)
        queue.requeue(second.id, second.token)
        queue.bury(first.id, first.token)
        queue.extend(third.id, third.token, 1000)
    with DelayQueue.open(memory_store, "q") as queue:
        assert [(letter.id, letter.value) for letter in queue.dead()] == [(1, b"a"), (2, b"b")]
        assert [letter.id for letter in queue.dead(after=1)] == [2]
        with pytest.raises(UnknownItemError, match="item 3"):
            queue.kick_ids([2, 3])
        assert queue.kick(1) == [2]
        assert values(queue) == [b"b"]
        assert queue.item(3).state is ItemState.LEASED


def test_item_with_a_known_dedupe_key_is_not_added(queue: DelayQueue) -> None:
    first, second = queue.enqueue_many([NewItem(b"a", dedupe_key=b"k"), NewItem(b"b", dedupe_key=b"k")])
    assert (second.id, second.duplicate, second.deadline_us) == (first.id, True, first.deadline_us)
    (item,) = queue.dequeue(9)
    queue.bury(item.id, item.token)
    assert queue.enqueue(b"c", dedupe_key=b"k") == Enqueued(item.id, item.deadline_us, duplicate=True, dead=True)
    queue.purge(pending=False, dead=True)
    assert not queue.enqueue(b"c", dedupe_key=b"k").duplicate


def test_full_queue_refuses_more_and_its_definition_is_kept(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q", QueueDefinition(items_max=1)) as queue:
        queue.enqueue(b"a", dedupe_key=b"k")
        with pytest.raises(QueueFullError, match="at most 1 items, found 1 and 1 more"):
            queue.enqueue(b"b")
        (item,) = queue.dequeue()
        queue.bury(item.id, item.token)
        with pytest.raises(QueueFullError, match=r"found 1 \(1 of them dead letters: kick or purge these\) and 1 more"):
            queue.enqueue(b"b")
        assert queue.enqueue(b"c", dedupe_key=b"k").duplicate
        queue.define(QueueDefinition(items_max=2, lease_s=1.5))
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.definition == QueueDefinition(items_max=2, lease_s=1.5)
        with pytest.raises(InvalidRequestError, match="at most 1048576 bytes"):
            queue.enqueue(bytes(2**20 + 1))
        assert queue.enqueue(b"b").id == 2


def test_purge_removes_what_it_says(queue: DelayQueue) -> None:
    queue.enqueue_many([NewItem(b"%d" % number) for number in range(10)])
    first, second = queue.dequeue(2)
    queue.bury(second.id, second.token)
    assert queue.purge(dry_run=True) == 8
    assert queue.purge() == 8
    assert (queue.stats().pending, queue.stats().leased, queue.stats().dead) == (0, 1, 1)
    assert queue.purge(pending=False, leased=True, dead=True) == 2
    assert queue.stats().bytes == 0
    with pytest.raises(StaleTokenError):
        queue.release(first.id, first.token)


def test_newer_broker_fences_the_older_one(memory_store: MemoryStore) -> None:
    older = DelayQueue.open_or_create(memory_store, "q")
    older.enqueue(b"a")
    with DelayQueue.open(memory_store, "q") as newer:
        with pytest.raises(FencedError, match="open it again"):
            older.dequeue()
        with pytest.raises(FencedError):
            older.enqueue(b"b")
        assert values(newer) == [b"a"]
    older.close()


def test_fenced_broker_takes_no_item_for_a_duplicate(memory_store: MemoryStore) -> None:
    older = DelayQueue.open_or_create(memory_store, "q")
    older.enqueue(b"a", dedupe_key=b"k")
    with DelayQueue.open(memory_store, "q") as newer:
        (item,) = newer.dequeue()
        newer.release(item.id, item.token)
        with pytest.raises(FencedError):
            older.enqueue(b"b", dedupe_key=b"k")


@pytest.mark.slow
def test_many_calls_that_wait_for_more_than_a_fragment_takes_are_all_served(queue: DelayQueue) -> None:
    due_us = queue.enqueue(b"first", delay_s=5).deadline_us
    for _ in range(8):
        queue.enqueue_many([NewItem(b"", deadline_us=due_us)] * 10_000)
    # All items are due at once, and each call takes as many as it can get.
    futures = [queue.submit(Dequeue(10_000, LIMIT_S, lease_s=10_000)) for _ in range(8)]

    ids = [item.id for future in futures for item in future.result(LIMIT_S)]

    assert len(ids) == len(set(ids)) == 80_000
    assert queue.stats().leased == len(ids)


@pytest.mark.parametrize("fault", ["denied", "unknown", "applied-unknown"])
def test_queue_is_loaded_again_after_a_failed_append(memory_store: MemoryStore, fault: str) -> None:
    faulty = FaultyStore(memory_store)
    options = QueueOptions()
    with DelayQueue.open_or_create(faulty, "q", options=options) as queue:
        queue.enqueue(b"a")
        faulty.fail("replace", "manifest/", fault, times=1)
        try:
            queue.enqueue(b"b")
            kept = [b"a", b"b"]
        except LogError:
            kept = [peeked.value for peeked in queue.peek(9)]
            assert kept in ([b"a"], [b"a", b"b"])
        assert values(queue) == kept
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.stats().leased == len(kept)


def test_checkpoint_holds_all_that_came_before_it(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q", QueueDefinition(max_deliveries=1)) as queue:
        queue.enqueue_many([NewItem(b"%d" % number, priority=number % 3) for number in range(9)])
        queue.enqueue(b"k", delay_s=1000, dedupe_key=b"k")
        first, second, third = queue.dequeue(3)
        queue.bury(first.id, first.token)
        queue.release(second.id, second.token)
        queue.checkpoint()
        queue.enqueue(b"after")
        queue.extend(third.id, third.token, 1000)
        (fourth,) = queue.dequeue()
        queue.release(fourth.id, fourth.token)
        before = (queue.stats(), queue.peek(99), queue.dead())
        leased = queue.item(third.id)
    cursor = CursorStore(memory_store, "q").load("queue")
    assert cursor is not None
    assert cursor.cursor.position.offset > 1
    with DelayQueue.open(memory_store, "q") as queue:
        assert (queue.stats(), queue.peek(99), queue.dead()) == before
        # Of a lease that goes on, the end is by the clock of the broker that has it.
        again = queue.item(third.id)
        assert again == replace(leased, lease_until_us=again.lease_until_us)
        assert abs((again.lease_until_us or 0) - (leased.lease_until_us or 0)) < US_PER_S
        assert queue.enqueue(b"x", dedupe_key=b"k").duplicate
        queue.release(third.id, third.token)


def test_checkpoint_is_written_after_enough_bytes(memory_store: MemoryStore) -> None:
    options = QueueOptions(checkpoint_bytes=4000)
    with DelayQueue.open_or_create(memory_store, "q", options=options) as queue:
        for _ in range(3):
            queue.enqueue(bytes(1000))
            (item,) = queue.dequeue()
            queue.release(item.id, item.token)
        before = CursorStore(memory_store, "q").load("queue")
        for _ in range(3):
            queue.enqueue(bytes(1000))
    after = CursorStore(memory_store, "q").load("queue")
    assert before is not None
    assert after is not None
    assert before.cursor.position.offset == 1 < after.cursor.position.offset


@pytest.mark.parametrize("cleanup", [Cleanup.COLLECT, Cleanup.BOTH])
def test_policy_that_collects_is_changed_back(memory_store: MemoryStore, cleanup: Cleanup) -> None:
    DelayQueue.create(memory_store, "q")
    policies = PolicyStore(memory_store, "q")
    changed = {} if cleanup is Cleanup.BOTH else dict.fromkeys(OF_COMPACTIONS)
    policies.change(lambda policy: replace(policy, cleanup=cleanup, **changed))
    with DelayQueue.open(memory_store, "q") as queue:
        assert policies.load().cleanup is Cleanup.COMPACT
        queue.enqueue(b"x")


def test_queue_is_looked_at_without_taking_it(queue: DelayQueue, memory_store: MemoryStore) -> None:
    queue.enqueue_many([NewItem(b"a"), NewItem(b"b", delay_s=1000)])
    stats = read_queue_stats(memory_store, "q")
    assert (stats.due, stats.scheduled, stats.last_id) == (1, 1, 2)
    assert [peeked.value for peeked in read_queue_head(memory_store, "q", 5)] == [b"a", b"b"]
    (item,) = queue.dequeue()
    queue.bury(item.id, item.token)
    assert [letter.value for letter in read_queue_dead(memory_store, "q")] == [b"a"]
    assert read_queue_dead(memory_store, "q", after=1) == []
    assert read_queue_item(memory_store, "q", 1) == queue.item(1)
    assert read_queue_definition(memory_store, "q") == queue.definition
    assert is_queue(memory_store, "q")
    assert queue.enqueue(b"c").id == 3


def test_only_a_queue_is_opened(memory_store: MemoryStore) -> None:
    with pytest.raises(LogNotFoundError):
        DelayQueue.open(memory_store, "none")
    with LogWriter.open_or_create(memory_store, "other") as writer:
        writer.append(b"x")
    with pytest.raises(InvalidRequestError, match=r"expected a queue, .* create one under a name that is free"):
        DelayQueue.open(memory_store, "other")
    with pytest.raises(LogExistsError, match="choose another name"):
        DelayQueue.create(memory_store, "other")
    with LogWriter.open(memory_store, "other") as writer:
        assert writer.append(b"y").offset == 2


def test_record_of_others_is_no_item_and_does_not_stop_the_broker(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue(b"a")
        with LogWriter.open(memory_store, "q") as writer:
            writer.append(b"stray", key=b"stray")
        queue.enqueue(b"b")
        assert values(queue) == [b"a", b"b"]


def test_closed_queue_answers_those_who_wait_and_refuses_more(memory_store: MemoryStore) -> None:
    queue = DelayQueue.open_or_create(memory_store, "q")
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(queue.dequeue(timeout_s=LIMIT_S)))
    waiter.start()
    while not queue.stats().waiting:
        pass
    queue.close()
    waiter.join(LIMIT_S)
    assert got == [[]]
    with pytest.raises(ClosedError):
        queue.enqueue(b"x")
    queue.close()


def test_wrong_values_are_named(queue: DelayQueue) -> None:
    for wrong, text in (
        (lambda: NewItem("text"), "value: expected"),
        (lambda: NewItem(b"x", 1, 1.0), "a deadline or a delay, found both"),
        (lambda: NewItem(b"x", priority=256), "priority: expected an integer from 0 to 255"),
        (lambda: NewItem(b"x", delay_s=-1), "delay_s: expected a number of seconds from 0"),
        (lambda: NewItem(b"x", dedupe_key=bytes(256)), "dedupe_key: expected 1 to 255 bytes"),
        (lambda: queue.enqueue_many([]), "expected 1 to 10000 items"),
        (lambda: queue.dequeue(0), "count: expected an integer from 1"),
        (lambda: queue.dequeue(lease_s=0), "lease_s: expected a number of seconds above 0"),
        (lambda: queue.release_many([(1, "a"), (1, "b")]), "each once"),
        (lambda: QueueDefinition(lease_s=0), "lease_s"),
    ):
        with pytest.raises(InvalidRequestError, match=text):
            wrong()
    assert queue.stats().pending == 0
