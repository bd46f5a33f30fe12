"""The public API of a delay queue: items ordered by deadline, in one log, held by one broker at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from wal3_core.arguments import SECONDS_MAX, checked, flag, instance_of, integer, optional, positive, seconds, several
from wal3_core.errors import ClosedError, InvalidRequestError, LogExistsError
from wal3_core.log.read.following import AsyncClosing, Calls, awaited
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.queue import operations
from wal3_core.views.queue.broker import Broker
from wal3_core.views.queue.calls import Query, fitting, peeked
from wal3_core.views.queue.loading import OF_QUEUE, create_queue, expecting_a_queue
from wal3_core.views.queue.operations import (
    Enqueued,
    ItemStats,
    Leased,
    NewItem,
    Operation,
    Peeked,
    QueueDefinition,
    QueueOptions,
    QueueRepair,
    QueueStats,
)

if TYPE_CHECKING:
    from wal3_core.views.queue.queue_state import QueueState

# Calls from asyncio at a time; each waits for its turn only.
_CALLS_MAX = 32


class DelayQueue(AsyncClosing):
    """A queue and its one broker, which is this object. Safe to share between threads; a context manager.

    Each call returns when its effect is durable. To open a queue takes it from the broker before, whose calls raise
    FencedError from then on. When the store fails a call, its error says whether it may have had its effect, as of an
    append; the queue is then loaded again from its log. Any call raises ClosedError after ``close``. One from a signal
    handler or a ``__del__`` that interrupts another call, and could only wait for it, raises InvalidRequestError.

    In asyncio, use ``async with`` and ``async for``, and await the methods whose names end in ``_async``.
    """

    def __init__(
        self, store: ObjectStore, log: str, options: QueueOptions, runtime: Runtime, *, without_damaged: bool = False
    ) -> None:
        self._runtime = runtime
        self.log = log
        self._broker = Broker(store, log, options, runtime, without_damaged=without_damaged)
        self._async = Calls("wal3-queue-calls", _CALLS_MAX)

    @classmethod
    @checked(**OF_QUEUE, definition=optional(instance_of(QueueDefinition)))
    def create(
        cls, store: ObjectStore, log: str, definition: QueueDefinition | None = None, *, runtime: Runtime | None = None
    ) -> None:
        """Make a queue. LogExistsError when there is a log of that name, unless it is an empty one."""
        create_queue(store, log, definition or QueueDefinition(), runtime or shared_runtime())

    @classmethod
    @checked(**OF_QUEUE, options=optional(instance_of(QueueOptions)))
    def open(
        cls, store: ObjectStore, log: str, *, options: QueueOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Take a queue: the broker before is fenced. LogNotFoundError when there is none of that name.

        InvalidRequestError when the log is no queue; nothing is written then. A queue that cannot be loaded is left to
        the broker before. A sealed one is opened to be looked at: calls that would change it raise SealedError.
        """
        with expecting_a_queue():
            return cls(store, log, options or QueueOptions(), runtime or shared_runtime())

    @classmethod
    @checked(**OF_QUEUE, definition=optional(instance_of(QueueDefinition)), options=optional(instance_of(QueueOptions)))
    def open_or_create(
        cls,
        store: ObjectStore,
        log: str,
        definition: QueueDefinition | None = None,
        *,
        options: QueueOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Take a queue, making it first when there is none; an existing one keeps its definition."""
        with contextlib.suppress(LogExistsError):
            cls.create(store, log, definition, runtime=runtime)
        return cls.open(store, log, options=options, runtime=runtime)

    @classmethod
    @checked(**OF_QUEUE, without_damaged=flag)
    def repair(
        cls,
        store: ObjectStore,
        log: str,
        *,
        without_damaged: bool = False,
        options: QueueOptions | None = None,
        runtime: Runtime | None = None,
    ) -> QueueRepair:
        """Take a queue, put its time right, and close it.

        A time that is ahead of the wall clock, as far as the store confirms that, is set back to it: all leases end,
        and items that have their deadlines by the later time get others. With ``without_damaged`` the queue goes on
        without what damaged fragments held, for good: items in them are lost, and released ones may be back. Get the
        fragments from a copy first, if there is one (``repair_log``).
        """
        runtime = runtime or shared_runtime()
        with expecting_a_queue():
            queue = cls(store, log, options or QueueOptions(), runtime, without_damaged=without_damaged)
        with queue:
            retimed: int = queue._wait(queue.submit(operations.Retime()))
            damaged = queue.stats().damaged
            if damaged and without_damaged:
                queue.checkpoint()
        return QueueRepair(retimed=retimed, damaged=damaged)

    @property
    def url(self) -> str:
        """Where the queue's log is."""
        return self._broker.url

    @property
    def definition(self) -> QueueDefinition:
        """What holds for its items."""
        definition: QueueDefinition = self._query(lambda state, _now: state.definition)
        return definition

    def define(self, definition: QueueDefinition) -> None:
        """Give the queue another definition; leases that were given keep their time."""
        self._wait(self.submit(operations.Define(definition)))

    define_async = awaited(define)

    # ------------------------------------------------------------------ items

    def enqueue(
        self,
        value: bytes,
        *,
        deadline_us: int | None = None,
        delay_s: float | None = None,
        priority: int = 100,
        dedupe_key: bytes | None = None,
    ) -> Enqueued:
        """Add an item; see ``NewItem``. QueueFullError when the queue has as many as its definition allows."""
        return self.enqueue_many([NewItem(value, deadline_us, delay_s, priority, dedupe_key)])[0]

    enqueue_async = awaited(enqueue)

    def enqueue_many(self, items: Iterable[NewItem]) -> list[Enqueued]:
        """Add items, all or none: at most 10,000, and 32 MiB."""
        several(items, "items")
        result: list[Enqueued] = self._wait(self.submit(operations.Enqueue(tuple(items))))
        return result

    enqueue_many_async = awaited(enqueue_many)

    def dequeue(self, count: int = 1, *, timeout_s: float = 0.0, lease_s: float | None = None) -> list[Leased]:
        """Lease up to ``count`` due items; wait up to ``timeout_s`` seconds for the first one.

        Calls that wait are served in their order. An item is the caller's alone for ``lease_s`` seconds, or as the
        definition says; then it comes back, unless it was released.
        """
        future = self.submit(operations.Dequeue(count, timeout_s, lease_s))
        try:
            result: list[Leased] = self._wait(future)
        except BaseException:
            # Interrupted: no caller would get the items.
            self._give_up(future)
            raise
        return result

    async def dequeue_async(
        self, count: int = 1, *, timeout_s: float = 0.0, lease_s: float | None = None
    ) -> list[Leased]:
        """Await ``dequeue``. When its caller is cancelled, items are given back, and no delivery is counted."""
        items: list[Leased] = await self.submit_async(operations.Dequeue(count, timeout_s, lease_s))
        return items

    @checked(idle_s=optional(seconds))
    async def follow_async(
        self, *, idle_s: float | None = None, lease_s: float | None = None
    ) -> AsyncGenerator[Leased, None]:
        """Go through items from asyncio: each is leased when it is asked for, and is to be released.

        It ends when none came for ``idle_s`` seconds, or when the queue is closed.
        """
        with contextlib.suppress(ClosedError):
            while items := await self.dequeue_async(
                timeout_s=SECONDS_MAX if idle_s is None else idle_s, lease_s=lease_s
            ):
                yield items[0]

    def _give_up(self, future: Future[Any]) -> None:
        """Cancel a dequeue; if it has its answer, give that back."""
        if not future.cancel():
            future.add_done_callback(self._give_back)

    def _give_back(self, done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None and (items := done.result()):
            self._broker.give_back(operations.GiveBack(tuple((item.id, item.token) for item in items)))

    @checked(item_id=integer)
    def release(self, item_id: int, token: str) -> None:
        """Remove a leased item: its work is done. StaleTokenError when the lease has ended, or is another one."""
        self.release_many([(item_id, token)])

    release_async = awaited(release)

    def release_many(self, leases: Iterable[tuple[int, str]]) -> None:
        """Remove leased items, all or none."""
        several(leases, "leases")
        self._wait(self.submit(operations.Release(tuple(leases))))

    release_many_async = awaited(release_many)

    def give_back(self, leases: Iterable[tuple[int, str]]) -> None:
        """Put leased items back as if they had not been handed out: due as they were, and no delivery is counted.

        Those whose leases have ended, or are others, are left as they are.
        """
        several(leases, "leases")
        self._wait(self.submit(operations.GiveBack(tuple(leases))))

    give_back_async = awaited(give_back)

    @checked(item_id=integer)
    def requeue(
        self,
        item_id: int,
        token: str,
        *,
        deadline_us: int | None = None,
        delay_s: float | None = None,
        value: bytes | None = None,
    ) -> Enqueued:
        """Put a leased item back, due now unless a time is given; with a value that replaces the old one.

        It goes to the dead letters instead when it was handed out as often as the definition allows; the answer's
        ``dead`` says so.
        """
        result: Enqueued = self._wait(self.submit(operations.Requeue(item_id, token, deadline_us, delay_s, value)))
        return result

    requeue_async = awaited(requeue)

    @checked(item_id=integer)
    def extend(self, item_id: int, token: str, lease_s: float) -> int:
        """Let a lease end ``lease_s`` seconds from now; return that time in microseconds."""
        result: int = self._wait(self.submit(operations.Extend(item_id, token, lease_s)))
        return result

    extend_async = awaited(extend)

    def reclaim(self, ids: Iterable[int]) -> list[Enqueued]:
        """Put leased items back, due now, without their tokens, which are refused from then on: all or none.

        For operators whose worker is gone. UnknownItemError names one that is not leased.
        """
        several(ids, "ids")
        result: list[Enqueued] = self._wait(self.submit(operations.Reclaim(tuple(ids))))
        return result

    reclaim_async = awaited(reclaim)

    @checked(item_id=integer)
    def bury(self, item_id: int, token: str) -> None:
        """Put a leased item among the dead letters."""
        self._wait(self.submit(operations.Bury(item_id, token)))

    bury_async = awaited(bury)

    def kick(self, count: int = 1) -> list[int]:
        """Make the ``count`` dead letters that were buried first pending, due now, and return their ids.

        They count as not handed out yet.
        """
        result: list[int] = self._wait(self.submit(operations.Kick(count)))
        return result

    kick_async = awaited(kick)

    def kick_ids(self, ids: Iterable[int]) -> None:
        """Make these dead letters pending, all or none. UnknownItemError names one that is none."""
        several(ids, "ids")
        self._wait(self.submit(operations.Kick(1, tuple(ids))))

    kick_ids_async = awaited(kick_ids)

    @checked(pending=instance_of(bool), leased=instance_of(bool), dead=instance_of(bool), dry_run=instance_of(bool))
    def purge(self, *, pending: bool = True, leased: bool = False, dead: bool = False, dry_run: bool = False) -> int:
        """Remove all items of these states for good; return their number. With ``dry_run``, only count them."""
        if dry_run:
            counted: int = self._query(
                lambda state, _now: pending * state.num_pending + leased * len(state.leased) + dead * len(state.dead)
            )
            return counted
        result: int = self._wait(self.submit(operations.Purge(pending, leased, dead)))
        return result

    purge_async = awaited(purge)

    # ------------------------------------------------------------------ reads

    @checked(count=positive, bytes_max=optional(positive))
    def peek(self, count: int = 1, *, bytes_max: int | None = None) -> list[Peeked]:
        """Return the pending items that come first, also if they are not due yet.

        With ``bytes_max``, no more than have values of so many bytes together, but one at least.
        """
        head: list[Peeked] = self._query(lambda state, _now: peeked(fitting(state.head(count), bytes_max)))
        return head

    peek_async = awaited(peek)

    @checked(count=positive, after=integer, bytes_max=optional(positive))
    def dead(self, count: int = 100, *, after: int = 0, bytes_max: int | None = None) -> list[Peeked]:
        """Return dead letters by rising ids: at most ``count``, with ids above ``after``; ``bytes_max`` as of peek."""
        found: list[Peeked] = self._query(lambda state, _: peeked(fitting(state.dead_letters(count, after), bytes_max)))
        return found

    dead_async = awaited(dead)

    @checked(item_id=integer)
    def item(self, item_id: int) -> ItemStats:
        """Return what is known of an item. UnknownItemError when the queue has none of that id."""
        stats: ItemStats = self._query(lambda state, _now: state.item_stats(item_id))
        return stats

    item_async = awaited(item)

    def stats(self) -> QueueStats:
        """Return what the queue holds."""
        stats: QueueStats = self._query(lambda state, now_ms: state.stats(now_ms, len(self._broker.line)))
        return stats

    stats_async = awaited(stats)

    # ------------------------------------------------------------------ the broker

    @checked(operation=instance_of(*Operation.__args__), timeout_s=optional(seconds))
    def submit(self, operation: Operation, *, timeout_s: float | None = None) -> Future[Any]:
        """Ask for an operation; the future gets its result when that is durable.

        Blocks only while too many bytes wait for their turn, ``timeout_s`` seconds at most: then OverloadedError.
        An operation whose future is cancelled before its turn is not done. Callbacks of the future run in the broker's
        thread, and must not wait for another operation: calls that would wait raise InvalidRequestError there.
        """
        return self._broker.inbox.put(operation, timeout_s)

    async def submit_async(self, operation: Operation) -> Any:  # noqa: ANN401 - each operation has its own result
        """Return the result of an operation once it is durable; many that wait at a time become one append.

        When its caller is cancelled, an operation is not done unless its turn had come by then; of a dequeue, items are
        given back.
        """
        import asyncio  # noqa: PLC0415 - as in ``Calls``

        give_up = self._give_up if isinstance(operation, operations.Dequeue) else _cancel
        future = await self._async.made(partial(self.submit, operation), give_back=give_up)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            give_up(future)
            raise

    def _query(self, read: Callable[[QueueState, int], Any]) -> Any:  # noqa: ANN401 - what is asked for, read by then
        return self._wait(self._broker.inbox.put(Query(read), None))

    def _wait(self, future: Future[Any]) -> Any:  # noqa: ANN401 - each operation has its own result
        if self._broker.is_here() and future.cancel():
            raise InvalidRequestError(
                f"queue {self.url}: expected a call that does not wait, found one from a callback, which runs in the"
                f" thread that would do it: submit the operation"
            )
        return self._runtime.wait(future)

    def checkpoint(self) -> None:
        """Write the index now, so that loading the queue takes least time, and key compaction can go as far."""
        self._wait(self._query(lambda _state, _now: self._broker.want_checkpoint()))

    checkpoint_async = awaited(checkpoint)

    def close(self) -> None:
        """Do what was asked for so far, and end; calls that wait for an item get none."""
        self._broker.close()
        self._async.close()


def _cancel(future: Future[Any]) -> None:
    future.cancel()
