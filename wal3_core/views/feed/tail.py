"""What the followers of one log in a process share: its newest manifest, fragments and records.

Of a hundred followers, one looks for a new manifest; the look fetches and decodes what is new, for all of them, and
then wakes them. A follower that lags behind the shared fragments fetches for itself.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from wal3_core.arguments import checked, optional, seconds
from wal3_core.errors import ClosedError, FeedMovedError, LogError, LogReplacedError, UnavailableError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.parquet import Fragment
from wal3_core.format.position import ReadStart
from wal3_core.format.record import Record
from wal3_core.log.read.following import Calls, Following, Source, Waiting
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import BegunAtTime, with_reloads
from wal3_core.options import MIB, ReaderOptions
from wal3_core.runtime import Cache, Outcome, Runtime, later, map_ahead
from wal3_core.store.object_store import ObjectStore, share_of
from wal3_core.store.retrying import longer_s
from wal3_core.views.feed.messages import token_of, topic_of
from wal3_core.views.feed.topics import Pattern, topic_filter

T = TypeVar("T")

# Seconds that a watcher watches at a time, and that others sleep. One that was interrupted in the wrong moment has
# called no other to watch: those that sleep find it.
WATCH_S_MAX = 1.0
_SLEEP_S_MAX = 4.0


class WaitingCall:
    """One call of a follower that waits: it may be ``roused``, to look at what has changed, or ``called_off``."""

    def __init__(self) -> None:
        self.roused = self.called_off = False
        # Whether it waits for room in its follower's memory, and not for news of the log.
        self.for_room = False
        # Set when it is to wake.
        self.woken: Outcome[None] = Outcome()

    @property
    def is_over(self) -> bool:
        """Whether it is to wait no longer."""
        return self.roused or self.called_off

    def begin_round(self) -> None:
        """Forget what it was roused for: it looks at everything now."""
        self.roused = self.for_room = False
        self.woken = Outcome()


class Poller:
    """The calls that wait for news of one log: news wakes each of them once; for all else one is awake, and watches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        # It grows with each look that has found something, or failed.
        self.news = 0
        self._watcher: WaitingCall | None = None
        self._watched_s = 0.0
        # In the order in which they came.
        self._sleepers: dict[WaitingCall, None] = {}

    def wait(self, seen: int, limit_s: float | None, watch: Callable[[], None], call: WaitingCall) -> None:
        """Wait until there is more news than ``seen``, it is ``limit_s`` (monotonic clock), or the call is over.

        ``watch`` is called by one of those that wait, again and again; an error of it ends that one's wait.
        """
        try:
            while not call.is_over and self._is_on(seen, limit_s):
                if self._watches(call, seen):
                    watch()
                else:
                    self._sleep(call, limit_s)
        finally:
            self._leave(call)

    def announce(self) -> None:
        """Wake all: there is news."""
        with self._lock:
            self.news += 1
            woken, self._sleepers = self._sleepers, {}
        for sleeper in woken:
            sleeper.woken.set_or_rouse()

    def wake(self, call: WaitingCall) -> bool:
        """Wake a call that is over, unless it watches; then return True."""
        with self._lock:
            woken, watches = call.woken, self._watcher is call
        woken.set_or_rouse()
        return watches

    def _is_on(self, seen: int, limit_s: float | None) -> bool:
        return self.news == seen and (limit_s is None or self._runtime.monotonic_s() < limit_s)

    def _watches(self, call: WaitingCall, seen: int) -> bool:
        """Return whether this call is to watch; else it may sleep."""
        now_s = self._runtime.monotonic_s()
        with self._lock:
            if self._watcher is None or now_s > self._watched_s + _SLEEP_S_MAX:
                self._watcher = call
            if self._watcher is call:
                self._watched_s = now_s
                self._sleepers.pop(call, None)
                return True
            if self.news == seen and not call.is_over:
                if call.woken.done():
                    call.woken = Outcome()
                self._sleepers[call] = None
        return False

    def _sleep(self, call: WaitingCall, limit_s: float | None) -> None:
        left_s = _SLEEP_S_MAX if limit_s is None else min(_SLEEP_S_MAX, limit_s - self._runtime.monotonic_s())
        with contextlib.suppress(TimeoutError):
            self._runtime.wait(call.woken, left_s)

    def _leave(self, call: WaitingCall) -> None:
        called = None
        with self._lock:
            self._sleepers.pop(call, None)
            if self._watcher is call:
                self._watcher = called = next(iter(self._sleepers), None)
                self._watched_s = self._runtime.monotonic_s()
        if called is not None:
            called.woken.set_or_rouse()


