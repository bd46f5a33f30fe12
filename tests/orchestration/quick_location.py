"""The project's code location, whose discovery and alerts are due every second."""

from __future__ import annotations

from dataclasses import replace

from wal3_orchestration import alerts
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs import discovery

__all__ = ["defs"]

discovery.DISCOVERY = replace(discovery.DISCOVERY, period_s=1)
alerts.PERIOD_S = 1
