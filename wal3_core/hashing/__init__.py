"""SHA3-256 of records: by ``hashlib`` here, or, where the extra ``fast`` is installed, of several side by side.

Both give the same digests. ``lanes.py`` decides which one runs; see docs/architecture.md, "Record digests". What is
hashed of a record: docs/protocol.md, "Setsum".
"""

from __future__ import annotations

import hashlib
import struct

Buffer = bytes | memoryview

_PLAIN_HEAD = struct.Struct(">QQ").pack
_KEYED_HEAD = struct.Struct(">8sQQI").pack
_KEYED_MARK = b"\xff" * 8
_COPY_BYTES_MAX = 256


def plain_digest(offset: int, timestamp_us: int, body: Buffer) -> bytes:
    """Digest a record without a key."""
    if len(body) < _COPY_BYTES_MAX:
        return hashlib.sha3_256(_PLAIN_HEAD(offset, timestamp_us) + body).digest()
    # Beyond a few hundred bytes a second call costs less than a copy; beyond 2 KiB it frees the GIL.
    item = hashlib.sha3_256(_PLAIN_HEAD(offset, timestamp_us))
    item.update(body)
    return item.digest()


def item_of(offset: int, timestamp_us: int, key: Buffer | None, body: Buffer | None) -> bytes:
    """Return the bytes of a record that are hashed."""
    if key is None:
        return _PLAIN_HEAD(offset, timestamp_us) + (body or b"")
    head = _KEYED_HEAD(_KEYED_MARK, offset, timestamp_us, len(key))
    return b"".join((head, key, b"\x00" if body is None else b"\x01", body or b""))