# Records that are kept decoded, and fetched by one poll; each follower fetches what is more, a few fragments ahead.
RECORDS_MAX = 4096
BYTES_MAX = 2**22
FRAGMENTS_MAX = 16


class _DecodedFragment(NamedTuple):
    """One fragment's records, and their size in memory."""

    pointer: FragmentPointer
    records: Sequence[Record]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class RecentRecords:
    """The records of the last fragments of one manifest, from ``start`` to its end."""

    manifest: Manifest
    start: int
    pieces: tuple[_DecodedFragment, ...] = ()

    @property
    def end(self) -> int:
        """The offset behind the last record, where the manifest ends."""
        return self.manifest.next.position.offset

    def records(self, start: int, manifest: Manifest) -> Iterator[Record] | None:
        """Go through a manifest's records from an offset on; None when some of them are not held, or are gone."""
        end = manifest.next.position.offset
        if not max(self.start, manifest.first.position.offset) <= start <= end <= self.end:
            return None
        if start == end:
            return iter(())
        at = len(self.pieces) - 1
        while self.pieces[at].pointer.start.offset > start:
            at -= 1
        first = self.pieces[at].records
        found = chain(
            first[bisect_left(first, start, key=attrgetter("offset")) :],
            chain.from_iterable(piece.records for piece in self.pieces[at + 1 :]),
        )
        return found if end == self.end else (record for record in found if record.offset < end)

    def moved_to(self, manifest: Manifest, fetch: Callable[[FragmentPointer], Fragment]) -> RecentRecords | None:
        """Take what a newer manifest adds, and let go of the oldest; None if that is too much. Errors of ``fetch``."""
        added = self._added(manifest)
        if added is None:
            return None
        pieces = [] if not self.pieces or self._is_replaced(manifest) else list(self.pieces)
        for pointer in added:
            table = fetch(pointer).table
            if table.nbytes > BYTES_MAX:
                return None
            pieces.append(_DecodedFragment(pointer, tuple(parquet.records_of(table)), table.nbytes))
        while (
            sum(len(piece.records) for piece in pieces) > RECORDS_MAX
            or sum(piece.num_bytes for piece in pieces) > BYTES_MAX
        ):
            del pieces[0]
        return RecentRecords(manifest, pieces[0].pointer.start.offset if pieces else self.end, tuple(pieces))

    def _added(self, manifest: Manifest) -> list[FragmentPointer] | None:
        """List the fragments behind the end; None when they are too much, or are in snapshots already."""
        added: list[FragmentPointer] = []
        for pointer in reversed(manifest.fragments):
            if pointer.limit.offset <= self.end:
                break
            added.append(pointer)
        begins = added[-1].start.offset if added else manifest.next.position.offset
        if begins > self.end or len(added) > FRAGMENTS_MAX or manifest.next.position.offset < self.end:
            return None
        if sum(each.num_records for each in added) > RECORDS_MAX or sum(each.num_bytes for each in added) > BYTES_MAX:
            return None
        return added[::-1]

    def _is_replaced(self, manifest: Manifest) -> bool:
        """Whether a manifest may hold other records here: some were dropped, or an older one was restored."""
        last = self.pieces[-1].pointer
        found = next((each for each in reversed(manifest.fragments) if each.start.offset <= last.start.offset), None)
        return (
            found != last
            or manifest.generation < self.manifest.generation
            or manifest.compaction.passes != self.manifest.compaction.passes
        )


# Bytes of the log's newest part that stay in memory for the followers, decoded; at least one fragment.
SHARED_BYTES_MAX = 64 * MIB
# Seconds between two polls at least: options may set no pause, and followers do not spin even then.
_PAUSE_S_MIN = 0.001


class TimeIsOverError(UnavailableError):
    """A caller's time is over before the store has answered; what was begun goes on. It is not raised to callers."""


