"""Verification as a Spark job reports the same as scrub, for many logs at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from tests.compacted_logs import compact
from tests.spark.logs import TREE, collect, fill, merge, pointers
from tests.stores import damage, life_store
from wal3_core import CursorStore, InvalidRequestError, LogPosition, LogReader, scrub
from wal3_core.format.paths import MANIFEST
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.spark import verify_logs
from wal3_core.spark.verify import _report, _run, plan_log
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal3_core.log.read.scrub import Problem, ScrubReport

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Verification:
    """One round of a log's verification, with a pause between planning and reading."""

    spark: SparkSession
    url: str
    store: ObjectStore

    def finish(self, plan: object) -> ScrubReport | None:
        totals, _ = _run(self.spark, self.url, [plan], 2**20)
        return _report(self.store, plan, totals["a"])


def unordered(report: ScrubReport) -> tuple[ScrubReport, set[Problem]]:
    return replace(report, problems=()), set(report.problems)


def paths(report: ScrubReport) -> list[str]:
    return [problem.path for problem in report.problems]


def test_sound_logs_are_counted_as_scrub_counts_them_in_the_order_given(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "deep", fragments=45, snapshots=TREE)
    fill(local_store, "a/flat", fragments=3)
    fill(local_store, "empty", fragments=0)
    CursorStore(local_store, "deep").create("reader", LogPosition(50, 0))
    assert any(pointer.depth == 2 for pointer in LogReader.open(local_store, "deep").manifest().snapshots)

    reports = verify_logs(spark, local_url, ["empty", "deep", "a/flat", "deep"])

    assert reports == [scrub(local_store, log) for log in ("empty", "deep", "a/flat", "deep")]
    assert all(report.sound for report in reports)
    assert [report.num_records for report in reports] == [0, 450, 30, 450]


def test_log_with_gaps_is_sound_as_scrub_says(spark: SparkSession, local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=30, snapshots=TREE)
    compact(local_store, "a", {1, 2, 15, 33, 300}, [(1, 4), (6, 11)])

    [report] = verify_logs(spark, local_url, ["a"])

    assert report.balanced
    assert report == scrub(local_store, "a")


def test_every_bad_object_is_named_and_the_others_are_counted(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "sound", fragments=3)
    fill(local_store, "fragments", fragments=6)
    fragments = pointers(local_store, "fragments")
    damage(life_store(local_store, "fragments"), fragments[1].path)
    life_store(local_store, "fragments").delete(fragments[4].path)
    fill(local_store, "top", fragments=3)
    damage(local_store, f"top/{MANIFEST}")
    fill(local_store, "held", fragments=1)
    CursorStore(local_store, "held").create("reader", LogPosition(5, 0))
    damage(life_store(local_store, "held"), "cursor/reader.json", 50)
    logs = ["top", "fragments", "nowhere", "sound", "held"]

    reports = dict(zip(logs, verify_logs(spark, local_url, logs), strict=True))

    for log in ("top", "fragments", "sound", "held"):
        assert unordered(reports[log]) == unordered(scrub(local_store, log)), log
    assert paths(reports["fragments"]) == [fragments[1].path, fragments[4].path]
    assert (reports["fragments"].num_fragments, reports["fragments"].num_records) == (4, 40)
    assert paths(reports["top"]) == paths(reports["nowhere"]) == [MANIFEST]
    assert paths(reports["held"]) == ["cursor/reader.json"]


def test_lost_and_damaged_snapshots_are_named_once_and_the_rest_is_read(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "deep", fragments=45, snapshots=TREE)
    reader = LogReader.open(local_store, "deep")
    top, other = reader.manifest().snapshots
    assert (top.depth, other.depth) == (3, 2)
    first, second = reader.load_snapshot(top).pointers
    assert isinstance(first, SnapshotPointer)
    below = reader.load_snapshot(first).pointers[1]
    life_store(local_store, "deep").delete(below.path)
    for pointer in (second, other):
        damage(life_store(local_store, "deep"), pointer.path)

    (report,) = verify_logs(spark, local_url, ["deep"])

    assert sorted(paths(report)) == sorted([below.path, second.path, other.path])
    assert report.num_records == 450 - below.num_records - second.num_records - other.num_records
    assert unordered(report) == unordered(scrub(local_store, "deep"))


def test_fragment_collected_during_verification_is_no_problem(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    plan = plan_log(local_store, "a")

    collect(local_store, "a", 1)
    report = Verification(spark, local_url, local_store).finish(plan)

    assert report is not None
    assert report.sound
    assert report.num_records == 30


def test_log_whose_fragments_were_replaced_during_verification_is_read_again(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    plan = plan_log(local_store, "a")

    merge(local_store, "a", 1)

    assert Verification(spark, local_url, local_store).finish(plan) is None
    (report,) = verify_logs(spark, local_url, ["a"])
    assert report.sound
    assert (report.num_fragments, report.num_records) == (3, 40)


def test_sums_that_contradict_the_manifest_are_a_problem(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    fill(local_store, "b", fragments=4)
    plan, other = plan_log(local_store, "a"), plan_log(local_store, "b")

    totals, _ = _run(spark, local_url, [plan, other], 2**20)

    assert _report(local_store, plan, totals["a"]) == scrub(local_store, "a")
    totals["b"].num_records = 39
    swapped = _report(local_store, plan, totals["b"])
    assert swapped is not None
    assert paths(swapped)[:2] == [MANIFEST, MANIFEST]
    assert [problem.message.split(",")[0] for problem in swapped.problems][:2] == [
        f"log: expected setsum {swapped.setsum}",
        "log: expected records 40",
    ]


def test_no_logs_make_no_reports(spark: SparkSession, local_url: str) -> None:
    assert verify_logs(spark, local_url, []) == []


def test_store_that_workers_cannot_open_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequestError, match="expected one that Spark's workers can open"):
        verify_logs(spark, "memory:x", ["a"])
