"""What the followers of one log in a process share: its newest manifest, fragments and records.

Of a hundred followers, one looks for a new manifest; the look fetches and decodes what is new, for all of them, and
then wakes them. A follower that lags behind the shared fragments fetches for itself.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakValueDictionary

from wal3_core.errors import ClosedError, LogError, LogReplacedError, UnavailableError
from wal3_core.log.read.following import Following, Source, Waiting
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.log.read.reader import LogReader
from wal3_core.model import parquet
from wal3_core.model.fragment import FragmentPointer
from wal3_core.runtime import Outcome, later, map_ahead
from wal3_core.storage.object_store import share_of
from wal3_core.storage.retrying import longer_s
from wal3_core.views.feed.messages import topic_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from wal3_core.log.read.scan import BegunAtTime
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.parquet import Fragment
    from wal3_core.model.position import ReadStart
    from wal3_core.model.record import Record
    from wal3_core.model.snapshot import Pointer
    from wal3_core.options import ReaderOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore

# How long a watcher watches at a time, and how long others sleep, in seconds. One that was interrupted in the wrong
# moment has called no other to watch: those that sleep find it.
WATCH_S_MAX = 1.0
_SLEEP_S_MAX = 4.0


class Follower(Protocol):
    """One that waits, with any number of threads."""

    @property
    def closed(self) -> bool:
        """Whether none of them is to wait any longer."""
        ...


class Call:
    """One call of a follower that waits: it may be ``roused``, to look at what has changed, or ``called_off``."""

    def __init__(self) -> None:
        self.roused = self.called_off = False

    @property
    def closed(self) -> bool:
        """Whether it is to wait no longer."""
        return self.roused or self.called_off


class Vigil:
    """The followers that wait for news of one log: news wakes each of them once; for all else one is awake.

    ``news`` grows with each look that has found something, or failed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self.news = 0
        self._watcher: Outcome[None] | None = None
        # Whose thread that is.
        self._watching: Follower | None = None
        self._watched_s = 0.0
        # In the order in which they came.
        self._sleepers: dict[Outcome[None], Follower] = {}

    def wait(self, seen: int, limit_s: float | None, watch: Callable[[], None], follower: Follower) -> None:
        """Wait until there is more news than ``seen``, it is ``limit_s`` (monotonic clock), or the follower is closed.

        ``watch`` is called by one of those that wait, again and again; an error of it ends that one's wait.
        """
        own: Outcome[None] = Outcome()
        try:
            while not follower.closed and self._is_on(seen, limit_s):
                if self._watches(own, seen, follower):
                    self._watched_s = self._runtime.monotonic_s()
                    watch()
                else:
                    self._sleep(own, limit_s)
        finally:
            self._leave(own)

    def tell(self) -> None:
        """Wake all: there is news."""
        with self._lock:
            self.news += 1
            woken, self._sleepers = self._sleepers, {}
        for sleeper in woken:
            sleeper.set_or_rouse()

    def rouse(self) -> bool:
        """Wake the sleeping threads of followers that have closed, to see that; True if one of them watches."""
        with self._lock:
            woken = [own for own, each in self._sleepers.items() if each.closed]
            watches = self._watcher is not None and self._watching is not None and self._watching.closed
        for sleeper in woken:
            sleeper.set_or_rouse()
        return watches

    def _is_on(self, seen: int, limit_s: float | None) -> bool:
        return self.news == seen and (limit_s is None or self._runtime.monotonic_s() < limit_s)

    def _watches(self, own: Outcome[None], seen: int, follower: Follower) -> bool:
        """Return whether this one is to watch; else it may sleep."""
        now_s = self._runtime.monotonic_s()
        with self._lock:
            if self._watcher is None or now_s > self._watched_s + _SLEEP_S_MAX:
                self._watcher, self._watching, self._watched_s = own, follower, now_s
            if self._watcher is own:
                self._sleepers.pop(own, None)
                return True
            if self.news == seen and not follower.closed:
                self._sleepers[own] = follower
        return False

    def _sleep(self, own: Outcome[None], limit_s: float | None) -> None:
        left_s = _SLEEP_S_MAX if limit_s is None else min(_SLEEP_S_MAX, limit_s - self._runtime.monotonic_s())
        with contextlib.suppress(TimeoutError):
            self._runtime.wait(own, left_s)

    def _leave(self, own: Outcome[None]) -> None:
        called = None
        with self._lock:
            self._sleepers.pop(own, None)
            if self._watcher is own:
                called, self._watching = next(iter(self._sleepers.items()), (None, None))
                self._watcher = called
                self._watched_s = self._runtime.monotonic_s()
        if called is not None:
            called.set_or_rouse()


