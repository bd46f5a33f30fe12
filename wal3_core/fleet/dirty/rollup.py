"""Rolls a dirty log up: which logs have grown, which of them need maintenance now, and what stays marked.

``read`` changes nothing. ``finish`` appends again what stays marked, and only then advances the dirty log's cursor, by
CAS. Each may be repeated, stopped anywhere, and run by two processes. Source: docs/protocol/dirty-logs.md, "Roll-up".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import chain

from wal3_core.arguments import checked, instance_of, optional, several
from wal3_core.errors import (
    ContentionError,
    CursorConflictError,
    LogError,
    LogNotFoundError,
    LogReplacedError,
    StoreDeniedError,
    UnknownDurabilityError,
)
from wal3_core.fleet.dirty.back_pressure import Pressure, measure_logs
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup_plan import (
    Decision,
    LogProbe,
    MarkedLog,
    MarkerRange,
    RollUpOptions,
    RollUpPlan,
    RollUpTime,
    by_log,
    markers_of,
    plan_of,
    stored_bytes_from,
)
from wal3_core.fleet.outcomes import try_log
from wal3_core.format.cursor import BYTES_MAX, Cursor, Owner
from wal3_core.format.manifest import Manifest
from wal3_core.format.marker import Marker, fold, life_of_log
from wal3_core.format.paths import check_log_name, cursor_path
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import JsonObject
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.reader import LogReader
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import Limits, ReaderOptions, WriterOptions
from wal3_core.runtime import US_PER_S, Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.store.documents.cursor_store import Witness
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.named_store import NamedStore
from wal3_core.store.object_store import ObjectStore, a_store, log_store, share_of
from wal3_core.store.retrying import with_retries


def probe_logs(
    store: ObjectStore, logs: Iterable[Sequence[Marker]], options: RollUpOptions, runtime: Runtime
) -> Iterator[tuple[Marker, LogProbe]]:
    """Look up logs, each given by its folded markers; yield each marker with what was found, several logs at a time.

    UnavailableError when the store does not answer.
    """
    look = partial(probe_log, store, options, runtime)
    found = map_ahead(runtime, look, logs, count=options.logs_ahead, share=share_of(store))
    return chain.from_iterable(found)


def probe_log(
    store: ObjectStore, options: RollUpOptions, runtime: Runtime, markers: Sequence[Marker]
) -> list[tuple[Marker, LogProbe]]:
    """Look up one log for its markers, of one life or several."""
    found = try_log(partial(_probe, store, options, runtime), markers)
    if isinstance(found, LogError):
        return [(marker, LogProbe(error=f"{type(found).__name__}: {found}")) for marker in markers]
    return list(zip(markers, found, strict=True))


def _probe(store: ObjectStore, options: RollUpOptions, runtime: Runtime, markers: Sequence[Marker]) -> list[LogProbe]:
    inside = with_retries(log_store(store, markers[0].log), runtime, options.retry)
    manifests = ManifestStore(inside, runtime, options.retry)
    if (seen := manifests.look()) is None:
        manifests.refuse_lost()
        # It may have been restored meanwhile.
        seen = manifests.look()
    manifest = None if seen is None else seen.document
    if not isinstance(manifest, Manifest):
        # A vacancy: no life that was marked is to come there.
        return [LogProbe()] * len(markers)
    processed = None
    if options.cursor is not None and life_of_log(manifest.log_id) in {marker.life for marker in markers}:
        same = ManifestStore(inside, runtime, options.retry, log_id=manifest.log_id)
        cursors = NamedStore(same, runtime, options.retry, Cursor.from_fields, bytes_max=BYTES_MAX)
        saved = cursors.load(cursor_path(options.cursor))
        processed = None if saved is None else saved.document.position.offset
        if processed is not None and processed > manifest.next.position.offset:
            # It has moved on since. Or an older manifest was restored: then it says nothing of what was appended again.
            manifest = same.load().manifest
            processed = processed if processed <= manifest.next.position.offset else None
    first = manifest.first.position.offset
    probe = LogProbe(
        log_id=manifest.log_id,
        first=first,
        next=manifest.next.position.offset,
        sealed=manifest.seal is not None,
        keyed=manifest.keyed,
        processed=processed,
    )
    begins = (marker.start if processed is None else processed for marker in markers)
    return [replace(probe, num_bytes=stored_bytes_from(manifest, max(first, begin))) for begin in begins]


# The dirty log's own cursor: everything before it was rolled up.
ROLLUP = "rollup"
# Markers that a roll-up reads for each that it leaves, at least, if all that it does is to rewrite them.
_SHRINKS = 2
_APPENDED_AT_ONCE = 10_000
_APPENDS_MAX = 8


class RollUpEnd(StrEnum):
    """How a roll-up ended."""

    ADVANCED = "advanced"
    NOTHING_TO_DO = "nothing to do"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRollUp:
    """What ``finish`` did: ``num_reinserted`` markers stand for the ``num_markers`` that were read.

    OVERTAKEN: another roll-up advanced the cursor first; the plan is void, and reading again shows what is left.
    ``limit`` is where the next roll-up begins.
    """

    outcome: RollUpEnd
    num_markers: int
    num_reinserted: int
    num_fenced: int
    limit: int


class RollUp:
    """Rolls up one dirty log."""

    @checked(store=a_store, dirty_log=check_log_name)
    def __init__(
        self,
        store: ObjectStore,
        dirty_log: str,
        *,
        options: RollUpOptions | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._store = store
        self._dirty_log = dirty_log
        self._options = options or RollUpOptions()
        self._runtime = runtime or shared_runtime()
        retry = self._options.retry
        self._stores = LogStores(store, dirty_log, runtime=self._runtime, retry=retry, snapshots_loaded_max=0)

    # ------------------------------------------------------------------ read

    def read(self) -> RollUpPlan:
        """Read the markers from the cursor on, look up each marked log, and decide; changes nothing.

        At most ``markers_max`` markers are read. CorruptError for a record that is no marker, LogNotFoundError when
        there is no such dirty log, UnavailableError when the store does not answer. A single log that cannot be read
        is reported in the plan, and stays marked.
        """
        marker_range, manifest = self._begin()
        folded = fold(self.markers(marker_range, manifest))
        # The manifests after the markers: a marked fragment that they do not hold was not committed before.
        probed = list(probe_logs(self._store, by_log(folded), self._options, self._runtime))
        return plan_of(marker_range, probed, self.time() if probed else RollUpTime(), self._options)

    def marker_range(self) -> MarkerRange:
        """Return which part of the dirty log is to be rolled up now."""
        return self._begin()[0]

    def _begin(self) -> tuple[MarkerRange, Manifest]:
        stores = self._stores
        manifest = stores.manifests.load().manifest
        witness = stores.cursors.load(ROLLUP, Owner.ROLLUP)
        if witness is not None and witness.cursor.position.offset > manifest.next.position.offset:
            # Another roll-up moved it beyond the end of this manifest.
            manifest = stores.manifests.load().manifest
        first, end = manifest.first.position.offset, manifest.next.position.offset
        begin = first if witness is None else witness.cursor.position.offset
        if begin > end:
            # An older manifest was restored. Which of its markers were read is unknown: reading one again is harmless.
            begin = first
        start = max(first, begin)
        marker_range = MarkerRange(
            dirty_log=self._dirty_log,
            log_id=manifest.log_id,
            generation=_generation(witness),
            start=start,
            limit=min(manifest.next.position, LogPosition(start + self._options.markers_max, 0)),
            skipped=start - begin,
        )
        return marker_range, manifest

    @checked(marker_range=instance_of(MarkerRange), manifest=optional(instance_of(Manifest)))
    def markers(self, marker_range: MarkerRange, manifest: Manifest | None = None) -> Iterator[Marker]:
        """Read the markers of a range, in order; ``manifest`` is the dirty log's, if it is at hand."""
        if not marker_range.num_markers:
            return
        options, runtime = ReaderOptions(retry=self._options.retry), self._runtime
        reader = LogReader(self._store, self._dirty_log, options=options, runtime=runtime, log_id=marker_range.log_id)
        records = reader.records(marker_range.start, Limits(offset=marker_range.limit.offset), manifest=manifest)
        yield from markers_of(records, what=f"log {self._dirty_log}")

    def time(self) -> RollUpTime:
        """Return the store's time; by this machine's clock, with a warning, if the store's cannot be learned."""
        try:
            return RollUpTime(self._stores.store_now_us())
        except StoreDeniedError as error:
            # To learn the store's time is to write. It has reached that of the dirty log's last change.
            COLLECT.warning("log %s: ages are by this machine's clock: %s", self._stores.url, error)
            now_us = max(self._runtime.now_us(), self._stores.manifests.changed_us())
            return RollUpTime(now_us, guessed=str(error))

    # ------------------------------------------------------------------ finish

    @checked(plan=instance_of(RollUpPlan), handled=several)
    def finish(self, plan: RollUpPlan, handled: Collection[str] = ()) -> FinishedRollUp:
        """Append again what stays marked, then advance the cursor over what the plan has read.

        ``handled`` names the logs whose maintenance the caller has recorded durably, and will run from their present
        end or a later one. Every other log with unprocessed records stays marked, and so does what of a handled log
        was not committed when the plan was read. Does nothing where that would change nothing. Repeating a finished
        plan is harmless, and so is finishing it twice at once: one of the two is OVERTAKEN.

        Moves the fence of a log whose marked fragment has waited ``undecided_s`` seconds for its commit.
        """
        marker_range, stores = plan.marker_range, self._stores
        if marker_range.log_id != stores.manifests.log_id():
            message = f"log {stores.url}: expected a plan of log {stores.manifests.log_id()}, found one of another life"
            raise LogReplacedError(message)
        witness = stores.cursors.load(ROLLUP, Owner.ROLLUP)
        if _generation(witness) != marker_range.generation:
            return self._finished(RollUpEnd.OVERTAKEN, plan, 0, 0)
        fenced = replace(plan, logs=tuple(self._fence_overdue(plan)))
        num_fenced = sum(before != after for before, after in zip(plan.logs, fenced.logs, strict=True))
        names = frozenset(handled)
        left, begin = fenced.left(names), 0 if witness is None else witness.cursor.position.offset
        unchanged = left == [each.marker for each in plan.logs] and marker_range.num_markers <= _SHRINKS * len(left)
        # A plan that was cut short is finished in any case: what it keeps must not hide the markers behind it. So is
        # one of a restored dirty log: beyond its end, the cursor would hide those that come before it.
        whole = marker_range.num_markers < self._options.markers_max and begin <= marker_range.limit.offset
        if unchanged and whole:
            return self._finished(RollUpEnd.NOTHING_TO_DO, plan, 0, num_fenced)
        self._append([marker.reinserted() for marker in left])
        try:
            # From the version that the plan was read with.
            if witness is None:
                stores.cursors.create(ROLLUP, marker_range.limit, owner=Owner.ROLLUP)
            else:
                stores.cursors.save(ROLLUP, marker_range.limit, witness, owner=Owner.ROLLUP)
        except CursorConflictError:
            return self._finished(RollUpEnd.OVERTAKEN, plan, len(left), num_fenced)
        COLLECT.info(
            "log %s: rolled up %d markers of %d logs up to offset %d; %d stay marked, %d were handled",
            *(stores.url, marker_range.num_markers, len(plan.logs), marker_range.limit.offset, len(left), len(names)),
        )
        return self._finished(RollUpEnd.ADVANCED, plan, len(left), num_fenced)

    def _finished(self, outcome: RollUpEnd, plan: RollUpPlan, num_reinserted: int, num_fenced: int) -> FinishedRollUp:
        marker_range = plan.marker_range
        return FinishedRollUp(
            outcome=outcome,
            num_markers=marker_range.num_markers,
            num_reinserted=num_reinserted,
            num_fenced=num_fenced,
            limit=marker_range.limit.offset if outcome is RollUpEnd.ADVANCED else marker_range.start,
        )

    def _append(self, markers: list[Marker]) -> None:
        """Append markers durably. An unknown outcome is repeated: a marker that is there twice is harmless."""
        if not markers:
            return
        options = WriterOptions(retry=self._options.retry)
        with LogWriter.open(self._store, self._dirty_log, options=options, runtime=self._runtime) as writer:
            for at in range(0, len(markers), _APPENDED_AT_ONCE):
                messages = [marker.to_message() for marker in markers[at : at + _APPENDED_AT_ONCE]]
                for left in reversed(range(_APPENDS_MAX)):
                    try:
                        writer.append_many(messages)
                        break
                    except (ContentionError, UnknownDurabilityError):
                        if not left:
                            raise

    # ------------------------------------------------------------------ fence

    def _fence_overdue(self, plan: RollUpPlan) -> Iterator[MarkedLog]:
        overdue = [each for each in plan.logs if each.overdue]
        ahead, share = self._options.logs_ahead, share_of(self._store)
        fenced = map_ahead(self._runtime, self._fence, overdue, count=ahead, share=share)
        by_marker = {(each.log, each.marker.life): each for each in fenced}
        return (by_marker.get((each.log, each.marker.life), each) for each in plan.logs)

    def _fence(self, marked: MarkedLog) -> MarkedLog:
        """Make sure that a marked fragment is committed or never will be; unchanged where that fails."""
        try:
            return marked.fenced(self._fenced_next(marked.marker))
        except LogError as error:
            # It stays marked and undecided. A store that does not answer fails the next request, too.
            COLLECT.warning("log %s: the fence was not moved: %s", marked.log, error)
            return marked

    def _fenced_next(self, marker: Marker) -> int | None:
        """Return where the log ends once no upload begun before this call can be linked; None when it is gone."""
        inside = with_retries(log_store(self._store, marker.log), self._runtime, self._options.retry)
        manifests = ManifestStore(inside, self._runtime, self._options.retry)
        try:
            base = manifests.load()
        except LogNotFoundError:
            return None
        if life_of_log(base.manifest.log_id) != marker.life:
            return None
        fence = base.manifest.fence

        def moved(manifest: Manifest) -> Manifest | None:
            decided = manifest.next.position.offset >= marker.limit.offset or manifest.seal is not None
            return None if decided or manifest.fence != fence else manifest.move_fence()

        manifests.change(base, moved)
        return manifests.load().manifest.next.position.offset


