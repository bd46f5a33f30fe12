"""A log's policy: how its owner wants it collected or compacted, and when appends are to wait for its consumers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from wal3_core.arguments import flag, integer, make_plain, optional, text, wrong
from wal3_core.errors import InvalidRequestError
from wal3_core.format.manifest import VIEW
from wal3_core.format.paths import LOG_ID, NO_LOG, LogId
from wal3_core.format.strict_json import FLAG, INTEGER, SET, TEXT, StoredDocument, member, one_of
from wal3_core.options import FRAGMENT_BYTES_MAX, MIB, UNPROCESSED_MAX, UNPROCESSED_MIN, View, a_view

# A thousand years; a clock in microseconds goes further.
RETENTION_S_MAX = 1000 * 365 * 24 * 60 * 60
# A smaller fragment is hardly more than its footer.
COMPACTED_FRAGMENT_BYTES_MIN = 4 * 2**10

# What counts where a policy that compacts leaves a value out. There is no default for ``max_compaction_lag_s``, nor for
# ``receipt_retention_s``.
MIN_COMPACTION_LAG_S = 0
DELETE_RETENTION_S = 24 * 60 * 60
MIN_DIRTY_PERCENT = 50
COMPACTED_FRAGMENT_BYTES = 8 * MIB

# The values of a policy, with the least and the largest of each; those of collections, those of compactions, others.
_OF_COLLECTIONS = {"retention_s": (0, RETENTION_S_MAX), "percent_max": (0, 100)}
_OF_COMPACTIONS = {
    "min_compaction_lag_s": (0, RETENTION_S_MAX),
    "max_compaction_lag_s": (1, RETENTION_S_MAX),
    "delete_retention_s": (0, RETENTION_S_MAX),
    "min_dirty_percent": (0, 100),
    "compacted_fragment_bytes": (COMPACTED_FRAGMENT_BYTES_MIN, FRAGMENT_BYTES_MAX),
    "receipt_retention_s": (0, RETENTION_S_MAX),
}
_OF_DROPPING = ("delete_retention_s", "receipt_retention_s")
_RANGES = {**_OF_COLLECTIONS, "unprocessed_max": (UNPROCESSED_MIN, UNPROCESSED_MAX), **_OF_COMPACTIONS}


class Cleanup(StrEnum):
    """What removes a log's records: collections, compactions, both, or nothing."""

    COLLECT = "collect"
    COMPACT = "compact"
    BOTH = "both"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(StoredDocument):
    """What a collection may prune and a compaction may drop, and how far consumers may be behind.

    ``retention_s`` keeps every record that many seconds, whatever the cursors say. ``without_cursors`` lets
    age alone decide while the log has no cursor; otherwise such a log is not collected at all.
    ``percent_max`` allows one collection to take that share of the bytes of a log that no consumer's cursor explains,
    when the default is less.
    ``unprocessed_max`` is how many unprocessed records the log may have before fleets refuse its appends; it goes
    before ``FleetOptions.unprocessed_max``.

    ``cleanup`` says whether the log is collected, compacted, both, or kept whole. The values below it need a log that
    is compacted; None stands for the default in ``compaction_limits``. A record stays as it is for
    ``min_compaction_lag_s``; a superseded one is to be dropped within ``max_compaction_lag_s``, however little has
    changed. ``delete_retention_s`` keeps a tombstone that long after the log below it was compacted.
    ``min_dirty_percent`` is the share of the log's bytes, or of a compacted log's records, that must have come since
    then, for a compaction to be due.
    ``compacted_fragment_bytes`` is the size at which a compaction begins another fragment.
    ``receipt_retention_s`` is for how long the lists of dropped records are kept after the files that held these were
    deleted; None keeps them as long as the log.
    With ``arrange_by_key`` compactions write fragments in which the records of each key lie together. The passes over a
    log that is only collected do that alone, and drop nothing; ``delete_retention_s`` and
    ``receipt_retention_s`` then have no use.
    A log with a ``view`` takes appends of that view alone; None: of all.
    ``log_id`` and ``writer`` are set when it is written.
    """

    log_id: LogId = NO_LOG
    generation: int = 0
    writer: str = ""
    retention_s: int | None = None
    without_cursors: bool = False
    percent_max: int | None = None
    unprocessed_max: int | None = None
    cleanup: Cleanup = Cleanup.COLLECT
    min_compaction_lag_s: int | None = None
    max_compaction_lag_s: int | None = None
    delete_retention_s: int | None = None
    min_dirty_percent: int | None = None
    compacted_fragment_bytes: int | None = None
    receipt_retention_s: int | None = None
    arrange_by_key: bool = False
    view: View | None = None

    BYTES_MAX = 64 * 2**10
    MEMBERS = (
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("writer", TEXT),
        member("without_cursors", FLAG),
        *(member(name, INTEGER, default=None) for name in _RANGES),
        member("cleanup", one_of(Cleanup), default=Cleanup.COLLECT),
        member("arrange_by_key", SET, default=False),
        member("view", VIEW, default=None),
    )

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, log_id=text, generation=integer, writer=text, without_cursors=flag, cleanup=_cleanup)
        make_plain(self, arrange_by_key=flag, view=optional(a_view))
        make_plain(self, **dict.fromkeys(_RANGES, optional(integer)))

    @property
    def collects(self) -> bool:
        """Whether collections may prune the log."""
        return self.cleanup in {Cleanup.COLLECT, Cleanup.BOTH}

    @property
    def compacts(self) -> bool:
        """Whether compactions drop superseded records of the log."""
        return self.cleanup in {Cleanup.COMPACT, Cleanup.BOTH}

    @property
    def has_passes(self) -> bool:
        """Whether compactions go over the log, to drop records or to arrange them; its appends then need keys."""
        return self.compacts or self.arrange_by_key

    @property
    def digest(self) -> str:
        """Identify this version of the policy."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def compaction_limits(self) -> CompactionLimits:
        """The limits of a compaction: the policy's, or else the defaults."""
        given = {name: getattr(self, name) for name in _OF_COMPACTIONS}
        return CompactionLimits(**{name: value for name, value in given.items() if value is not None})

    def check(self) -> None:
        """Refuse a value out of range, and values that contradict each other; InvalidRequestError names them."""
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidRequestError(f"policy: {name}: expected an integer from {least} to {most}, found {value}")
        self._check_cleanup()
        lag_s, lag_s_max = self.compaction_limits.min_compaction_lag_s, self.max_compaction_lag_s
        if lag_s_max is not None and lag_s_max < lag_s:
            raise InvalidRequestError(
                f"policy: max_compaction_lag_s: expected at least min_compaction_lag_s, which is {lag_s},"
                f" found {lag_s_max}"
            )
        if self.without_cursors and self.retention_s is None:
            message = "policy: expected a retention for a log without cursors, found none: set retention_s"
            raise InvalidRequestError(message)

    def _check_cleanup(self) -> None:
        """Refuse a value that the policy's ``cleanup`` never uses: its owner expects something else of it."""
        if not self.has_passes:
            self._refuse(_OF_COMPACTIONS, "the log is not compacted", "compact or both")
        elif not self.compacts:
            self._refuse(_OF_DROPPING, "nothing is dropped", "compact or both")
        if not self.collects:
            collecting = "both" if self.compacts else "collect"
            self._refuse([*_OF_COLLECTIONS, "without_cursors"], "nothing is collected", collecting)

    def _refuse(self, names: Iterable[str], why: str, instead: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise InvalidRequestError(
                    f"policy: {name}: expected none with cleanup {self.cleanup}, as {why}, found {value}:"
                    f" remove {name}, or set cleanup to {instead}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """The limits of a compaction, as ``Policy`` explains them; None: no limit."""

    min_compaction_lag_s: int = MIN_COMPACTION_LAG_S
    max_compaction_lag_s: int | None = None
    delete_retention_s: int = DELETE_RETENTION_S
    min_dirty_percent: int = MIN_DIRTY_PERCENT
    compacted_fragment_bytes: int = COMPACTED_FRAGMENT_BYTES
    receipt_retention_s: int | None = None


def _cleanup(value: object, name: str) -> Cleanup:
    """Take a ``Cleanup``, or its name."""
    try:
        return Cleanup(text(value, name))
    except ValueError:
        raise wrong(name, f"one of {', '.join(Cleanup)}", value) from None
