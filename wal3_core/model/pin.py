"""Pins: named copies of whole manifests; their objects are kept, so that a long read does not race a collection."""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.errors import CorruptError
from wal3_core.model import strict_json
from wal3_core.model.manifest import Manifest
from wal3_core.model.paths import NO_LOG, LogId, check_log_id
from wal3_core.model.snapshot import check_format_version

FORMAT_VERSION = 2
# Room for the largest manifest as text in JSON, where its quotes are escaped.
BYTES_MAX = 130 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
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

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON; the manifest is embedded as its own document."""
        return strict_json.dump_checksummed(
            {
                "format_version": FORMAT_VERSION,
                "log_id": self.log_id,
                "generation": self.generation,
                "reason": self.reason,
                "epoch_us": self.epoch_us,
                "writer": self.writer,
                "complete": self.complete,
                "manifest": self.manifest.to_bytes().decode(),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> Pin:
        """Decode; CorruptError names ``what`` when anything is off."""
        return cls.from_fields(strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX))

    @classmethod
    def from_fields(cls, fields: strict_json.Fields) -> Pin:
        """Read from a JSON object."""
        what = fields.what
        check_format_version(fields, FORMAT_VERSION)
        pin = cls(
            log_id=check_log_id(fields.string("log_id"), what),
            generation=fields.integer("generation"),
            reason=fields.string("reason"),
            epoch_us=fields.integer("epoch_us"),
            writer=fields.string("writer"),
            complete=fields.flag("complete"),
            manifest=Manifest.from_bytes(fields.string("manifest").encode(), what=f"{what}.manifest"),
        )
        fields.finish()
        if pin.manifest.log_id != pin.log_id:
            message = f"{what}: expected the manifest of log {pin.log_id}, found that of log {pin.manifest.log_id}"
            raise CorruptError(message)
        return pin
