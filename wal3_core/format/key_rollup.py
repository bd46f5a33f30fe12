"""Which fragments of a snapshot may hold which keys: hashes of keys, and whether a key was last deleted there.

A key roll-up is computed from fragments alone, and can be computed again at any time. It may name a fragment that
does not hold a key (another key has the same hash), and never leaves one out that does: INV-39 of docs/protocol.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Self

import numpy as np
import pyarrow as pa

from wal3_core.errors import InvalidRequestError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_hashes import Hashes, hash_keys
from wal3_core.format.paths import check_fragment_path
from wal3_core.format.position import FragmentSeqNo

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FragmentKeys:
    """The keys of one fragment: their hashes, distinct and rising, and a flag for each.

    A flag says that the fragment's last record of some key with that hash is a tombstone record. The fragment is
    the one with this number that the writer with this token wrote: a compacted fragment may have the same number.
    """

    seq_no: FragmentSeqNo
    token: str
    hashes: Hashes
    tombstones: Flags

    @classmethod
    def of(cls, pointer: FragmentPointer, keys: pa.Array | pa.ChunkedArray, tombstones: Flags) -> Self:
        """Compute from the keys of all records in order, null for those without one, and which are tombstones."""
        token = check_fragment_path(pointer.path, pointer.seq_no)
        if isinstance(keys, pa.ChunkedArray):
            # With 64 bits for their ends, all chunks fit into one.
            keys = keys.cast(pa.large_binary()).combine_chunks()
        encoded = keys.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy()
        rows = np.flatnonzero(codes >= 0)
        # Of several rows with one key, the last one stays.
        last = np.zeros(len(encoded.dictionary), dtype=np.int64)
        last[codes[rows]] = rows
        hashes, flags = _distinct(hash_keys(encoded.dictionary), tombstones[last])
        return cls(seq_no=pointer.seq_no, token=token, hashes=hashes, tombstones=flags)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FragmentKeys):
            return NotImplemented
        return (
            (self.seq_no, self.token) == (other.seq_no, other.token)
            and np.array_equal(self.hashes, other.hashes)
            and np.array_equal(self.tombstones, other.tombstones)
        )

    def __hash__(self) -> int:
        return hash((self.seq_no, self.token, len(self.hashes)))

    def may_hold_any(self, hashes: Hashes) -> bool:
        """Tell whether it has one of some hashes, which must not fall."""
        few, many = sorted((self.hashes, hashes), key=len)
        if not len(few):
            return False
        places = np.searchsorted(many, few)
        places[places == len(many)] = 0
        return bool(np.any(many[places] == few))

    def is_of(self, pointer: FragmentPointer) -> bool:
        """Tell whether these are the keys of the fragment that a pointer names."""
        return self.seq_no == pointer.seq_no and self.token == check_fragment_path(pointer.path, pointer.seq_no)


@dataclass(frozen=True, slots=True)
class KeyRollup:
    """The keys of all fragments of a snapshot of depth 1, in order, also of those without a key."""

    fragments: tuple[FragmentKeys, ...]

    @classmethod
    def of(cls, fragments: Iterable[tuple[FragmentPointer, pa.Array | pa.ChunkedArray, Flags]]) -> Self:
        """Compute from each fragment's keys, and which of its records are tombstone records."""
        return cls(tuple(FragmentKeys.of(*each) for each in fragments))

    @classmethod
    def join(cls, parts: Iterable[KeyRollup]) -> Self:
        """Join parts that cover different fragments."""
        fragments = sorted((each for part in parts for each in part.fragments), key=attrgetter("seq_no"))
        if len({each.seq_no for each in fragments}) != len(fragments):
            message = "key roll-ups: expected parts that cover different fragments, found two that cover one"
            raise InvalidRequestError(message)
        return cls(tuple(fragments))

    def part(self, pointers: Iterable[FragmentPointer]) -> KeyRollup:
        """Return the part that covers some fragments; those that it does not know are left out."""
        known = {(each.seq_no, each.token): each for each in self.fragments}
        found = (known.get((each.seq_no, check_fragment_path(each.path, each.seq_no))) for each in pointers)
        return KeyRollup(tuple(each for each in found if each is not None))

    def covers(self, pointers: Sequence[FragmentPointer]) -> bool:
        """Tell whether it covers exactly these fragments, which are in order."""
        return len(self.fragments) == len(pointers) and all(
            each.is_of(pointer) for each, pointer in zip(self.fragments, pointers, strict=True)
        )

    def touched(self, hashes: Hashes) -> list[FragmentSeqNo]:
        """Name the fragments that may hold a key with one of some hashes, which must not fall."""
        if np.any(hashes[:-1] > hashes[1:]):
            raise InvalidRequestError("key roll-up: expected hashes in order, found a lower one after a higher one")
        return [each.seq_no for each in self.fragments if each.may_hold_any(hashes)]

    def with_tombstones(self) -> list[FragmentSeqNo]:
        """Name the fragments whose last record of some key may be a tombstone record."""
        return [each.seq_no for each in self.fragments if each.tombstones.any()]

    @property
    def num_hashes(self) -> int:
        """The number of hashes of all fragments."""
        return sum(len(each.hashes) for each in self.fragments)

    def digest(self) -> str:
        """Return a SHA-256 over all that it says."""
        digest = hashlib.sha256()
        for each in self.fragments:
            digest.update(f"{each.seq_no} {each.token} {len(each.hashes)}\n".encode())
            digest.update(each.hashes.astype("<u8").tobytes())
            digest.update(each.tombstones.astype(np.uint8).tobytes())
        return digest.hexdigest()


def _distinct(hashes: Hashes, flags: Flags) -> tuple[Hashes, Flags]:
    """Order hashes and leave out those that occur twice; a flag is that of any key with its hash."""
    order = np.argsort(hashes)
    hashes, flags = hashes[order], flags[order]
    first = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])[: len(hashes)])
    if not len(first):
        return hashes, flags
    return hashes[first], np.logical_or.reduceat(flags, first)
