"""What must hold of dirty logs: an acknowledged record stays marked until a roll-up has decided about it.

Checked when an append is acknowledged, at each step of a roll-up's cursor, and in the end. A record is covered by a
marker of its log and life at or behind the cursor of a dirty log. It is not marked any more once a roll-up has handed
out its log by a manifest that held it, found it processed or collected, or its log is gone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core import Message, Record
from wal3_core.fleet.dirty.rollup import ROLLUP
from wal3_core.format.cursor import Cursor
from wal3_core.format.marker import Marker, life_of_log
from wal3_core.format.paths import MANIFEST, LogId, cursor_path

if TYPE_CHECKING:
    from tests.faults.lives import Names
    from tests.faults.oracle import Oracle
    from wal3_core.fleet.dirty.rollup_plan import MarkerRange, RollUpPlan

DIRTY_LOGS = "dirty/"


@dataclass(frozen=True, slots=True)
class Promise:
    """Records that were acknowledged to the caller of a marked writer: where they lie."""

    log: str
    log_id: LogId
    start: int
    limit: int

    def covered_by(self, marker: Marker) -> bool:
        same = marker.log == self.log and marker.life == life_of_log(self.log_id)
        return same and marker.start <= self.start and self.limit <= marker.limit.offset


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan of a roll-up: for each life in it, up to where its records were processed or can be handed out."""

    plan: RollUpPlan
    processed: Mapping[LogId, int]
    held: Mapping[LogId, int]

    def drops(self, handled: Collection[str], names: Names) -> dict[LogId, int]:
        """Up to which offset of each life nothing needs to be marked once the plan is finished."""
        drops = dict(self.processed)
        for each in self.plan.logs:
            life = _life(names, each.marker)
            if life is not None and each.log in handled:
                said = each.marker.limit.offset if each.rest is None else each.rest.start
                drops[life] = max(drops[life], min(said, self.held[life]))
        return drops


