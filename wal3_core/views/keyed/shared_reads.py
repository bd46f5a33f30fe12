"""What the readers of one log in a process share: what was read of it, and what is being read of it.

Fragments and key roll-ups never change, and no two have the same path, so what one reader has read serves all.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from wal3_core.arguments import SECONDS_MAX
from wal3_core.options import MIB, Options, ReaderOptions, WriterOptions, within
from wal3_core.runtime import Outcome
from wal3_core.runtime.loggers import READER

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from wal3_core.model.key_rollup import KeyRollup
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.parquet import Arrangement
    from wal3_core.model.paths import LogId
    from wal3_core.runtime import Runtime
    from wal3_core.views.keyed.key_index import KeyIndex, Offsets
    from wal3_core.workers import Share

_BYTES_MAX = 2**63 - 1
_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedOptions(Options):
    """Limits of a keyed log.

    The keys of fragments take at most ``keys_cached_bytes_max`` bytes of memory, and the fragments that were read whole
    at most ``bodies_cached_bytes_max``; all that a process has open of one log share these. A conditional append is
    tried ``tries_max`` times while others append records of other keys. One that is not awaited blocks for
    ``append_timeout_s`` seconds at most, unless the call says otherwise. ``writer`` and ``reader`` are the log's.
    """

    keys_cached_bytes_max: int = field(default=64 * MIB, metadata=within(0, _BYTES_MAX))
    bodies_cached_bytes_max: int = field(default=64 * MIB, metadata=within(0, _BYTES_MAX))
    tries_max: int = field(default=64, metadata=within(1, _COUNT_MAX))
    append_timeout_s: float = field(default=60.0, metadata=within(0, SECONDS_MAX))
    writer: WriterOptions = field(default_factory=WriterOptions)
    reader: ReaderOptions = field(default_factory=ReaderOptions)


A = TypeVar("A")
V = TypeVar("V")

_ROLLUPS_BYTES_MAX = 2**24
_VERIFIED_MAX = 2**16
_STRAYS_MAX = 2**16
# Of strays that are found at once.
_SHOWN_MAX = 10


class Cache(Generic[V]):
    """Values by key, those used last; they take at most ``bytes_max`` bytes. What is being loaded is loaded once."""

    def __init__(self, runtime: Runtime, bytes_max: int, size_of: Callable[[V], int]) -> None:
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._lock = runtime.lock()
        self._held: OrderedDict[Hashable, V] = OrderedDict()
        self._loading: dict[Hashable, Future[V]] = {}
        self._num_bytes = 0

    def get(self, key: Hashable) -> V | None:
        """Return a value that is held."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def keep(self, key: Hashable, value: V) -> None:
        """Hold a value, and drop those that were not used for longest."""
        with self._lock:
            before = self._held.pop(key, None)
            self._num_bytes += self._size_of(value) - (0 if before is None else self._size_of(before))
            self._held[key] = value
            while self._num_bytes > self._bytes_max:
                _, dropped = self._held.popitem(last=False)
                self._num_bytes -= self._size_of(dropped)

    def begin(self, key: Hashable, load: Callable[[], V], share: Share) -> Callable[[], V]:
        """Begin to load a value on the shared workers, unless it is held or being loaded; return how to wait for it.

        A load that another reader began and that failed is repeated: it may have failed for that reader alone.
        """
        self._runtime.check_process()
        future: Outcome[V] = Outcome()
        try:
            with self._lock:
                held = self._held.get(key)
                if held is not None:
                    self._held.move_to_end(key)
                    return partial(_itself, held)
                loading = self._loading.setdefault(key, future)
            if loading is not future:
                return partial(self._joined, loading, load)
            self._runtime.spawn(partial(self._load, key, load, future), share=share)
        except BaseException:
            # Interrupted before it began: others would wait for it for ever.
            self._forget(key, future)
            raise
        return partial(self._runtime.wait, future)

    def _joined(self, loading: Future[V], load: Callable[[], V]) -> V:
        try:
            return self._runtime.wait(loading)
        except Exception:  # noqa: BLE001 - it is raised again below if it concerns this reader
            return load()

    def _load(self, key: Hashable, load: Callable[[], V], future: Outcome[V]) -> None:
        try:
            value = load()
            self.keep(key, value)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            self._forget(key, future)
            future.set_exception(error)
        else:
            self._forget(key, future)
            future.set_result(value)

    def _forget(self, key: Hashable, future: Outcome[V]) -> None:
        with self._lock:
            if self._loading.get(key) is future:
                del self._loading[key]


