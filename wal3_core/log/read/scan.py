"""Which fragments hold a range of the log, and which of their records; the lazy walk along its tree.

Memory does not grow with the log: a ``Walk`` holds the rest of one node per level, and the snapshots that it loads a
few ahead of the caller. Requests of one level follow those of the level above, so the first fragment's pointer
takes as many round trips as the tree is deep. While maintenance replaces objects, ``Reloading`` looks up
what is missing in a newer manifest. Keeps INV-10 of docs/protocol.md. Source: docs/protocol.md, "Read".
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from wal3_core.arguments import wrong
from wal3_core.errors import (
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    MissingError,
    UnavailableError,
)
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LogId
from wal3_core.format.position import AtTime, LogPosition, ReadStart
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer, count_fragments
from wal3_core.format.strict_json import U64_MAX
from wal3_core.options import UNLIMITED, Limits
from wal3_core.runtime import Runtime, later
from wal3_core.runtime.loggers import READER
from wal3_core.workers import COMMON, Share

if TYPE_CHECKING:
    import pyarrow as pa

    Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class BegunAtTime(AtTime):
    """A start at a time, once the read has begun: nothing at or after the offset ``floor`` may be missing."""

    floor: int


def begun(manifest: Manifest, start: ReadStart) -> ReadStart:
    """Fix where a read starts by the first manifest it sees: what is collected from there on is never skipped."""
    match start:
        case None:
            return manifest.first.position.offset
        case AtTime(timestamp_us) if not isinstance(start, BegunAtTime):
            wanted = (pointer.start.offset for pointer in manifest.pointers if not lies_before(pointer, start))
            return BegunAtTime(timestamp_us, next(wanted, manifest.next.position.offset))
        case AtTime() | LogPosition():
            return start
    return offset_of(start)


def floor_of(start: ReadStart) -> int | None:
    """Return the offset below which a read needs nothing; None if it has not begun and starts at no offset."""
    return start.floor if isinstance(start, BegunAtTime) else offset_of(start)


def check_start(manifest: Manifest, start: ReadStart) -> None:
    """Refuse a start that the log no longer holds, or does not hold yet."""
    offset = floor_of(start)
    first, following = manifest.first.position, manifest.next.position
    # Collected records are not newer than the log's first position.
    if offset is None or (isinstance(start, AtTime) and first.timestamp_us < start.timestamp_us):
        return
    if not 1 <= offset <= following.offset:
        raise InvalidRequestError(f"read: expected an offset from 1 to {following.offset}, found {offset}")
    if offset < first.offset:
        message = f"read: expected an offset the log still holds, from {first.offset}, found {offset}"
        raise GarbageCollectedError(message)


def offset_of(start: ReadStart) -> int | None:
    """Return the offset that a read starts at, None if it starts at a time or the log's first record."""
    match start:
        case LogPosition(offset, _):
            return offset
        case None | AtTime():
            return None
        case bool():
            raise wrong("start", "an offset, a position or a time", start)
    try:
        # Any type of integer, numpy's and Arrow's included.
        return operator.index(start)
    except TypeError:
        raise wrong("start", "an offset, a position or a time", start) from None


def within(limits: Limits, manifest: Manifest) -> Limits:
    """Return the limits, cut to the manifest's end: a manifest loaded later may end further on."""
    end = manifest.next.position.offset
    return replace(limits, offset=end if limits.offset is None else min(end, limits.offset))


def is_empty(start: ReadStart, limits: Limits) -> bool:
    """Tell whether a range holds nothing, whatever the log holds: a limit does not lie behind its start."""
    if isinstance(start, AtTime):
        return limits.timestamp_us is not None and limits.timestamp_us <= start.timestamp_us
    offset = offset_of(start)
    return offset is not None and limits.offset is not None and limits.offset <= offset


def select(
    pointers: Iterable[Pointer], start: ReadStart, limits: Limits, load: Callable[[SnapshotPointer], Snapshot]
) -> Iterator[FragmentPointer]:
    """Go through the fragments that overlap the range, loading no snapshot that does not."""
    for pointer in pointers:
        if lies_before(pointer, start):
            continue
        if lies_beyond(pointer, limits):
            return
        if isinstance(pointer, FragmentPointer):
            yield pointer
        else:
            yield from select(load(pointer).pointers, start, limits, load)


