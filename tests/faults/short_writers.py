"""Writers that live for one append, in a story, and the size that they alone must keep the manifest at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.faults.actors import Stage, append_once
from tests.faults.store import LOG, SimStore
from wal3_core import LogError, LogWriter, Message, WriterOptions
from wal3_core.options import SnapshotOptions

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess

_TREE = SnapshotOptions(
    fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4, gc_interval_s=1
)
# Two snapshots of fragments that wait for a third, and of each greater depth up to two of decreasing size.
_SNAPSHOTS_MAX = 2 + 2 * 7


@dataclass(frozen=True, slots=True)
class ShortWriter:
    """Opens the log, appends once and closes it, repeatedly, as a cron job does."""

    options: WriterOptions
    rounds: int
    pause_s_max: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice = stage.simulation.dice(f"{process.name}/pauses")
        for number in range(self.rounds):
            stage.simulation.pause(dice.random() * self.pause_s_max)
            store = SimStore(stage.world, process)
            try:
                writer = LogWriter.open_or_create(store, LOG, options=self.options, runtime=process)
            except LogError as error:
                stage.excuse(error)
                continue
            append_once(stage, store, writer, (Message(f"{process.name}/{number}".encode()),))
            writer.close()
            stage.world.fired["a writer of one append"] += 1


def check_small(stage: Stage, operator: SimProcess) -> None:
    """However much was left unrolled, short writers make the manifest small and keep it so."""
    assert stage.world.oracle.manifest is not None
    if stage.world.oracle.manifest.seal is not None:
        return
    options = replace(WriterOptions(), snapshots=_TREE)
    for number in range(2 * _TREE.fragments_per_snapshot):
        store = SimStore(stage.world, operator)
        with LogWriter.open(store, LOG, options=options, runtime=operator) as writer:
            append_once(stage, store, writer, (Message(b"short%d" % number, b"key" if stage.compacts else None),))
        manifest = stage.world.oracle.manifest
        assert len(manifest.fragments) < _TREE.fragments_per_snapshot + _TREE.fragments_kept, "nothing is rolled"
        assert len(manifest.snapshots) <= _SNAPSHOTS_MAX, "snapshots are not rolled in turn"
