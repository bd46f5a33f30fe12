"""The queues of a server: each is opened when something is first asked of it, and kept until the server ends.

When more are asked for than it may have open, the one that was used least lately is closed, and opened at its next use.
A queue that another broker has taken stays with that one: this server would take it back, and so could the other, for
ever. Its requests get FencedError until the server is restarted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from wal3_core.errors import FencedError, LogError, LogNotFoundError, LogReplacedError, NotDurableError
from wal3_core.options import MIB, Options, check_range, within
from wal3_core.queue_server.wire import PREFIX, BusyError, StoppingError, log_of, names_below
from wal3_core.runtime.loggers import QUEUE
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.loading import expecting_a_queue

if TYPE_CHECKING:
    from wal3_core.views.queue.operations import Dequeue, Leased, Operation, QueueDefinition

    T = TypeVar("T")

# Threads for calls that block: looks, and what opens and closes queues.
_THREADS_MAX = 64
# Reads at a time of queues that are not open: each takes as much memory as the queue while it is open, and more.
_READS_AT_ONCE = 4
# Bodies up to this are read on the event loop; larger ones by one thread, so that they take no more memory than one.
_SMALL_BYTES = 2**14
_BYTES_MAX, _COUNT_MAX, _SECONDS_MAX = 2**40, 2**31 - 1, 24 * 60 * 60
# The items that one operation of a queue takes.
_ITEMS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueServerOptions(Options):
    """Limits of one server.

    A request's header arrives within ``header_s_max`` seconds, of the connection or of the answer before. Its body has
    at most ``body_bytes_max`` bytes, and arrives within ``body_s_max`` seconds; those of all requests under way have
    ``held_bytes_max``. A client that takes nothing of its answer for ``answer_s_max`` seconds loses its connection. A
    batch has at most ``items_max`` items; the values of an answer have ``answer_bytes_max`` bytes together, unless its
    first alone has more. A dequeue waits ``wait_s_max`` seconds at most. ``requests_max`` requests are under way at a
    time, and ``waiting_max`` others wait for an item. A client (a token, or an address where there are none) may make
    ``requests_per_s`` requests a second, and two seconds' worth at once; 0: no limit. ``queues_max`` queues are open at
    a time: for one more, the one that was used least lately is closed. The end waits ``stop_s_max`` seconds for
    requests under way.
    """

    header_s_max: float = field(default=10.0, metadata=within(0.001, _SECONDS_MAX))
    body_bytes_max: int = field(default=16 * MIB, metadata=within(1, _BYTES_MAX))
    body_s_max: float = field(default=30.0, metadata=within(0.001, _SECONDS_MAX))
    held_bytes_max: int = field(default=256 * MIB, metadata=within(1, _BYTES_MAX))
    answer_s_max: float = field(default=30.0, metadata=within(0.001, _SECONDS_MAX))
    items_max: int = field(default=1000, metadata=within(1, _ITEMS_MAX))
    answer_bytes_max: int = field(default=128 * MIB, metadata=within(1, _BYTES_MAX))
    wait_s_max: float = field(default=300.0, metadata=within(0, _SECONDS_MAX))
    requests_max: int = field(default=2000, metadata=within(1, _COUNT_MAX))
    waiting_max: int = field(default=2000, metadata=within(0, _COUNT_MAX))
    requests_per_s: float = field(default=1000.0, metadata=within(0, _COUNT_MAX))
    queues_max: int = field(default=1000, metadata=within(1, _COUNT_MAX))
    stop_s_max: float = field(default=10.0, metadata=within(0, _SECONDS_MAX))

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range, and bodies that would not fit together."""
        Options.__post_init__(self)
        check_range("held_bytes_max", self.held_bytes_max, self.body_bytes_max, _BYTES_MAX)

    @property
    def connections_max(self) -> int:
        """How many connections there may be: some are between two requests. One more ends the one idle longest."""
        return (self.requests_max + self.waiting_max) * 5 // 4 + 4

    @property
    def too_large(self) -> str:
        """What is said of a body that is."""
        return f"body: expected at most {self.body_bytes_max} bytes, found more"


class ServerLoad:
    """Counts of the requests under way, of those that wait for an item, and of the bytes of bodies."""

    def __init__(self, options: QueueServerOptions) -> None:
        self.options = options
        self.num_requests = self.num_waiting = self.num_bytes = 0


