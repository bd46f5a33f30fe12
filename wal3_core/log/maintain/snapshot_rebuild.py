"""Rebuilds a lost snapshot, byte for byte, from pointers that may have been in it.

A snapshot's name contains the hash of its bytes, so a wrong guess is recognised. Source: docs/protocol.md, "Repair".
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import SNAPSHOT_FOLDER, fragment_folder, fragment_seq_no, is_snapshot_path, snapshot_path
from wal3_core.model.position import FragmentSeqNo
from wal3_core.model.snapshot import BYTES_MAX, Snapshot, sum_setsums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.paths import LogId
    from wal3_core.model.snapshot import Pointer, SnapshotPointer
    from wal3_core.storage.object_store import ObjectMeta, ObjectStore

# Orphans that have the numbers and sizes of its fragments make several chains fit.
_CHAINS_MAX = 64


def rebuild(pointer: SnapshotPointer, parts: Iterable[Pointer], log_id: LogId, fence: int) -> Snapshot | None:
    """Return the snapshot that a pointer names, if its pointers are among ``parts``; ``fence`` is the log's."""
    by_start: dict[int, list[Pointer]] = {}
    for part in parts:
        by_start.setdefault(part.start.offset, []).append(part)
    for chain in islice(_chains(by_start, pointer), _CHAINS_MAX):
        # Its upload began under the log's fence of that time.
        for earlier in range(fence, -1, -1):
            snapshot = Snapshot(chain, earlier, log_id)
            if snapshot_path(pointer.setsum, snapshot.to_bytes()) == pointer.path:
                return snapshot
    return None


def _chains(by_start: Mapping[int, list[Pointer]], whole: SnapshotPointer) -> Iterator[tuple[Pointer, ...]]:
    """Go through the runs of pointers without a gap that have a snapshot's range, size and setsum."""
    begun: list[tuple[Pointer, ...]] = [()]
    while begun:
        chain = begun.pop()
        at = chain[-1].limit.offset if chain else whole.start.offset
        if at == whole.limit.offset:
            fits = (len(chain), sum(part.num_bytes for part in chain)) == (whole.num_pointers, whole.num_bytes)
            if fits and sum_setsums(chain) == whole.setsum:
                yield chain
        elif at < whole.limit.offset and len(chain) < whole.num_pointers:
            begun += [(*chain, part) for part in by_start.get(at, ())]


def own_fragments(
    pointer: SnapshotPointer, copied: Iterable[FragmentPointer], objects: ObjectStore
) -> Iterator[FragmentPointer]:
    """Go through the pointers that a lost snapshot of fragments may have held.

    The copy has the positions and setsums, the log's own files have the paths and sizes.
    """
    numbers = [FragmentSeqNo(number) for number in range(pointer.first_seq_no, pointer.last_seq_no + 1)]
    stored: dict[FragmentSeqNo, list[ObjectMeta]] = {number: [] for number in numbers}
    for folder in sorted({fragment_folder(number) for number in numbers}):
        for meta in objects.list_objects(folder):
            # A foreign file is no fragment.
            with suppress(CorruptError):
                stored.get(fragment_seq_no(meta.path), []).append(meta)
    for part in _numbered(numbers, list(copied)):
        if part.path:
            # Its own file may be damaged: a full copy has its path and size.
            yield part
        for meta in stored.get(part.seq_no, []):
            if meta.path != part.path or meta.size != part.num_bytes:
                yield replace(part, path=meta.path, num_bytes=meta.size)


def _numbered(numbers: Sequence[FragmentSeqNo], copied: Sequence[FragmentPointer]) -> Iterator[FragmentPointer]:
    """Give a copy's fragments the log's numbers; those of an updated copy have their own, and no path is known.

    A compaction gives a fragment the numbers of the run that it stands for, which only a full copy has.
    """
    if len(numbers) != len(copied):
        yield from copied
        return
    for number, part in zip(numbers, copied, strict=True):
        yield part if part.seq_no == number else replace(part, path="", first_seq_no=number, seq_no=number)


def own_snapshots(objects: ObjectStore) -> Iterator[SnapshotPointer]:
    """Go through the pointers to the log's stored snapshots that are sound."""
    for meta in objects.list_objects(SNAPSHOT_FOLDER):
        if not is_snapshot_path(meta.path):
            continue
        data = objects.read(meta.path, length=BYTES_MAX + 1)
        # The sound ones may be all that are needed.
        with suppress(CorruptError):
            if data is not None:
                yield Snapshot.pointer_of(data, meta.path)