def _generation(witness: Witness | None) -> int:
    return 0 if witness is None else witness.cursor.generation


# ---------------------------------------------------------------------- how a fleet is doing

# The other marked logs are gone, caught up, or wait for a commit.
_DIRTY = frozenset({Decision.KEPT, Decision.SELECTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """A marked log with unprocessed records; ``age_s`` is the age of the oldest of its records that is marked."""

    pressure: Pressure
    age_s: float

    @property
    def log(self) -> str:
        """The log's name."""
        return self.pressure.log

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {**self.pressure.to_json(), "age_us": round(self.age_s * US_PER_S)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """A fleet at one moment.

    ``markers`` counts the markers that wait in each dirty log. ``logs`` are the marked logs with unprocessed records,
    the one marked first first. ``num_marked`` counts all marked logs, ``gone`` are those among them that do not exist.
    ``unreadable`` has the errors of marked logs and of dirty logs. ``guessed`` says why ages are by the clock of the
    machine that looked, if they are not by the store's.
    """

    markers: dict[str, int]
    num_marked: int
    logs: tuple[LogStatus, ...]
    gone: tuple[str, ...]
    unreadable: dict[str, str]
    guessed: str | None = None

    @property
    def num_unprocessed(self) -> int:
        """How many records of all logs are unprocessed."""
        return sum(each.pressure.unprocessed for each in self.logs)

    @property
    def age_s(self) -> float:
        """The age of the oldest marked record of a log that has unprocessed ones; 0 when there is none."""
        return max((each.age_s for each in self.logs), default=0.0)

    @property
    def over(self) -> tuple[Pressure, ...]:
        """The logs over their limit, the farthest behind first."""
        found = (each.pressure for each in self.logs if each.pressure.over)
        return tuple(sorted(found, key=lambda each: (-each.unprocessed, each.log)))

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "dirty_logs": [{"dirty_log": name, "markers": count} for name, count in self.markers.items()],
            "marked": self.num_marked,
            "unprocessed": self.num_unprocessed,
            "age_us": round(self.age_s * US_PER_S),
            "over": [each.log for each in self.over],
            "gone": list(self.gone),
            "unreadable": [{"log": log, "error": error} for log, error in self.unreadable.items()],
            "logs": [each.to_json() for each in self.logs],
        }


def fleet_status(store: ObjectStore, unprocessed_max: int | None = None) -> FleetStatus:
    """Look at the dirty logs of a store and at the logs marked there; the limit is for logs whose policy has none.

    Costs what ``RollUp.read`` costs for each dirty log, and what ``over_limit`` costs for each marked log; never
    anything for a log that is not marked. Changes nothing.

    An error of one log is in the answer. UnavailableError when the store does not answer.
    """
    plans: list[RollUpPlan] = []
    unreadable: dict[str, str] = {}
    for name in dirty_logs(store):
        plan = try_log(lambda name: RollUp(store, name).read(), name)
        if isinstance(plan, LogError):
            unreadable[name] = f"{type(plan).__name__}: {plan}"
        else:
            plans.append(plan)
    marked = [each for plan in plans for each in plan.logs]
    unreadable |= {each.log: each.reason for each in marked if each.decision is Decision.UNREADABLE}
    ages_s: dict[str, float] = {}
    for each in marked:
        if each.decision in _DIRTY:
            ages_s[each.log] = max(each.age_s, ages_s.get(each.log, 0.0))
    logs = []
    for log, pressure in measure_logs(store, ages_s, unprocessed_max).items():
        if isinstance(pressure, LogError):
            unreadable[log] = f"{type(pressure).__name__}: {pressure}"
        elif pressure.unprocessed:
            logs.append(LogStatus(pressure=pressure, age_s=ages_s[log]))
    return FleetStatus(
        markers={plan.marker_range.dirty_log: plan.marker_range.num_markers for plan in plans},
        num_marked=len({each.log for each in marked}),
        logs=tuple(sorted(logs, key=lambda each: (-each.age_s, each.log))),
        gone=tuple(sorted({each.log for each in marked if each.decision is Decision.GONE})),
        unreadable=unreadable,
        guessed=next((plan.guessed for plan in plans if plan.guessed is not None), None),
    )
