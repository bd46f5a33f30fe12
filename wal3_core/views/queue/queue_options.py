"""The limits of a queue's broker, with their units."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.errors import InvalidRequestError
from wal3_core.options import MIB, ReaderOptions, View, WriterOptions, check_ranges, of_view

_BYTES_MAX = 2**63 - 1
_COUNT_MAX = 2**31 - 1
_SECONDS_MAX = 10**9
# What a turn takes may end with one operation more, of 10,000 items and 32 MiB, and with a part of a checkpoint.
_WRITER_MIN = {"record_bytes_max": 9 * MIB, "fragment_bytes_max": 48 * MIB, "batch_records_max": 50_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Limits of one process that opens a queue.

    Values that were read or enqueued last take at most ``cache_bytes_max`` bytes of memory; those of items due within
    ``prefetch_s`` seconds are read ahead, ``prefetch_items`` of them. A checkpoint is written when
    ``checkpoint_records`` records came after the one before, and a quarter as many as there are items; or
    ``checkpoint_bytes`` bytes, and a quarter of those of all values; or ``checkpoint_fragments`` fragments, and one for
    each 500 items: a queue is loaded by reading them. Operations of at most ``bytes_waiting_max`` bytes
    wait for their turn; beyond that callers block. ``writer`` and ``reader`` are the log's; a writer takes records of
    9 MiB, and 48 MiB or 50,000 of them together.
    """

    cache_bytes_max: int = 64 * MIB
    prefetch_items: int = 256
    prefetch_s: float = 5.0
    checkpoint_records: int = 100_000
    checkpoint_bytes: int = 64 * MIB
    checkpoint_fragments: int = 500
    bytes_waiting_max: int = 64 * MIB
    writer: WriterOptions = field(default_factory=lambda: WriterOptions(batch_age_s_max=0))
    reader: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_ranges(
            self,
            {
                "cache_bytes_max": (0, _BYTES_MAX),
                "prefetch_items": (0, _COUNT_MAX),
                "prefetch_s": (0, _SECONDS_MAX),
                "checkpoint_records": (1, _COUNT_MAX),
                "checkpoint_bytes": (1, _BYTES_MAX),
                "checkpoint_fragments": (1, _COUNT_MAX),
                "bytes_waiting_max": (1, _BYTES_MAX),
            },
        )
        object.__setattr__(self, "writer", of_view(self.writer, View.QUEUE))
        for name, least in _WRITER_MIN.items():
            found = getattr(self.writer, name)
            if found < least:
                message = f"queue options: writer: {name}: expected at least {least}, found {found}"
                raise InvalidRequestError(message)