class Ticket:
    """One request under way, from now on until it is ``done``."""

    def __init__(self, load: ServerLoad) -> None:
        self._load = load
        self.num_bytes = 0
        load.num_requests += 1

    def add(self, num_bytes: int) -> None:
        """Count bytes of its body."""
        self.num_bytes += num_bytes
        self._load.num_bytes += num_bytes

    @contextmanager
    def waiting(self) -> Iterator[bool]:
        """Count it among those that wait, with no body, and not among the others; False: as many wait as may."""
        load = self._load
        if load.num_waiting >= load.options.waiting_max:
            yield False
            return
        self.add(-self.num_bytes)
        load.num_requests -= 1
        load.num_waiting += 1
        try:
            yield True
        finally:
            load.num_waiting -= 1
            load.num_requests += 1

    def done(self) -> None:
        """Count it no more."""
        self.add(-self.num_bytes)
        self._load.num_requests -= 1


class OpenQueue:
    """A queue whose broker is in this process, unless it was ``fenced``; ``num_calls`` use it now."""

    def __init__(self, queue: DelayQueue) -> None:
        self.queue = queue
        self.num_calls = 0
        self.fenced = False


class QueueService:
    """All queues below a prefix. Used from one event loop."""

    def __init__(self, store: ObjectStore, prefix: str = PREFIX, options: QueueServerOptions | None = None) -> None:
        self.options = options or QueueServerOptions()
        self._store = store
        self._prefix = prefix
        # The one that was used last is last.
        self._open: OrderedDict[str, OpenQueue] = OrderedDict()
        self._opening: dict[str, asyncio.Task[OpenQueue]] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="wal3-queue-server")
        self._bodies = ThreadPoolExecutor(1, thread_name_prefix="wal3-queue-bodies")

    # ------------------------------------------------------------------ which queues there are

    @property
    def stopping(self) -> bool:
        """Whether it takes no more requests."""
        return self._stopping.is_set()

    def is_open(self, name: str) -> bool:
        """Whether a queue's broker is in this process."""
        held = self._open.get(name)
        return held is not None and not held.fenced

    async def names(self) -> list[str]:
        """Return the names of all queues."""
        return await self.in_thread(partial(names_below, self._store, self._prefix, frozenset(self._open)))

    async def create(self, name: str, definition: QueueDefinition) -> None:
        """Make a queue. LogExistsError when there is a log of that name."""
        await self.in_thread(partial(DelayQueue.create, self._store, log_of(self._prefix, name), definition))

    async def opened(self, name: str) -> OpenQueue:
        """Return a queue, opened if it is not: that fences another broker. LogNotFoundError when there is none."""
        if self.stopping:
            raise StoppingError
        found = self._open.get(name)
        if found is not None:
            self._open.move_to_end(name)
            return found
        opening = self._opening.get(name)
        if opening is None:
            log = log_of(self._prefix, name)
            if len(self._open) + len(self._opening) >= self.options.queues_max:
                self._close_an_idle_one(name)
            opening = self._opening[name] = asyncio.create_task(self._take(name, log))
        # Others wait for it, too.
        return await asyncio.shield(opening)

    def _close_an_idle_one(self, wanted: str) -> None:
        """Begin to close the open queue that was used least lately, and by no call now."""
        # One that is fenced would be taken back when it is opened again.
        idle = next((name for name, held in self._open.items() if not held.num_calls and not held.fenced), None)
        if idle is None:
            raise BusyError(f"queue {wanted}: expected at most {self.options.queues_max} queues in use, found as many")
        self._closing[idle] = asyncio.create_task(self._close(idle, self._open.pop(idle)))

    async def _close(self, name: str, held: OpenQueue) -> None:
        try:
            await self.in_thread(held.queue.close)
        finally:
            del self._closing[name]

    async def _take(self, name: str, log: str) -> OpenQueue:
        try:
            # No more than the limit are open; and this one is not taken from itself.
            if self._closing:
                await asyncio.wait([*self._closing.values()])
            held = self._open[name] = OpenQueue(await self.in_thread(partial(DelayQueue.open, self._store, log)))
            return held
        finally:
            del self._opening[name]

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Return what a call that blocks returns."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def aside(self, num_bytes: int, call: Callable[[], T]) -> T:
        """Return what a call returns that works on so many bytes of a body."""
        if num_bytes <= _SMALL_BYTES:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._bodies, call)

    # ------------------------------------------------------------------ what is asked of them

    @asynccontextmanager
    async def _used(self, name: str) -> AsyncIterator[OpenQueue]:
        """Keep a queue open for a call."""
        held = await self.opened(name)
        while self._open.get(name) is not held:
            # Closed again, for another one, before this call went on.
            held = await self.opened(name)
        held.num_calls += 1
        try:
            yield held
        except Exception as error:
            found = error.__cause__ if isinstance(error, NotDurableError) else error
            if isinstance(found, LogNotFoundError):
                self._forget(name, held, found)
                with expecting_a_queue():
                    raise found from None
            self._forget(name, held, error)
            raise
        finally:
            held.num_calls -= 1

    async def run(self, name: str, operation: Operation) -> Any:  # noqa: ANN401 - each operation has its own result
        """Return the result of an operation once it is durable. OverloadedError while too much waits."""
        async with self._used(name) as held:
            return await asyncio.wrap_future(held.queue.submit(operation, timeout_s=0))

    async def read(
        self, name: str, of_broker: Callable[..., T], of_log: Callable[..., T], *arguments: object, **options: object
    ) -> tuple[T, bool]:
        """Return what a queue's broker here says, and True; else what its log says: no other broker is fenced."""
        if name in self._open:
            try:
                async with self._used(name) as held:
                    return await self.in_thread(partial(of_broker, held.queue, *arguments, **options)), True
            except FencedError:
                pass
        log = log_of(self._prefix, name)
        async with self._reads:
            return await self.in_thread(partial(of_log, self._store, log, *arguments, **options)), False

    def _forget(self, name: str, held: OpenQueue, error: Exception) -> None:
        """Open a queue again at the next request if its name leads to another log or none, or its broker has failed."""
        held.fenced = held.fenced or isinstance(error, FencedError)
        lost = isinstance(error, LogReplacedError | LogNotFoundError) or not isinstance(error, LogError)
        if lost and self._open.get(name) is held:
            del self._open[name]
            self._threads.submit(held.queue.close)

    # ------------------------------------------------------------------ handing items out

    async def dequeue(
        self, name: str, operation: Dequeue, ticket: Ticket, gone: Callable[[], Coroutine[Any, Any, None]]
    ) -> list[Leased]:
        """Lease items for a client until it is ``gone``, or the server stops: then none, and no item is lost.

        What was leased when the client had gone is given back at once. BusyError when there is no item, and as many
        others wait for one as may.
        """
        with ticket.waiting() if operation.timeout_s else nullcontext(enter_result=True) as may_wait:
            operation = operation if may_wait else replace(operation, timeout_s=0.0)
            async with self._used(name) as held:
                items = await self._handed_out(held.queue, operation, gone)
        if not items and not may_wait:
            message = f"server: expected at most {self.options.waiting_max} calls that wait for an item, found as many"
            raise BusyError(message)
        return items

    async def _handed_out(
        self, queue: DelayQueue, operation: Dequeue, gone: Callable[[], Coroutine[Any, Any, None]]
    ) -> list[Leased]:
        future = queue.submit(operation, timeout_s=0)
        answer = asyncio.wrap_future(future)
        client, stop = asyncio.create_task(gone()), asyncio.create_task(self._stopping.wait())
        is_there = False
        try:
            await asyncio.wait({answer, client, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and future.cancel():
                return []
            items: list[Leased] = await answer
            is_there = not client.done()
            return items if is_there else []
        finally:
            # Also when this request is cancelled.
            if not is_there:
                queue._give_up(future)  # noqa: SLF001 - as the queue's own calls do
            client.cancel()
            stop.cancel()

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Take no more requests, and answer those that wait for an item."""
        self._stopping.set()

    async def close(self) -> None:
        """Stop, and close all queues."""
        self.stop()
        await asyncio.gather(*self._opening.values(), *self._closing.values(), return_exceptions=True)
        ends = [self.in_thread(held.queue.close) for held in self._open.values()]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                QUEUE.warning("a queue was not closed: %s", outcome)
        self._threads.shutdown(wait=False)
        self._bodies.shutdown(wait=False)
