"""The project's code location, whose discovery and alerts are due every second."""

from __future__ import annotations

from tests.orchestration.tuned import tune
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs import alerts

__all__ = ["defs"]

tune("discovery", period_s=1)
alerts.PERIOD_S = 1
