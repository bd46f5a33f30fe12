"""A server that marks what it appends, and roll-ups of its dirty log: whatever fails, what is acknowledged is marked.

A record that was acknowledged is covered by a marker at or behind the cursor, or it was handed out by a roll-up that
read a manifest that held it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.faults.actors import append_once
from tests.faults.collectors import collector_options
from tests.faults.store import LOG, SimStore
from wal3_core import LogError, LogNotFoundError, LogPosition, LogReader, LogWriter, Message, collect
from wal3_core.errors import CollectionRefusedError, MissingError
from wal3_core.fleet.rollup import ROLLUP, RollUp, RollUpEnd
from wal3_core.log.log_stores import LogStores
from wal3_core.model.marker import Marker
from wal3_core.model.paths import life_of
from wal3_core.model.rollup import markers_of
from wal3_core.model.rollup_options import RollUpOptions
from wal3_core.options import RetryOptions
from wal3_core.storage.object_store import Unknown

if TYPE_CHECKING:
    from tests.faults.actors import Actor, Stage
    from tests.faults.simulator import SimProcess
    from wal3_core import WriterOptions
    from wal3_core.storage.object_store import Buffer, PutOutcome

DIRTY = "dirty/x"
RETRY = RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5)
OPTIONS = RollUpOptions(take_all=True, undecided_s=0.02, retry=RETRY)
HANDLED = "handled up to"


@dataclass
class MarkingStore(SimStore):
    """Appends a marker for each fragment of the log that is uploaded; the upload is answered once both are durable."""

    marks: LogWriter | None = field(default=None)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        folder, found, name = path.partition("/log/Bucket=")
        if found and name and folder.startswith(f"{LOG}/Life=") and self.marks is not None:
            try:
                self.process.wait(self.marks.submit_many([_marker(folder, bytes(data)).to_message()]))
            except LogError as error:
                return Unknown(f"not marked: {error}")
        return super().create(path, data)


def _marker(folder: str, data: bytes) -> Marker:
    table = pq.read_table(BytesIO(data), columns=["offset", "timestamp_us"])
    log_id = life_of(f"{folder.removeprefix(f'{LOG}/')}/")
    assert log_id is not None
    start = LogPosition(table["offset"][0].as_py(), table["timestamp_us"][0].as_py())
    return Marker.of_fragment(LOG, log_id, start, len(table))


@dataclass(frozen=True, slots=True)
class Marking:
    """Appends one record after another, each marked."""

    options: WriterOptions
    count: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = MarkingStore(stage.world, process)
        try:
            store.marks = LogWriter.open_or_initialize(store, DIRTY, options=self.options, runtime=process)
            writer = LogWriter.open_or_initialize(store, LOG, options=self.options, runtime=process)
        except LogError as error:
            stage.excuse(error)
            return
        for number in range(self.count):
            append_once(stage, store, writer, (Message(f"{process.name}/{number}".encode()),))
        writer.close()


@dataclass(frozen=True, slots=True)
class RollingUp:
    """Rolls the dirty log up repeatedly; records what it hands out before it finishes, as a sensor does."""

    rounds: int
    pause_s_max: float = 0.2

    def play(self, stage: Stage, process: SimProcess) -> None:
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pause_s_max)
            try:
                roll_up(stage, process, hand_out=process.random.random() < 0.5)
            except LogNotFoundError:
                continue
            except LogError as error:
                stage.excuse(error)


def rolling_casts(options: WriterOptions) -> dict[str, dict[str, Actor]]:
    """The casts of the scenarios with a server that marks its appends."""
    marking = Marking(options, 3)
    return {
        "roll up while appending": {"victim": RollingUp(3), "marking": marking},
        "two roll-ups at once": {"victim": RollingUp(2), "other": RollingUp(2), "marking": marking},
        "roll up and collect": {"victim": RollingUp(3), "collector": CollectingMarkers(3), "marking": marking},
    }


def roll_up(stage: Stage, process: SimProcess, *, hand_out: bool) -> RollUpEnd:
    rollup = RollUp(SimStore(stage.world, process), DIRTY, options=OPTIONS, runtime=process)
    plan = rollup.read()
    if hand_out:
        for each in plan.logs:
            if each.log in plan.selected:
                limit = each.marker.limit.offset if each.rest is None else each.rest.start
                stage.world.fired[HANDLED] = max(stage.world.fired[HANDLED], limit)
        # So long that others append and commit.
        stage.simulation.pause(process.random.random() * 0.2)
    done = rollup.finish(plan, plan.selected if hand_out else ())
    stage.world.fired["fenced by a roll-up"] += done.num_fenced
    stage.world.fired[f"rolled up: {done.outcome.value}"] += 1
    return done.outcome


@dataclass(frozen=True, slots=True)
class CollectingMarkers:
    """Collects the dirty log repeatedly."""

    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        options = collector_options(0.0)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * 0.3)
            try:
                collect(SimStore(stage.world, process), DIRTY, options=options, runtime=process)
            except (LogNotFoundError, CollectionRefusedError, MissingError):
                continue
            except LogError as error:
                stage.excuse(error)


def check_rolled_up(stage: Stage, operator: SimProcess) -> None:
    """Every acknowledged record was handed out, or is marked; one more roll-up then leaves nothing behind."""
    store = SimStore(stage.world, operator)
    if stage.world.names[DIRTY].life.manifest is None:
        assert not any(append.outcome == "acked" for append in stage.history.appends if _marked(append.records))
        return
    stores = LogStores(store, DIRTY, runtime=operator, retry=RETRY, snapshots_loaded_max=0)
    witness = stores.cursors.load(ROLLUP)
    start = None if witness is None else witness.cursor.position.offset
    reader = LogReader.open(store, DIRTY, runtime=operator)
    marked = list(markers_of(reader.records(start), what=DIRTY))
    handled = stage.world.fired[HANDLED]
    for append in stage.history.appends:
        if append.outcome == "acked" and _marked(append.records):
            offset = append.offset
            assert offset is not None
            covered = offset < handled or any(each.start <= offset < each.limit.offset for each in marked)
            assert covered, f"acknowledged at {offset}, handed out up to {handled}, marked {marked}"
    for _ in range(3):
        # A marker under way for long is decided by the fence.
        stage.simulation.pause(100.0)
        roll_up(stage, operator, hand_out=True)
    assert RollUp(store, DIRTY, options=OPTIONS, runtime=operator).read().stretch.num_markers == 0


def _marked(records: tuple[Message, ...]) -> bool:
    return all((record.body or b"").startswith(b"marking") for record in records)
