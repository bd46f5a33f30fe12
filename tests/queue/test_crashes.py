"""A crash, or any fault, at every store call of a queue's life: what was acknowledged holds, and nothing else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar, get_args

import pytest

from tests.effort import every
from tests.stores import Fault, FaultyStore
from tests.world import SMALL
from wal3_core import MemoryStore, ReaderOptions, WriterOptions, scrub
from wal3_core.errors import LogError, StoreDeniedError
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import PutOutcome
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import Leased, NewItem, QueueDefinition, QueueOptions

T = TypeVar("T")
LOG = "q"
RETRY = RetryOptions(attempts_max=2, pause_s_min=0.001, pause_s_max=0.001)
DEADLINE_S = 120.0
CALLS_MAX = 400
# `make crashes` fails each call.
STRIDE = every(7)
# One attempt, so that every failure is reported.
HASTY = QueueOptions(
    prefetch_items=0,
    writer=WriterOptions(batch_age_s_max=0, commit_pause_s_max=0, delivery_timeout_s=0, retry=RETRY, snapshots=SMALL),
    reader=ReaderOptions(retry=RETRY),
)
PENDING, LEASED, DEAD, GONE = "pending", "leased", "dead", "gone"


class EndingStore(FaultyStore):
    """Fails one request, counted from 1; or it is the last one of a process that dies."""

    left = 0
    how = ""
    ended = False

    def strike(self, number: int, how: str) -> None:
        self.left, self.how = number, how

    def _turn(self) -> str:
        if self.ended:
            # As far as the store is concerned, a dead process sends nothing.
            raise StoreDeniedError("expected a living process, found a dead one")
        self.left -= 1
        if self.left:
            return ""
        if self.how == "crash-before":
            self.ended = True
            raise StoreDeniedError("expected a living process, found a dead one")
        return self.how

    def _put(self, kind: str, path: str, apply: Callable[[], PutOutcome]) -> PutOutcome:
        how = self._turn()
        if how in get_args(Fault):
            self.fail(kind, path, how)
        outcome = super()._put(kind, path, apply)
        self._end(how)
        return outcome

    def _ask(self, kind: str, path: str) -> None:
        how = self._turn()
        if how in {"denied", "unavailable"}:
            self.fail(kind, path, how)
        super()._ask(kind, path)

    def _end(self, how: str) -> None:
        if how == "crash-after":
            self.ended = True
            raise StoreDeniedError("expected a living process, found a dead one")


@dataclass
class Ledger:
    """Where each item may be, by its id; what an error leaves open is in either state."""

    may_be: dict[int, set[str]] = field(default_factory=dict)
    tokens: dict[int, str] = field(default_factory=dict)
    values: dict[int, set[bytes]] = field(default_factory=dict)
    errors: int = 0

    def do(self, call: Callable[[], T], ids: tuple[int, ...] = (), becomes: str = "") -> T | None:
        """Make a call; on an error its items may have come to be so, or not."""
        try:
            answer = call()
        except LogError:
            self.errors += 1
            for item_id in ids:
                self.may_be[item_id].add(becomes)
            return None
        for item_id in ids:
            self.may_be[item_id] = {becomes}
        return answer

    def enqueue(self, queue: DelayQueue, *items: NewItem) -> None:
        for new, item in zip(self.do(lambda: queue.enqueue_many(items)) or (), items, strict=False):
            if not new.duplicate:
                assert new.id not in self.may_be, f"id used before: {new}"
                self.may_be[new.id], self.values[new.id] = {PENDING}, {item.value}

    def dequeue(self, queue: DelayQueue, count: int) -> list[Leased]:
        before = {item_id for item_id, states in self.may_be.items() if PENDING in states}
        leased = self.do(lambda: queue.dequeue(count, lease_s=1000.0))
        if leased is None:
            for item_id in before:
                self.may_be[item_id].add(LEASED)
        for each in leased or ():
            # An enqueue without an answer may have happened.
            states = self.may_be.get(each.id, {PENDING})
            assert PENDING in states, f"handed out twice: {each}, which may be {states}"
            assert each.value in self.values.setdefault(each.id, {each.value}), f"altered: {each}"
            self.may_be[each.id], self.tokens[each.id] = {LEASED}, each.token
        return leased or []

    def kick(self, queue: DelayQueue) -> None:
        kicked = self.do(lambda: queue.kick(1))
        for item_id in [each for each in self.may_be if DEAD in self.may_be[each]] if kicked is None else kicked:
            self.may_be[item_id] = {PENDING} | (set() if kicked else self.may_be[item_id])

    def check(self, queue: DelayQueue) -> None:
        """Compare with a queue that was opened again."""
        for item_id, states in self.may_be.items():
            try:
                state = queue.item(item_id).state.value
            except LogError:
                state = GONE
            assert state in states, f"item {item_id}: expected {states}, found {state}"
        peeked = [*queue.peek(1000), *queue.dead()]
        for each in peeked:
            assert each.value in self.values.get(each.id, {each.value}), f"altered: {each}"
        latest = queue.stats().last_id
        assert queue.enqueue(b"last").id == latest + 1 > max(self.may_be, default=0)
        # Leases outlive the broker that gave them, and their items stay with who has them.
        again = {each.id for each in queue.dequeue(1000)}
        for item_id, states in self.may_be.items():
            if states == {LEASED}:
                assert item_id not in again, f"item {item_id}: handed out again before its lease ended"
                queue.release(item_id, self.tokens[item_id])


def live(store: EndingStore, ledger: Ledger) -> None:
    """Live a queue's life, up to its end or the process's."""
    queue = ledger.do(lambda: DelayQueue.open_or_create(store, LOG, QueueDefinition(max_deliveries=5), options=HASTY))
    # What failed is tried again once: a fault passes, a crash does not.
    queue = queue or ledger.do(lambda: DelayQueue.open_or_create(store, LOG, options=HASTY))
    if queue is None:
        return
    ledger.enqueue(queue, NewItem(b"a"), NewItem(b"b", dedupe_key=b"key"), NewItem(b"c"), NewItem(b"d", priority=1))
    ledger.enqueue(queue, NewItem(b"b", dedupe_key=b"key"))
    for number, each in enumerate(ledger.dequeue(queue, 3)):
        lease, ids = (each.id, each.token), (each.id,)
        if number == 0:
            ledger.do(lambda lease=lease: queue.release(*lease), ids, GONE)
        elif number == 1:
            ledger.values[each.id].add(b"put back")
            ledger.do(lambda lease=lease: queue.requeue(*lease, value=b"put back"), ids, PENDING)
        else:
            ledger.do(lambda lease=lease: queue.bury(*lease), ids, DEAD)
    ledger.do(queue.checkpoint)
    ledger.enqueue(queue, NewItem(b"e"), NewItem(b"f"))
    for each in ledger.dequeue(queue, 2)[:1]:
        ledger.do(lambda each=each: queue.extend(each.id, each.token, 2000.0))
    ledger.kick(queue)
    ledger.do(queue.checkpoint)
    ledger.dequeue(queue, 1)
    queue.close()


def check_life(number: int, how: str) -> tuple[bool, int]:
    """Live with one call failing; then open the queue again. Return whether the call was made, and the errors."""
    inner = MemoryStore(shared_runtime())
    store, ledger = EndingStore(inner), Ledger()
    store.strike(number, how)
    live(store, ledger)
    store.arrive()
    happened = store.left <= 0
    with DelayQueue.open_or_create(inner, LOG, options=HASTY) as queue:
        ledger.check(queue)
    assert scrub(inner, LOG).sound
    return happened, ledger.errors


FAULTS = ("crash-before", "crash-after", *get_args(Fault))


def lives(how: str, stride: int) -> Iterator[int]:
    """Fail each call in turn until one is not made."""
    for number in range(1, CALLS_MAX, stride):
        try:
            happened, errors = check_life(number, how)
        except AssertionError as error:
            message = f"{how} at call {number}: {error}"
            raise AssertionError(message) from error
        if not happened:
            return
        yield errors
    pytest.fail(f"expected fewer than {CALLS_MAX} calls")


@pytest.mark.slow
@pytest.mark.parametrize("how", FAULTS)
def test_what_a_queue_has_answered_holds_whatever_fails_at_any_call(how: str) -> None:
    errors = Counter(errors > 0 for errors in lives(how, STRIDE))

    print(f"{how}: {errors.total()} calls, {errors[True]} lives with an error")
    assert errors.total() > 60 // STRIDE
    if how.startswith("crash"):
        assert errors[True]
