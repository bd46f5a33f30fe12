"""Garbage collection: what no cursor needs is planned, pruned, and deleted an interval later; so are orphans."""

from wal3_orchestration.defs.garbage_collection.assets import ASSETS, JOBS, SCHEDULES
from wal3_orchestration.defs.garbage_collection.sensors import SENSORS
from wal3_orchestration.framework.triggers import Workflow

workflow = Workflow(assets=ASSETS, jobs=JOBS, sensors=SENSORS, schedules=SCHEDULES)
