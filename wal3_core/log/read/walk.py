"""Walks a log's tree lazily: fragments in order, and snapshots loaded a few ahead of the caller.

Memory does not grow with the log: it holds the rest of one node per level, and what was loaded
ahead. Requests of one level follow those of the level above, so the first fragment's pointer
takes as many round trips as the tree is deep. Keeps INV-10 of docs/protocol.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.errors import CorruptError, LogError
from wal3_core.log.read.scan import Counted, is_empty, lies_before, lies_beyond
from wal3_core.model.fragment import FragmentPointer
from wal3_core.runtime import later
from wal3_core.workers import COMMON, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from wal3_core.model.position import ReadStart
    from wal3_core.model.snapshot import Pointer, Snapshot, SnapshotPointer
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
