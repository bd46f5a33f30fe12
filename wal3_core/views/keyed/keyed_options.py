"""The limits of a keyed log, with their units."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.arguments import SECONDS_MAX
from wal3_core.options import MIB, ReaderOptions, WriterOptions, check_ranges

_BYTES_MAX = 2**63 - 1
_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedOptions:
    """Limits of a keyed log.

    The keys of fragments take at most ``keys_cached_bytes_max`` bytes of memory, and the fragments that were read whole
    at most ``bodies_cached_bytes_max``; all that a process has open of one log share these. A conditional append is
    tried ``tries_max`` times while others append records of other keys. One that is not awaited blocks for
    ``append_timeout_s`` seconds at most, unless the call says otherwise. ``writer`` and ``reader`` are the log's.
    """

    keys_cached_bytes_max: int = 64 * MIB
    bodies_cached_bytes_max: int = 64 * MIB
    tries_max: int = 64
    append_timeout_s: float = 60.0
    writer: WriterOptions = field(default_factory=WriterOptions)
    reader: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_ranges(
            self,
            {
                "keys_cached_bytes_max": (0, _BYTES_MAX),
                "bodies_cached_bytes_max": (0, _BYTES_MAX),
                "tries_max": (1, _COUNT_MAX),
                "append_timeout_s": (0, SECONDS_MAX),
            },
        )
