"""Shared by the tests of roll-ups: logs that grow, and what marks them."""

from __future__ import annotations

from tests.world import World
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, RetryOptions
from wal3_core.fleet.dirty.rollup import ROLLUP, RollUp
from wal3_core.fleet.dirty.rollup_plan import Decision, RollUpOptions, RollUpPlan, markers_of
from wal3_core.format.marker import Marker, fold
from wal3_core.store.object_store import ObjectStore

DIRTY = "dirty/x"
QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
PATIENT = RollUpOptions(retry=QUICK)
ALL = RollUpOptions(retry=QUICK, take_all=True)
AT_ONCE = RollUpOptions(retry=QUICK, undecided_s=0)


def grow(store: ObjectStore, log: str, count: int = 1, *, dirty_log: str | None = DIRTY) -> Marker:
    """Append records to a log as one fragment, and mark them; return the marker."""
    with LogWriter.open_or_create(store, log) as writer:
        start = writer.append_many([b"x" * 50] * count)
    marker = Marker.of_fragment(log, World(store, log).manifest().log_id, start, count)
    if dirty_log is not None:
        mark(store, marker, dirty_log=dirty_log)
    return marker


def begun(store: ObjectStore, log: str, count: int = 1) -> Marker:
    """Return the marker of a fragment that is being uploaded to a log, and not committed."""
    manifest = World(store, log).manifest()
    start = manifest.next.position
    start = LogPosition(start.offset, max(start.timestamp_us, 1))
    return Marker.of_fragment(log, manifest.log_id, start, count)


def mark(store: ObjectStore, *markers: Marker, dirty_log: str = DIRTY) -> None:
    """Append markers to a dirty log, as a server does."""
    with LogWriter.open_or_create(store, dirty_log) as writer:
        writer.append_many([marker.to_message() for marker in markers])


def place_of(store: ObjectStore, dirty_log: str = DIRTY) -> int | None:
    """The offset of a dirty log's cursor."""
    witness = CursorStore(store, dirty_log).load(ROLLUP)
    return None if witness is None else witness.cursor.position.offset


def marked(store: ObjectStore, dirty_log: str = DIRTY) -> dict[str, tuple[int, int]]:
    """What is marked at and after the cursor: the range of each log."""
    start = place_of(store, dirty_log)
    folded = fold(markers_of(LogReader.open(store, dirty_log).records(start), what=dirty_log))
    return {marker.log: (marker.start, marker.limit.offset) for marker in folded.values()}


def decisions(plan: RollUpPlan) -> dict[str, Decision]:
    return {each.log: each.decision for each in plan.logs}


def read(store: ObjectStore, options: RollUpOptions = PATIENT) -> RollUpPlan:
    return RollUp(store, DIRTY, options=options).read()
