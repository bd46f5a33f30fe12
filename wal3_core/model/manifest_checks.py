"""The checks of every manifest, read or made; CorruptError says what is wrong. Source: docs/protocol.md, "Manifest"."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.manifest_parts import EPOCHS_MAX, Boundary
from wal3_core.model.paths import MANIFEST
from wal3_core.model.position import FragmentSeqNo
from wal3_core.model.snapshot import Pointer, sum_setsums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.model.manifest_parts import Epoch
    from wal3_core.model.setsum import Setsum


def check_balance(pointers: Sequence[Pointer], pruned: Setsum, setsum: Setsum) -> None:
    """Check that the pointers' records and those that were pruned are all that were ever appended."""
    balance = sum_setsums(pointers) + pruned
    if balance != setsum:
        message = f"{MANIFEST}: expected setsum {setsum}, found {balance} in its pointers and pruned"
        raise CorruptError(message)


def check_counts(pointers: Sequence[Pointer], num_bytes: int, num_records: int) -> None:
    """Check that the manifest's counts are the sums of its pointers'."""
    held = sum(p.num_bytes for p in pointers), sum(p.num_records for p in pointers)
    if held != (num_bytes, num_records):
        message = f"{MANIFEST}: expected {num_bytes} bytes, {num_records} records, found {held}"
        raise CorruptError(message)


def check_ends(pointers: Sequence[Pointer], first: Boundary, limit: Boundary) -> None:
    """Check that the log begins with its first pointer and ends with its last."""
    expected_first = expected_limit = limit
    if pointers:
        expected_first = Boundary(pointers[0].first_seq_no, pointers[0].start)
        expected_limit = Boundary(FragmentSeqNo(pointers[-1].last_seq_no + 1), pointers[-1].limit)
    for name, expected, found in (("first", expected_first, first), ("next", expected_limit, limit)):
        # Timestamps are not compared: that of a new log's ``first`` is set before its first fragment's.
        if (expected.seq_no, expected.position.offset) != (found.seq_no, found.position.offset):
            message = (
                f"{MANIFEST}: {name}: expected fragment {expected.seq_no} at {expected.position},"
                f" found fragment {found.seq_no} at {found.position}"
            )
            raise CorruptError(message)


def check_epochs(epochs: Sequence[Epoch], limit: Boundary) -> None:
    """Check that epochs rise, begin below the log's end, and are few."""
    numbers = [(entry.epoch, entry.first_seq_no) for entry in epochs]
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(numbers))
    if not rising or len(numbers) > EPOCHS_MAX or any(first >= limit.seq_no for _, first in numbers):
        message = f"{MANIFEST}: expected epochs rising below fragment {limit.seq_no}, found {numbers}"
        raise CorruptError(message)
