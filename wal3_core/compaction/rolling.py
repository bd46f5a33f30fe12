"""The key roll-ups that a pass reads, and those that it leaves for the next one.

They save requests: without them, a pass reads the keys of the whole log. So a failure here is logged, and fails none.
A record is dropped only after its whole fragment was read. But that no older record of a tombstone's key is left is
believed on their word alone: they must name every fragment that holds a key (INV-39).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.model.fragment import FragmentPointer
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.storage.object_store import share_of
from wal3_core.storage.rate_limits import rate_limited

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.compaction.compaction_options import KeyCompactorOptions
    from wal3_core.compaction.scope import Scope
    from wal3_core.log.log_stores import LogStores
    from wal3_core.model.key_rollup import KeyRollup
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer, SnapshotPointer


class KeyRollups:
    """The key roll-ups of one pass."""

    def __init__(self, stores: LogStores, options: KeyCompactorOptions) -> None:
        self._stores = stores
        self._options = options
        reading = ReaderOptions(fragment_expanded_bytes_max=options.fragment_expanded_bytes_max)
        # After the merges, so that a pace of its own does not add to theirs.
        objects = rate_limited(stores.objects, options.bytes_per_s_max, stores.runtime)
        self.columns = KeyColumns(objects, reading)
        # Of snapshots of depth 1 as the pass found them: they cover different fragments.
        self._known: dict[str, tuple[SnapshotPointer, KeyRollup]] = {}

    def load(self, leaves: Sequence[SnapshotPointer]) -> list[KeyRollup | None]:
        """Load those of some snapshots, several at a time; None where there is none."""
        count, share = self._options.requests_ahead, share_of(self._stores.objects)
        loaded = map_ahead(self._stores.runtime, self._stores.key_rollups.load, leaves, count=count, share=share)
        found = list(zip(leaves, loaded, strict=True))
        self._known |= {leaf.path: (leaf, rollup) for leaf, rollup in found if rollup is not None}
        return [rollup for _, rollup in found]

    def load_beside_dirty(self, scope: Scope) -> None:
        """Load those of snapshots that hold dirty fragments and others, which need not be read again then."""
        leaves = [leaf for leaf in scope.leaves if len(set(map(scope.is_dirty, leaf.fragments))) > 1]
        self.load([leaf.snapshot for leaf in leaves if leaf.snapshot is not None])

    def leave(self, manifest: Manifest, limit: int) -> None:
        """Write those that snapshots below an offset lack. Failures are logged."""
        try:
            lacking = [leaf for leaf in self._leaves(manifest.pointers, limit) if leaf.path not in self._known]
            for leaf in lacking:
                self._write(leaf)
        except LogError as error:
            text = "log %s: key roll-ups were not written, so the next pass reads more: %s"
            MAINTAIN.warning(text, self._stores.url, error)

    def _write(self, leaf: SnapshotPointer) -> None:
        if self._stores.key_rollups.load(leaf) is not None:
            return
        known = [
            rollup
            for before, rollup in self._known.values()
            if before.first_seq_no <= leaf.last_seq_no and leaf.first_seq_no <= before.last_seq_no
        ]
        snapshot = self._stores.snapshots.load(leaf)
        rollup = build_key_rollup(snapshot, self.columns, runtime=self._stores.runtime, known=known)
        self._stores.key_rollups.write(leaf, rollup)

    def _leaves(self, pointers: Sequence[Pointer], limit: int) -> Iterator[SnapshotPointer]:
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer) or pointer.start.offset >= limit:
                return
            if pointer.depth == 1:
                yield pointer
            else:
                yield from self._leaves(self._stores.snapshots.load(pointer).pointers, limit)
