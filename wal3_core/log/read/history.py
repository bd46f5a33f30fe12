"""Whether a log goes on from what was seen of it, or an older manifest was restored and others appended to that one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.setsum import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.setsum import Setsum
    from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer


@dataclass(frozen=True, slots=True)
class History:
    """The setsum of all records that were ever appended below the offset ``limit``, and the ``token`` of the last pass.

    Offsets, generations and numbers of passes come again after a restore; these do not.
    """

    limit: int
    setsum: Setsum
    token: str

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return what a manifest says of all records up to its end."""
        return cls(manifest.next.position.offset, manifest.setsum, manifest.compaction.token)

    def is_comparable(self, manifest: Manifest) -> bool:
        """Whether a manifest, which does not end earlier, still says what its setsum was there.

        Not if it begins later, nor after a pass: what that one dropped is known only as a sum over the whole log.
        """
        return self.token == manifest.compaction.token and manifest.first.position.offset <= self.limit

    def goes_on_in(self, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> bool:
        """Whether a comparable manifest has the same records below the limit.

        Loads the snapshots that lie on both sides of it, one of each depth at most.
        """
        return self.setsum == manifest.setsum - _sum_from(manifest.pointers, self.limit, load)


def _sum_from(pointers: Sequence[Pointer], offset: int, load: Callable[[SnapshotPointer], Snapshot]) -> Setsum:
    """Add up what lies at or after an offset, and a fragment that lies on both sides: then it is another log's sum."""
    found = EMPTY
    for pointer in reversed(pointers):
        if pointer.limit.offset <= offset:
            break
        if isinstance(pointer, FragmentPointer) or pointer.start.offset >= offset:
            found += pointer.setsum
        else:
            found += _sum_from(load(pointer).pointers, offset, load)
    return found
