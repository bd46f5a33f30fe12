"""A delay queue under two things at once: failures beside closing, waiting, cancelling; cursors that others moved."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import pytest

from tests.stores import FaultyStore
from tests.world import NOW
from wal3_core import (
    CursorStore,
    DelayQueue,
    FencedError,
    InvalidRequestError,
    KeyCompactor,
    Leased,
    LogError,
    LogReader,
    LogWriter,
    MemoryStore,
    NewItem,
    QueueDefinition,
    QueueOptions,
    UnknownItemError,
    WriterOptions,
)
from wal3_core.format.policy import Cleanup
from wal3_core.log.collect.deleter import Deleter
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.views.queue.operations import Dequeue, Enqueue, Purge
from wal3_core.views.queue.queue_state import QueueState, Turn

LIMIT_S = 30


def close(queue: DelayQueue) -> None:
    """Close with a deadline."""
    ended = threading.Thread(target=queue.close, daemon=True)
    ended.start()
    ended.join(LIMIT_S)
    assert not ended.is_alive()


def deny_all(faulty: FaultyStore) -> None:
    for kind in ("replace", "create", "get", "read"):
        faulty.fail(kind, "", "denied", times=10**9)


def test_close_answers_those_who_wait_while_the_store_fails(memory_store: MemoryStore) -> None:
    faulty = FaultyStore(memory_store)
    queue = DelayQueue.open_or_create(faulty, "q")
    waiting = queue.submit(Dequeue(1, 10**6))
    assert queue.stats().waiting == 1
    deny_all(faulty)
    with pytest.raises(LogError):
        queue.enqueue(b"x", delay_s=1000)
    close(queue)
    with pytest.raises(LogError):
        waiting.result(LIMIT_S)


def test_checkpoint_ends_when_the_queue_is_closed_while_the_store_fails(memory_store: MemoryStore) -> None:
    faulty = FaultyStore(memory_store)
    queue = DelayQueue.open_or_create(faulty, "q")
    queue.enqueue(b"x")
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            queue.checkpoint()
        except LogError as error:
            errors.append(error)

    faulty.fail("replace", "manifest/", "denied", times=10**9)
    faulty.fail("get", "", "denied", times=10**9)
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while not faulty.fired:
        pass
    close(queue)
    asking.join(LIMIT_S)
    assert len(errors) == 1


def test_waiting_ends_in_time_while_the_store_fails(memory_store: MemoryStore) -> None:
    faulty = FaultyStore(memory_store)
    with DelayQueue.open_or_create(faulty, "q") as queue:
        waiting = queue.submit(Dequeue(1, 0.5))
        deny_all(faulty)
        with pytest.raises(LogError):
            queue.enqueue(b"x", delay_s=1000)
        with pytest.raises(LogError):
            waiting.result(LIMIT_S)
        faulty.heal()
        assert queue.enqueue(b"y").id


def test_purge_counts_its_own_items_after_one_that_failed(memory_store: MemoryStore) -> None:
    faulty = FaultyStore(memory_store)
    with DelayQueue.open_or_create(faulty, "q") as queue:
        queue.enqueue_many([NewItem(b"")] * 5)
        faulty.fail("replace", "manifest/", "denied", times=1)
        with pytest.raises(LogError):
            queue.purge()
        assert queue.purge() == 5


@pytest.mark.parametrize("records", [1, 2, 3])
def test_checkpoint_makes_no_other_one_due(memory_store: MemoryStore, records: int) -> None:
    queue = DelayQueue.open_or_create(memory_store, "q", options=QueueOptions(checkpoint_records=records))
    queue.enqueue(b"x")
    close(queue)
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.stats().pending == 1


def test_callback_may_submit_more_than_has_room(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q", options=QueueOptions(bytes_waiting_max=1000)) as queue:
        more: list[Future[Any]] = []

        def submit(_done: Future[Any]) -> None:
            more.extend(queue.submit(Enqueue((NewItem(bytes(900)),))) for _ in range(3))

        first = queue.submit(Enqueue((NewItem(b""),)))
        first.add_done_callback(submit)
        first.result(LIMIT_S)
        asked: list[int] = []
        asking = threading.Thread(target=lambda: asked.append(queue.stats().pending), daemon=True)
        asking.start()
        asking.join(LIMIT_S)
        assert asked
        assert len([future.result(LIMIT_S) for future in more]) == 3


def test_cancelled_operation_is_not_done(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        entered, go_on = threading.Event(), threading.Event()

        def hold(_done: Future[Any]) -> None:
            entered.set()
            go_on.wait(LIMIT_S)

        queue.enqueue(b"kept")
        first = queue.submit(Dequeue(1, LIMIT_S))
        first.result(LIMIT_S)
        # A callback that is added before the answer runs in the broker's thread, which then takes nothing.
        held = queue.submit(Dequeue(1, LIMIT_S))
        held.add_done_callback(hold)
        queue.enqueue(b"for the one who waits")
        assert entered.wait(LIMIT_S)
        cancelled = [queue.submit(Enqueue((NewItem(b"cancelled"),))), queue.submit(Purge(leased=True))]
        assert all(future.cancel() for future in cancelled)
        go_on.set()
        stats = queue.stats()
        assert (stats.pending, stats.leased) == (0, 2)
        with pytest.raises(CancelledError):
            cancelled[0].result(0)


def test_dequeue_cancelled_while_it_is_served_gives_the_item_back_uncounted(
    memory_store: MemoryStore,
) -> None:
    store, leasing, go_on = FaultyStore(memory_store), threading.Event(), threading.Event()

    def hold(kind: str, path: str) -> None:
        if kind == "create" and "FragmentSeqNo" in path:
            leasing.set()
            assert go_on.wait(LIMIT_S)

    definition = QueueDefinition(max_deliveries=1, lease_s=1000)
    with DelayQueue.open_or_create(store, "q", definition) as queue:
        item = queue.enqueue(b"x")
        store.before = hold
        future = queue.submit(Dequeue(1))
        assert leasing.wait(LIMIT_S)

        assert future.cancel()
        go_on.set()

        (given,) = queue.dequeue(1, timeout_s=LIMIT_S)
        assert (given.id, given.value, given.deliveries, given.deadline_us) == (item.id, b"x", 1, item.deadline_us)
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.item(item.id).deliveries == 1


def test_items_of_a_dequeue_that_was_interrupted_just_as_it_was_answered_come_back(memory_store: MemoryStore) -> None:
    class InterruptedRuntime(ThreadRuntime):
        def wait(self, future: Future[Any], timeout_s: float | None = None) -> Any:  # noqa: ANN401 - as of each future
            found = super().wait(future, timeout_s)
            if isinstance(found, list) and isinstance(found[0], Leased) and found[0].value == b"interrupted":
                raise KeyboardInterrupt
            return found

    with InterruptedRuntime() as runtime, DelayQueue.open_or_create(memory_store, "q", runtime=runtime) as queue:
        queue.enqueue_many([NewItem(b"interrupted", priority=0), NewItem(b"not", priority=1)])
        with pytest.raises(KeyboardInterrupt):
            queue.dequeue()

        assert [(peeked.value, peeked.deliveries) for peeked in queue.peek(5)] == [(b"interrupted", 0), (b"not", 0)]


def test_lease_that_has_ended_or_is_another_one_is_not_given_back(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b"), NewItem(b"c")])
        first, second, third = queue.dequeue(3)
        queue.release(first.id, first.token)

        leases = [(first.id, first.token), (second.id, third.token), (third.id, third.token), (99, third.token)]
        queue.give_back(leases)
        assert [(peeked.value, peeked.deliveries) for peeked in queue.peek(5)] == [(b"c", 0)]
        with pytest.raises(InvalidRequestError, match="each once, found 2"):
            queue.give_back([(1, "aa"), (1, "bb")])


def test_item_of_a_wrong_id_is_unknown_among_many(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue_many([NewItem(b"")] * 5000)
        for item_id in (-1, 0, 10**30, -(10**30), 2**64):
            with pytest.raises(UnknownItemError):
                queue.item(item_id)
        assert len(queue.peek(10**30)) == 5000


def test_records_of_others_are_no_items_whatever_their_keys(memory_store: MemoryStore) -> None:
    DelayQueue.create(memory_store, "q")
    with LogWriter.open(memory_store, "q") as writer:
        for key in (b"vegetable", b"vegetable", b"strawberr", b"cat", b"c"):
            writer.append(b"not of a queue", key=key)
    with DelayQueue.open(memory_store, "q") as queue:
        assert queue.stats().pending == 0
        queue.checkpoint()
    others = [record for record in LogReader.open(memory_store, "q").records() if record.key == b"cat"]
    assert [record.body for record in others] == [b"not of a queue"]


def test_errors_of_a_fenced_queue_do_not_grow(memory_store: MemoryStore) -> None:
    older = DelayQueue.open_or_create(memory_store, "q")
    with DelayQueue.open(memory_store, "q"):
        lengths = []
        for _ in range(10):
            with pytest.raises(FencedError) as caught:
                older.enqueue(b"b")
            lengths.append(len(caught.traceback))
        assert lengths[-1] == lengths[5]
    older.close()


def test_checkpoint_behind_dropped_tombstones_does_not_count_wherever_the_cursor_is(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        PolicyStore(memory_store, "q").change(lambda policy: replace(policy, delete_retention_s=0))
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b", delay_s=1000)])
        queue.checkpoint()
        cursors = CursorStore(memory_store, "q")
        witness = cursors.load("queue")
        assert witness is not None
        (item,) = queue.dequeue()
        queue.release(item.id, item.token)
        queue.enqueue(b"c", delay_s=1000)
        cursors.delete("queue")
        for _ in range(3):
            KeyCompactor(memory_store, "q").compact()
    # An operator who puts the cursor back to where it was does not bring the tombstones back.
    cursors.create("queue", witness.cursor.position, owner=None)
    with DelayQueue.open(memory_store, "q") as queue:
        assert [peeked.value for peeked in queue.peek(9)] == [b"b", b"c"]


class OvertakenStore(FaultyStore):
    """Replaces and deletes what key compaction can, before a fragment is read."""

    is_due = False

    def _ask(self, kind: str, path: str) -> None:
        if self.is_due and kind == "read" and "/log/" in path:
            self.is_due = False
            assert KeyCompactor(self.inner, "q").compact(force=True).installed
            deleter = Deleter(self.inner, "q", options=NOW)
            for document in [meta.path for meta in deleter.documents()]:
                deleter.delete(document)
        super()._ask(kind, path)


def test_queue_is_found_in_its_log_while_key_compaction_replaces_it(memory_store: MemoryStore) -> None:
    store = OvertakenStore(memory_store)
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        for number in range(5):
            queue.enqueue(b"%d" % number, delay_s=1000)
        queue.checkpoint()
    store.is_due = True
    with DelayQueue.open(store, "q", options=QueueOptions(cache_bytes_max=0, prefetch_items=0)) as queue:
        assert not store.is_due
        queue.enqueue(b"5", delay_s=1000)
        queue.checkpoint()
        store.fail("create", "/log/", "denied")
        with pytest.raises(LogError):
            queue.enqueue(b"6", delay_s=1000)
        store.is_due = True
        queue.enqueue(b"7", delay_s=1000)
        assert not store.is_due
        assert [peeked.value for peeked in queue.peek(9)] == [b"0", b"1", b"2", b"3", b"4", b"5", b"7"]


def test_queue_is_made_on_a_log_that_is_never_collected(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "q")
    PolicyStore(memory_store, "q").change(lambda policy: replace(policy, cleanup=Cleanup.BOTH))
    DelayQueue.create(memory_store, "q")
    policy = PolicyStore(memory_store, "q").load()
    assert policy.cleanup is Cleanup.COMPACT


def test_deadlines_before_the_queue_was_made_keep_their_order(memory_store: MemoryStore) -> None:
    times_us = (3_000_000, 1_000_000, 0, 2_000_000)
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        added = queue.enqueue_many([NewItem(b"%d" % us, deadline_us=us) for us in times_us])
        assert [(each.deadline_us, each.advanced) for each in added] == [(us, False) for us in times_us]
        (item,) = queue.dequeue()
        queue.requeue(item.id, item.token, deadline_us=4_000_000, value=b"4000000")
    for _ in range(2):
        with DelayQueue.open(memory_store, "q", options=QueueOptions(cache_bytes_max=0)) as queue:
            expected = [(us, b"%d" % us) for us in (1_000_000, 2_000_000, 3_000_000, 4_000_000)]
            assert [(each.deadline_us, each.value) for each in queue.peek(9)] == expected
            assert queue.item(1).enqueued_us > 10**15
            queue.checkpoint()


@pytest.mark.slow
def test_items_handed_out_for_long_and_released_at_once_leave_no_memory() -> None:
    state = QueueState(QueueDefinition(lease_s=10**6), 1, 0)

    def hand_out(count: int) -> int:
        """Hand items out and take them back; return how much memory that has left."""
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(count):
            turn = Turn(1, 0)
            state.enqueue((NewItem(b""),), turn)
            (lease,) = state.lease(1, None, lambda: bytes(8), turn)
            state.extend(lease.row.id, lease.token.hex(), 10**6, turn)
            state.release(((lease.row.id, lease.token.hex()),), turn)
        after, _ = tracemalloc.get_traced_memory()
        return after - before

    tracemalloc.start()
    try:
        hand_out(2000)
        left = hand_out(5000)
    finally:
        tracemalloc.stop()
    assert left < 5000 * 20


def test_duplicate_is_found_wherever_the_item_is(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, "q", QueueDefinition(max_deliveries=2)) as queue:

        def check(deadline_us: int) -> None:
            found = queue.enqueue(b"again", dedupe_key=b"k")
            assert (found.id, found.deadline_us, found.duplicate) == (1, deadline_us, True)

        check(queue.enqueue(b"x", dedupe_key=b"k").deadline_us)
        (item,) = queue.dequeue()
        check(item.deadline_us)
        check(queue.requeue(item.id, item.token, delay_s=0.01).deadline_us)
        (item,) = queue.dequeue(timeout_s=LIMIT_S, lease_s=0.01)
        while not queue.dead():
            pass
        check(item.lease_until_us)
        queue.checkpoint()
        queue.kick()
        check(queue.item(1).deadline_us)
    with DelayQueue.open(memory_store, "q") as queue:
        check(queue.item(1).deadline_us)
        queue.checkpoint()
    with DelayQueue.open(memory_store, "q") as queue:
        check(queue.item(1).deadline_us)
        queue.purge()
        assert not queue.enqueue(b"new", dedupe_key=b"k").duplicate


def test_fenced_broker_answers_no_question_once_it_was_idle(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.views.queue.broker.FENCE_CHECK_S", 0.0)
    older = DelayQueue.open_or_create(memory_store, "q")
    older.enqueue(b"a")
    assert older.stats().pending == 1
    with DelayQueue.open(memory_store, "q"):
        for ask in (older.stats, older.peek, older.stats):
            with pytest.raises(FencedError):
                ask()
    older.close()


def test_question_gets_the_error_of_a_store_that_fails_and_an_answer_later(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.views.queue.broker.FENCE_CHECK_S", 0.0)
    faulty = FaultyStore(memory_store)
    with DelayQueue.open_or_create(faulty, "q") as queue:
        queue.enqueue(b"a")
        deny_all(faulty)
        for _ in range(3):
            with pytest.raises(LogError):
                queue.stats()
        faulty.heal()
        assert queue.stats().pending == 1


@pytest.mark.slow
def test_queue_is_taken_from_a_broker_that_appends_all_the_time(memory_store: MemoryStore) -> None:
    older, store, appends = DelayQueue.open_or_create(memory_store, "q"), FaultyStore(memory_store), list[int]()

    def append(kind: str, path: str) -> None:
        if kind == "replace" and "manifest/" in path and len(appends) < 20:
            appends.append(older.enqueue(b"x").id)

    store.before = append
    with DelayQueue.open(store, "q") as newer:
        assert len(appends) == 20
        with pytest.raises(FencedError):
            older.enqueue(b"x")
        assert newer.stats().pending == 20
    older.close()


def test_broker_that_recovers_does_not_take_the_queue_from_one_that_takes_it(
    memory_store: MemoryStore,
) -> None:
    faulty, taken = FaultyStore(memory_store), list[DelayQueue]()
    older = DelayQueue.open_or_create(faulty, "q")
    older.enqueue(b"a")
    faulty.fail("create", "/log/", "denied")
    with pytest.raises(LogError):
        older.enqueue(b"not added")

    def take(kind: str, path: str) -> None:
        if kind == "replace" and "manifest/" in path and not taken:
            taken.append(DelayQueue.open(memory_store, "q"))

    faulty.before = take
    for _ in range(2):
        with pytest.raises(FencedError):
            older.enqueue(b"b")
    older.close()
    (newer,) = taken
    newer.enqueue(b"c")
    assert [item.value for item in newer.dequeue(9)] == [b"a", b"c"]
    newer.close()


def test_times_beyond_ten_years_are_kept_as_they_are(memory_store: MemoryStore) -> None:
    twenty_years_s = 20 * 365 * 86_400
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        now_us = queue.enqueue(b"now").deadline_us
        later = queue.enqueue(b"later", delay_s=twenty_years_s)
        queue.dequeue()

        assert later.deadline_us - now_us >= twenty_years_s * 10**6
        for wrong in (float("inf"), 10**13):
            with pytest.raises(InvalidRequestError, match="delay_s: expected a number of seconds from 0"):
                queue.enqueue(b"never", delay_s=wrong)
        waiting = queue.submit(Dequeue(1, timeout_s=float("inf")))
    assert waiting.result(LIMIT_S) == []


def test_only_a_writer_that_takes_a_turn_is_accepted() -> None:
    with pytest.raises(InvalidRequestError, match="writer"):
        QueueOptions(writer=WriterOptions(batch_records_max=100))
