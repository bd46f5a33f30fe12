"""What happens to whole logs in a story of chains: they are migrated, copied, destroyed and restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.chain_owners import attempted
from tests.faults.store import SimStore
from wal3_core import LogExistsError, SealedError
from wal3_core.log.maintain.sealer import migrate

if TYPE_CHECKING:
    from tests.faults.actors import Stage
    from tests.faults.simulator import SimProcess

# The logs of a chain, in their order.
CHAIN = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Migrating:
    """Moves a log on to its successor at some moment; tries again when it fails."""

    log: str
    successor: str
    after_s: float
    tries: int = 4

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        for _ in range(self.tries):
            with attempted(stage):
                try:
                    migrate(SimStore(stage.world, process), self.log, self.successor, reason="full", runtime=process)
                except (SealedError, LogExistsError) as error:
                    stage.world.fired[f"chain: migration {type(error).__name__}"] += 1
                    return
                stage.world.fired["chain: migrated"] += 1
                return