def lies_before(pointer: Pointer, start: ReadStart) -> bool:
    """Tell whether all that a pointer stands for lies before a read's start."""
    if isinstance(start, AtTime):
        return pointer.limit.timestamp_us < start.timestamp_us
    offset = offset_of(start)
    return offset is not None and pointer.limit.offset <= offset


def lies_beyond(pointer: Pointer, limits: Limits) -> bool:
    """Tell whether all that a pointer stands for lies at or after a limit of offset or time."""
    by_offset = limits.offset is not None and pointer.start.offset >= limits.offset
    return by_offset or (limits.timestamp_us is not None and pointer.start.timestamp_us >= limits.timestamp_us)


class Counted:
    """How many fragments, bytes and records a read has come to; a snapshot counts all that it holds."""

    __slots__ = ("_num_bytes", "_num_fragments", "_num_records", "_start")

    def __init__(self, start: ReadStart) -> None:
        self._start = start
        self._num_fragments = self._num_bytes = self._num_records = 0

    def add(self, pointer: Pointer) -> None:
        """Count what a pointer stands for."""
        self._num_fragments += 1 if isinstance(pointer, FragmentPointer) else count_fragments((pointer,))
        self._num_bytes += pointer.num_bytes
        # In the pointer that the read starts in, it is not known yet how many records count.
        self._num_records += pointer.num_records if _starts_before(self._start, pointer) else 0

    def reached(self, limits: Limits) -> bool:
        """Tell whether a limit of fragments, bytes or records is reached; one of 0 is before the first fragment."""
        return (
            _reached(self._num_fragments, limits.fragments)
            or _reached(self._num_bytes, limits.num_bytes)
            or _reached(self._num_records, limits.records)
        )


def _starts_before(start: ReadStart, pointer: Pointer) -> bool:
    if isinstance(start, AtTime):
        return start.timestamp_us <= pointer.start.timestamp_us
    offset = offset_of(start)
    return offset is None or offset <= pointer.start.offset


def _reached(amount: int, limit: int | None) -> bool:
    return limit is not None and amount >= limit


def first_rows(rows: Rows, count: int | None) -> Rows:
    """Return the first ``count`` rows; ``count`` may exceed what Arrow can represent."""
    return rows if count is None or count >= len(rows) else rows.slice(0, count)


def holds(table: pa.Table, start: ReadStart) -> bool:
    """Tell whether a fragment has records at or after a read's start."""
    return len(trim(table, start, UNLIMITED)) > 0


def trim(table: pa.Table, start: ReadStart, limits: Limits) -> pa.Table:
    """Cut a fragment's records down to the range."""
    if len(table) == 0:
        return table
    offsets, timestamps_us = table["offset"].to_numpy(), table["timestamp_us"].to_numpy()
    low, high = 0, len(table)
    offset = offset_of(start)
    if offset is not None:
        low = int(np.searchsorted(offsets, np.uint64(offset)))
    elif isinstance(start, AtTime):
        low = int(np.searchsorted(timestamps_us, np.uint64(start.timestamp_us)))
    if limits.offset is not None and limits.offset <= U64_MAX:
        high = min(high, int(np.searchsorted(offsets, np.uint64(limits.offset))))
    if limits.timestamp_us is not None and limits.timestamp_us <= U64_MAX:
        high = min(high, int(np.searchsorted(timestamps_us, np.uint64(limits.timestamp_us))))
    return table.slice(low, max(0, high - low))


@dataclass(frozen=True, slots=True)
class Loader:
    """How snapshots are loaded: ``ahead_max`` of a level ahead of the caller, on the shared workers."""

    runtime: Runtime
    load: Callable[[SnapshotPointer], Snapshot]
    ahead_max: int
    share: Share = COMMON


