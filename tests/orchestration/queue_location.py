"""The project's code location with one sensor that is on, the one on delay queues, which looks every second."""

from __future__ import annotations

from tests.orchestration.tuned import tune
from wal3_orchestration.embedding import wal3_definitions
from wal3_orchestration.resources import CollectionResource

__all__ = ["defs"]

tune("discovery", running=False)
tune("delay_queues", period_s=1)
defs = wal3_definitions(collection=CollectionResource(queue_period_s=0))
