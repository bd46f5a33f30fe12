"""The project's code location with every sensor on and due every three seconds, on a store that stops runs at gates.

Without gates in the environment, the store is as it is (see tests/orchestration/gated_location.py).
"""

from __future__ import annotations

from tests.orchestration.gated_location import defs
from tests.orchestration.tuned import tune

__all__ = ["defs"]

# Less, and the sensors leave no time for the runs on two cores.
PERIOD_S = 3

for name in ("discovery", "lost_runs", "snapshot_compaction", "delay_queues", "dirty_logs", "key_compaction"):
    tune(name, period_s=PERIOD_S, running=True)
tune("garbage_collection", period_s=PERIOD_S)
