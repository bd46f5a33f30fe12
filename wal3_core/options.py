"""Every limit and default of the library, with its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, cast

from wal3_core.arguments import SECONDS_MAX as _SECONDS_MAX
from wal3_core.arguments import Check, checked, flag, instance_of, integer, make_plain, number, optional, text, wrong
from wal3_core.errors import InvalidRequestError

KIB = 2**10
MIB = 2**20
GIB = 2**30

# A fragment's bytes of keys and bodies, and its records, for writers, readers, copies and pins: so it expands to no
# more than readers allow by default.
FRAGMENT_BYTES_MAX = 512 * MIB
FRAGMENT_RECORDS_MAX = 2**22
FRAGMENT_EXPANDED_BYTES_MAX = GIB
# What a record expands to on top of its bytes: positions, lengths, levels, and the decoder's own memory for it.
_RECORD_EXPANDED_BYTES = 96
_COUNT_MAX = 2**31 - 1
_BYTES_MAX = 2**63 - 1
# The lead of a log's time over the store's clock: more than correct clocks and slow uploads differ, and more
# than the second to which stores give times; but little compared with any retention.
CLOCK_AHEAD_S_MAX = 60.0
# A commit that takes longer is reported as slow; on object stores one takes a tenth of a second.
SLOW_COMMIT_S = 5.0
# What S3 takes at least per second below one prefix: PUT, COPY, POST and DELETE; GET and HEAD. Published in
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
S3_WRITES_PER_S = 3500.0
S3_READS_PER_S = 5500.0
# The tries of maintenance for a change of the manifest that loses to other CASes. A writer that is never idle gives
# way every ten seconds, so this is longer than several of its turns.
REBASES_MAX = 4096
# The time in which requests to a store that does not answer are retried, unless the options or the URL say otherwise.
TIMEOUT_S = 120.0
# The pointers that one document can list and still be read back.
POINTERS_MAX = 100_000
# A manifest's pointers: with more, rolls fail. They leave some forty at most, however large the log is.
UNROLLED_POINTERS = 100
# The least limit of unprocessed records: a busy log gets more while its consumers handle one batch.
UNPROCESSED_MIN = 1000
UNPROCESSED_MAX = 2**63 - 1
# Cursors, or pins, that are loaded ahead of the caller.
CURSORS_AHEAD = 16
PINS_AHEAD = 16


class View(StrEnum):
    """What gives a log's records their meaning, and appends them. A policy may say that its log is one view's alone."""

    FEED = "feed"
    KEYED = "keyed"
    QUEUE = "queue"


def a_view(value: object, name: str) -> View:
    """Take a ``View``, or its name."""
    try:
        return View(text(value, name))
    except ValueError:
        raise wrong(name, f"one of {', '.join(View)}", value) from None


def expanded_bytes(num_bytes: int, num_records: int) -> int:
    """Bound the expanded size, in bytes, of a fragment with so many bytes of keys and bodies in so many records."""
    return num_bytes + num_records * _RECORD_EXPANDED_BYTES + MIB


_CHECKS: Mapping[object, Check] = {
    "int": integer,
    "int | None": optional(integer),
    "float": number,
    "float | None": optional(number),
    "bool": flag,
    "str | None": optional(text),
    "View | None": optional(a_view),
}


def _check_of(option: Field[object]) -> Check:
    """Return the check for an option's declared type."""
    # Any other type is a class of options.
    return _CHECKS.get(option.type) or instance_of(globals()[str(option.type)])


def within(least: float, most: float) -> Mapping[str, tuple[float, float]]:
    """Return the metadata of an option's field that says its range."""
    return {"range": (least, most)}


def check_range(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse the value of an option that is out of its range, unless it is None."""
    # This form also refuses NaN.
    if value is not None and not least <= value <= most:
        raise InvalidRequestError(f"option {name}: expected a number from {least} to {most}, found {value}")


class Options:
    """Base of the dataclasses of options: makes their values plain, and refuses those of a wrong type or range."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check each field by its declared type, and by the range that its metadata says."""
        declared = fields(cast("Any", self))
        make_plain(self, **{each.name: _check_of(each) for each in declared})
        for each in declared:
            if "range" in each.metadata:
                check_range(each.name, getattr(self, each.name), *each.metadata["range"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions(Options):
    """How long a request is tried again while the store does not answer.

    The last try begins ``timeout_s`` seconds after the first; None means the value in the store's URL
    (``?timeout_s=``), or 120 if it has none. The pauses between tries are spread at random, and double from
    ``pause_s_min`` to ``pause_s_max``. ``attempts_max`` limits the number of tries.
    """

    timeout_s: float | None = field(default=None, metadata=within(0, _SECONDS_MAX))
    pause_s_min: float = field(default=0.05, metadata=within(0, _SECONDS_MAX))
    pause_s_max: float = field(default=2.0, metadata=within(0, _SECONDS_MAX))
    attempts_max: int = field(default=100_000, metadata=within(1, _COUNT_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions(Options):
    """The shape of the manifest's tree of snapshots; benchmarks/ measures how much a commit writes.

    A snapshot of depth 1 holds ``fragments_per_snapshot`` fragments; ``fragments_kept`` of the newest
    stay in the manifest. ``snapshots_per_roll`` snapshots of a depth at a time go into one of the next,
    which holds ``snapshot_pointers_max`` at most, and is left alone once it holds that many times as much
    as would join it. A snapshot ends with a garbage collection interval (``gc_interval_s``) where it
    can. Due pointers are rolled ``rolls_ahead_max`` snapshots at a time, with ``uploads_max`` uploads at
    a time, so that the manifest stays small however many fragments a commit carries. A writer that
    finds pointers due from earlier writers rolls them with its first commit, which waits at most
    ``wait_s_max`` seconds for that.
    """

    fragments_per_snapshot: int = field(default=16, metadata=within(1, POINTERS_MAX))
    fragments_kept: int = field(default=4, metadata=within(0, _COUNT_MAX))
    # Nodes of one pointer would never reduce the number of pointers.
    snapshots_per_roll: int = field(default=8, metadata=within(2, POINTERS_MAX))
    snapshot_pointers_max: int = field(default=1024, metadata=within(2, POINTERS_MAX))
    gc_interval_s: int = field(default=24 * 60 * 60, metadata=within(1, _SECONDS_MAX))
    rolls_ahead_max: int = field(default=64, metadata=within(1, _COUNT_MAX))
    uploads_max: int = field(default=4, metadata=within(1, _COUNT_MAX))
    wait_s_max: float = field(default=5.0, metadata=within(0, _SECONDS_MAX))
    loaded_max: int = field(default=64, metadata=within(0, _COUNT_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions(Options):
    """Limits of one log's writer.

    A batch is cut into a fragment at ``batch_bytes_max`` bytes or ``batch_records_max`` records; at once
    when the log is idle; else so that its upload ends when the commit under way does, but not before its
    oldest record has waited ``batch_age_s_max`` seconds. Up to ``uploads_max`` fragments upload at a time,
    ``fragments_in_flight_max`` wait for their commit, and callers wait when ``bytes_held_max`` bytes
    are not yet durable. Records that lost their place to another writer are given a new one up to
    ``contentions_max`` times; a commit is rebased onto a manifest that maintenance changed up to
    ``rebases_max`` times. While the store does not answer, an append is tried for
    ``delivery_timeout_s`` seconds; None means the value in the store's URL (``?timeout_s=``), or 120 if
    it has none. ``retry`` sets the pauses between tries, and can end them earlier by its own ``timeout_s``
    or ``attempts_max``. A writer's clock moves the log's time at most ``clock_ahead_s_max`` seconds ahead of
    the store's. ``view`` says which view appends: a log that its policy gives to one takes appends of no other; each
    view sets it itself. No setting allows a fragment that a reader's defaults refuse.
    """

    record_bytes_max: int = field(default=16 * MIB, metadata=within(1, FRAGMENT_BYTES_MAX))
    batch_bytes_max: int = field(default=8 * MIB, metadata=within(1, FRAGMENT_BYTES_MAX))
    batch_records_max: int = field(default=65_536, metadata=within(1, FRAGMENT_RECORDS_MAX))
    batch_age_s_max: float = field(default=0.01, metadata=within(0, _SECONDS_MAX))
    fragment_bytes_max: int = field(default=64 * MIB, metadata=within(1, FRAGMENT_BYTES_MAX))
    uploads_max: int = field(default=4, metadata=within(1, _COUNT_MAX))
    fragments_in_flight_max: int = field(default=16, metadata=within(1, _COUNT_MAX))
    bytes_held_max: int = field(default=128 * MIB, metadata=within(1, _BYTES_MAX))
    contentions_max: int = field(default=32, metadata=within(0, _COUNT_MAX))
    rebases_max: int = field(default=256, metadata=within(1, _COUNT_MAX))
    commit_pause_s_max: float = field(default=5.0, metadata=within(0, _SECONDS_MAX))
    clock_ahead_s_max: float = field(default=CLOCK_AHEAD_S_MAX, metadata=within(1, _SECONDS_MAX))
    delivery_timeout_s: float | None = field(default=None, metadata=within(0, _SECONDS_MAX))
    view: View | None = None
    retry: RetryOptions = field(default_factory=RetryOptions)
    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)


def of_view(options: WriterOptions | None, view: View) -> WriterOptions:
    """Return a writer's options for a view's own appends."""
    return replace(options or WriterOptions(), view=view)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions(Options):
    """How many logs a fleet has open, and how much it holds in memory.

    At most ``logs_open_max`` logs are open at a time, each of which takes some 45 KiB; of those without work, the one
    used least recently is closed for another. At most ``bytes_held_max`` bytes of appends of all logs together wait
    to become durable; callers wait for more. With ``creates``, a log that does not exist is created at its first
    append. ``writer`` has the limits of each log's writer.

    Appends to a log with more than ``unprocessed_max`` unprocessed records are refused with BackPressureError; a log's
    policy may set another limit. None: only logs whose policy has a limit are refused.
    """

    logs_open_max: int = field(default=5000, metadata=within(1, 10**6))
    bytes_held_max: int = field(default=512 * MIB, metadata=within(1, _BYTES_MAX))
    creates: bool = False
    unprocessed_max: int | None = field(default=None, metadata=within(UNPROCESSED_MIN, UNPROCESSED_MAX))
    writer: WriterOptions = field(default_factory=WriterOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions(Options):
    """Limits of one log's reader.

    ``prefetch_fragments`` are fetched ahead of the caller, and up to ``prefetch_snapshots`` of the
    tree loaded (none before the first fragment is found). A fragment that expands beyond
    ``fragment_expanded_bytes_max`` is refused, and whatever its bytes are takes at most three times
    that and 64 MiB of memory. A follower polls after ``poll_s_min`` seconds, and ever more slowly, up
    to ``poll_s_max``, while there is nothing new. ``verify`` checks setsums and positions; turn it off
    only where something else checks them. ``reloads_max`` bounds how often a read starts over because
    maintenance replaced an object it was about to fetch. ``retry`` says how long each request is tried
    again while the store does not answer.
    """

    verify: bool = True
    prefetch_fragments: int = field(default=2, metadata=within(0, _COUNT_MAX))
    prefetch_snapshots: int = field(default=4, metadata=within(0, _COUNT_MAX))
    fragment_expanded_bytes_max: int = field(default=FRAGMENT_EXPANDED_BYTES_MAX, metadata=within(1, _BYTES_MAX))
    poll_s_min: float = field(default=0.1, metadata=within(0, _SECONDS_MAX))
    poll_s_max: float = field(default=2.0, metadata=within(0, _SECONDS_MAX))
    reloads_max: int = field(default=8, metadata=within(1, _COUNT_MAX))
    snapshots_loaded_max: int = field(default=64, metadata=within(0, _COUNT_MAX))
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(Options):
    """How a consumer saves its cursors and waits.

    With ``auto_commit`` it saves them when ``commit_records_max`` records were processed, or ``commit_s_max`` seconds
    have passed, since the last time, and at its end; without it, ``commit`` alone does. A batch counts with all its
    records, when the next one is asked for. It takes at most ``batch_records_max`` records from one log before it
    looks at the next one. It ends after ``idle_s`` seconds
    without a record; None means never. ``reader`` says how often it polls, and how long it waits for a store that
    does not answer.
    """

    auto_commit: bool = True
    commit_records_max: int = field(default=1000, metadata=within(1, _COUNT_MAX))
    commit_s_max: float = field(default=5.0, metadata=within(0, _SECONDS_MAX))
    batch_records_max: int = field(default=1000, metadata=within(1, _COUNT_MAX))
    idle_s: float | None = field(default=None, metadata=within(0, _SECONDS_MAX))
    reader: ReaderOptions = field(default_factory=ReaderOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a read ends; None means no limit.

    ``offset`` and ``timestamp_us`` end it before the first record at or after them; ``records``,
    ``num_bytes`` (of stored fragments) and ``fragments`` after so many, always by whole fragments
    except for ``records``: so ``num_bytes`` ends it after the fragment that reaches it. With 0 for any of
    these three nothing is read.
    """

    offset: int | None = None
    timestamp_us: int | None = None
    records: int | None = None
    num_bytes: int | None = None
    fragments: int | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        names = ("offset", "timestamp_us", "records", "num_bytes", "fragments")
        make_plain(self, **dict.fromkeys(names, optional(integer)))
        for name in names:
            value = getattr(self, name)
            # 2**64 itself is the exclusive limit of all offsets.
            if value is not None and not 0 <= value <= 2**64:
                raise InvalidRequestError(f"limit {name}: expected a number from 0 to 2**64, found {value}")

    @checked(num_bytes=integer)
    def without(self, num_bytes: int) -> Limits:
        """Return the limits left after one fragment of so many bytes; they allow at least one more fragment."""
        return replace(
            self,
            num_bytes=None if self.num_bytes is None else max(1, self.num_bytes - num_bytes),
            fragments=None if self.fragments is None else max(1, self.fragments - 1),
        )


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorOptions(Options):
    """How one log's garbage is collected.

    Pruned objects are deleted ``interval_s`` seconds later, so that readers of an older manifest
    have ended. A plan that would delete more than ``fraction_max`` of the bytes of a log without a consumer's
    cursor is refused: by age alone, or up to an offset that was given.
    ``without_cursors`` allows a log without cursors to be collected up to a given offset; without it,
    and without a policy that allows it, such a log is refused. At most ``orphans_max`` orphans are
    marked at a time; with 0 they are not looked for. Deletes are sent ``deletes_ahead`` at a time,
    ``deletes_per_s`` a second. A plan that a new cursor made outdated is made again up to ``rounds_max``
    times; a change of the manifest is tried ``rebases_max`` times.
    """

    interval_s: float = field(default=24 * 60 * 60, metadata=within(0, _SECONDS_MAX))
    fraction_max: float = field(default=0.9, metadata=within(0, 1))
    without_cursors: bool = False
    orphans_max: int = field(default=10_000, metadata=within(0, POINTERS_MAX))
    # Slower than one delete in a quarter of an hour is a mistake, and 0 would never end.
    deletes_per_s: float = field(default=500.0, metadata=within(0.001, _COUNT_MAX))
    deletes_ahead: int = field(default=8, metadata=within(1, _COUNT_MAX))
    rounds_max: int = field(default=16, metadata=within(1, _COUNT_MAX))
    rebases_max: int = field(default=REBASES_MAX, metadata=within(1, _COUNT_MAX))
    snapshots_loaded_max: int = field(default=256, metadata=within(0, _COUNT_MAX))
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCompactorOptions(Options):
    """How one log's tree of snapshots is compacted.

    ``snapshots`` is the shape that its writers keep. One change of the manifest packs at most about
    ``pointers_per_step_max`` pointers. ``requests_ahead`` snapshots are loaded or uploaded at a time. A
    change of the manifest is tried ``rebases_max`` times, and planned again ``plans_max`` times in a row
    when the pointers it was to replace change each time.
    """

    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    pointers_per_step_max: int = field(default=16_384, metadata=within(1, _COUNT_MAX))
    requests_ahead: int = field(default=8, metadata=within(1, _COUNT_MAX))
    rebases_max: int = field(default=REBASES_MAX, metadata=within(1, _COUNT_MAX))
    plans_max: int = field(default=16, metadata=within(1, _COUNT_MAX))
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactorOptions(Options):
    """How passes of key compaction run.

    ``snapshots`` is the shape of the tree that the log's writers keep. ``requests_ahead`` objects are read or written
    at a time. A change of the manifest is tried ``rebases_max`` times; a pass is planned again ``plans_max`` times when
    maintenance or a cursor got in its way. ``bytes_per_s_max`` limits what it reads and writes of fragments, all tasks
    together, None for no limit.
    ``fragment_expanded_bytes_max`` limits the memory for one fragment.
    """

    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    requests_ahead: int = field(default=4, metadata=within(1, _COUNT_MAX))
    rebases_max: int = field(default=REBASES_MAX, metadata=within(1, _COUNT_MAX))
    plans_max: int = field(default=8, metadata=within(1, _COUNT_MAX))
    # Slower than a kilobyte a second is a mistake, and 0 would never end.
    bytes_per_s_max: int | None = field(default=None, metadata=within(1024, _BYTES_MAX))
    fragment_expanded_bytes_max: int = field(default=FRAGMENT_EXPANDED_BYTES_MAX, metadata=within(1, _BYTES_MAX))
    snapshots_loaded_max: int = field(default=256, metadata=within(0, _COUNT_MAX))
    retry: RetryOptions = field(default_factory=RetryOptions)
