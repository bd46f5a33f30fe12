"""The project's code location with one sensor that is on, the one on the dirty logs, due every second."""

from __future__ import annotations

from tests.orchestration.tuned import tune
from wal3_orchestration.definitions import defs

__all__ = ["defs"]

tune("discovery", running=False)
tune("dirty_logs", period_s=1, running=True)
