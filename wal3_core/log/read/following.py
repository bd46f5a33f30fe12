"""Following a log: its records, then whatever is appended, up to its seal.

``History`` tells whether it goes on from what was seen of it, or an older manifest was restored, and others appended.
From asyncio, blocking calls are made in threads of their own, and taken back when their caller is cancelled.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from wal3_core.errors import CorruptError, InvalidRequestError, LogError, LogNotFoundError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import BEING_DESTROYED, UNDO, Manifest
from wal3_core.format.position import AtTime, ReadStart
from wal3_core.format.record import Record
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
from wal3_core.log.read.scan import begun, floor_of
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Closing, Runtime
from wal3_core.store.retrying import longer_s


@dataclass(frozen=True, slots=True)
class History:
    """The setsum of all records that were ever appended below the offset ``limit``, and the ``token`` of the last pass.

    Offsets, generations and numbers of passes come again after a restore; these do not.
    """

    limit: int
    setsum: Setsum
    token: str

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return what a manifest says of all records up to its end."""
        return cls(manifest.next.position.offset, manifest.setsum, manifest.compaction.token)

    def is_comparable(self, manifest: Manifest) -> bool:
        """Whether a manifest, which does not end earlier, still says what its setsum was there.

        Not if it begins later, nor after a pass: what that one dropped is known only as a sum over the whole log.
        """
        return self.token == manifest.compaction.token and manifest.first.position.offset <= self.limit

    def goes_on_in(self, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> bool:
        """Whether a comparable manifest has the same records below the limit.

        Loads the snapshots that lie on both sides of it, one of each depth at most.
        """
        return self.setsum == manifest.setsum - _sum_from(manifest.pointers, self.limit, load)


def _sum_from(pointers: Sequence[Pointer], offset: int, load: Callable[[SnapshotPointer], Snapshot]) -> Setsum:
    """Add up what lies at or after an offset, and a fragment that lies on both sides: then it is another log's sum."""
    found = EMPTY
    for pointer in reversed(pointers):
        if pointer.limit.offset <= offset:
            break
        if isinstance(pointer, FragmentPointer) or pointer.start.offset >= offset:
            found += pointer.setsum
        else:
            found += _sum_from(load(pointer).pointers, offset, load)
    return found


def destroyed(log: str, manifest: Manifest) -> LogNotFoundError:
    """Return the error of one who has read a log that is being destroyed to its end: it is no end of its records."""
    end = manifest.next.position.offset
    return LogNotFoundError(
        f"log {log}: expected a log that stays, found it {BEING_DESTROYED}, sealed for that at offset {end}: {UNDO}"
    )


class Waiting:
    """Pauses between polls, each twice as long as the one before, until ``idle_s`` seconds passed without news."""

    def __init__(self, runtime: Runtime, options: ReaderOptions, *, idle_s: float | None) -> None:
        self._runtime = runtime
        self._options = options
        self._idle_s = idle_s
        self.begin_again()

    def begin_again(self) -> None:
        """Restart the pauses and the idle time: there was news just now."""
        self._quiet_since_s, self._pause_s = self._runtime.monotonic_s(), self._options.poll_s_min

    def pause_s(self) -> float | None:
        """Return how long to wait before the next look, longer each time; None when time is up."""
        pause_s = self._pause_s
        if self._idle_s is not None:
            left_s = self._quiet_since_s + self._idle_s - self._runtime.monotonic_s()
            if left_s <= 0:
                return None
            pause_s = min(pause_s, left_s)
        self._pause_s = longer_s(self._pause_s, self._options.poll_s_max)
        return pause_s

    def wait(self, topic: str, version: int) -> int | None:
        """Wait a pause, or until the topic moves beyond ``version``; returns its version, None when time is up."""
        pause_s = self.pause_s()
        return None if pause_s is None else self._runtime.await_topic(topic, version, pause_s)


@dataclass(frozen=True, slots=True)
class Source:
    """What is followed: ``manifest`` loads the newest one, ``records`` reads a manifest's records from a start.

    ``load`` loads a snapshot.
    """

    manifest: Callable[[], Manifest]
    records: Callable[[ReadStart, Manifest], Iterator[Record]]
    load: Callable[[SnapshotPointer], Snapshot]


class Following:
    """One pass over a log that waits for more at the log's end.

    ``start`` is where it has come to; the first look at the log fixes it. ``sealed`` is the log's last
    manifest once the pass ended at a seal; None while it lasts, or when it ended because no records came.
    """

    def __init__(
        self,
        source: Source,
        runtime: Runtime,
        waiting: Waiting,
        *,
        topic: str,
        log: str,
        start: ReadStart,
    ) -> None:
        self._source = source
        self._runtime = runtime
        self._topic = topic
        self._log = log
        self._waiting = waiting
        self.start = start
        self.sealed: Manifest | None = None
        self._scanning: Iterator[Record] | None = None
        # Of the log up to where a look has read it to its end.
        self._history: History | None = None

    def records(self) -> Iterator[Record]:
        """Go through the records, and wait for more at the log's end."""
        version: int | None = self._runtime.await_topic(self._topic, -1, 0.0)
        while version is not None:
            yield from self.look()
            if self.sealed is not None:
                return
            version = self._waiting.wait(self._topic, version)

    def look(self) -> Iterator[Record]:
        """Go through the records that the log holds now, to its end; a manifest is read to its end before its seal.

        The next look continues after the last record that this one has given. LogNotFoundError at the end of a log that
        was sealed to be destroyed.
        """
        manifest = self._source.manifest()
        self._check_history(manifest)
        # Even before there is any record: one appended and collected between two looks must not be skipped.
        self.start = begun(manifest, self.start)
        lag = manifest.next.position.offset - (floor_of(self.start) or 0)
        self._runtime.observer.followed(self._log, max(0, lag))
        for record in self._source.records(self.start, manifest):
            self.start = record.offset + 1
            yield record
            self._waiting.begin_again()
        if not isinstance(self.start, AtTime):
            # What lies behind the last record was dropped, and may be collected.
            self.start = manifest.next.position.offset
        self._history = History.of(manifest)
        if manifest.doomed:
            raise destroyed(self._log, manifest)
        if manifest.seal is not None:
            self.sealed = manifest

    def _check_history(self, manifest: Manifest) -> None:
        """Refuse a log in which other records lie before the place that was reached: none of them would be given."""
        history = self._history
        # If it ends before that place, the start is refused.
        if history is None or manifest.next.position.offset < history.limit or not history.is_comparable(manifest):
            return
        # A snapshot that is missing was replaced since, or is damaged: the read comes to it.
        with contextlib.suppress(CorruptError):
            if not history.goes_on_in(manifest, self._source.load):
                raise InvalidRequestError(
                    f"log {self._log}: expected the records before offset {history.limit} to be those that were read,"
                    f" found others: an older manifest was restored meanwhile: open it again where it is to go on"
                )

    def take(self, count: int, bytes_max: int | None = None) -> list[Record]:
        """Return the next records that the log holds now, at most ``count``; none at its end.

        No further one once their keys and bodies have ``bytes_max`` bytes. Records that were read before an error are
        returned first; the next call looks again, and raises it.
        """
        begun, self._scanning = self._scanning, None
        taken = [] if begun is None else self._take(begun, count, bytes_max)
        # The end of a look that an earlier call began need not be the log's end now.
        return taken or self._take(self.look(), count, bytes_max)

    def _take(self, scanning: Iterator[Record], count: int, bytes_max: int | None) -> list[Record]:
        taken: list[Record] = []
        room = math.inf if bytes_max is None else bytes_max
        try:
            for record in scanning:
                taken.append(record)
                room -= len(record.key or b"") + len(record.body or b"")
                if len(taken) == count or room <= 0:
                    self._scanning = scanning
                    break
        except LogError:
            if not taken:
                raise
        return taken

    def step(self, count: int) -> list[Record] | None:
        """Take records, or wait a pause for more: an empty list then; None once the pass is over."""
        version = self._runtime.await_topic(self._topic, -1, 0.0)
        taken = self.take(count)
        if taken:
            return taken
        over = self.sealed is not None or self._waiting.wait(self._topic, version) is None
        return None if over else []

    def go_back(self, start: ReadStart) -> None:
        """Look again from a place before the one that was reached; what is known of the log stays known."""
        self.start, self.sealed, self._scanning = start, None, None

    def wake(self) -> None:
        """End the pause of a thread that waits in ``step``."""
        self._runtime.publish(self._topic)


T = TypeVar("T")
P = ParamSpec("P")
O = TypeVar("O", bound="_HasCalls")  # noqa: E741 - an object

# Records held at a time, on top of the fragments that the reader prefetches.
_RECORDS_MAX = 256


class Calls:
    """Makes the blocking calls of one object for its callers in asyncio; with one thread, one after the other.

    Threads begin as they are needed. They end with ``close``, or when the object is gone.
    """

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: ThreadPoolExecutor | None = None

    async def made(
        self,
        call: Callable[[], T],
        *,
        wake: Callable[[], None] | None = None,
        give_back: Callable[[T], None] | None = None,
    ) -> T:
        """Make a call, and return its result.

        When the caller is cancelled, a call that has not begun is not made. One under way is left to itself: ``wake``
        ends its wait, and ``give_back`` takes what it returned, in one of the threads; with one thread, before the next
        call.
        """
        import asyncio  # noqa: PLC0415 - its callers have it; for others it would be an eighth of the library's import

        threads, under_way = self._begin(call)
        try:
            return await asyncio.wrap_future(under_way)
        except asyncio.CancelledError:
            # It may have returned just now.
            if not under_way.cancel():
                if give_back is not None:
                    _submit(threads, partial(_given_back, under_way, give_back))
                if wake is not None:
                    wake()
            raise

    async def submitted(self, submit: Callable[[], Future[T]]) -> T:
        """Make a call that returns a future, and await that."""
        import asyncio  # noqa: PLC0415 - as above

        return await asyncio.wrap_future(await self.made(submit))

    def _begin(self, call: Callable[[], T]) -> tuple[ThreadPoolExecutor, Future[T]]:
        while True:
            threads = self._threads
            if threads is None:
                # Not the loop's own executor: most calls wait, and would keep its few threads.
                self._threads = threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix=self._name)
            try:
                return threads, threads.submit(call)
            except RuntimeError:
                # Closed by another thread just now; or else the interpreter ends.
                if self._threads is threads:
                    raise

    def close(self) -> None:
        """End the threads, each after the call that it is making. A later call begins others."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


def _submit(threads: ThreadPoolExecutor, task: Callable[[], None]) -> None:
    try:
        threads.submit(task)
    except RuntimeError:
        # They were closed meanwhile.
        last = ThreadPoolExecutor(1)
        last.submit(task)
        last.shutdown(wait=False)


def _given_back(under_way: Future[T], give_back: Callable[[T], None]) -> None:
    # An error was its caller's, who is gone; what failed comes again.
    with contextlib.suppress(LogError):
        give_back(under_way.result())


async def in_thread(following: Following) -> AsyncGenerator[Record, None]:
    """Go through the records of a pass; nothing is read while the caller works on the records it was given.

    The thread ends with the generator. It finishes the request under way; a pause ends at once.
    """
    calls = Calls("wal3-follow")
    try:
        step = partial(following.step, _RECORDS_MAX)
        while (taken := await calls.made(step, wake=following.wake)) is not None:
            for record in taken:
                yield record
    finally:
        calls.close()


class AsyncClosing(Closing):
    """An object that the end of an ``async with`` block closes, too."""

    _async: Calls

    async def close_async(self) -> None:
        """Await ``close``."""
        await self._async.made(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._async.made(partial(self.__exit__, kind, error, trace))


class _HasCalls(Protocol):
    _async: Calls


def awaited(method: Callable[Concatenate[O, P], T]) -> Callable[Concatenate[O, P], Coroutine[Any, Any, T]]:
    """Make a method for asyncio of one that blocks: it is called in one of the threads that its object has for that."""

    @wraps(method)
    async def call(made_for: O, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await made_for._async.made(partial(method, made_for, *args, **kwargs))  # noqa: SLF001 - what it is for

    call.__name__ += "_async"
    call.__qualname__ += "_async"
    call.__doc__ = f"Await ``{method.__name__}``."
    return call
