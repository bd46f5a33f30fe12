"""Limits of a fleet of writers."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.model.policy import UNPROCESSED_MAX, UNPROCESSED_MIN
from wal3_core.options import MIB, WriterOptions, check_ranges

_LOGS_MAX = 10**6
_BYTES_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How many logs a fleet has open, and how much it holds in memory.

    At most ``logs_open_max`` logs are open at a time, each of which takes some 45 KiB; of those without work, the one
    used least recently is closed for another. At most ``bytes_held_max`` bytes of appends of all logs together wait
    to become durable; callers wait for more. With ``creates``, a log that does not exist is created at its first
    append. ``writer`` has the limits of each log's writer.

    Appends to a log with more than ``unprocessed_max`` unprocessed records are refused with BackPressureError; a log's
    policy may set another limit. None: only logs whose policy has a limit are refused.
    """

    logs_open_max: int = 5000
    bytes_held_max: int = 512 * MIB
    creates: bool = False
    unprocessed_max: int | None = None
    writer: WriterOptions = field(default_factory=WriterOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_ranges(
            self,
            {
                "logs_open_max": (1, _LOGS_MAX),
                "bytes_held_max": (1, _BYTES_MAX),
                "unprocessed_max": (UNPROCESSED_MIN, UNPROCESSED_MAX),
            },
        )
