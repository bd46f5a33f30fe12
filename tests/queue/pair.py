"""A delay queue and its model, side by side: every operation goes to both, and every answer is compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from tests.queue.queue_model import QueueModel
from tests.world import NOW, QUICK, SMALL, ClockStore
from wal3_core import (
    KeyCompactor,
    KeyCompactorOptions,
    LogAt,
    LogNotFoundError,
    LogReader,
    LogReplacedError,
    MemoryStore,
    WriterOptions,
    copy,
    destroy,
)
from wal3_core.errors import FencedError, LogError
from wal3_core.log.collect.deleter import Deleter
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.loading import read_queue_head, read_queue_stats
from wal3_core.views.queue.operations import (
    Enqueued,
    GiveBack,
    ItemState,
    Leased,
    NewItem,
    QueueDefinition,
    QueueOptions,
)

LOG, BACKUP = "q", "backup"
START_US = 1_700_000_000_000_000
EVERYTHING = 10_000
# Values come from the store, there are many checkpoints, and few fragments make a snapshot. Nothing waits for a clock.
OPTIONS = QueueOptions(
    cache_bytes_max=0,
    checkpoint_records=60,
    writer=WriterOptions(batch_age_s_max=0, commit_pause_s_max=0, snapshots=SMALL),
)
COMPACTING = KeyCompactorOptions(snapshots=SMALL, retry=QUICK)


class StandingRuntime(ThreadRuntime):
    """A process whose clocks stand still until a test moves them, by whole milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_us = START_US
        self.monotonic_ms = 0

    def now_us(self) -> int:
        return self.wall_us

    def monotonic_s(self) -> float:
        return self.monotonic_ms / 1000


