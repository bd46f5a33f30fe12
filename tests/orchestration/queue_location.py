"""The project's code location with one sensor that is on, the one on delay queues, which looks every second."""

from __future__ import annotations

from dataclasses import replace

from wal3_orchestration.defs import discovery
from wal3_orchestration.defs.delay_queues import sensor
from wal3_orchestration.embedding import wal3_definitions
from wal3_orchestration.resources import CollectionResource

__all__ = ["defs"]

discovery.DISCOVERY = replace(discovery.DISCOVERY, running=False)
sensor.DELAY_QUEUES = replace(sensor.DELAY_QUEUES, period_s=1)
defs = wal3_definitions(collection=CollectionResource(queue_period_s=0))
