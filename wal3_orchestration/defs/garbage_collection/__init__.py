"""Garbage collection: what no cursor needs is planned, pruned, and deleted an interval later; so are orphans."""

from wal3_orchestration.defs.garbage_collection.assets import (
    COLLECTION,
    DAILY,
    DELETED,
    DELETION,
    MARKED,
    ORPHANS_JOB,
    PLANNED,
    PLANNING,
    PRUNED,
    WEEKLY,
)
from wal3_orchestration.defs.garbage_collection.sensors import SENSORS
from wal3_orchestration.framework.triggers import Workflow

workflow = Workflow(
    assets=(PLANNED, PRUNED, DELETED, MARKED),
    jobs=(PLANNING, COLLECTION, DELETION, ORPHANS_JOB),
    sensors=SENSORS,
    schedules=(DAILY, WEEKLY),
)
