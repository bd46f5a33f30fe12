"""Options of key compaction, with their units."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.options import (
    FRAGMENT_EXPANDED_BYTES_MAX,
    REBASES_MAX,
    RetryOptions,
    SnapshotOptions,
    check_ranges,
)

_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactorOptions:
    """How passes of key compaction run.

    ``snapshots`` is the shape of the tree that the log's writers keep. ``requests_ahead`` objects are read or written
    at a time. A change of the manifest is tried ``rebases_max`` times; a pass is planned again ``plans_max`` times when
    maintenance or a cursor got in its way. ``bytes_per_s_max`` limits what it reads and writes of fragments, all tasks
    together, None for no limit.
    ``fragment_expanded_bytes_max`` limits the memory for one fragment.
    """

    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    requests_ahead: int = 4
    rebases_max: int = REBASES_MAX
    plans_max: int = 8
    bytes_per_s_max: int | None = None
    fragment_expanded_bytes_max: int = FRAGMENT_EXPANDED_BYTES_MAX
    snapshots_loaded_max: int = 256
    retry: RetryOptions = field(default_factory=RetryOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_ranges(
            self,
            {
                "requests_ahead": (1, _COUNT_MAX),
                "rebases_max": (1, _COUNT_MAX),
                "plans_max": (1, _COUNT_MAX),
                # Slower than a kilobyte a second is a mistake, and 0 would never end.
                "bytes_per_s_max": (1024, 2**63 - 1),
                "fragment_expanded_bytes_max": (1, 2**63 - 1),
                "snapshots_loaded_max": (0, _COUNT_MAX),
            },
        )
