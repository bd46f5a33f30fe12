"""What a roll-up of a dirty log decides about each marked log, and its plan: the same on one machine and in Spark.

A marker may be read before its fragment is committed. So the manifest that was loaded after it decides only what
lies before that manifest's end; the rest of the marker is kept. Source: docs/protocol/dirty-logs.md, "Roll-up".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from wal3_core.format import strict_json
from wal3_core.format.manifest import Manifest
from wal3_core.format.marker import Marker, life_of_log
from wal3_core.format.paths import LOG_ID, LogId, check_cursor_name
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Record
from wal3_core.format.strict_json import (
    FLAG,
    INTEGER,
    TEXT,
    Fields,
    JsonObject,
    Kind,
    Stored,
    dump_members,
    member,
    nested,
    one_of,
    read_members,
    several,
)
from wal3_core.options import GIB, Options, RetryOptions, within
from wal3_core.runtime import US_PER_S

_COUNT_MAX = 2**63 - 1
_AHEAD_MAX = 2**31 - 1
_SECONDS_MAX = 10 * 365 * 24 * 60 * 60
# Shown in microseconds.
_SECONDS = Kind(lambda fields, name: fields.integer(name) / US_PER_S, lambda seconds: round(seconds * US_PER_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpOptions(Options):
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
    age_s_max: float = field(default=3600.0, metadata=within(0, _SECONDS_MAX))
    records_max: int = field(default=1_000_000, metadata=within(1, _COUNT_MAX))
    bytes_max: int = field(default=GIB, metadata=within(1, _COUNT_MAX))
    reinsertions_max: int = field(default=100, metadata=within(1, _COUNT_MAX))
    unprocessed_max: int = field(default=10_000_000, metadata=within(0, _COUNT_MAX))
    undecided_s: float = field(default=900.0, metadata=within(0, _SECONDS_MAX))
    markers_max: int = field(default=100_000, metadata=within(1, _AHEAD_MAX))
    logs_ahead: int = field(default=16, metadata=within(1, _AHEAD_MAX))
    take_all: bool = False
    retry: RetryOptions = field(default_factory=RetryOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        Options.__post_init__(self)
        if self.cursor is not None:
            check_cursor_name(self.cursor)


class Decision(StrEnum):
    """What becomes of a marker."""

    GONE = "gone"
    CAUGHT_UP = "caught up"
    UNDECIDED = "undecided"
    KEPT = "kept"
    SELECTED = "selected"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProbe:
    """A marked log as it was after its marker was read: its manifest's bounds, and what was processed.

    ``log_id`` is empty when the name has no log; ``error`` says why it cannot be read. ``processed`` is the offset of
    the cursor that says what was processed, ``num_bytes`` the stored bytes of what was not. ``keyed`` says that the
    log is compacted by key.
    """

    log_id: str = ""
    first: int = 0
    next: int = 0
    sealed: bool = False
    keyed: bool = False
    processed: int | None = None
    num_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedLog(Stored):
    """What a roll-up found about one life of a marked log, and its decision, with the reason in a sentence.

    ``marker`` is the folded marker. ``rest`` is the part of it that is not decided yet: its fragment may still be
    committed, so it stays marked whatever is done about the log; ``overdue`` says that it has waited long enough.
    ``num_records`` and ``num_bytes`` are unprocessed; ``age_s`` is the age of the oldest marked record. ``keyed`` says
    that the log is compacted by key.
    """

    marker: Marker
    decision: Decision
    reason: str
    rest: Marker | None = None
    overdue: bool = False
    num_records: int = 0
    num_bytes: int = 0
    age_s: float = 0.0
    over: bool = False
    keyed: bool = False
    MEMBERS = (
        member("decision", one_of(Decision)),
        member("reason", TEXT),
        member("records", INTEGER, "num_records"),
        member("bytes", INTEGER, "num_bytes"),
        member("age_us", _SECONDS, "age_s"),
        member("over", FLAG),
        member("overdue", FLAG),
        member("marker", nested(Marker)),
        member("keyed", FLAG, default=False),
        member("rest", nested(Marker), default=None),
    )

    @property
    def log(self) -> str:
        """The log's name."""
        return self.marker.log

    def left(self, *, handled: bool) -> Marker | None:
        """Return what stays marked; ``handled`` says that what was found in the log is taken care of."""
        match self.decision:
            case Decision.GONE | Decision.CAUGHT_UP:
                return None
            case Decision.UNDECIDED:
                return self.rest
            case Decision.UNREADABLE:
                return self.marker
            case Decision.KEPT | Decision.SELECTED:
                return self.rest if handled else self.marker

    def fenced(self, next_offset: int | None) -> MarkedLog:
        """Return this once nothing marked behind ``next_offset`` can be committed any more; None: the log is gone."""
        if next_offset is None:
            reason = "no log of this name and life"
            return replace(self, decision=Decision.GONE, reason=reason, rest=None, overdue=False)
        rest = None if self.rest is None else before(self.rest, next_offset)
        # What a fence cuts off was never committed at that place: its writer has marked another place since.
        return replace(self, marker=before(self.marker, next_offset) or self.marker, rest=rest, overdue=False)

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"log": self.log, **dump_members(self, self.MEMBERS)}

    @classmethod
    def from_json(cls, fields: Fields) -> MarkedLog:
        """Read from a JSON object."""
        fields.string("log")
        found = cls(**read_members(fields, cls.MEMBERS))
        fields.finish()
        return found


def markers_of(records: Iterable[Record], *, what: str) -> Iterator[Marker]:
    """Decode the records of a dirty log; CorruptError, which names ``what`` and the offset, for any other record.

    A marker's times are its server's, from a clock that may be years ahead: none is later than the time of the
    dirty log, which is bounded by the store's clock.
    """
    for record in records:
        marker, latest_us = Marker.of_record(record, what=what), record.timestamp_us
        if marker.limit.timestamp_us > latest_us:
            limit = LogPosition(marker.limit.offset, latest_us)
            marker = replace(marker, limit=limit, first_us=min(marker.first_us, latest_us))
        yield marker


def before(marker: Marker, offset: int) -> Marker | None:
    """Return the part of a marker before an offset; None when there is none."""
    if marker.limit.offset <= offset:
        return marker
    if marker.start >= offset:
        return None
    limit = LogPosition(offset, marker.limit.timestamp_us)
    return replace(marker, limit=limit, num_records=min(marker.num_records, offset - marker.start))


def since(marker: Marker, offset: int) -> Marker | None:
    """Return the part of a marker from an offset on; None when there is none.

    Where this cuts a marker, the part is as old as the marker's newest fragment: it is what was under way.
    """
    if marker.start >= offset:
        return marker
    if marker.limit.offset <= offset:
        return None
    num_records = min(marker.num_records, marker.limit.offset - offset)
    return replace(marker, start=offset, num_records=num_records, first_us=marker.limit.timestamp_us, reinsertions=0)


def decide(marker: Marker, probe: LogProbe, now_us: int, options: RollUpOptions) -> MarkedLog:
    """Decide about one folded marker by its log, which was looked up after the marker was read."""
    marker = replace(marker, ranges=())
    if probe.error is not None:
        return MarkedLog(marker=marker, decision=Decision.UNREADABLE, reason=probe.error)
    if life_of_log(LogId(probe.log_id)) != marker.life:
        reason = "the name has another log now" if probe.log_id else "no log of this name"
        return MarkedLog(marker=marker, decision=Decision.GONE, reason=reason)
    # Nothing is committed behind a seal.
    decided, rest = before(marker, probe.next), None if probe.sealed else since(marker, probe.next)
    waited_s = 0.0 if rest is None else (now_us - rest.limit.timestamp_us) / US_PER_S
    found = MarkedLog(
        marker=decided if probe.sealed and decided is not None else marker,
        decision=Decision.KEPT,
        reason="",
        rest=rest,
        overdue=rest is not None and waited_s >= options.undecided_s,
        age_s=max(0.0, (now_us - marker.first_us) / US_PER_S),
        keyed=probe.keyed,
    )
    processed = max(probe.first, probe.processed or 0)
    if decided is None or processed >= decided.limit.offset:
        return _not_dirty(found, probe, options)
    num_records = (
        min(decided.num_records, decided.limit.offset - max(decided.start, processed))
        if probe.processed is None
        else probe.next - processed
    )
    over = num_records > options.unprocessed_max
    found = replace(found, num_records=num_records, num_bytes=probe.num_bytes, over=over)
    why = _why_selected(found, options)
    return replace(found, decision=Decision.SELECTED if why else Decision.KEPT, reason=why or "not due yet")


def _not_dirty(found: MarkedLog, probe: LogProbe, options: RollUpOptions) -> MarkedLog:
    """Decide about a log where nothing that was committed is unprocessed."""
    if found.rest is not None:
        reason = (
            f"a fragment up to offset {found.rest.limit.offset} may still be committed; the log ends at {probe.next}"
        )
        return replace(found, decision=Decision.UNDECIDED, reason=reason)
    if probe.processed is not None and probe.processed >= probe.first:
        reason = f"the cursor {options.cursor} is at offset {probe.processed}"
    elif probe.sealed:
        reason = f"the log was sealed at offset {probe.next} without them"
    else:
        reason = f"the log begins at offset {probe.first}: they were collected"
    return replace(found, decision=Decision.CAUGHT_UP, reason=reason)


def _why_selected(found: MarkedLog, options: RollUpOptions) -> str:
    """Return why a marked log is selected; empty when it is not due yet."""
    if found.age_s > options.age_s_max:
        return f"too old: expected at most {options.age_s_max:g} s, found {found.age_s:.0f} s"
    if found.num_records >= options.records_max:
        return f"too big: expected fewer than {options.records_max} records, found {found.num_records}"
    if found.num_bytes >= options.bytes_max:
        return f"too big: expected fewer than {options.bytes_max} bytes, found {found.num_bytes}"
    if found.marker.reinsertions >= options.reinsertions_max:
        return f"reinserted too often: expected fewer than {options.reinsertions_max} times"
    return "every log with unprocessed records is taken" if options.take_all else ""


def stored_bytes_from(manifest: Manifest, offset: int) -> int:
    """Estimate the stored bytes of the records from an offset on: exact but for the pointer that the offset is in."""
    total = 0
    for pointer in manifest.pointers:
        start, limit = pointer.start.offset, pointer.limit.offset
        if limit > offset:
            total += pointer.num_bytes * (limit - max(start, offset)) // (limit - start)
    return total


# A plan as text may name that many logs; each takes some 500 bytes.
_LOGS_MAX = 1_000_000
_PLAN_BYTES_MAX = 2**29


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerRange(Stored):
    """A part of one life of a dirty log: from its cursor to ``limit``, exclusive.

    ``generation`` is the cursor's version, 0 when there was none. ``skipped`` markers were collected before they were
    read, which only a cursor that was deleted or moved by hand allows.
    """

    dirty_log: str
    log_id: LogId
    generation: int
    start: int
    limit: LogPosition
    skipped: int = 0
    MEMBERS = (
        member("dirty_log", TEXT),
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("start", INTEGER),
        member("limit", nested(LogPosition)),
        member("skipped", INTEGER),
    )

    @property
    def num_markers(self) -> int:
        """How many markers it holds."""
        return self.limit.offset - self.start


