"""Walks a log's tree lazily: fragments in order, and snapshots loaded a few ahead of the caller.

Memory does not grow with the log: it holds the rest of one node per level, and what was loaded
ahead. Requests of one level follow those of the level above, so the first fragment's pointer
takes as many round trips as the tree is deep. While maintenance replaces objects, ``Reloading`` looks up
what is missing in a newer manifest. Keeps INV-10 of docs/protocol.md. Source: docs/protocol.md, "Read".

A ``StoredFile`` is a file that holds a range of the log, for programs that read Parquet themselves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from urllib.parse import unquote, urlsplit

from wal3_core.errors import (
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    MissingError,
    UnavailableError,
)
from wal3_core.format.fragment import FragmentPointer
from wal3_core.log.read.scan import Counted, begun, check_start, is_empty, lies_before, lies_beyond, within
from wal3_core.runtime import later
from wal3_core.runtime.loggers import READER
from wal3_core.workers import COMMON, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.paths import LogId
    from wal3_core.format.position import LogPosition, ReadStart
    from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
    from wal3_core.options import Limits
    from wal3_core.runtime import Runtime


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
        passed, begun = self._given.copy(), 0
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


class Walked(Protocol):
    """What is read: a LogReader."""

    def manifest(self) -> Manifest:
        """Load the newest manifest."""
        ...

    def walk(self, manifest: Manifest, start: ReadStart, limits: Limits) -> Walk:
        """Return a walk along one manifest's tree."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloading:
    """One way of reading a log, ``url``, of which at most ``reloads_max`` manifests are loaded for one object.

    With ``exact``, a read that began by one manifest gives that one's records or raises: a record may have been dropped
    for a newer one of its key that lies beyond that manifest's end. A follower will come to the newer one.
    """

    source: Walked
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
                for step in steps(self.source.walk(manifest, start, limits)):
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
                missing, manifest = error.path, self.source.manifest()
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
        message = (
            f"log {url}: expected the records as they were when the read began, found some compacted away"
            f" from offset {pointer.start.offset} on: read again, or read a pin"
        )
        raise GarbageCollectedError(message)


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
    message = f"log {url}: maintenance replaced what was to be read again and again"
    raise UnavailableError(message)


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