# How much is kept decoded, and fetched by one look; what is more is fetched by each follower, a few fragments ahead.
RECORDS_MAX = 4096
BYTES_MAX = 2**22
FRAGMENTS_MAX = 16

_offset_of = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class _Piece:
    """One fragment's records, and their size in memory."""

    pointer: FragmentPointer
    records: Sequence[Record]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Recent:
    """The records of the last fragments of one manifest, from ``start`` to its end."""

    manifest: Manifest
    start: int
    pieces: tuple[_Piece, ...] = ()

    @classmethod
    def none_of(cls, manifest: Manifest) -> Recent:
        """Hold no records, and end where a manifest does."""
        return cls(manifest, manifest.next.position.offset)

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
        found = chain.from_iterable(_from(piece, start) for piece in self.pieces[at:])
        return found if end == self.end else (record for record in found if record.offset < end)

    def moved_to(self, manifest: Manifest, fetch: Callable[[FragmentPointer], Fragment]) -> Recent:
        """Take what a newer manifest adds, and let go of the oldest; errors of ``fetch``."""
        added = self._added(manifest)
        if added is None:
            return Recent.none_of(manifest)
        pieces = [] if self._is_replaced(manifest) else list(self.pieces)
        for pointer in added:
            table = fetch(pointer).table
            if table.nbytes > BYTES_MAX:
                return Recent.none_of(manifest)
            pieces.append(_Piece(pointer, tuple(parquet.records_of(table)), table.nbytes))
        kept = _bounded(pieces)
        return Recent(manifest, kept[0].pointer.start.offset if kept else self.end, kept)

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
        """Tell whether a manifest may hold other records here: some were dropped, or an older one was restored."""
        if not self.pieces:
            return True
        last = self.pieces[-1].pointer
        found = next((each for each in reversed(manifest.fragments) if each.start.offset <= last.start.offset), None)
        return (
            found != last
            or manifest.generation < self.manifest.generation
            or manifest.compaction.passes != self.manifest.compaction.passes
        )


def _from(piece: _Piece, start: int) -> Sequence[Record]:
    records = piece.records
    if piece.pointer.start.offset >= start:
        return records
    return records[bisect_left(records, start, key=_offset_of) :]


