"""Logs too large to be grown: what a writer would have left, built level by level."""

from __future__ import annotations

from dataclasses import replace

from tests.large_logs import STEP_US, made_up
from wal3_core import LogWriter
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Epoch
from wal3_core.format.paths import snapshot_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import Setsum
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer, sum_setsums
from wal3_core.log.tree.shape import plan_roll
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

_ONE = Setsum.of([b"x"])


class Builder:
    """Makes the tree that a writer would have grown, level by level, where growing it would take days.

    Nodes are packed, written and pointed to by the library's own code. Of each level only the first and
    the last node of every parent are real; the others are pointers of the same size to nothing. A read of
    the log's first or last records, and a writer, so find all they look at.
    """

    def __init__(self, store: ObjectStore, log: str = "a") -> None:
        LogWriter.create(store, log)
        self._tree = SnapshotOptions()
        self._runtime = shared_runtime()
        self._manifests = ManifestStore(log_store(store, log), self._runtime)
        self._log_id = self._manifests.load().manifest.log_id
        self._snapshots = SnapshotStore(self._manifests, self._runtime, loaded_max=0)
        self._entry = Epoch(1, self._runtime.token(), FragmentSeqNo(1))
        self._next = 1

    def build(self, count: int) -> None:
        """Build a log of so many fragments of one record, and install it."""
        base = self._manifests.load()
        pointers: list[Pointer] = []
        for depth, sizes in self._shape(count):
            pointers += [self._node(depth, size, real=True) for size in sizes]
        pointers += [self._fragment() for _ in range(count - self._next + 1)]
        last = pointers[-1]
        manifest = replace(
            base.manifest,
            setsum=sum_setsums(pointers),
            next=Boundary(FragmentSeqNo(last.last_seq_no + 1), last.limit),
            epochs=(self._entry,),
            snapshots=tuple(each for each in pointers if isinstance(each, SnapshotPointer)),
            fragments=tuple(each for each in pointers if isinstance(each, FragmentPointer)),
        ).counted()
        assert plan_roll(manifest, self._tree) is None, "no writer leaves that"
        assert isinstance(self._manifests.install(manifest, base), Installed)

    def _shape(self, count: int) -> list[tuple[int, list[int]]]:
        """Say how many pointers the snapshots of each depth hold that are in the manifest, deepest first.

        What a writer leaves that appends one fragment at a time.
        """
        full, by = self._tree.snapshot_pointers_max, self._tree.snapshots_per_roll
        left = max(0, count - self._tree.fragments_kept) // self._tree.fragments_per_snapshot
        found = [(1, [self._tree.fragments_per_snapshot] * (left % by))]
        left -= left % by
        while left:
            closed, opened = divmod(left, full)
            left = closed if closed >= by else 0
            found.append((len(found) + 1, [full] * (closed - left) + _falling(opened, by)))
        return found[::-1]

    def _node(self, depth: int, size: int, *, real: bool) -> SnapshotPointer:
        if not real:
            return self._made_up(depth, size)
        full = self._tree.fragments_per_snapshot if depth == 2 else self._tree.snapshot_pointers_max
        below: tuple[Pointer, ...] = tuple(
            self._fragment() if depth == 1 else self._node(depth - 1, full, real=at in {0, size - 1})
            for at in range(size)
        )
        return self._snapshots.write(Snapshot(below, 0, self._log_id), RetryOptions())

    def _fragment(self) -> FragmentPointer:
        at = self._next
        self._next += 1
        return made_up(self._entry, FragmentSeqNo(at), LogPosition(at, at * STEP_US))

    def _made_up(self, depth: int, size: int) -> SnapshotPointer:
        count = size * self._tree.fragments_per_snapshot if depth > 1 else size
        count *= self._tree.snapshot_pointers_max ** max(0, depth - 2)
        first, self._next = self._next, self._next + count
        setsum = Setsum.of_column_sums(column * count for column in _ONE.columns)
        return SnapshotPointer(
            path=snapshot_path(setsum, b"%d" % first),
            depth=depth,
            num_pointers=size,
            first_seq_no=FragmentSeqNo(first),
            last_seq_no=FragmentSeqNo(self._next - 1),
            start=LogPosition(first, first * STEP_US),
            limit=LogPosition(self._next, (self._next - 1) * STEP_US),
            setsum=setsum,
            num_bytes=1000 * count,
            num_records=count,
        )


def _falling(count: int, by: int) -> list[int]:
    """Split a number by its digits to a base: the nodes that are not full yet."""
    unit = 1
    while unit * by <= count:
        unit *= by
    found = []
    while count:
        found.append(count // unit * unit)
        count, unit = count % unit, unit // by
    return [size for size in found if size]
