"""Pins: named copies of whole manifests; their objects are kept, so that a long read does not race a collection."""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.errors import CorruptError
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LOG_ID, NO_LOG, LogId
from wal3_core.format.strict_json import FLAG, INTEGER, TEXT, Fields, Kind, StoredDocument, member


def _manifest_of(fields: Fields, name: str) -> Manifest:
    return Manifest.from_bytes(fields.string(name).encode(), what=f"{fields.what}.{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(StoredDocument):
    """A pinned manifest, and why, when (microseconds since the epoch) and by whom it was pinned.

    ``complete`` says that every object existed after the pin was written, so that all of them are kept. A pin
    whose process died before that check keeps those that exist. ``log_id`` and ``writer`` are set when it is written.
    """

    manifest: Manifest
    reason: str
    epoch_us: int
    generation: int
    complete: bool = False
    log_id: LogId = NO_LOG
    writer: str = ""

    # Room for the largest manifest as text in JSON, where its quotes are escaped.
    BYTES_MAX = 130 * 2**20
    MEMBERS = (
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("reason", TEXT),
        member("epoch_us", INTEGER),
        member("writer", TEXT),
        member("complete", FLAG),
        # As its own document.
        member("manifest", Kind(_manifest_of, lambda manifest: manifest.to_bytes().decode())),
    )

    def check_stored(self, what: str) -> None:
        """Refuse the manifest of another log."""
        if self.manifest.log_id != self.log_id:
            message = f"{what}: expected the manifest of log {self.log_id}, found that of log {self.manifest.log_id}"
            raise CorruptError(message)
