"""The project's code location with one sensor that is on, the one on the dirty logs, due every second."""

from __future__ import annotations

from dataclasses import replace

from wal3_orchestration.definitions import defs
from wal3_orchestration.defs import discovery
from wal3_orchestration.defs.dirty_logs import sensor

__all__ = ["defs"]

discovery.DISCOVERY = replace(discovery.DISCOVERY, running=False)
sensor.DIRTY_LOGS = replace(sensor.DIRTY_LOGS, period_s=1, running=True)
