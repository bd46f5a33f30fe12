"""Cursors: named positions; every record at or after one is kept."""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.model import strict_json
from wal3_core.model.paths import NO_LOG, LogId, check_log_id
from wal3_core.model.position import LogPosition
from wal3_core.model.snapshot import check_format_version

FORMAT_VERSION = 2
BYTES_MAX = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position, when it was written (microseconds since the epoch) and by whom.

    ``log_id`` and ``writer`` are set when it is written.
    """

    position: LogPosition
    epoch_us: int
    generation: int
    log_id: LogId = NO_LOG
    writer: str = ""

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        return strict_json.dump_checksummed(
            {
                "format_version": FORMAT_VERSION,
                "log_id": self.log_id,
                "generation": self.generation,
                "position": self.position.to_json(),
                "epoch_us": self.epoch_us,
                "writer": self.writer,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> Cursor:
        """Decode; CorruptError names ``what`` when anything is off."""
        return cls.from_fields(strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX))

    @classmethod
    def from_fields(cls, fields: strict_json.Fields) -> Cursor:
        """Read from a JSON object."""
        check_format_version(fields, FORMAT_VERSION)
        cursor = cls(
            log_id=check_log_id(fields.string("log_id"), fields.what),
            generation=fields.integer("generation"),
            position=LogPosition.from_json(fields.object("position")),
            epoch_us=fields.integer("epoch_us"),
            writer=fields.string("writer"),
        )
        fields.finish()
        return cursor
