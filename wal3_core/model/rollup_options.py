"""Limits of a roll-up of a dirty log, with their units."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.model.paths import check_cursor_name
from wal3_core.options import GIB, RetryOptions, check_ranges

_COUNT_MAX = 2**63 - 1
_AHEAD_MAX = 2**31 - 1
_SECONDS_MAX = 10 * 365 * 24 * 60 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpOptions:
    """Which logs a roll-up selects, and how much it reads.

    A log is selected when its oldest unprocessed record was marked more than ``age_s_max`` seconds ago, when
    ``records_max`` records or ``bytes_max`` bytes are unprocessed, or when its marker was reinserted
    ``reinsertions_max`` times; with ``take_all`` every log with unprocessed records is. ``cursor`` names the cursor
    that says, in each log, what was processed; a log without it counts as unprocessed from its marker on. A log with
    more than ``unprocessed_max`` unprocessed records is reported as over. A marked fragment that was not committed for
    ``undecided_s`` seconds never will be: the fence is moved. One roll-up reads at most ``markers_max`` markers, and
    looks up ``logs_ahead`` logs at a time.
    """

    cursor: str | None = None
    age_s_max: float = 3600.0
    records_max: int = 1_000_000
    bytes_max: int = GIB
    reinsertions_max: int = 100
    unprocessed_max: int = 10_000_000
    undecided_s: float = 900.0
    markers_max: int = 100_000
    logs_ahead: int = 16
    take_all: bool = False
    retry: RetryOptions = field(default_factory=RetryOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_ranges(
            self,
            {
                "age_s_max": (0, _SECONDS_MAX),
                "records_max": (1, _COUNT_MAX),
                "bytes_max": (1, _COUNT_MAX),
                "reinsertions_max": (1, _COUNT_MAX),
                "unprocessed_max": (0, _COUNT_MAX),
                "undecided_s": (0, _SECONDS_MAX),
                "markers_max": (1, _AHEAD_MAX),
                "logs_ahead": (1, _AHEAD_MAX),
            },
        )
        if self.cursor is not None:
            check_cursor_name(self.cursor)
