"""Setsum: a commutative, incremental checksum of a set of items.

Eight columns, each a sum of 32-bit words of the items' SHA3-256 digests modulo a prime; sums and
differences of sets are sums and differences of columns. Source: docs/protocol.md, "Setsum"; equal
to version 0.7 of the setsum crate.
"""

from __future__ import annotations

import hashlib
import operator
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from wal3_core.arguments import checked, instance_of, record_bytes, several, wrong
from wal3_core.errors import CorruptError
from wal3_core.format.strict_json import Kind

COLUMNS = 8
DIGEST_BYTES = 32
PRIMES = (4294967291, 4294967279, 4294967231, 4294967197, 4294967189, 4294967161, 4294967143, 4294967111)
_COLUMNS = struct.Struct(f"<{COLUMNS}I")


@dataclass(frozen=True, slots=True)
class Setsum:
    """The checksum of a set of items; the default is the empty set.

    ``columns`` are eight integers, each below its prime.
    """

    columns: tuple[int, ...] = (0,) * COLUMNS

    @classmethod
    @checked(items=several)
    def of(cls, items: Iterable[bytes]) -> Setsum:
        """Checksum a set given by its items."""
        sha3 = hashlib.sha3_256
        return cls.of_digests(b"".join([sha3(item).digest() for item in items]))

    @classmethod
    @checked(digests=instance_of(bytes))
    def of_digests(cls, digests: bytes) -> Setsum:
        """Checksum a set given by its items' SHA3-256 digests, joined; at most 2**32 of them."""
        if len(digests) == DIGEST_BYTES:
            return cls.of_column_sums(_COLUMNS.unpack(digests))
        import numpy as np  # noqa: PLC0415 - documents have setsums, too, and their readers do without it

        words = np.frombuffer(digests, dtype="<u4").reshape(-1, COLUMNS)
        # The sum of words equals the sum of reduced words modulo the prime, and fits in 64 bits.
        return cls.of_column_sums(words.sum(axis=0, dtype=np.uint64).tolist())

    @classmethod
    @checked(sums=several)
    def of_column_sums(cls, sums: Iterable[int]) -> Setsum:
        """Reduce column sums taken elsewhere, for instance by a query engine."""
        return cls(tuple([total % prime for total, prime in zip(sums, PRIMES, strict=True)]))

    @classmethod
    @checked(setsums=several)
    def total(cls, setsums: Iterable[Setsum]) -> Setsum:
        """Add up any number of setsums; each column is reduced once."""
        return cls.of_column_sums(map(sum, zip(EMPTY.columns, *(each.columns for each in setsums), strict=True)))

    @classmethod
    def from_digest(cls, digest: bytes) -> Setsum:
        """Read 32 bytes, the columns little-endian; CorruptError unless each is below its prime."""
        # Checked inline, without the decorator: a manifest has dozens of them.
        if not isinstance(digest, bytes):
            raise wrong("digest", "bytes", digest)
        if len(digest) != DIGEST_BYTES:
            raise CorruptError(f"setsum: expected {DIGEST_BYTES} bytes, found {len(digest)}")
        columns = _COLUMNS.unpack(digest)
        # The column is searched for only on failure: a manifest has dozens, and is read back at every commit.
        if any(map(operator.ge, columns, PRIMES)):
            index, column = next(found for found in enumerate(columns) if found[1] >= PRIMES[found[0]])
            raise CorruptError(f"setsum column {index}: expected less than {PRIMES[index]}, found {column}")
        return cls(columns)

    @classmethod
    def from_hexdigest(cls, text: str) -> Setsum:
        """Read 64 lower-case hexadecimal digits; CorruptError for anything else."""
        if not isinstance(text, str):
            raise wrong("text", "text", text)
        if len(text) != 2 * DIGEST_BYTES or not set(text) <= set("0123456789abcdef"):
            raise CorruptError(f"setsum: expected {2 * DIGEST_BYTES} lower-case hex digits, found {text[:80]!r}")
        return cls.from_digest(bytes.fromhex(text))

    def digest(self) -> bytes:
        """Thirty-two bytes, the columns little-endian."""
        return _COLUMNS.pack(*self.columns)

    def hexdigest(self) -> str:
        """Return the digest as 64 hexadecimal digits."""
        return self.digest().hex()

    @checked(item=record_bytes)
    def insert(self, item: bytes) -> Setsum:
        """Add one item to the set."""
        return self + Setsum.of((item,))

    def __add__(self, other: Setsum) -> Setsum:
        return Setsum(tuple([(a + b) % p for a, b, p in zip(self.columns, other.columns, PRIMES, strict=True)]))

    def __sub__(self, other: Setsum) -> Setsum:
        return Setsum(tuple([(a - b) % p for a, b, p in zip(self.columns, other.columns, PRIMES, strict=True)]))

    def __str__(self) -> str:
        return self.hexdigest()


EMPTY = Setsum()


SETSUM = Kind(lambda fields, name: Setsum.from_hexdigest(fields.string(name)), Setsum.hexdigest)
