"""Hashes of keys: 64 bits, the same on every machine and in every version, computed for whole columns at once.

The hash of a key k of n bytes is mix(k[0] + k[1] M + k[2] M^2 + ... + (n + 1) L), modulo 2^64, where mix is the
finaliser of splitmix64. Stored key roll-ups hold such hashes, so none of the constants may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

# Both odd, so that powers of M have inverses, and no bit of a length is lost.
_M = 0xD6E8FEB86659FD93
_L = 0x9E3779B97F4A7C15
_MODULUS = 2**64
# Bytes of keys at a time: their sums, and the tables of powers, stay in a core's cache.
_BLOCK = 2**14


def hash_keys(keys: pa.Array | pa.ChunkedArray) -> Hashes:
    """Hash each key of a binary or large_binary column.

    Takes some nanoseconds a byte, and memory of 8 bytes a key. The hash of a null is unspecified.
    """
    if isinstance(keys, pa.ChunkedArray):
        return np.concatenate([np.empty(0, dtype=np.uint64), *map(_hash_array, keys.chunks)])
    return _hash_array(keys)


def _hash_array(keys: pa.Array) -> Hashes:
    if not len(keys):
        return np.empty(0, dtype=np.uint64)
    width = np.int64 if pa.types.is_large_binary(keys.type) else np.int32
    _, offset_buffer, data = keys.buffers()
    # A slice shares its buffers with the whole array.
    bounds = np.frombuffer(offset_buffer, dtype=width)[keys.offset : keys.offset + len(keys) + 1]
    values = np.frombuffer(data if data is not None else b"", dtype=np.uint8)[int(bounds[0]) : int(bounds[-1])]
    bounds = bounds - bounds[0]
    sums = np.empty(len(bounds), dtype=np.uint64)
    shifts = np.empty(len(bounds), dtype=np.uint64)
    for (low, high), block_sums, block_shifts in _blocks(values, bounds):
        sums[low:high], shifts[low:high] = block_sums, block_shifts
    # A difference of two sums over the whole column is the key's own polynomial, times a power of M.
    lengths = (bounds[1:] - bounds[:-1]).astype(np.uint64)
    return _mixed((sums[1:] - sums[:-1]) * shifts[:-1] + (lengths + np.uint64(1)) * np.uint64(_L))


def _blocks(
    values: np.ndarray[tuple[int], np.dtype[np.uint8]], bounds: np.ndarray[tuple[int], np.dtype[np.signedinteger]]
) -> Iterator[tuple[tuple[int, int], Hashes, Hashes]]:
    """Go through the bytes, block by block, however long a key is.

    Yields the range of the bounds in each block and, for each of them, the sum of b[i] M^i over all bytes before it,
    and the inverse of M to the power of its place.
    """
    powers, inverses = _powers(_M), _powers(pow(_M, -1, _MODULUS))
    starts = range(0, len(values) + 1, _BLOCK)
    firsts = np.searchsorted(bounds, [*starts, len(values) + 1])
    total = 0
    for start, (low, high) in zip(starts, pairwise(firsts.tolist()), strict=True):
        block = values[start : start + _BLOCK]
        # The sum before each place of the block, and before the place behind it.
        sums = np.zeros(len(block) + 1, dtype=np.uint64)
        np.cumsum(block * powers[: len(block)], out=sums[1:])
        sums *= np.uint64(pow(_M, start, _MODULUS))
        sums += np.uint64(total)
        places = bounds[low:high] - start
        yield (low, high), sums[places], inverses[places] * np.uint64(pow(_M, -start, _MODULUS))
        total = int(sums[-1])


@cache
def _powers(base: int) -> Hashes:
    """Return the powers of a base, from 0, for all places in a block and the one behind it."""
    powers = np.full(_BLOCK + 1, base, dtype=np.uint64)
    powers[0] = 1
    np.cumprod(powers, out=powers)
    powers.flags.writeable = False
    return powers


def _mixed(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes
