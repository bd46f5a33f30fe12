"""Spark plans the roll-ups of many dirty logs exactly as one machine plans each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spec.rolling import PATIENT, begun, grow, mark, marked
from tests.stores import damage
from wal3_core import CursorStore, InvalidRequestError, LogPosition, LogWriter, destroy
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup import RollUp, RollUpEnd
from wal3_core.spark.maintenance import plan_rollups
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

OPTIONS = replace(PATIENT, cursor="done", records_max=3)


def test_plans_of_many_dirty_logs_are_those_of_one_machine(spark: SparkSession, local_store: ObjectStore) -> None:
    for number in range(12):
        grow(local_store, f"log{number % 7}", 1 + number % 3, dirty_log=f"dirty/server-{number % 3}")
    CursorStore(local_store, "log6").create("done", LogPosition(2, 0))
    mark(local_store, begun(local_store, "log2", 2), dirty_log="dirty/server-0")
    destroy(local_store, "log3")
    grow(local_store, "log3", 2, dirty_log="dirty/server-0")
    damage(local_store, "log4/manifest/MANIFEST.json", 20)
    with LogWriter.open_or_create(local_store, "dirty/foreign") as writer:
        writer.append(b"no marker")
    LogWriter.create(local_store, "dirty/quiet")
    names = [*dirty_logs(local_store), "dirty/missing"]

    planned = plan_rollups(spark, local_store.url, names, OPTIONS)

    assert [each.dirty_log for each in planned] == names
    kinds = {each.dirty_log: each.refusal.kind for each in planned if each.refusal is not None}
    assert kinds == {"dirty/foreign": "CorruptError", "dirty/missing": "LogNotFoundError"}
    seen = set()
    for each in planned:
        if each.plan is None:
            continue
        local = RollUp(local_store, each.dirty_log, options=OPTIONS).read()
        assert each.plan.marker_range == local.marker_range
        assert [replace(log, age_s=0.0) for log in each.plan.logs] == [replace(log, age_s=0.0) for log in local.logs]
        seen.update(log.decision.value for log in each.plan.logs)
        finished = RollUp(local_store, each.dirty_log, options=OPTIONS).finish(each.plan, each.plan.selected)
        assert finished.outcome is not RollUpEnd.OVERTAKEN
    assert seen == {"caught up", "gone", "kept", "selected", "unreadable"}
    assert "log4" in {log for name in dirty_logs(local_store)[1:] for log in marked(local_store, name)}


def test_wrong_name_and_a_store_in_memory_are_refused(spark: SparkSession, local_store: ObjectStore) -> None:
    with pytest.raises(InvalidRequestError, match="log name"):
        plan_rollups(spark, local_store.url, ["dirty/../x"])
    with pytest.raises(InvalidRequestError, match="Spark's workers"):
        plan_rollups(spark, "memory:x", ["dirty/x"])
    assert plan_rollups(spark, local_store.url, []) == []
