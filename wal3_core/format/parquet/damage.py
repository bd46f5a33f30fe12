"""What is wrong with a fragment's file: first in plain words, then in those of the format."""

from __future__ import annotations

from wal3_core.errors import CorruptError


def changed(what: str, detail: str) -> CorruptError:
    """Describe a file whose size or stored checksum proves that its bytes are not those that were written."""
    return CorruptError(f"{what}: the file's bytes changed: {detail}")


def unreadable(what: str, detail: str) -> CorruptError:
    """Describe a file that contradicts its format or its pointer: whether it was written so, or changed, is unknown."""
    return CorruptError(f"{what}: the file cannot be read as it was written: {detail}")


def foreign(what: str, detail: str) -> CorruptError:
    """Describe a sound file that another writer, or an update of a copy, wrote for its own path."""
    return CorruptError(f"{what}: this is the file of another copy, or of another writer: {detail}")
