"""Dirty logs: servers mark the logs that they append to, and those that are due are maintained."""

from wal3_orchestration.defs.dirty_logs.assets import JOB, build
from wal3_orchestration.defs.dirty_logs.sensors import DIRTY_LOGS
from wal3_orchestration.framework.triggers import Workflow

workflow = Workflow(jobs=(JOB,), sensors=(DIRTY_LOGS,), further=build)
