"""Delay queues: what each holds is observed, and judged when a check begins or ceases to fail."""

from wal3_orchestration.defs.delay_queues.assets import DELAY_QUEUE, JOB
from wal3_orchestration.defs.delay_queues.sensors import DELAY_QUEUES
from wal3_orchestration.framework.triggers import Workflow

workflow = Workflow(assets=(DELAY_QUEUE,), jobs=(JOB,), sensors=(DELAY_QUEUES,))
