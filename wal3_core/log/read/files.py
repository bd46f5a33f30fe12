"""The stored files that hold a range of a log, for programs that read Parquet themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.position import LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One fragment: a Parquet file with the columns offset, timestamp_us, body and, where records have keys, key.

    ``url`` is its address without the store's options. ``start`` and ``limit`` bound the
    range that it stands for. Records may be missing in it, also the first and the last: ``num_records`` are left.
    ``num_bytes`` is the file's size.
    """

    url: str
    start: LogPosition
    limit: LogPosition
    num_records: int
    num_bytes: int

    @property
    def location(self) -> str:
        """The path of a file in a directory store; elsewhere the URL."""
        parts = urlsplit(self.url)
        return unquote(parts.path) if parts.scheme == "file" else self.url


def stored_file(folder_url: str, pointer: FragmentPointer) -> StoredFile:
    """Describe the file that a pointer of a log names; the URL is that of the folder of the log's life."""
    return StoredFile(
        url=f"{folder_url.partition('?')[0]}/{pointer.path}",
        start=pointer.start,
        limit=pointer.limit,
        num_records=pointer.num_records,
        num_bytes=pointer.num_bytes,
    )
