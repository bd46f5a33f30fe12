"""Key compaction: the newest record of every key is kept, superseded ones and expired tombstones are dropped."""

from wal3_orchestration.defs.key_compaction.assets import ASSETS, DAILY, JOB
from wal3_orchestration.defs.key_compaction.sensors import DUE
from wal3_orchestration.framework.triggers import Workflow

workflow = Workflow(assets=ASSETS, jobs=(JOB,), sensors=(DUE,), schedules=(DAILY,))
