"""A log's policy: how its owner wants it collected, and when appends are to wait for its consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import flag, integer, make_plain, optional, text
from wal3_core.errors import InvalidRequestError
from wal3_core.model import strict_json
from wal3_core.model.paths import NO_LOG, LogId, check_log_id
from wal3_core.model.snapshot import check_format_version

if TYPE_CHECKING:
    from wal3_core.model.strict_json import JsonObject

FORMAT_VERSION = 2
BYTES_MAX = 64 * 2**10
# A thousand years; a clock in microseconds goes further.
RETENTION_S_MAX = 1000 * 365 * 24 * 60 * 60
# Less than a busy log gets while its consumers handle one batch, and less is not worth a request.
UNPROCESSED_MIN = 1000
UNPROCESSED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a collection may prune, besides the limits that cursors set, and how far consumers may be behind.

    ``retention_s`` keeps every record that many seconds, whatever the cursors say. ``without_cursors`` lets
    age alone decide while the log has no cursor; otherwise such a log is not collected at all.
    ``percent_max`` allows one collection to take that share of the log's bytes, when the default is less.
    ``unprocessed_max`` is how many unprocessed records the log may have before fleets refuse its appends; it goes
    before ``FleetOptions.unprocessed_max``. ``log_id`` and ``writer`` are set when it is written.
    """

    log_id: LogId = NO_LOG
    generation: int = 0
    writer: str = ""
    retention_s: int | None = None
    without_cursors: bool = False
    percent_max: int | None = None
    unprocessed_max: int | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, log_id=text, generation=integer, writer=text, without_cursors=flag)
        make_plain(self, retention_s=optional(integer), percent_max=optional(integer))
        make_plain(self, unprocessed_max=optional(integer))

    def check(self) -> None:
        """Refuse a value out of range, or ``without_cursors`` without a retention; InvalidRequestError."""
        for name, value, least, most in (
            ("retention_s", self.retention_s, 0, RETENTION_S_MAX),
            ("percent_max", self.percent_max, 0, 100),
            ("unprocessed_max", self.unprocessed_max, UNPROCESSED_MIN, UNPROCESSED_MAX),
        ):
            if value is not None and not least <= value <= most:
                message = f"policy: {name}: expected an integer from {least} to {most}, found {value}"
                raise InvalidRequestError(message)
        if self.without_cursors and self.retention_s is None:
            message = "policy: expected a retention for a log without cursors, found none: set retention_s"
            raise InvalidRequestError(message)

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        retention: JsonObject = {} if self.retention_s is None else {"retention_s": self.retention_s}
        percent: JsonObject = {} if self.percent_max is None else {"percent_max": self.percent_max}
        unprocessed: JsonObject = {} if self.unprocessed_max is None else {"unprocessed_max": self.unprocessed_max}
        return strict_json.dump_checksummed(
            {
                "format_version": FORMAT_VERSION,
                "log_id": self.log_id,
                "generation": self.generation,
                "writer": self.writer,
                "without_cursors": self.without_cursors,
                **retention,
                **percent,
                **unprocessed,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> Policy:
        """Decode; CorruptError names ``what`` when anything is off."""
        fields = strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX)
        check_format_version(fields, FORMAT_VERSION)
        policy = cls(
            log_id=check_log_id(fields.string("log_id"), what),
            generation=fields.integer("generation"),
            writer=fields.string("writer"),
            without_cursors=fields.flag("without_cursors"),
            retention_s=fields.integer("retention_s") if fields.has("retention_s") else None,
            percent_max=fields.integer("percent_max") if fields.has("percent_max") else None,
            unprocessed_max=fields.integer("unprocessed_max") if fields.has("unprocessed_max") else None,
        )
        fields.finish()
        return policy