@dataclass(frozen=True, slots=True)
class RollUpTime:
    """The time by which a roll-up computes ages: the store's, unless ``guessed`` says why that is not known."""

    now_us: int = 0
    guessed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpPlan(Stored):
    """What a roll-up found, and what it decided; nothing was changed for it.

    ``now_us`` is the store's time, unless ``guessed`` says why it is not known: then ages are by the clock of the
    machine that read, and nothing is overdue. ``logs`` has one entry for each life of a marked log, in the order of
    their names.
    """

    marker_range: MarkerRange
    now_us: int
    logs: tuple[MarkedLog, ...]
    guessed: str | None = None
    MEMBERS = (
        member("stretch", nested(MarkerRange), "marker_range"),
        member("now_us", INTEGER),
        member("guessed", TEXT, default=None),
        member("logs", several(MarkedLog.from_json, _LOGS_MAX, MarkedLog.to_json)),
    )

    @property
    def selected(self) -> tuple[str, ...]:
        """The logs to be maintained now."""
        return tuple(each.log for each in self._with(Decision.SELECTED))

    @property
    def dirty(self) -> tuple[MarkedLog, ...]:
        """The logs with unprocessed records, selected or not."""
        return tuple(self._with(Decision.SELECTED, Decision.KEPT))

    @property
    def unreadable(self) -> tuple[MarkedLog, ...]:
        """The logs that are damaged or denied, each with its error as the reason; they stay marked."""
        return tuple(self._with(Decision.UNREADABLE))

    @property
    def over(self) -> tuple[str, ...]:
        """The logs with more than ``unprocessed_max`` unprocessed records."""
        return tuple(each.log for each in self.logs if each.over)

    @property
    def num_records(self) -> int:
        """How many records are unprocessed."""
        return sum(each.num_records for each in self.logs)

    @property
    def num_bytes(self) -> int:
        """About how many stored bytes are unprocessed."""
        return sum(each.num_bytes for each in self.logs)

    @property
    def age_s(self) -> float:
        """The age of the oldest unprocessed record, in seconds since it was marked; 0 when there is none."""
        return max((each.age_s for each in self.dirty), default=0.0)

    def counts(self) -> dict[Decision, int]:
        """Count the logs by decision."""
        return {decision: sum(1 for _ in self._with(decision)) for decision in Decision}

    def left(self, handled: Collection[str]) -> list[Marker]:
        """Return the markers to append again when these logs are taken care of."""
        kept = (each.left(handled=each.log in handled) for each in self.logs)
        return [marker for marker in kept if marker is not None]

    def _with(self, *decisions: Decision) -> Iterator[MarkedLog]:
        return (each for each in self.logs if each.decision in decisions)

    @classmethod
    def from_text(cls, text: str) -> RollUpPlan:
        """Read what ``to_json`` returns, as text."""
        return cls.from_json(strict_json.load(text.encode(), what="roll-up", bytes_max=_PLAN_BYTES_MAX))


def plan_of(
    marker_range: MarkerRange, probes: Iterable[tuple[Marker, LogProbe]], time: RollUpTime, options: RollUpOptions
) -> RollUpPlan:
    """Decide about each folded marker of a range."""
    decided = (decide(marker, probe, time.now_us, options) for marker, probe in probes)
    if time.guessed is not None:
        # Selecting a log too early is harmless; moving its fence by a wrong clock would cost its writer an upload.
        decided = (replace(each, overdue=False) for each in decided)
    logs = tuple(sorted(decided, key=lambda each: (each.log, each.marker.life)))
    return RollUpPlan(marker_range=marker_range, now_us=time.now_us, logs=logs, guessed=time.guessed)


def by_log(folded: Mapping[tuple[str, str], Marker]) -> list[list[Marker]]:
    """Group folded markers by log, in the order of the names: each log is looked up once, whatever its lives."""
    grouped: dict[str, list[Marker]] = {}
    for (log, _), marker in sorted(folded.items()):
        grouped.setdefault(log, []).append(marker)
    return list(grouped.values())
