"""What must hold of every version of the manifest, and of every delete, as it lands."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.manifest import Manifest
from wal3_core.model.paths import MANIFEST
from wal3_core.model.snapshot import Snapshot, sum_setsums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.snapshot import Pointer
    from wal3_core.storage.object_store import ObjectStore


@dataclass
class Oracle:
    """Looks at the objects of one log directly, with no fault in between."""

    objects: ObjectStore
    manifest: Manifest | None = None
    held: list[FragmentPointer] = field(default_factory=list)
    versions: int = 0
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)

    def installed(self, data: bytes) -> None:
        """Check a version of the manifest against the one before it."""
        before, after = self.manifest, Manifest.from_bytes(data)
        held = list(self._fragments(after.pointers))
        for pointer in held[-8:]:
            assert self.objects.head(pointer.path) is not None, f"{pointer.path} was linked before it was durable"
        if before is not None:
            self._check_step(before, after)
            self._check_prefix(after, held)
        self.manifest, self.held = after, held
        self.versions += 1

    def _check_step(self, before: Manifest, after: Manifest) -> None:
        assert after.generation == before.generation + 1, "INV-5"
        assert after.next.seq_no >= before.next.seq_no, "the log went backwards"
        assert after.next.position >= before.next.position, "INV-2"
        assert after.next.position.timestamp_us >= before.next.position.timestamp_us, "INV-2"
        assert after.first.seq_no >= before.first.seq_no, "what was collected came back"
        assert after.fence >= before.fence, "INV-7"
        assert all(low.epoch < high.epoch for low, high in pairwise(after.epochs)), "INV-4"
        assert after.last_epoch >= before.last_epoch, "INV-4"
        if before.seal is not None:
            assert after.seal == before.seal, "INV-6"
            assert after.next == before.next, "INV-6: appended after the seal"

    def _check_prefix(self, after: Manifest, held: Sequence[FragmentPointer]) -> None:
        kept = [pointer for pointer in self.held if pointer.seq_no >= after.first.seq_no]
        gone = self.held[: len(self.held) - len(kept)]
        assert list(held[: len(kept)]) == kept, "what the log held has changed"
        assert self.manifest is not None
        assert after.pruned == self.manifest.pruned + sum_setsums(gone), "INV-1: pruned is not what went"
        assert after.setsum == self.manifest.setsum + sum_setsums(held[len(kept) :]), "INV-1: setsum is not what came"

    def deleted(self, path: str) -> None:
        """Check that a delete takes nothing the log needs."""
        assert path != MANIFEST, "the manifest was deleted"
        assert path not in self.referenced(), f"{path} was deleted, and the log refers to it"

    def referenced(self) -> set[str]:
        """Name every object the newest manifest leads to."""
        return set() if self.manifest is None else set(self._paths(self.manifest.pointers))

    def _paths(self, pointers: Sequence[Pointer]) -> Iterator[str]:
        for pointer in pointers:
            yield pointer.path
            if not isinstance(pointer, FragmentPointer):
                yield from self._paths(self._below(pointer))

    def _fragments(self, pointers: Sequence[Pointer]) -> Iterator[FragmentPointer]:
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer):
                yield pointer
            else:
                yield from self._fragments(self._below(pointer))

    def _below(self, pointer: Pointer) -> Sequence[Pointer]:
        assert not isinstance(pointer, FragmentPointer)
        if pointer.path not in self._snapshots:
            data = self.objects.read(pointer.path)
            assert data is not None, f"{pointer.path} was linked before it was durable"
            self._snapshots[pointer.path] = Snapshot.from_bytes(data, pointer)
        return self._snapshots[pointer.path].pointers