class Pair:
    """The broker of a queue, whose clock a test moves, and the model; a tombstone is dropped as soon as it may be."""

    def __init__(self, definition: QueueDefinition, options: QueueOptions = OPTIONS) -> None:
        self.store = ClockStore(MemoryStore(shared_runtime()))
        self.runtime = StandingRuntime()
        self._options = options
        DelayQueue.create(self.store, LOG, definition, runtime=self.runtime)
        PolicyStore(self.store, LOG).change(lambda policy: replace(policy, delete_retention_s=0))
        self.queue = self._open()
        self.model = QueueModel(START_US // 1000, definition)
        self._monotonic_ms = 0
        # What the queue's clock is known to have been when something was last written.
        self._durable_ms = self.model.now_ms
        # The model and that time as they were when the backup was made.
        self._backup: tuple[QueueModel, int] | None = None
        self.restarts = self.compactions = self.restores = 0

    def _open(self) -> DelayQueue:
        return DelayQueue.open(self.store, LOG, options=self._options, runtime=self.runtime)

    def close(self) -> None:
        self.queue.close()
        self.runtime.close()

    # ------------------------------------------------------------------ operations

    def both(self, ask: Callable[[DelayQueue], Any], model: Callable[[QueueModel], Any]) -> Any:  # noqa: ANN401 - any answer
        """Ask both, and compare their answers, or the classes of their refusals."""
        self._pass()
        found, expected = _answer(ask, self.queue), _answer(model, self.model)
        assert found == expected, f"found {found}, expected {expected}"
        return expected

    def _pass(self) -> None:
        passed_ms, self._monotonic_ms = self.runtime.monotonic_ms - self._monotonic_ms, self.runtime.monotonic_ms
        self.model.come_to(self.model.now_ms + passed_ms)

    def enqueue_many(self, items: Sequence[NewItem]) -> list[Enqueued]:
        answer = self.both(lambda queue: queue.enqueue_many(items), lambda model: model.enqueue_many(items))
        return answer if isinstance(answer, list) else []

    def dequeue(self, count: int, lease_s: float | None) -> list[Leased]:
        self._pass()
        found = self.queue.dequeue(count, lease_s=lease_s)
        tokens = {each.id: each.token for each in found}
        assert len(set(tokens.values())) == len(found)
        expected = self.model.dequeue(count, lease_s, lambda item_id: tokens.get(item_id, "none"))
        assert found == expected, f"found {found}, expected {expected}"
        self._durable_ms = self.model.now_ms if found else self._durable_ms
        return found

    def release_many(self, leases: Sequence[tuple[int, str]]) -> None:
        self.both(lambda queue: queue.release_many(leases), lambda model: model.release_many(leases))

    def give_back(self, lease: tuple[int, str]) -> None:
        self.both(lambda queue: queue.submit(GiveBack((lease,))).result(), lambda model: model.give_back(*lease))

    def requeue(self, item_id: int, token: str, **wanted: Any) -> None:  # noqa: ANN401 - of the arguments of requeue
        self.both(lambda q: q.requeue(item_id, token, **wanted), lambda m: m.requeue(item_id, token, **wanted))

    def extend(self, item_id: int, token: str, lease_s: float) -> None:
        self.both(lambda queue: queue.extend(item_id, token, lease_s), lambda m: m.extend(item_id, token, lease_s))

    def reclaim(self, ids: Iterable[int]) -> None:
        ids = list(dict.fromkeys(ids))
        self.both(lambda queue: queue.reclaim(ids), lambda model: model.reclaim(ids))

    def bury(self, item_id: int, token: str) -> None:
        self.both(lambda queue: queue.bury(item_id, token), lambda model: model.bury(item_id, token))

    def kick(self, count: int) -> None:
        self.both(lambda queue: queue.kick(count), lambda model: model.kick(count))

    def kick_ids(self, ids: Iterable[int]) -> None:
        ids = list(dict.fromkeys(ids))
        self.both(lambda queue: queue.kick_ids(ids), lambda model: model.kick_ids(ids))

    def purge(self, states: Collection[ItemState], *, dry_run: bool) -> None:
        flags = {state.value: state in states for state in ItemState}
        self.both(lambda q: q.purge(**flags, dry_run=dry_run), lambda m: m.purge(states, dry_run=dry_run))

    def define(self, definition: QueueDefinition) -> None:
        self.queue.define(definition)
        self._pass()
        self.model.definition = definition

    # ------------------------------------------------------------------ looking

    def look(self) -> None:
        """Compare the figures, and the head of the line."""
        self.both(lambda queue: queue.stats(), lambda model: model.stats())
        self.both(lambda queue: queue.peek(3), lambda model: [each.peeked() for each in model.line()[:3]])

    def look_at_all(self) -> None:
        """Compare the whole state, also as others read it without taking the queue."""
        self.look()
        self.both(lambda queue: queue.peek(EVERYTHING), lambda model: [each.peeked() for each in model.line()])
        self.both(lambda queue: queue.dead(EVERYTHING), lambda model: model.dead())
        self.both(lambda queue: queue.definition, lambda model: model.definition)
        # Some of each state, and some that are gone.
        for item_id in [*list(self.model.items)[:: 1 + len(self.model.items) // 8], 0, self.model.last_id + 1]:
            self.both(lambda queue, at=item_id: queue.item(at), lambda model, at=item_id: model.item(at))
        read = read_queue_stats(self.store, LOG, runtime=self.runtime)
        # A reader cannot know how far the clock of the broker has come since its last record.
        unknown = {"due": 0, "scheduled": 0, "oldest_due_us": None, "next_deadline_us": None}
        unknown |= {"ended": 0, "oldest_ended_us": None}
        assert replace(read, **unknown) == replace(self.model.stats(), **unknown)
        head = read_queue_head(self.store, LOG, 5, runtime=self.runtime)
        assert head == [each.peeked() for each in self.model.line()[:5]]

    # ------------------------------------------------------------------ what happens to it

    def let_pass(self, ms: int) -> None:
        """Let time pass by both clocks."""
        self.runtime.monotonic_ms += ms
        self.runtime.wall_us += ms * 1000
        self.store.pass_s(ms / 1000)
        self.look()

    def step_clock(self, ms: int) -> None:
        """Set the wall clock forwards or backwards; the queue's time follows it forwards once the store confirms it."""
        self.runtime.wall_us += ms * 1000
        self._confirm()
        self.look()

    def _confirm(self) -> None:
        """Let the broker append, by which the store confirms its wall clock."""
        self.queue.define(self.model.definition)
        self._pass()
        self._durable_ms = self.model.now_ms
        jumped_ms = max(0, self.runtime.wall_us // 1000 - self.model.now_ms)
        self.model.come_to(self.model.now_ms + jumped_ms, jumped_ms)

    def checkpoint(self) -> None:
        self.queue.checkpoint()
        self.look()

    def restart(self, *, closes: bool) -> None:
        """Let another broker take the queue, after the first one has closed or while it still holds it."""
        earlier = self.queue
        if closes:
            earlier.close()
        self.queue = self._open()
        if not closes:
            _check_displaced(earlier, FencedError)
        self.restarts += 1
        self._find_time()
        self.look_at_all()

    def _find_time(self) -> None:
        """Find where the queue's clock goes on: at the wall clock, or where it was when something was written last."""
        item, definition, model = NewItem(b"what time is it", priority=255), self.model.definition, self.model
        if definition.items_max is not None and len(model.items) >= definition.items_max:
            definition = replace(definition, items_max=None)
            self.queue.define(definition)
        (answer,) = self.queue.enqueue_many([item])
        now_ms, wall_ms = answer.deadline_us // 1000, self.runtime.wall_us // 1000
        assert max(self._durable_ms, wall_ms) <= now_ms <= max(model.now_ms, wall_ms)
        self._monotonic_ms = self.runtime.monotonic_ms
        model.restarted()
        # Leases have ended by the definition of before.
        model.come_to(now_ms)
        model.definition = definition
        assert model.enqueue_many([item]) == [answer]
        self._durable_ms = now_ms

    def back_up(self, *, with_cursors: bool) -> None:
        """Copy the queue, in place of the backup before."""
        # What the model knows of ends of leases and of time is in no log before the next turn.
        self.queue.define(self.model.definition)
        self._pass()
        self._durable_ms = self.model.now_ms
        with contextlib.suppress(LogNotFoundError):
            destroy(self.store, BACKUP)
        copy(LogAt(self.store, LOG), LogAt(self.store, BACKUP), with_cursors=with_cursors)
        self._backup = deepcopy(self.model), self._durable_ms

    def restore(self, *, closes: bool, with_cursors: bool) -> None:
        """Put the backup in the queue's place, after its broker has closed or while it holds the queue."""
        if self._backup is None:
            return
        earlier = self.queue
        if closes:
            earlier.close()
        destroy(self.store, LOG)
        copy(LogAt(self.store, BACKUP), LogAt(self.store, LOG), with_cursors=with_cursors)
        PolicyStore(self.store, LOG).change(lambda policy: replace(policy, delete_retention_s=0))
        self.queue = self._open()
        if not closes:
            _check_displaced(earlier, LogReplacedError)
        model, self._durable_ms = self._backup
        self.model = deepcopy(model)
        self.restores += 1
        self._find_time()
        self.look_at_all()

    def compact(self) -> None:
        """Compact the log by key."""
        KeyCompactor(self.store, LOG, options=COMPACTING).compact(force=True)
        self.compactions += 1
        self.look()

    def collect(self) -> None:
        """Delete what compactions have replaced."""
        self.store.pass_s(2 * 86_400)
        deleter = Deleter(self.store, LOG, options=NOW)
        for path in [meta.path for meta in deleter.documents()]:
            deleter.delete(path)
        self.look()

    def num_records(self) -> int:
        return sum(pointer.num_records for pointer in LogReader.open(self.store, LOG).scan())


def _answer(ask: Callable[[Any], Any], whom: object) -> Any:  # noqa: ANN401 - any answer
    try:
        return ask(whom)
    except LogError as error:
        return type(error)


def _check_displaced(queue: DelayQueue, by: type[LogError]) -> None:
    """A broker that was displaced changes nothing more."""
    for _ in range(2):
        try:
            queue.define(QueueDefinition(lease_s=77.0))
        except by:
            continue
        message = f"expected {by.__name__}, found a broker that goes on"
        raise AssertionError(message)
    queue.close()
