"""Tombstones: the documents that replace deleted cursors and pins.

While its log lives, an object under a name that may be used again is never deleted but replaced by CAS, so that
a late create or delete cannot touch the object that has the name by then. Source: docs/protocol/collection.md, "Names".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from wal3_core.errors import CorruptError
from wal3_core.format import strict_json
from wal3_core.format.paths import LOG_ID, NO_LOG, LogId
from wal3_core.format.strict_json import FLAG, INTEGER, TEXT, StoredDocument, member

D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(StoredDocument):
    """Marks the name of a cursor or pin as free; ``generation`` continues that of the deleted document.

    ``log_id`` and ``writer`` are set when it is written.
    """

    generation: int
    log_id: LogId = NO_LOG
    writer: str = ""
    deleted: bool = True

    BYTES_MAX = 4 * 2**10
    MEMBERS = (
        member("deleted", FLAG),
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("writer", TEXT),
    )

    def check_stored(self, what: str) -> None:
        """Refuse one that says that nothing is deleted."""
        if not self.deleted:
            raise CorruptError(f"{what}: field deleted: expected true, found false")


def or_tombstone(data: bytes, read: Callable[[strict_json.Fields], D], *, what: str, bytes_max: int) -> D | Tombstone:
    """Decode the document under a name: a tombstone, or what ``read`` returns; CorruptError names ``what``."""
    fields = strict_json.load_checksummed(data, what=what, bytes_max=bytes_max)
    return Tombstone.from_fields(fields) if fields.has("deleted") else read(fields)