class _Poll(NamedTuple):
    """One load of the manifest: when it began, at which version of the log's topic, and what comes of it."""

    begun_s: float
    version: int
    manifest: Future[Manifest]

    @property
    def failed(self) -> bool:
        return self.manifest.done() and self.manifest.exception() is not None


class SharedTailReader(LogReader):
    """A reader of one log that any number of followers use at once."""

    def __init__(self, store: ObjectStore, log: str, *, options: ReaderOptions, runtime: Runtime) -> None:
        super().__init__(store, log, options=options, runtime=runtime)
        # Part of the key under which these readers are shared: kept, so that its id names no other store meanwhile.
        self._origin = store
        # The log's address: what its writers publish.
        self.url = self._manifests.url
        self._lock = runtime.lock()
        self._polled: _Poll | None = None
        self._newest: Manifest | None = None
        # When that was known, by the monotonic clock.
        self._newest_s = 0.0
        self._pause_s = options.poll_s_min
        self._recent: RecentRecords | None = None
        self.poller = Poller(runtime)
        # The writer of the manifest that the last poll has found, which names one write of it. A generation does not:
        # it comes again after an older manifest was restored.
        self._announced: str | None = None
        bytes_max = SHARED_BYTES_MAX
        # Small ones take memory, too, and one that is too large stays until the next one.
        self._fragments_shared: Cache[Fragment] = Cache(
            runtime, bytes_max, lambda fragment: min(max(MIB, fragment.table.nbytes), bytes_max)
        )

    # ------------------------------------------------------------------ the manifest

    def newest(self, since_s: float, limit_s: float | None = None) -> Manifest:
        """Return a manifest that shows what this process has committed, and all that was there at ``since_s``.

        A poll that another follower began in time serves this one, too. TimeIsOverError when it is ``limit_s``, by the
        monotonic clock; the poll goes on.
        """
        poll, own = self._poll(since_s)
        try:
            return self._manifest_of(poll, limit_s)
        except TimeIsOverError:
            raise
        except LogError:
            if own:
                raise
        # Another follower's failure: this one's own try may succeed.
        poll, _ = self._poll(self._runtime.monotonic_s())
        return self._manifest_of(poll, limit_s)

    def onwards(self, offset: int | None, since_s: float, limit_s: float | None) -> tuple[Manifest, int]:
        """Return a manifest for going on from an offset, as ``newest``, and the ``news`` behind it, for ``pause``.

        One that is at hand will do while it has more records, unless a newer one is asked for.
        """
        recent = self._recent
        if recent is not None and since_s == 0 and offset is not None and offset < recent.end:
            # There may be news behind it.
            return recent.manifest, -1
        seen = self.poller.news
        return self.newest(since_s, limit_s), seen

    def _poll(self, since_s: float) -> tuple[_Poll, bool]:
        """Return a poll that is new enough, and whether it was begun here."""
        version = self._runtime.await_topic(self.url, -1, 0.0)
        with self._lock:
            poll = self._polled
            if poll is not None and not poll.failed and poll.version >= version and poll.begun_s >= since_s:
                return poll, False
            begun_s = self._runtime.monotonic_s()
            # On a worker: an interrupt of the follower that asked for it leaves no other one waiting.
            loading = later(self._runtime, partial(self._load, begun_s, version), share_of(self._store))
            loading.add_done_callback(self._announce)
            self._polled = poll = _Poll(begun_s, version, loading)
        return poll, True

    def _manifest_of(self, poll: _Poll, limit_s: float | None) -> Manifest:
        left_s = None if limit_s is None else max(0.0, limit_s - self._runtime.monotonic_s())
        try:
            return self._latest(self._runtime.wait(poll.manifest, left_s), poll.begun_s)
        except TimeoutError:
            raise TimeIsOverError(f"log {self.url}: expected a manifest in time, found none yet") from None

    def _load(self, begun_s: float, version: int) -> Manifest:
        before, recent = self._newest, self._recent
        manifest = self.manifest()
        if recent is None or (self._is_newer(manifest, begun_s) and manifest.writer != recent.manifest.writer):
            moved = None
            if recent is not None:
                # Fetched and decoded once for all followers; on an error each of them comes to it.
                with contextlib.suppress(LogError):
                    moved = recent.moved_to(manifest, self.fetch)
            with self._lock:
                # A poll that was begun later may have been faster.
                if self._recent is recent:
                    self._recent = moved or RecentRecords(manifest, manifest.next.position.offset)
        manifest = self._latest(manifest, begun_s)
        news = before is None or manifest.writer != before.writer
        options = self._options
        self._pause_s = options.poll_s_min if news else longer_s(self._pause_s, options.poll_s_max)
        if news and before is not None and self._runtime.await_topic(self.url, -1, 0.0) == version:
            # It came from another process: its commits wake none of the others.
            self._runtime.publish(self.url)
        return manifest

    def _announce(self, loaded: Future[Manifest]) -> None:
        """Wake those that wait, if a poll has failed or found another manifest."""
        writer = None if loaded.exception() is not None else loaded.result().writer
        with self._lock:
            news, self._announced = writer is None or writer != self._announced, writer
        if news:
            self.poller.announce()

    def _is_newer(self, manifest: Manifest, begun_s: float) -> bool:
        """Whether a manifest takes the place of the one known: a poll that took longer may find an older one.

        One that is older though the poll began later was restored: followers are to see that, not to wait for ever.
        """
        newest = self._newest
        return newest is None or newest.generation < manifest.generation or self._newest_s < begun_s

    def _latest(self, manifest: Manifest, begun_s: float) -> Manifest:
        """Keep a manifest if it is the newest; return the newest."""
        with self._lock:
            if self._is_newer(manifest, begun_s):
                self._newest = manifest
                self._newest_s = self._runtime.monotonic_s()
            assert self._newest is not None
            return self._newest

    def _due_s(self) -> float:
        """Return when the next poll is due, by the monotonic clock: pauses grow while nothing is appended."""
        poll = self._polled
        return 0.0 if poll is None or poll.failed else poll.begun_s + self._pause_s

    def since_s(self, *, at_once: bool) -> float:
        """Return the oldest load time of a manifest that serves a call that begins now: ``since_s`` of ``newest``."""
        poll, now_s = self._polled, self._runtime.monotonic_s()
        # No second poll while the store does not answer the first.
        is_due = now_s >= self._due_s() and not (poll is not None and not poll.manifest.done())
        return now_s if at_once or is_due else 0.0

    def pause(self, seen: int, limit_s: float | None, call: WaitingCall) -> bool:
        """Wait until there is more ``news`` than was seen; False if it is ``limit_s``. The error of a poll that failed.

        Of those that wait one polls, when this process has committed or it is time to. A call that is over waits no
        longer.
        """
        if limit_s is not None and self._runtime.monotonic_s() >= limit_s:
            return False
        self.poller.wait(seen, limit_s, partial(self._watch, limit_s), call)
        poll = self._polled
        if self.poller.news != seen and poll is not None and poll.failed:
            self._runtime.wait(poll.manifest)
        return True

    def wake(self, call: WaitingCall) -> None:
        """Wake a call that is over."""
        if self.poller.wake(call):
            # It wakes by what wakes all who watch this log.
            self._runtime.publish(self.url)

    def _watch(self, limit_s: float | None) -> None:
        """Wait until it is time to poll, but not for long; then poll, and do not wait for long for that either."""
        poll, due_s, now_s = self._polled, self._due_s(), self._runtime.monotonic_s()
        until_s = now_s + WATCH_S_MAX if limit_s is None else max(now_s, min(limit_s, now_s + WATCH_S_MAX))
        pause_s = min(max(_PAUSE_S_MIN, due_s - now_s), until_s - now_s)
        version = -1 if poll is None else poll.version
        if self._runtime.await_topic(self.url, version, pause_s) > version or self._runtime.monotonic_s() >= due_s:
            with contextlib.suppress(TimeIsOverError):
                self.newest(self.since_s(at_once=False), until_s)

    # ------------------------------------------------------------------ records

    def fetch(self, pointer: FragmentPointer) -> Fragment:
        """Read one fragment's records: one GET for all followers that come to it while it is among the newest."""
        fragment = self._fragments_shared.begin(pointer.path, partial(super().fetch, pointer), share=None)()
        # Another pointer may name the same file, for another range.
        return fragment if fragment.pointer == pointer else super().fetch(pointer)

    def topics(self, pointers: Iterable[FragmentPointer]) -> Iterator[list[tuple[int, str | None]]]:
        """Read the offsets of each fragment with their topics, None for no topic. MissingError if an object is gone."""
        columns = KeyColumns(self._store, self._options)
        count = max(1, self._options.prefetch_fragments)
        for table in map_ahead(self._runtime, columns.read, pointers, count=count, share=columns.share):
            parts = (table[name].to_pylist() for name in ("offset", "key", "tombstone"))
            yield [(offset, None if gone else topic_of(key)) for offset, key, gone in zip(*parts, strict=True)]

    def with_reloads(self, manifest: Manifest, work: Callable[[Manifest], T]) -> T:
        """Do a work on a manifest, as the function of that name."""
        return with_reloads(self.url, manifest, self.manifest, work, reloads_max=self._options.reloads_max)

    def followed(self, start: int | BegunAtTime, manifest: Callable[[], Manifest]) -> Following:
        """Return a pass over the log from a start; ``manifest`` says how it looks for a newer one."""
        log = share_of(self._store).log.rstrip("/")
        waiting = Waiting(self._runtime, self._options, idle_s=None)
        source = Source(manifest, self._read_on, self._snapshots.load)
        return Following(source, self._runtime, waiting, topic=self.url, log=log, start=start)

    def _read_on(self, start: ReadStart, manifest: Manifest) -> Iterator[Record]:
        """Go through a manifest's records: those that all followers share, or else by requests of this one."""
        recent = self._recent
        shared = recent.records(start, manifest) if recent is not None and isinstance(start, int) else None
        return self._followed(start, manifest) if shared is None else shared