class Walk:
    """Yields the fragments that overlap a range, in order; the one that reaches a limit is the last.

    Nothing is loaded ahead of the first fragment; from then on one snapshot, then 3, up to
    ``ahead_max``, and none that lies beyond the limits. A damaged or missing snapshot is an error
    when its turn comes, after all that lies before it; with ``on_damage`` it is reported there, and
    the walk continues behind it. ``num_opened`` counts the snapshots that were opened.
    """

    def __init__(
        self,
        pointers: Iterable[Pointer],
        start: ReadStart,
        limits: Limits,
        *,
        loader: Loader,
        on_damage: Callable[[SnapshotPointer, CorruptError], None] | None = None,
    ) -> None:
        # The fragment around an empty range is none of it.
        self._left = deque(() if is_empty(start, limits) else pointers)
        self._start = start
        self._limits = limits
        self._loader = loader
        self._on_damage = on_damage
        self._given = Counted(start)
        self._window = 0
        # Loads that were begun and not used yet.
        self._loading: dict[str, Future[Snapshot]] = {}
        self.num_opened = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FragmentPointer:
        while (pointer := self._head()) is not None:
            if isinstance(pointer, FragmentPointer):
                self._left.popleft()
                self._given.add(pointer)
                if self._window == 0:
                    self._load_ahead()
                return pointer
            self._open(pointer)
        raise StopIteration

    @property
    def ready(self) -> bool:
        """Whether the next fragment can be given without waiting; False at the end, too."""
        while (pointer := self._head()) is not None:
            if isinstance(pointer, FragmentPointer):
                return True
            loading = self._loading.get(pointer.path)
            if loading is None or not loading.done() or loading.exception() is not None:
                return False
            self._open(pointer)
        return False

    def _head(self) -> Pointer | None:
        while self._left and lies_before(self._left[0], self._start):
            self._left.popleft()
        if not self._left or lies_beyond(self._left[0], self._limits) or self._given.reached(self._limits):
            return None
        return self._left[0]

    def _open(self, pointer: SnapshotPointer) -> None:
        """Replace a snapshot by the pointers it holds."""
        try:
            below = self._loaded(pointer).pointers
        except CorruptError as error:
            if self._on_damage is None:
                raise
            self._left.popleft()
            self._on_damage(pointer, error)
            return
        self._left.popleft()
        self._left.extendleft(reversed(below))
        self.num_opened += 1
        if self._window:
            self._load_ahead()

    def _loaded(self, pointer: SnapshotPointer) -> Snapshot:
        loading = self._loading.pop(pointer.path, None)
        if loading is not None:
            try:
                return self._loader.runtime.wait(loading)
            except LogError:
                # The failure may be an old one: load it again.
                pass
        return self._loader.load(pointer)

    def _load_ahead(self) -> None:
        """Begin to load the next snapshots that the range leads to, more of them each time."""
        self._window = min(self._loader.ahead_max, 2 * self._window + 1)
        passed, begun = copy(self._given), 0
        for pointer in self._left:
            if begun == self._window or lies_beyond(pointer, self._limits) or passed.reached(self._limits):
                return
            if lies_before(pointer, self._start):
                continue
            passed.add(pointer)
            if isinstance(pointer, FragmentPointer):
                continue
            begun += 1
            if pointer.path not in self._loading:
                self._loading[pointer.path] = later(
                    self._loader.runtime, partial(self._loader.load, pointer), self._loader.share
                )


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloading:
    """One way of reading a log, ``url``, of which at most ``reloads_max`` manifests are loaded for one object.

    ``load`` loads the newest manifest, ``walk`` goes along the tree of one.
    With ``exact``, a read that began by one manifest gives that one's records or raises: a record may have been dropped
    for a newer one of its key that lies beyond that manifest's end. A follower will come to the newer one.
    """

    load: Callable[[], Manifest]
    walk: Callable[[Manifest, ReadStart, Limits], Walk]
    url: str
    log_id: LogId
    reloads_max: int
    exact: bool

    def steps(
        self,
        manifest: Manifest,
        start: ReadStart,
        limits: Limits,
        steps: Callable[[Walk], Iterator[T]],
        pointer_of: Callable[[T], FragmentPointer],
    ) -> Iterator[tuple[T, ReadStart]]:
        """Take steps along the tree, each with its start; missing objects are looked up in a fresh manifest."""
        if manifest.log_id != self.log_id:
            message = f"log {self.url}: expected a manifest of log {self.log_id}, found one of {manifest.log_id}"
            raise InvalidRequestError(message)
        start, limits = begun(manifest, start), within(limits, manifest)
        began, missing, reloads = manifest, "", 0
        while reloads <= self.reloads_max:
            check_start(manifest, start)
            try:
                for step in steps(self.walk(manifest, start, limits)):
                    pointer = pointer_of(step)
                    if self.exact and may_lack(manifest, began):
                        check_whole(self.url, pointer)
                    yield step, start
                    start, reloads = pointer.limit.offset, 0
                    limits = limits.without(pointer.num_bytes)
            except MissingError as error:
                # Lost, if a manifest newer than the one that led here names it, too.
                if error.path == missing:
                    READER.error("log %s: lost: %s", self.url, error)
                    raise
                missing, manifest = error.path, self.load()
                reloads += 1
            else:
                return
        message = f"log {self.url}: maintenance replaced what was to be read {self.reloads_max} times over"
        raise UnavailableError(message)