@dataclass
class Marks:
    """All dirty logs, what was promised, and what roll-ups decided."""

    names: Names
    seen: Counter[str] = field(default_factory=Counter)
    promises: dict[Promise, None] = field(default_factory=dict)
    # The markers of each dirty log, by offset from 1, and the processes that have written it.
    markers: defaultdict[str, list[Marker]] = field(default_factory=lambda: defaultdict(list))
    writers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # What each process has begun to finish: it may be dead when its request arrives.
    finishing: defaultdict[str, list[tuple[MarkerRange, dict[LogId, int]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    # The compactors that took a dirty log for their own.
    pulled_by: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # Up to which offset of each life nothing needs to be marked.
    decided: defaultdict[LogId, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def logs(self) -> list[str]:
        """The dirty logs."""
        return sorted(self.markers)

    def contended(self, who: str) -> bool:
        """Whether another process has written a dirty log: an append to it may fail without a fault."""
        return any(writers - {who} for writers in self.writers.values())

    # ------------------------------------------------------------------ promises

    def promised(self, log: str, records: Sequence[Message], now_s: float) -> None:
        """Record that appended records were acknowledged, and check that they are marked."""
        for life in reversed(self.names[log].lives):
            if records[0] in life.records[life.num_inherited :] and life.manifest is not None:
                start = life.records.index(records[0]) + 1
                self.promises[Promise(log, life.manifest.log_id, start, start + len(records))] = None
                break
        self.seen["marked"] += 1
        self.check(now_s)

    def check(self, now_s: float) -> None:
        """Every acknowledged record is marked, or needs not be any more."""
        marked = [marker for log in self.logs for marker in self.ahead(log)]
        for promise in list(self.promises):
            if any(map(promise.covered_by, marked)):
                continue
            decided, over_s = self.decided[promise.log_id], self.names.lives[promise.log_id].over_s
            assert promise.limit <= decided or over_s <= now_s, (
                f"acknowledged, and not marked any more: {promise}, decided up to {decided}; marked: {marked}"
            )
            del self.promises[promise]

    def ahead(self, log: str) -> list[Marker]:
        """The markers at or behind a dirty log's cursor."""
        return self.markers[log][self._cursor(log) - 1 :]

    def _cursor(self, log: str) -> int:
        version = self.names[log].life.cursors[ROLLUP].landed[-1]
        return version.position.offset if isinstance(version, Cursor) else 1

    # ------------------------------------------------------------------ roll-ups

    def reading(self, cursor: str | None) -> dict[LogId, int]:
        """Return which version the cursor of each life has that says what was processed."""
        return {} if cursor is None else {log_id: life.cursors[cursor].now for log_id, life in self.names.lives.items()}

    def read(self, plan: RollUpPlan, cursor: str | None, since: Mapping[LogId, int]) -> Decided:
        """Record a plan that was just read; ``since`` is what ``reading`` returned before."""
        processed, held = dict[LogId, int](), dict[LogId, int]()
        for each in plan.logs:
            log_id = _life(self.names, each.marker)
            if log_id is not None:
                life = self.names.lives[log_id]
                assert life.manifest is not None
                first = life.manifest.first.position.offset
                versions = [] if cursor is None else life.cursors[cursor].landed[since.get(log_id, 0) :]
                offsets = [version.position.offset for version in versions if isinstance(version, Cursor)]
                processed[log_id], held[log_id] = max([first, *offsets]), life.manifest.next.position.offset
        return Decided(plan, processed, held)

    def finishes(self, who: str, decided: Decided, handled: Collection[str]) -> None:
        """Record that a process begins to finish a plan."""
        self.finishing[who].append((decided.plan.marker_range, decided.drops(handled, self.names)))

    # ------------------------------------------------------------------ changes of dirty logs

    def landed(self, path: str, now_s: float, who: str) -> None:
        """Check a change of a dirty log as it is made, and by which process."""
        if not path.startswith(DIRTY_LOGS):
            return
        log, found, _ = path.partition("/Life=")
        if path.endswith(f"/{MANIFEST}"):
            self._grown(path.removesuffix(f"/{MANIFEST}"), who)
        elif found and path.endswith(cursor_path(ROLLUP)):
            self._moved(log, self.names[log].life, now_s, who)

    def _grown(self, log: str, who: str) -> None:
        life, markers = self.names[log].life, self.markers[log]
        assert life.manifest is not None
        for offset, message in enumerate(life.records[len(markers) :], start=len(markers) + 1):
            markers.append(Marker.of_record(Record(offset, 2**62, message.key, message.body), what=log))
        self.writers[log].add(who)
        first = life.manifest.first.position.offset
        assert first <= self._cursor(log), f"{log}: collected markers that no roll-up has read"

    def _moved(self, log: str, life: Oracle, now_s: float, who: str) -> None:
        before, after = life.cursors[ROLLUP].landed[-2:]
        begin = before.position.offset if isinstance(before, Cursor) else 1
        generation = before.generation if isinstance(before, Cursor) else 0
        assert isinstance(after, Cursor), f"{log}: the roll-up cursor was deleted"
        limit = after.position.offset
        assert begin <= limit, f"{log}: the roll-up cursor moved back from {begin} to {limit}"
        finished = [
            drops
            for marker_range, drops in self.finishing[who]
            if (marker_range.dirty_log, marker_range.generation, marker_range.start, marker_range.limit.offset)
            == (log, generation, begin, limit)
        ]
        assert finished, f"{log}: the roll-up cursor moved from {begin} to {limit} over markers that {who} has not read"
        for drops in finished:
            for log_id, offset in drops.items():
                self.decided[log_id] = max(self.decided[log_id], offset)
        self.seen["rolled up"] += 1
        self.check(now_s)


def _life(names: Names, marker: Marker) -> LogId | None:
    """The life that a marker is of; None when it never began."""
    found = [log_id for log_id, life in names.lives.items() if life.log == marker.log]
    return next((log_id for log_id in found if life_of_log(log_id) == marker.life), None)