# By store, log, options and runtime; a reader lives as long as its followers.
_TAILS: WeakValueDictionary[tuple[object, ...], SharedTailReader] = WeakValueDictionary()


def tail_of(store: ObjectStore, log: str, options: ReaderOptions, runtime: Runtime) -> SharedTailReader:
    """Return the reader that the followers of a log in this process share; one GET, LogNotFoundError."""
    key = (id(store), log, options, id(runtime))
    tail = _TAILS.get(key)
    if tail is not None:
        with contextlib.suppress(LogReplacedError):
            tail.newest(runtime.monotonic_s())
            return tail
    # Two that come at the same time may each make one: they share less, and that is all.
    tail = SharedTailReader(store, log, options=options, runtime=runtime)
    tail.newest(runtime.monotonic_s())
    _TAILS[key] = tail
    return tail


# Seconds that a call waits for a poll at a time: other threads of its follower may have less time, or close it.
_POLL_S_MAX = 0.25


class Follower(Generic[T]):
    """Receives what is of some topics in a log, and waits for more, with at most ``threads_max`` calls in asyncio."""

    _following: Following
    # Where it is, before anything of a time that the log has not reached.
    _place: int | BegunAtTime = 0

    def __init__(
        self, tail: SharedTailReader, runtime: Runtime, topics: tuple[Pattern, ...], *, threads_max: int = 1
    ) -> None:
        self._tail = tail
        self._runtime = runtime
        self._takes = topic_filter(topics)
        self._log_id = tail.newest(0.0).log_id
        self._num_strays = 0
        # With one thread, a call that was cancelled has ended, and given back its item, before the next one begins.
        self._receiving = Calls("wal3-feed", threads_max)
        self._calls: set[WaitingCall] = set()
        self._closed = False
        # Times by the monotonic clock: how new a manifest the call under way wants, and when it stops waiting for it.
        self._since_s = 0.0
        self._poll_limit_s: float | None = None
        # The tail's news when this follower has read its manifest.
        self._seen = -1

    @property
    def ended(self) -> bool:
        """Whether the log is sealed, and nothing of it is left to receive."""
        raise NotImplementedError

    def _next(self, until_s: float | None) -> T | None:
        """Return the next item that the log holds now, and stop looking at a time."""
        raise NotImplementedError

    def _give_back(self, item: T | None) -> None:
        """Take back an item whose caller is gone."""
        raise NotImplementedError

    @checked(timeout_s=optional(seconds))
    def recv(self, timeout_s: float | None = None) -> T | None:
        """Return the next message, as soon as there is one; None after ``timeout_s`` seconds, or once it ``ended``.

        Without a timeout it waits for ever; with 0 it looks at the log, to its end, and does not wait. A commit of this
        process wakes it at once. Others are found by polling, as ``ReaderOptions`` say: all that follow the log
        together cost one conditional GET per poll. FeedMovedError, naming it, when the log is sealed, all its messages
        were received, and the feed goes on in a successor. ClosedError once another thread has called ``close``.
        """
        return self._recv(timeout_s, WaitingCall())

    @checked(timeout_s=optional(seconds))
    async def recv_async(self, timeout_s: float | None = None) -> T | None:
        """Await ``recv``. When its caller is cancelled, no message is lost: the next call returns it."""
        call = WaitingCall()
        return await self._receiving.made(
            partial(self._recv, timeout_s, call), wake=partial(self._call_off, call), give_back=self._give_back
        )

    def __iter__(self) -> Iterator[T]:
        """Go through the messages, and wait for more, until it has ``ended``. Errors as ``recv``."""
        while (item := self.recv()) is not None:
            yield item

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        """Go through the messages from asyncio, as ``iter``."""
        while (item := await self.recv_async()) is not None:
            yield item

    def close(self) -> None:
        """End ``recv``, now and later, with ClosedError: from any thread."""
        self._closed = True
        self._rouse()
        self._receiving.close()

    def _recv(self, timeout_s: float | None, call: WaitingCall) -> T | None:
        limit_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        self._calls.add(call)
        try:
            while not call.called_off:
                self._begin_round(limit_s, call, at_once=timeout_s == 0)
                item = None
                try:
                    item = self._next(limit_s if timeout_s else None)
                except TimeIsOverError:
                    if limit_s is None or self._runtime.monotonic_s() < limit_s:
                        # The poll goes on: it need not be news for those that wait.
                        continue
                if item is not None or self._has_ended() or not self._pause(limit_s, call):
                    return item
        finally:
            self._calls.discard(call)
        return None

    def _begin_round(self, limit_s: float | None, call: WaitingCall, *, at_once: bool) -> None:
        self._runtime.check_process()
        # Before what has changed is looked at.
        call.begin_round()
        if self._closed:
            raise ClosedError(f"feed {self._tail.url}: expected a follower that is open, found it closed")
        self._since_s = self._tail.since_s(at_once=at_once)
        slice_s = self._runtime.monotonic_s() + _POLL_S_MAX
        self._poll_limit_s = None if at_once else min(slice_s, slice_s if limit_s is None else limit_s)

    def _manifest(self, offset: int | None) -> Manifest:
        """Return a manifest for going on from an offset."""
        # As of now, in case that the poll fails.
        self._seen = self._tail.poller.news
        manifest, self._seen = self._tail.onwards(offset, self._since_s, self._poll_limit_s)
        return manifest

    def _has_ended(self) -> bool:
        """Return whether it has ended; FeedMovedError if the feed goes on in another log, a successor."""
        ended, sealed = self.ended, self._following.sealed
        if not ended or sealed is None or sealed.seal is None or sealed.seal.successor is None:
            return ended
        successor, offset = sealed.seal.successor, sealed.next.position.offset
        # A time that the log has not reached is waited for in the other one.
        position = token_of(sealed.log_id, self._place if isinstance(self._place, BegunAtTime) else offset)
        message = (
            f"feed {self._tail.url}: expected an open log, found it sealed at offset {offset}, and all its messages"
            f" received: the feed goes on in log {successor}: open that one at {position}"
        )
        raise FeedMovedError(message, successor=successor, position=position)

    def _pause(self, limit_s: float | None, call: WaitingCall) -> bool:
        """Wait until a poll finds more than this one has seen, or the call is over; False if it is ``limit_s``."""
        return self._tail.pause(self._seen, limit_s, call)

    def _rouse(self, *, for_room: bool = False) -> None:
        """Let the calls of this follower, or those that wait for room, look at what has changed."""
        for call in tuple(self._calls):
            if call.for_room or not for_room:
                call.roused = True
                self._tail.wake(call)

    def _call_off(self, call: WaitingCall) -> None:
        """End the wait of one call, whose caller is gone."""
        call.called_off = True
        self._tail.wake(call)
