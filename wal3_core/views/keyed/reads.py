"""What a read by key is about, its keys and offsets; the keys of a fragment; and what the readers of one log share.

Fragments and key roll-ups never change, and no two have the same path, so what one reader has read serves all.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import compress
from typing import ClassVar, Generic, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.arguments import SECONDS_MAX, integer, make_plain, record_bytes, wrong
from wal3_core.format.key_rollup import KeyRollup
from wal3_core.format.manifest import Manifest
from wal3_core.format.parquet import Arrangement
from wal3_core.format.paths import LogId
from wal3_core.format.strict_json import U64_MAX
from wal3_core.log.read.scan import check_start
from wal3_core.options import MIB, Options, ReaderOptions, WriterOptions, within
from wal3_core.runtime import Cache, Runtime
from wal3_core.runtime.loggers import READER

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


B = TypeVar("B", int, bytes)


@dataclass(frozen=True, slots=True)
class _Bound(Generic[B]):
    value: B

    def __post_init__(self) -> None:
        make_plain(self, value=_offset_or_key)


class Included(_Bound[B]):
    """A bound that belongs to its range, an offset or a key; so does a start that is given alone."""

    __slots__ = ()


class Excluded(_Bound[B]):
    """A bound that does not belong to its range, an offset or a key; nor does a limit that is given alone."""

    __slots__ = ()


OffsetBound = int | Included[int] | Excluded[int]
KeyBound = bytes | Included[bytes] | Excluded[bytes]


@dataclass(frozen=True, slots=True)
class KeyMatch:
    """The keys that a read is about: those from ``start`` to below ``limit``, without a limit all that follow."""

    start: bytes
    limit: bytes | None

    @classmethod
    def of(cls, key: bytes) -> Self:
        """Return what fits one key, and never one that only resembles it."""
        return cls(key, _next_key(key))

    @classmethod
    def of_prefix(cls, prefix: bytes) -> Self:
        """Return what fits all keys that begin with a prefix."""
        raised = prefix.rstrip(b"\xff")
        return cls(prefix, raised[:-1] + bytes([raised[-1] + 1]) if raised else None)

    @classmethod
    def between(cls, start: KeyBound | None, limit: KeyBound | None) -> Self:
        """Return what fits the keys between two bounds."""
        low = b"" if start is None else record_bytes(_value(start), "start_key")
        high = None if limit is None else record_bytes(_value(limit), "limit_key")
        return cls(
            _next_key(low) if isinstance(start, Excluded) else low,
            _next_key(high) if isinstance(limit, Included) and high is not None else high,
        )

    @property
    def key(self) -> bytes | None:
        """The key, if there is only one."""
        return self.start if self.limit == _next_key(self.start) else None

    def fits(self, key: bytes | None) -> bool:
        """Whether a record with this key is meant; one without a key never is."""
        return key is not None and self.start <= key and (self.limit is None or key < self.limit)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from ``start`` to below ``limit``, without a limit to the log's end.

    They are cut to what the log holds. One that is ``held`` is refused if the log does not hold its start.
    """

    start: int = 0
    limit: int | None = None
    held: bool = False

    @classmethod
    def between(cls, start: OffsetBound | None, limit: OffsetBound | None) -> Self:
        """Return the range between two bounds; InvalidRequestError for one that no offset can be."""
        low = 0 if start is None else _offset(_value(start), "start")
        high = None if limit is None else _offset(_value(limit), "limit")
        if high is not None:
            high += isinstance(limit, Included)
        return cls(low + isinstance(start, Excluded), high)

    def within(self, manifest: Manifest) -> tuple[int, int]:
        """Return what a log holds of it; of a range beside the log an empty one, which begins where it does."""
        first, end = manifest.first.position.offset, manifest.next.position.offset
        if self.held:
            check_start(manifest, self.start)
        begin = max(first, self.start)
        return begin, max(begin, end if self.limit is None else min(self.limit, end))


def _offset_or_key(value: object, name: str) -> object:
    return record_bytes(value, name) if isinstance(value, bytes | bytearray | memoryview) else integer(value, name)


def _value(bound: object) -> object:
    return bound.value if isinstance(bound, _Bound) else bound


def _offset(value: object, name: str) -> int:
    plain = integer(value, name)
    if not 0 <= plain <= U64_MAX:
        raise wrong(name, f"an offset from 0 to {U64_MAX}", value)
    return plain


def _next_key(key: bytes) -> bytes:
    return key + b"\0"


Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]

