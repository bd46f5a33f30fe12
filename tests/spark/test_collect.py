"""Spark jobs plan and delete in many logs exactly what the collector and the deleter do."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.logs import TREE, fill
from tests.stores import age_out, damage, life_store
from wal3_core import CursorStore, LogPosition, LogReader, PinStore, scrub
from wal3_core.fleet.survey import CursorAge, GarbageDocumentStatus, Survey, survey_log
from wal3_core.format.cursor import Cursor, Owner
from wal3_core.format.paths import FRAGMENT_FOLDER, MANIFEST, SNAPSHOT_FOLDER, fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter, DeletionPart
from wal3_core.options import CollectorOptions
from wal3_core.spark.jobs import to_text
from wal3_core.spark.maintenance import delete_objects, list_orphans, plan_collections
from wal3_core.store.object_store import Done, ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
AT_ONCE = CollectorOptions(interval_s=0)


def cursor(store: ObjectStore, log: str, offset: int) -> None:
    CursorStore(store, log).create("reader", LogPosition(offset, 0))


def prune(store: ObjectStore, log: str) -> tuple[str, set[str]]:
    """Prune below the log's cursors; return the garbage document's path, and all paths that are to be deleted."""
    collector = Collector(store, log, options=AT_ONCE)
    plan = collector.plan()
    doomed = set(collector.objects(plan))
    outcome = collector.prune(collector.announce(plan))
    assert isinstance(outcome, PrunedGarbage)
    return outcome.path, doomed | {outcome.path}


def objects(store: ObjectStore, log: str) -> set[str]:
    """Every fragment, snapshot and garbage document of a log."""
    folders = (FRAGMENT_FOLDER, SNAPSHOT_FOLDER)
    held = {meta.path for folder in folders for meta in life_store(store, log).list_objects(folder)}
    return held | {meta.path for meta in Deleter(store, log).documents()}


def referred(store: ObjectStore, log: str) -> set[str]:
    """Every object that the log's manifest leads to."""
    reader, found = LogReader.open(store, log), set()

    def follow(pointers: tuple[object, ...]) -> None:
        for pointer in pointers:
            found.add(pointer.path)
            if pointer.depth:
                follow(reader.load_snapshot(pointer).pointers)

    follow(reader.manifest().pointers)
    return found


def leave_orphan(store: ObjectStore, log: str, seq_no: int) -> str:
    """Upload a fragment as a writer that dies before its commit."""
    path = fragment_path(FragmentSeqNo(seq_no), "00000000deadbeef")
    assert isinstance(life_store(store, log).create(path, b"never committed"), Done)
    return path


