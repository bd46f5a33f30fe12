"""Updates of a copy in a story: whatever fails, the copy holds the beginning of its source; the next one goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.collectors import COPY
from tests.faults.store import LOG, SimStore
from wal3_core import LogAt, LogError, scrub, update_copy

if TYPE_CHECKING:
    from tests.faults.actors import Stage
    from tests.faults.simulator import SimProcess


@dataclass(frozen=True, slots=True)
class Updating:
    """Brings the copy up to date, as often as it is said."""

    times: int = 1

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        for _ in range(self.times):
            try:
                updated = update_copy(LogAt(store, LOG), LogAt(store, COPY), runtime=process)
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
