"""The keys of one fragment, in order, and the offsets of each key's records: immutable, so that it can be shared."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from typing import Self

    from wal3_core.views.keyed.ranges import KeyMatch

Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]

_OBJECT_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The distinct keys of a fragment, rising, and for each the offsets of its records, rising.

    Key number n has the offsets from ``starts[n]`` to ``starts[n + 1]``. ``strays`` has those of records without a key.
    """

    keys: pa.LargeBinaryArray
    starts: Places
    offsets: Offsets
    strays: Offsets

    EMPTY: ClassVar[KeyIndex]

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Index a table with the columns offset and key. Takes some tenths of a microsecond a record."""
        encoded = table["key"].cast(pa.large_binary()).combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(codes >= 0)
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        places = ranks[codes[rows]]
        starts = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(np.bincount(places, minlength=len(order)), out=starts[1:])
        every = np.asarray(table["offset"].to_numpy(), dtype=np.uint64)
        offsets = every[rows][np.argsort(places, kind="stable")]
        return cls(encoded.dictionary.take(pa.array(order)), starts, offsets, every[codes < 0])

    @property
    def num_bytes(self) -> int:
        """How much memory it takes, about."""
        return int(self.keys.nbytes + self.starts.nbytes + self.offsets.nbytes + self.strays.nbytes) + _OBJECT_BYTES

    def has(self, match: KeyMatch) -> bool:
        """Whether the fragment has a record of these keys."""
        low, high = self._span(match)
        return low < high

    def offsets_of(self, match: KeyMatch, start: int, limit: int) -> Offsets:
        """Return the offsets in [start, limit) of the records of these keys, rising."""
        low, high = self._span(match)
        found = self.offsets[self.starts[low] : self.starts[high]]
        if high - low > 1:
            found = np.sort(found)
        return found[_place(found, start) : _place(found, limit)]

    def count(self, match: KeyMatch, start: int, limit: int) -> int:
        """Count the records of these keys in [start, limit)."""
        return len(self.offsets_of(match, start, limit))

    def last(self, match: KeyMatch) -> int | None:
        """Return the offset of the last record of these keys, None when there is none."""
        low, high = self._span(match)
        found = self.offsets[self.starts[low] : self.starts[high]]
        return int(found.max()) if len(found) else None

    def keys_of(self, match: KeyMatch, start: int, limit: int) -> list[bytes]:
        """Return those of these keys that have a record in [start, limit), rising."""
        return [key for key, _ in self._held(match, start, limit)]

    def groups_of(self, match: KeyMatch, start: int, limit: int) -> list[tuple[bytes, Offsets]]:
        """Return those of these keys that have a record in [start, limit), rising, and the offsets of the records."""
        numbered = self._held(match, start, limit)
        groups = (self.offsets[self.starts[number] : self.starts[number + 1]] for _, number in numbered)
        return [
            (key, group[_place(group, start) : _place(group, limit)])
            for (key, _), group in zip(numbered, groups, strict=True)
        ]

    def _held(self, match: KeyMatch, start: int, limit: int) -> list[tuple[bytes, int]]:
        low, high = self._span(match)
        first, last = self.starts[low], self.starts[high]
        offsets = self.offsets[first:last]
        inside = (offsets >= np.uint64(max(start, 0))) & (offsets < np.uint64(max(limit, 0)))
        if high == low:
            return []
        # Each key has a record, so that no group is empty.
        held = np.logical_or.reduceat(inside, self.starts[low:high] - first).tolist()
        keys = self.keys.slice(low, high - low).to_pylist()
        return list(compress(zip(keys, range(low, high), strict=True), held))

    def _span(self, match: KeyMatch) -> tuple[int, int]:
        """Return the range of the numbers of these keys."""
        numbers = range(len(self.keys))
        low = bisect_left(numbers, match.start, key=lambda number: self.keys[number].as_py())
        if match.key is not None:
            return low, low + (low < len(self.keys) and self.keys[low].as_py() == match.key)
        if match.limit is None:
            return low, len(self.keys)
        return low, bisect_left(numbers, match.limit, lo=low, key=lambda number: self.keys[number].as_py())


_NONE: Offsets = np.zeros(0, dtype=np.uint64)
KeyIndex.EMPTY = KeyIndex(pa.array([], pa.large_binary()), np.zeros(1, dtype=np.int64), _NONE, _NONE)


def _place(offsets: Offsets, offset: int) -> int:
    return int(np.searchsorted(offsets, np.uint64(max(offset, 0))))