def test_plans_of_many_logs_equal_the_collector_s_and_a_bad_log_hides_no_other(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    for log in ("a/deep", "plain", "all-read", "unclaimed", "damaged", "idle"):
        fill(local_store, log, fragments=45 if log == "a/deep" else 4, snapshots=TREE)
    for log, offset in {"a/deep": 222, "plain": 25, "all-read": 41, "damaged": 25, "idle": 1}.items():
        cursor(local_store, log, offset)
    damage(local_store, f"damaged/{MANIFEST}")
    logs = ["unclaimed", "plain", "nowhere", "a/deep", "damaged", "idle", "all-read"]

    surveys = dict(zip(logs, plan_collections(spark, local_url, logs), strict=True))

    for log in ("a/deep", "plain", "idle", "all-read"):
        assert surveys[log].plan == Collector(local_store, log).plan(), log
    assert {log: survey.due for log, survey in surveys.items()} == {
        **dict.fromkeys(logs, False),
        "a/deep": True,
        "plain": True,
        "all-read": True,
    }
    kinds = {log: survey.refusal.kind for log, survey in surveys.items() if survey.refusal is not None}
    assert kinds == {
        "unclaimed": "CollectionRefusedError",
        "nowhere": "LogNotFoundError",
        "damaged": "CorruptError",
    }


def test_survey_reads_back_from_its_text(local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=4)
    CursorStore(local_store, "a").create("writer-w", LogPosition(25, 0), owner=Owner.WRITER)
    age_out(local_store, "a")
    fill(local_store, "a", fragments=1)
    collector = Collector(local_store, "a", options=CollectorOptions(fraction_max=1))
    collector.announce(collector.plan())
    survey = survey_log(local_store, "a", CollectorOptions(fraction_max=0.1))

    assert Survey.from_text(to_text(survey.to_json())) == survey
    assert survey.refusal is not None
    assert survey.announced is not None
    assert [(age.name, age.lag) for age in survey.cursors] == [("writer-w", 26)]


def test_survey_of_a_log_with_many_cursors_and_documents_reads_back_from_its_text() -> None:
    names = [f"{number:0200}" for number in range(20_000)]
    survey = Survey(
        log="a",
        cursors=tuple(CursorAge(name=name, lag=1, idle_s=1) for name in names),
        documents=tuple(GarbageDocumentStatus(path=name, age_s=1) for name in names),
    )

    assert Survey.from_text(to_text(survey.to_json())) == survey


@pytest.mark.parametrize("snapshots", [True, False], ids=["tree", "flat"])
def test_job_deletes_what_was_pruned_and_nothing_else(
    spark: SparkSession,
    local_url: str,
    local_store: ObjectStore,
    snapshots: bool,  # noqa: FBT001 - the table's column
) -> None:
    for log in ("a", "b"):
        fill(local_store, log, fragments=45, snapshots=TREE if snapshots else None)
        cursor(local_store, log, 333)
    pruned = {log: prune(local_store, log) for log in ("a", "b")}
    documents = [(log, path) for log, (path, _) in pruned.items()]
    kept = {log: objects(local_store, log) - doomed for log, (_, doomed) in pruned.items()}

    deletions = delete_objects(spark, local_url, documents, AT_ONCE)

    assert [(each.log, each.deleted.num_deleted, each.refusal) for each in deletions] == [
        (log, len(doomed) - 1, None) for log, (_, doomed) in pruned.items()
    ]
    for log in ("a", "b"):
        assert objects(local_store, log) == kept[log]
        assert scrub(local_store, log).sound
    again = delete_objects(spark, local_url, documents, AT_ONCE)
    assert [each.deleted.num_deleted for each in again] == [0, 0]


def test_tasks_that_die_half_way_and_run_again_or_twice_delete_the_same(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=45, snapshots=TREE)
    cursor(local_store, "a", 333)
    path, doomed = prune(local_store, "a")
    kept = objects(local_store, "a") - doomed
    deleter = Deleter(local_store, "a", options=AT_ONCE)
    (garbage,) = deleter.pending()
    # Children before their snapshot, as a task that dies half way leaves them.
    for each in random.Random(5).sample(sorted(one for one in doomed if one.startswith(FRAGMENT_FOLDER)), 9):
        life_store(local_store, "a").delete(each)
    deleter.delete_part(path, DeletionPart(dropped=garbage.dropped[:2]))

    (deletion,) = delete_objects(spark, local_url, [("a", path)], AT_ONCE)
    late = deleter.delete_part(path, DeletionPart.whole(garbage))

    assert deletion.deleted.finished
    assert late.problems == ()
    assert objects(local_store, "a") == kept
    assert scrub(local_store, "a").sound


@pytest.mark.slow
@pytest.mark.repeat
def test_tasks_that_spark_runs_again_and_jobs_that_run_twice_at_once_delete_the_same(
    local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    fill(local_store, "a", fragments=45, snapshots=TREE)
    cursor(local_store, "a", 333)
    path, doomed = prune(local_store, "a")
    kept = objects(local_store, "a") - doomed
    marks = tmp_path / "marks"
    marks.mkdir()

    command = [sys.executable, "-m", "tests.spark.collect_program", local_url, "a", path, str(marks)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)

    attempts = Counter(mark.suffix for mark in marks.iterdir())
    assert outcome.stdout.splitlines()[-1:] == ["True"], outcome.stderr[-2000:]
    # The later of the two jobs may find so little left that not every task dies.
    assert attempts[".0"] >= attempts[".1"] >= 1
    assert objects(local_store, "a") == kept
    assert scrub(local_store, "a").sound


def test_nothing_is_deleted_early_or_for_a_refused_log_and_the_others_are_served(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    for log in ("ready", "dangling", "damaged"):
        fill(local_store, log, fragments=6)
        cursor(local_store, log, 35)
    documents = [(log, prune(local_store, log)[0]) for log in ("ready", "dangling", "damaged")]
    before = {log: objects(local_store, log) for log, _ in documents}
    # As left by a process that dies after creating a cursor and before checking whether it came too late.
    held = life_store(local_store, "dangling").read("cursor/reader.json")
    assert held is not None
    low = replace(Cursor.from_bytes(held, what="held"), position=LogPosition(1, 0)).to_bytes()
    assert isinstance(life_store(local_store, "dangling").create("cursor/low.json", low), Done)
    damage(life_store(local_store, "damaged"), documents[2][1])

    early = delete_objects(spark, local_url, documents[:1], replace(AT_ONCE, interval_s=3600))
    deletions = delete_objects(spark, local_url, documents, AT_ONCE)

    assert early[0].deleted.wait_s > 3000
    assert early[0].deleted.num_deleted == 0
    kinds = {each.log: each.refusal.kind for each in deletions if each.refusal is not None}
    assert kinds == {"dangling": "CollectionRefusedError", "damaged": "CorruptError"}
    assert objects(local_store, "ready") == referred(local_store, "ready")
    assert {log: objects(local_store, log) for log in kinds} == {log: before[log] for log in kinds}


def test_pinned_objects_stay_and_their_document_with_them(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=12, snapshots=TREE)
    PinStore(local_store, "a").create("backup", reason="a copy is being made")
    pinned = referred(local_store, "a")
    fill(local_store, "a", fragments=12, snapshots=TREE)
    cursor(local_store, "a", 200)
    path, doomed = prune(local_store, "a")
    others = objects(local_store, "a") - doomed

    (held,) = delete_objects(spark, local_url, [("a", path)], AT_ONCE)
    kept = objects(local_store, "a")
    PinStore(local_store, "a").delete("backup")
    (freed,) = delete_objects(spark, local_url, [("a", path)], AT_ONCE)

    assert held.deleted.num_held > 0
    assert pinned | {path} <= kept
    assert freed.deleted.finished
    assert objects(local_store, "a") == others


def test_orphans_of_many_logs_equal_the_deleter_s(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    orphans = {}
    for log in ("a", "b/c"):
        fill(local_store, log, fragments=20, snapshots=TREE)
        orphans[log] = [leave_orphan(local_store, log, seq_no) for seq_no in (3, 5000, 9000)]
    fill(local_store, "damaged", fragments=1)
    damage(local_store, f"damaged/{MANIFEST}")

    found = list_orphans(spark, local_url, ["b/c", "damaged", "a", "clean"], AT_ONCE)
    young = list_orphans(spark, local_url, ["a"], replace(AT_ONCE, interval_s=3600))
    few = list_orphans(spark, local_url, ["a"], replace(AT_ONCE, orphans_max=2))

    paths = {each.log: [meta.path for meta in each.objects] for each in found}
    for log in ("a", "b/c"):
        assert paths[log] == Deleter(local_store, log, options=AT_ONCE).orphans()
        assert set(orphans[log]) <= set(paths[log])
        assert not set(paths[log]) & referred(local_store, log)
    assert {each.log: each.refusal.kind for each in found if each.refusal is not None} == {
        "damaged": "CorruptError",
        "clean": "LogNotFoundError",
    }
    assert young[0].objects == ()
    assert [meta.path for meta in few[0].objects] == paths["a"][:2]


def test_job_deletes_marked_orphans_except_one_that_is_referred_to_again(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=3)
    orphans = [leave_orphan(local_store, "a", seq_no) for seq_no in (3, 5000)]
    held = min(referred(local_store, "a"))
    marked = Collector(local_store, "a", options=AT_ONCE).prune_orphans([*orphans, held], "a test")
    assert isinstance(marked, PrunedGarbage)

    left = list_orphans(spark, local_url, ["a"], AT_ONCE)
    (deletion,) = delete_objects(spark, local_url, [("a", marked.path)], AT_ONCE)

    assert left[0].objects == ()
    assert deletion.deleted.finished
    assert deletion.deleted.num_deleted == 2
    assert objects(local_store, "a") == referred(local_store, "a")


def test_no_logs_make_no_jobs(spark: SparkSession, local_url: str) -> None:
    assert plan_collections(spark, local_url, []) == []
    assert list_orphans(spark, local_url, []) == []
    assert delete_objects(spark, local_url, []) == []
