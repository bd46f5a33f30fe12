"""Updates of a copy in a story: whatever fails, the copy holds the beginning of its source; the next one goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.faults.actors import Actor, Stage, append_once
from tests.faults.collectors import COPY
from tests.faults.history import Append
from tests.faults.store import LOG, SimStore
from wal3_core import CollectorOptions, LogAt, LogError, LogWriter, Message, WriterOptions, collect, scrub, update_copy
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess

BATCH = (Message(b"batch/0", b"k"), Message(b"batch/1", b"k"))
ONCE = Once("writer-q", "batch", "q", 0)
SINGLY = WriterOptions(batch_records_max=1)


@dataclass(frozen=True, slots=True)
class Outdated:
    """Leaves a copy that lacks records of its source."""

    copied: Actor
    options: WriterOptions

    def play(self, stage: Stage, process: SimProcess) -> None:
        self.copied.play(stage, process)
        store = SimStore(stage.world, process)
        with LogWriter.open(store, LOG, options=self.options, runtime=process) as writer:
            for number in range(4):
                append_once(stage, store, writer, (Message(b"later/%d" % number),))


@dataclass(frozen=True, slots=True)
class NamedOutdated:
    """Leaves a copy that lacks records of its source, among them an append with a name."""

    outdated: Outdated

    def play(self, stage: Stage, process: SimProcess) -> None:
        self.outdated.play(stage, process)
        stage.history.appends.append(Append(BATCH, stage.simulation.now_s))
        install_batch(SimStore(stage.world, process), LOG)


def install_batch(store: SimStore, log: str) -> None:
    """Append the batch, in two fragments, unless the log has it."""
    rows = pa.table([[row.key for row in BATCH], [row.body for row in BATCH]], schema=MESSAGE_SCHEMA)
    staged = Stager(store, log, options=SINGLY, runtime=store.process).stage(rows)
    install_staged(store, log, staged, once=ONCE, options=SINGLY, runtime=store.process)


@dataclass(frozen=True, slots=True)
class CollectingCopy:
    """Collects the copy, and deletes from it what nothing refers to."""

    def play(self, stage: Stage, process: SimProcess) -> None:
        options = CollectorOptions(without_cursors=True, interval_s=0.0)
        try:
            collect(SimStore(stage.world, process), COPY, limit_offset=3, options=options, runtime=process)
        except LogError as error:
            stage.excuse(error)


@dataclass(frozen=True, slots=True)
class Updating:
    """Brings the copy up to date, as often as it is said."""

    times: int = 1
    with_cursors: bool = False

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, with_cursors = SimStore(stage.world, process), self.with_cursors
        for _ in range(self.times):
            try:
                updated = update_copy(LogAt(store, LOG), LogAt(store, COPY), with_cursors=with_cursors, runtime=process)
            except LogError as error:
                stage.excuse(error)
            else:
                stage.world.fired["copy updated"] += updated.num_records > 0
            check_prefix(stage)


def check_prefix(stage: Stage) -> None:
    """The copy holds the beginning of its source, in the same places."""
    held, source = stage.world.names[COPY].life.records, stage.world.names[LOG].life.records
    if held != source[: len(held)]:
        stage.fail(f"the copy of {len(held)} records is not the beginning of its source's {len(source)}")


def check_updated(stage: Stage, operator: SimProcess) -> None:
    """Without faults, one more update makes the copy equal to its source."""
    store = SimStore(stage.world, operator)
    update_copy(LogAt(store, LOG), LogAt(store, COPY), runtime=operator)
    held, source = stage.world.names[COPY].life.records, stage.world.names[LOG].life.records
    assert held == source, f"the copy has {len(held)} records, its source {len(source)}"
    assert scrub(stage.world.objects, COPY, runtime=stage.world.network).sound


def check_batch(stage: Stage, operator: SimProcess) -> None:
    """Without faults, the copy takes its source's place: the batch is repeated, and is in the copy once."""
    install_batch(SimStore(stage.world, operator), COPY)
    held = stage.world.names[COPY].life.records
    assert [held.count(row) for row in BATCH] == [1, 1], f"the copy has other records than the batch once: {held}"
