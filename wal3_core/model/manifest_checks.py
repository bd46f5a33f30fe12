"""The checks of every manifest, read or made. Source: docs/protocol.md, "Manifest"."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.manifest_parts import Boundary
from wal3_core.model.paths import MANIFEST
from wal3_core.model.position import FragmentSeqNo
from wal3_core.model.snapshot import Pointer, check_run, sum_setsums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.model.manifest import Manifest

EPOCHS_MAX = 16


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that breaks an invariant; CorruptError says which and where."""
    pointers = manifest.pointers
    check_run(pointers)
    _check_ends(manifest, pointers)
    _check_epochs(manifest)
    balance = sum_setsums(pointers) + manifest.pruned
    if balance != manifest.setsum:
        message = f"{MANIFEST}: expected setsum {manifest.setsum}, found {balance} in its pointers and pruned"
        raise CorruptError(message)
    held = sum(p.num_bytes for p in pointers), sum(p.num_records for p in pointers)
    if held != (manifest.num_bytes, manifest.num_records):
        message = f"{MANIFEST}: expected {manifest.num_bytes} bytes, {manifest.num_records} records, found {held}"
        raise CorruptError(message)


def _check_ends(manifest: Manifest, pointers: Sequence[Pointer]) -> None:
    if not pointers:
        first, limit = manifest.next, manifest.next
    else:
        first = Boundary(pointers[0].first_seq_no, pointers[0].start)
        limit = Boundary(FragmentSeqNo(pointers[-1].last_seq_no + 1), pointers[-1].limit)
    for name, expected, found in (("first", first, manifest.first), ("next", limit, manifest.next)):
        # Timestamps are not compared: that of a new log's ``first`` is set before its first fragment's.
        if (expected.seq_no, expected.position.offset) != (found.seq_no, found.position.offset):
            message = (
                f"{MANIFEST}: {name}: expected fragment {expected.seq_no} at {expected.position},"
                f" found fragment {found.seq_no} at {found.position}"
            )
            raise CorruptError(message)


def _check_epochs(manifest: Manifest) -> None:
    numbers = [(entry.epoch, entry.first_seq_no) for entry in manifest.epochs]
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(numbers))
    if not rising or len(numbers) > EPOCHS_MAX or any(first >= manifest.next.seq_no for _, first in numbers):
        message = f"{MANIFEST}: expected epochs rising below fragment {manifest.next.seq_no}, found {numbers}"
        raise CorruptError(message)