def may_lack(manifest: Manifest, began: Manifest) -> bool:
    """Tell whether a newer manifest may lack records that an older one had in its range: a pass has dropped some."""
    return began.pruned != manifest.pruned and began.compaction.passes != manifest.compaction.passes


def check_whole(url: str, pointer: FragmentPointer) -> None:
    """Refuse a fragment, of a manifest that may lack records, in which there are gaps.

    Whether these were there when the read began, only the old tree knows.
    """
    if pointer.num_records < pointer.limit.offset - pointer.start.offset:
        raise GarbageCollectedError(
            f"log {url}: expected the records as they were when the read began, found some compacted away"
            f" from offset {pointer.start.offset} on: read again, or read a pin"
        )


def with_reloads(
    url: str, manifest: Manifest, load: Callable[[], Manifest], work: Callable[[Manifest], T], *, reloads_max: int
) -> T:
    """Do a work on a manifest of a log; again on the newest one, if objects were replaced meanwhile.

    The MissingError of an object that the newest manifest names, too: it is lost.
    """
    missing = ""
    for _ in range(reloads_max + 1):
        try:
            return work(manifest)
        except MissingError as error:
            if error.path == missing:
                raise
            missing, manifest = error.path, load()
    raise UnavailableError(f"log {url}: maintenance replaced what was to be read again and again")


def newest_first(
    pointers: Sequence[Pointer], load: Callable[[SnapshotPointer], Snapshot], floor: int = 0
) -> Iterator[FragmentPointer]:
    """Go through the fragments that end behind an offset, the newest first; snapshots are loaded one by one."""
    for pointer in reversed(pointers):
        if pointer.limit.offset <= floor:
            return
        if isinstance(pointer, FragmentPointer):
            yield pointer
        else:
            yield from newest_first(load(pointer).pointers, load, floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One fragment: a Parquet file with the columns offset, timestamp_us, body and, where records have keys, key.

    ``url`` is its address without the store's options. ``start`` and ``limit`` bound the
    range that it stands for. Records may be missing in it, also the first and the last: ``num_records`` are left.
    ``num_bytes`` is the file's size.
    """

    url: str
    start: LogPosition
    limit: LogPosition
    num_records: int
    num_bytes: int

    @property
    def location(self) -> str:
        """The path of a file in a directory store; elsewhere the URL."""
        parts = urlsplit(self.url)
        return unquote(parts.path) if parts.scheme == "file" else self.url


def stored_file(folder_url: str, pointer: FragmentPointer) -> StoredFile:
    """Describe the file that a pointer of a log names; the URL is that of the folder of the log's life."""
    return StoredFile(
        url=f"{folder_url.partition('?')[0]}/{pointer.path}",
        start=pointer.start,
        limit=pointer.limit,
        num_records=pointer.num_records,
        num_bytes=pointer.num_bytes,
    )