class Strays:
    """The records of a log without a key, which are no key's: ``count`` of them were passed and reported, each once.

    One that is read again when ``_STRAYS_MAX`` others lie behind it may count twice.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._known: Offsets = np.zeros(0, dtype=np.uint64)
        self.count = 0

    def add(self, url: str, offsets: Offsets) -> None:
        """Count and report those that were not known."""
        with self._lock:
            new = np.setdiff1d(offsets, self._known)
            self._known = np.union1d(self._known, new)[-_STRAYS_MAX:]
            self.count += len(new)
        if len(new):
            shown = ", ".join(map(str, new[:_SHOWN_MAX].tolist())) + (", …" if len(new) > _SHOWN_MAX else "")
            READER.warning(
                "log %s: passed %d records without a key, which belong to no key of a keyed log, at offsets %s",
                url,
                len(new),
                shown,
            )


class SharedReads:
    """What was read of one life of a log: keys and rows of fragments, key roll-ups, the newest manifest."""

    def __init__(self, runtime: Runtime, options: KeyedOptions) -> None:
        # The registry tells runtimes apart by their identity, so this one must live as long.
        self.runtime = runtime
        # By path. Of a fragment that is arranged by key how it is, and by path and row groups what was read of these.
        self.keys: Cache[KeyIndex | Arrangement] = Cache(runtime, options.keys_cached_bytes_max, _bytes_of_keys)
        self.rows: Cache[pa.Table] = Cache(runtime, options.bodies_cached_bytes_max, _bytes_of_rows)
        # One of no fragments stands for one that is missing.
        self.rollups: Cache[KeyRollup] = Cache(runtime, _ROLLUPS_BYTES_MAX, _bytes_of_rollup)
        # The fragments whose setsum was checked.
        self.verified: Cache[bool] = Cache(runtime, _VERIFIED_MAX, lambda _: 1)
        self.strays = Strays(runtime)
        # What is being loaded alone: what is held is ``newest``.
        self.manifests: Cache[Manifest] = Cache(runtime, 0, lambda _: 1)
        # The manifest that was loaded last, the version of the log's topic before that, and when the load began.
        self.newest: tuple[Manifest, int, float] | None = None


_known: WeakValueDictionary[tuple[int, str, LogId, bool], SharedReads] = WeakValueDictionary()


def shared_reads(runtime: Runtime, url: str, log_id: LogId, options: KeyedOptions) -> SharedReads:
    """Return what all readers of one life of the log at ``url`` share, while one of them lives.

    Those that verify what they read share nothing with those that do not. The limits are those of the reader that was
    opened first.
    """
    # Two threads may each make one at the same time: then they share less, and that is all.
    return _known.setdefault((id(runtime), url, log_id, options.reader.verify), SharedReads(runtime, options))


def each_ahead(
    items: Iterable[A],
    begin: Callable[[A], Callable[[], V]],
    count: Callable[[], int],
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[A, V]]:
    """Yield each item with what ``begin`` loads for it, ``count`` items ahead of the caller, as it says each time.

    While the next item is not ``ready`` (asking for it would block), results are yielded first.
    """
    waiting: deque[tuple[A, Callable[[], V]]] = deque()
    for item in items:
        waiting.append((item, begin(item)))
        while waiting and (len(waiting) > count() or not ready()):
            first, wait = waiting.popleft()
            yield first, wait()
    for first, wait in waiting:
        yield first, wait()


def _itself(value: V) -> V:
    return value


def _bytes_of_keys(keys: KeyIndex | Arrangement) -> int:
    return keys.num_bytes


def _bytes_of_rows(table: pa.Table) -> int:
    return int(table.nbytes)


def _bytes_of_rollup(rollup: KeyRollup) -> int:
    return 64 + 9 * rollup.num_hashes
