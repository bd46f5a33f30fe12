"""Which rows of a fragment are tombstone records, as text in the file's metadata.

``<the first such row>:<base64 of bits, one for each row from there to the last such row>:<16 hex of their SHA-256>``.
So keys can be read without bodies. The format's footer has no checksum, so the text has one of its own; when a
fragment is read whole, the text is compared with the records.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

TOMBSTONES = "wal3.tombstones"
# Four million rows, more than any writer's options allow. Every reader of the file loads its footer.
_BITS_BYTES_MAX = 2**19


def tombstones_of(bodies: pa.ChunkedArray) -> Flags:
    """Return a flag for each row of a column of bodies: the record of a null is a tombstone record."""
    # Most columns have no null: counting them takes a fraction of the time.
    if not bodies.null_count:
        return np.zeros(len(bodies), dtype=np.bool_)
    return np.asarray(bodies.is_null().to_numpy(), dtype=np.bool_)


def tombstones_as_text(tombstones: Flags) -> dict[str, str]:
    """Return the metadata for a flag for each row; none when it would be too long."""
    rows = np.flatnonzero(tombstones)
    first, limit = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    bits = np.packbits(tombstones[first:limit], bitorder="little")
    if len(bits) > _BITS_BYTES_MAX:
        return {}
    text = f"{first}:{base64.b64encode(bits.tobytes()).decode()}"
    return {TOMBSTONES: f"{text}:{_digest(text)}"}


def tombstones_from(text: bytes, num_rows: int) -> Flags:
    """Return the flags of all rows; ValueError when they are not what was written."""
    first, bits, digest = text.decode("ascii").split(":")
    if digest != _digest(f"{first}:{bits}"):
        message = f"text with another checksum, {text[:40]!r}"
        raise ValueError(message)
    packed = np.frombuffer(base64.b64decode(bits, validate=True), dtype=np.uint8)
    rows = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    if not first.isdecimal() or int(first) + int(rows[-1] if len(rows) else 0) >= max(1, num_rows):
        message = f"rows from {first[:40]!r} on, of {num_rows}"
        raise ValueError(message)
    tombstones = np.zeros(num_rows, dtype=np.bool_)
    tombstones[int(first) + rows] = True
    return tombstones


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