_OBJECT_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The distinct keys of a fragment, rising, and for each the offsets of its records, rising.

    Key number n has the offsets from ``starts[n]`` to ``starts[n + 1]``. ``strays`` has those of records without a key.
    """

    keys: pa.LargeBinaryArray
    starts: Places
    offsets: Offsets
    strays: Offsets

    EMPTY: ClassVar[KeyIndex]

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Index a table with the columns offset and key. Takes some tenths of a microsecond a record."""
        encoded = table["key"].cast(pa.large_binary()).combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(codes >= 0)
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        places = ranks[codes[rows]]
        starts = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(np.bincount(places, minlength=len(order)), out=starts[1:])
        every = np.asarray(table["offset"].to_numpy(), dtype=np.uint64)
        offsets = every[rows][np.argsort(places, kind="stable")]
        return cls(encoded.dictionary.take(pa.array(order)), starts, offsets, every[codes < 0])

    @property
    def num_bytes(self) -> int:
        """How much memory it takes, about."""
        return int(self.keys.nbytes + self.starts.nbytes + self.offsets.nbytes + self.strays.nbytes) + _OBJECT_BYTES

    def has(self, match: KeyMatch) -> bool:
        """Whether the fragment has a record of these keys."""
        low, high = self._span(match)
        return low < high

    def offsets_of(self, match: KeyMatch, start: int, limit: int) -> Offsets:
        """Return the offsets in [start, limit) of the records of these keys, rising."""
        low, high = self._span(match)
        found = self.offsets[self.starts[low] : self.starts[high]]
        if high - low > 1:
            found = np.sort(found)
        return found[_place(found, start) : _place(found, limit)]

    def count(self, match: KeyMatch, start: int, limit: int) -> int:
        """Count the records of these keys in [start, limit)."""
        return len(self.offsets_of(match, start, limit))

    def last(self, match: KeyMatch) -> int | None:
        """Return the offset of the last record of these keys, None when there is none."""
        low, high = self._span(match)
        found = self.offsets[self.starts[low] : self.starts[high]]
        return int(found.max()) if len(found) else None

    def keys_of(self, match: KeyMatch, start: int, limit: int) -> list[bytes]:
        """Return those of these keys that have a record in [start, limit), rising."""
        return [key for key, _ in self._held(match, start, limit)]

    def groups_of(self, match: KeyMatch, start: int, limit: int) -> list[tuple[bytes, Offsets]]:
        """Return those of these keys that have a record in [start, limit), rising, and the offsets of the records."""
        numbered = self._held(match, start, limit)
        groups = (self.offsets[self.starts[number] : self.starts[number + 1]] for _, number in numbered)
        return [
            (key, group[_place(group, start) : _place(group, limit)])
            for (key, _), group in zip(numbered, groups, strict=True)
        ]

    def _held(self, match: KeyMatch, start: int, limit: int) -> list[tuple[bytes, int]]:
        low, high = self._span(match)
        first, last = self.starts[low], self.starts[high]
        offsets = self.offsets[first:last]
        inside = (offsets >= np.uint64(max(start, 0))) & (offsets < np.uint64(max(limit, 0)))
        if high == low:
            return []
        # Each key has a record, so that no group is empty.
        held = np.logical_or.reduceat(inside, self.starts[low:high] - first).tolist()
        keys = self.keys.slice(low, high - low).to_pylist()
        return list(compress(zip(keys, range(low, high), strict=True), held))

    def _span(self, match: KeyMatch) -> tuple[int, int]:
        """Return the range of the numbers of these keys."""
        numbers = range(len(self.keys))
        low = bisect_left(numbers, match.start, key=lambda number: self.keys[number].as_py())
        if match.key is not None:
            return low, low + (low < len(self.keys) and self.keys[low].as_py() == match.key)
        if match.limit is None:
            return low, len(self.keys)
        return low, bisect_left(numbers, match.limit, lo=low, key=lambda number: self.keys[number].as_py())


_NONE: Offsets = np.zeros(0, dtype=np.uint64)
KeyIndex.EMPTY = KeyIndex(pa.array([], pa.large_binary()), np.zeros(1, dtype=np.int64), _NONE, _NONE)


def _place(offsets: Offsets, offset: int) -> int:
    return int(np.searchsorted(offsets, np.uint64(max(offset, 0))))


_ROLLUPS_BYTES_MAX = 2**24
_VERIFIED_MAX = 2**16
_STRAYS_MAX = 2**16
# Strays that are named, of those found at once.
_SHOWN_MAX = 10


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
        self.keys: Cache[KeyIndex | Arrangement] = Cache(runtime, options.keys_cached_bytes_max, lambda x: x.num_bytes)
        self.rows: Cache[pa.Table] = Cache(runtime, options.bodies_cached_bytes_max, lambda table: int(table.nbytes))
        # One of no fragments stands for one that is missing.
        self.rollups: Cache[KeyRollup] = Cache(runtime, _ROLLUPS_BYTES_MAX, lambda rollup: 64 + 9 * rollup.num_hashes)
        # The fragments whose setsum was checked.
        self.verified: Cache[bool] = Cache(runtime, _VERIFIED_MAX, lambda _: 1)
        self.strays = Strays(runtime)
        # Only what is being loaded: what is held is ``newest``.
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