def _bounded(pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    """Return the newest pieces that are within the limits."""
    num_records = num_bytes = 0
    for at in range(len(pieces) - 1, -1, -1):
        num_records += len(pieces[at].records)
        num_bytes += pieces[at].num_bytes
        if num_records > RECORDS_MAX or num_bytes > BYTES_MAX:
            return tuple(pieces[at + 1 :])
    return tuple(pieces)


# How much of the log's newest part stays in memory for the followers, decoded, in bytes; at least one fragment.
SHARED_BYTES_MAX = 64 * 2**20
SHARED_FRAGMENTS_MAX = 64
# Options may set no pause between two looks: followers do not spin even then.
_PAUSE_S_MIN = 0.001


class TimeIsOverError(UnavailableError):
    """A caller's time is over before the store has answered; what was begun goes on. It is not raised to callers."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the manifest: when it began, and at which version of the log's topic; and what it found."""

    begun_s: float
    version: int
    found: Future[Manifest]

    @property
    def failed(self) -> bool:
        """Whether it has ended without a manifest."""
        return self.found.done() and self.found.exception() is not None


class Tail(LogReader):
    """A reader of one log that any number of followers use at once."""

    def __init__(self, store: ObjectStore, log: str, *, options: ReaderOptions, runtime: Runtime) -> None:
        super().__init__(store, log, options=options, runtime=runtime)
        # Part of the key under which tails are shared: kept, so that its id names no other store meanwhile.
        self._origin = store
        # The log's address: what its writers publish.
        self.url = self._manifests.url
        self._lock = runtime.lock()
        self._seen: _Look | None = None
        self._newest: Manifest | None = None
        # When that was known, by the monotonic clock.
        self._newest_s = 0.0
        self._pause_s = options.poll_s_min
        self._recent: Recent | None = None
        self._vigil = Vigil(runtime)
        # The writer of the manifest that the last look has found, which names one write of it. A generation does not:
        # it comes again after an older manifest was restored.
        self._announced: str | None = None
        self._fragments_shared: OrderedDict[str, tuple[int, Outcome[Fragment]]] = OrderedDict()
        self._num_bytes = 0

    @property
    def news(self) -> int:
        """How often a look has found something, or failed: for ``pause``."""
        return self._vigil.news

    # ------------------------------------------------------------------ the manifest

    def newest(self, since_s: float, limit_s: float | None = None) -> Manifest:
        """Return a manifest that shows what this process has committed, and all that was there at ``since_s``.

        A look that another follower began in time serves this one, too. TimeIsOverError when it is ``limit_s``, by the
        monotonic clock; the look goes on.
        """
        look, own = self._looked(since_s)
        try:
            return self._latest(self._found(look, limit_s), look.begun_s)
        except TimeIsOverError:
            raise
        except LogError:
            if own:
                raise
        # Another follower's failure: this one's own try may succeed.
        look, _ = self._looked(self._runtime.monotonic_s())
        return self._latest(self._found(look, limit_s), look.begun_s)

    def onwards(self, offset: int | None, since_s: float, limit_s: float | None) -> tuple[Manifest, int]:
        """Return a manifest for going on from an offset, as ``newest``, and the ``news`` behind it, for ``pause``.

        One that is at hand will do while it has more records, unless a newer one is asked for.
        """
        found = self._recent
        if found is not None and since_s == 0 and offset is not None and offset < found.end:
            # There may be news behind it.
            return found.manifest, -1
        seen = self.news
        return self.newest(since_s, limit_s), seen

    def _looked(self, since_s: float) -> tuple[_Look, bool]:
        """Return a look that is new enough, and whether it was begun here."""
        version, own = self._runtime.await_topic(self.url, -1, 0.0), False
        with self._lock:
            look = self._seen
            if look is None or look.failed or look.version < version or look.begun_s < since_s:
                look, own = self._begin(version), True
                self._seen = look
        return look, own

    def _found(self, look: _Look, limit_s: float | None) -> Manifest:
        left_s = None if limit_s is None else max(0.0, limit_s - self._runtime.monotonic_s())
        try:
            return self._runtime.wait(look.found, left_s)
        except TimeoutError:
            message = f"log {self.url}: expected a manifest in time, found none yet"
            raise TimeIsOverError(message) from None

    def _begin(self, version: int) -> _Look:
        """Begin a look on a worker: an interrupt of the follower that asked for it leaves no other one waiting."""
        begun_s = self._runtime.monotonic_s()
        found = later(self._runtime, partial(self._look, begun_s, version), share_of(self._store))
        found.add_done_callback(self._tell)
        return _Look(begun_s, version, found)

    def _look(self, begun_s: float, version: int) -> Manifest:
        before, recent = self._newest, self._recent
        manifest = self.manifest()
        if recent is None or (self._is_newer(manifest, begun_s) and manifest.writer != recent.manifest.writer):
            moved = self._moved(recent, manifest)
            with self._lock:
                # A look that was begun later may have been faster.
                if self._recent is recent:
                    self._recent = moved
        manifest = self._latest(manifest, begun_s)
        news = before is None or manifest.writer != before.writer
        options = self._options
        self._pause_s = options.poll_s_min if news else longer_s(self._pause_s, options.poll_s_max)
        if news and before is not None and self._runtime.await_topic(self.url, -1, 0.0) == version:
            # It came from another process: its commits wake none of the others.
            self._runtime.publish(self.url)
        return manifest

    def _moved(self, recent: Recent | None, manifest: Manifest) -> Recent:
        """Fetch and decode what is new, once for all followers; on an error each of them comes to it."""
        with contextlib.suppress(LogError):
            if recent is not None:
                return recent.moved_to(manifest, self.fetch)
        return Recent.none_of(manifest)

    def _tell(self, found: Future[Manifest]) -> None:
        """Wake those that wait, if a look has failed or found another manifest."""
        writer = None if found.exception() is not None else found.result().writer
        with self._lock:
            news, self._announced = writer is None or writer != self._announced, writer
        if news:
            self._vigil.tell()

    def _is_newer(self, manifest: Manifest, begun_s: float) -> bool:
        """Tell whether a manifest takes the place of the one known: a look that took longer may find an older one.

        One that is older though the look began later was restored: followers are to see that, not to wait for ever.
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
        """Return when the next look is due, by the monotonic clock: pauses grow while nothing is appended."""
        with self._lock:
            return 0.0 if self._seen is None or self._seen.failed else self._seen.begun_s + self._pause_s

    def since_s(self, *, at_once: bool) -> float:
        """Return how new a manifest has to be for a call that begins now: for ``newest``."""
        look, now_s = self._seen, self._runtime.monotonic_s()
        # No second look while the store does not answer the first.
        is_due = now_s >= self._due_s() and not (look is not None and not look.found.done())
        return now_s if at_once or is_due else 0.0

    def pause(self, seen: int, limit_s: float | None, follower: Follower) -> bool:
        """Wait until there is more ``news`` than was seen; False if it is ``limit_s``. The error of a look that failed.

        Of those that wait one looks, when this process has committed or it is time to. One that closes waits no longer.
        """
        if limit_s is not None and self._runtime.monotonic_s() >= limit_s:
            return False
        self._vigil.wait(seen, limit_s, partial(self._watch, limit_s), follower)
        look = self._seen
        if self.news != seen and look is not None and look.failed:
            self._runtime.wait(look.found)
        return True

    def rouse(self) -> None:
        """Wake the threads of followers that are to wait no longer."""
        if self._vigil.rouse():
            # It wakes by what wakes all who watch this log.
            self._runtime.publish(self.url)

    def _watch(self, limit_s: float | None) -> None:
        """Wait until it is time to look, but not for long; then look, and do not wait for long for that either."""
        look, due_s, now_s = self._seen, self._due_s(), self._runtime.monotonic_s()
        until_s = now_s + WATCH_S_MAX if limit_s is None else max(now_s, min(limit_s, now_s + WATCH_S_MAX))
        pause_s = min(max(_PAUSE_S_MIN, due_s - now_s), until_s - now_s)
        version = -1 if look is None else look.version
        if self._runtime.await_topic(self.url, version, pause_s) > version or self._runtime.monotonic_s() >= due_s:
            with contextlib.suppress(TimeIsOverError):
                self.newest(self.since_s(at_once=False), until_s)

    # ------------------------------------------------------------------ fragments

    def fetch(self, pointer: FragmentPointer) -> Fragment:
        """Read one fragment's records: one GET for all followers that come to it while it is among the newest."""
        with self._lock:
            shared = self._fragments_shared.get(pointer.path)
            if shared is None:
                found: Outcome[Fragment] = Outcome()
                self._share(pointer.path, pointer.num_bytes, found)
        if shared is None:
            return self._fetch_for_all(pointer, found)
        try:
            fragment = self._runtime.wait(shared[1])
        except LogError:
            return super().fetch(pointer)
        # Another pointer may name the same file, for another range.
        return fragment if fragment.pointer == pointer else super().fetch(pointer)

    def _fetch_for_all(self, pointer: FragmentPointer, found: Outcome[Fragment]) -> Fragment:
        try:
            fragment = super().fetch(pointer)
        except BaseException as error:
            with self._lock:
                self._drop(pointer.path)
            found.set_exception(error if isinstance(error, LogError) else UnavailableError("a fetch was cut short"))
            raise
        with self._lock:
            if pointer.path in self._fragments_shared:
                # Until now its size was that of its file, which may be far smaller.
                self._share(pointer.path, max(pointer.num_bytes, fragment.table.nbytes), found)
        found.set_result(fragment)
        return fragment

    def _share(self, path: str, num_bytes: int, found: Outcome[Fragment]) -> None:
        self._drop(path)
        self._fragments_shared[path] = num_bytes, found
        self._num_bytes += num_bytes
        while len(self._fragments_shared) > 1 and (
            self._num_bytes > SHARED_BYTES_MAX or len(self._fragments_shared) > SHARED_FRAGMENTS_MAX
        ):
            self._drop(next(iter(self._fragments_shared)))

    def _drop(self, path: str) -> None:
        dropped = self._fragments_shared.pop(path, None)
        self._num_bytes -= 0 if dropped is None else dropped[0]

    # ------------------------------------------------------------------ topics

    def newest_first(self, manifest: Manifest) -> Iterator[FragmentPointer]:
        """Go through a manifest's fragments from the newest to the oldest."""
        waiting: list[Pointer] = list(manifest.pointers)
        while waiting:
            pointer = waiting.pop()
            if isinstance(pointer, FragmentPointer):
                yield pointer
            else:
                waiting.extend(self.load_snapshot(pointer).pointers)

    def topics(self, pointers: Iterable[FragmentPointer]) -> Iterator[list[tuple[int, str | None]]]:
        """Read the offsets of each fragment with their topics, None for a record that has none; no messages.

        MissingError when an object is gone: collected, replaced, or lost.
        """
        columns = KeyColumns(self._store, self._options)
        count = max(1, self._options.prefetch_fragments)
        for table in map_ahead(self._runtime, columns.read, pointers, count=count, share=columns.share):
            parts = (table[name].to_pylist() for name in ("offset", "key", "tombstone"))
            yield [(offset, None if gone else topic_of(key)) for offset, key, gone in zip(*parts, strict=True)]

    # ------------------------------------------------------------------ followers

    def followed(self, start: int | BegunAtTime, manifest: Callable[[], Manifest]) -> Following:
        """Return a pass over the log from a start; ``manifest`` says how it looks for a newer one."""
        log = share_of(self._store).log.rstrip("/")
        waiting = Waiting(self._runtime, self._options, idle_s=None)
        source = Source(manifest, self._read_on, self._snapshots.load)
        return Following(source, self._runtime, waiting, topic=self.url, log=log, start=start)

    def _read_on(self, start: ReadStart, manifest: Manifest) -> Iterator[Record]:
        """Go through a manifest's records: those that all followers share, or else by requests of this one."""
        recent = self._recent
        found = recent.records(start, manifest) if recent is not None and isinstance(start, int) else None
        return self._followed(start, manifest) if found is None else found


# By store, log, options and runtime; a tail lives as long as its followers.
_TAILS: WeakValueDictionary[tuple[object, ...], Tail] = WeakValueDictionary()


def tail_of(store: ObjectStore, log: str, options: ReaderOptions, runtime: Runtime) -> Tail:
    """Return the tail that the followers of a log in this process share; one GET, LogNotFoundError."""
    key = (id(store), log, options, id(runtime))
    tail = _TAILS.get(key)
    if tail is not None:
        with contextlib.suppress(LogReplacedError):
            tail.newest(runtime.monotonic_s())
            return tail
    # Two that come at the same time may each make one: they share less, and that is all.
    tail = Tail(store, log, options=options, runtime=runtime)
    tail.newest(runtime.monotonic_s())
    _TAILS[key] = tail
    return tail


T = TypeVar("T")

# How long a thread waits for a look at a time, in seconds.
_LOOK_S_MAX = 0.25


class Looking:
    """What one follower has seen of its log, and how new it wants to see it.

    ``limit_s``, by the monotonic clock, is how long it waits for a look: then TimeIsOverError.
    """

    def __init__(self, tail: Tail, runtime: Runtime) -> None:
        self._tail = tail
        self._runtime = runtime
        self._since_s = 0.0
        self.limit_s: float | None = None
        self.closed = False
        # The tail's news when this one has last looked.
        self._seen = -1
        self._calls: set[Call] = set()

    def called(self, call: Call, work: Callable[[Call], T]) -> T:
        """Do the work of a call that may wait."""
        self._calls.add(call)
        try:
            return work(call)
        finally:
            self._calls.discard(call)

    def begin(self, limit_s: float | None, call: Call, *, at_once: bool) -> None:
        """Begin a round of a call: it looks ``at_once`` to the end, or leaves that to pauses, and ends at ``limit_s``.

        A look does not hold it for long: other threads of the follower may have less time, or it may be closed.
        """
        self._runtime.check_process()
        # Before what has changed is looked at.
        call.roused = False
        if self.closed:
            raise ClosedError(f"feed {self._tail.url}: expected a follower that is open, found it closed")
        self._since_s = self._tail.since_s(at_once=at_once)
        slice_s = self._runtime.monotonic_s() + _LOOK_S_MAX
        self.limit_s = None if at_once else min(slice_s, slice_s if limit_s is None else limit_s)

    def manifest(self, offset: int | None) -> Manifest:
        """Return a manifest for going on from an offset."""
        # As of now, in case that the look fails.
        self._seen = self._tail.news
        manifest, self._seen = self._tail.onwards(offset, self._since_s, self.limit_s)
        return manifest

    def is_over(self, limit_s: float | None) -> bool:
        """Tell whether it is ``limit_s``, by the monotonic clock."""
        return limit_s is not None and self._runtime.monotonic_s() >= limit_s

    def pause(self, limit_s: float | None, call: Call) -> bool:
        """Wait until a look finds more than this one has seen, or the call is roused; False if it is ``limit_s``."""
        return self._tail.pause(self._seen, limit_s, call)

    def rouse(self) -> None:
        """Let all calls of this follower look at what has changed."""
        for call in tuple(self._calls):
            call.roused = True
        self._tail.rouse()

    def call_off(self, call: Call) -> None:
        """End the wait of one call, whose caller is gone."""
        call.called_off = True
        self._tail.rouse()

    def close(self) -> None:
        """End all waits of this follower, now and later: ``begin`` raises ClosedError."""
        self.closed = True
        self.rouse()
