"""A fragment that is about to be copied: read whole, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import MissingError
from wal3_core.model import parquet
from wal3_core.storage.object_store import object_url

if TYPE_CHECKING:
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.storage.object_store import ObjectStore


def read_checked(
    store: ObjectStore, pointer: FragmentPointer, *, expanded_bytes_max: int
) -> tuple[bytes, parquet.Fragment]:
    """Read a fragment's bytes, and check that its records are what the pointer says; CorruptError when they are not.

    MissingError when there is no such object.
    """
    what = f"fragment {pointer.seq_no} ({object_url(store, pointer.path)})"
    # One more byte detects a longer file without fetching all of it.
    data = store.read(pointer.path, length=pointer.num_bytes + 1)
    if data is None:
        message = f"{what}: expected a file, found none"
        raise MissingError(message, path=pointer.path)
    if len(data) != pointer.num_bytes:
        raise parquet.changed(what, f"expected {pointer.num_bytes} bytes, found {len(data)}, or more")
    return data, parquet.decode(data, pointer, expanded_bytes_max=expanded_bytes_max, what=what)
