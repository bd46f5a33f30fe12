"""The project's code location with every sensor on and due every three seconds, on a store that stops runs at gates.

Without gates in the environment, the store is as it is (see tests/orchestration/gated_location.py).
"""

from __future__ import annotations

from dataclasses import replace

from tests.orchestration.gated_location import defs
from wal3_orchestration.defs import discovery, lost_runs, snapshot_compaction
from wal3_orchestration.defs.delay_queues import sensor as delay_queues
from wal3_orchestration.defs.dirty_logs import sensor as dirty_logs
from wal3_orchestration.defs.garbage_collection import sensors as garbage
from wal3_orchestration.defs.key_compaction import sensor as key_compaction

__all__ = ["defs"]

# Less, and the sensors leave no time for the runs on two cores.
PERIOD_S = 3

for module, name in (
    (discovery, "DISCOVERY"),
    (lost_runs, "LOST_RUNS"),
    (snapshot_compaction, "LOPSIDED"),
    (delay_queues, "DELAY_QUEUES"),
    (dirty_logs, "DIRTY_LOGS"),
    (key_compaction, "DUE"),
):
    setattr(module, name, replace(getattr(module, name), period_s=PERIOD_S, running=True))
garbage.SENSORS = tuple(replace(each, period_s=PERIOD_S) for each in garbage.SENSORS)
