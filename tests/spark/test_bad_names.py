"""A bad name beside a good log: jobs over many logs serve the log and report the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bad_names import BAD, BADNESSES, GOOD, KINDS, Badness, deny, spoil
from tests.spark.logs import TREE, fill
from tests.stores import FaultyStore, life_path, life_store
from wal3_core import CursorStore, LogPosition, UnavailableError, scrub
from wal3_core.format.paths import CURSOR_FOLDER, FRAGMENT_FOLDER, SNAPSHOT_FOLDER, fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.options import CollectorOptions
from wal3_core.spark import maintenance, verify_logs
from wal3_core.spark.maintenance import delete_objects, list_orphans, plan_collections
from wal3_core.spark.verify import plan_log
from wal3_core.store.object_store import Done, ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

AT_ONCE = CollectorOptions(interval_s=0)
BOTH = [BAD, GOOD]
ORPHAN = fragment_path(FragmentSeqNo(9000), "00000000deadbeef")


def _prune(store: ObjectStore, log: str) -> str:
    collector = Collector(store, log, options=AT_ONCE)
    outcome = collector.prune(collector.announce(collector.plan()))
    assert isinstance(outcome, PrunedGarbage)
    return outcome.path


def _make(store: ObjectStore, log: str) -> None:
    """A log with something to collect, and an orphan."""
    fill(store, log, fragments=6)
    CursorStore(store, log).create("reader", LogPosition(35, 0))
    assert isinstance(life_store(store, log).create(ORPHAN, b"never committed"), Done)


@pytest.fixture(params=BADNESSES)
def badness(request: pytest.FixtureRequest, local_store: ObjectStore) -> Badness:
    """Two such logs, and how the test spoils one of them."""
    for log in BOTH:
        _make(local_store, log)
    return Badness(request.param)


def test_every_job_over_both_serves_the_good_log_and_reports_the_bad_name(
    spark: SparkSession, local_url: str, local_store: ObjectStore, badness: Badness
) -> None:
    documents = [(log, _prune(local_store, log)) for log in BOTH]
    spoil(local_store, badness)
    kind = KINDS[badness]

    reports = verify_logs(spark, local_url, BOTH)
    orphans = list_orphans(spark, local_url, BOTH, AT_ONCE)
    surveys = plan_collections(spark, local_url, BOTH, AT_ONCE)
    deletions = delete_objects(spark, local_url, documents, AT_ONCE)

    assert reports[1] == scrub(local_store, GOOD)
    assert reports[1].sound
    assert [meta.path for meta in orphans[1].objects] == Deleter(local_store, GOOD, options=AT_ONCE).orphans()
    assert surveys[1].plan is not None
    assert deletions[1].deleted.finished
    assert [each.refusal for each in (orphans[1], surveys[1], deletions[1])] == [None, None, None]
    assert reports[0].sound == (kind is None)
    for each in (orphans[0], deletions[0]):
        assert (None if each.refusal is None else each.refusal.kind) == kind
    # A new log has no cursor.
    assert surveys[0].refusal is not None
    assert surveys[0].refusal.kind == (kind or "CollectionRefusedError")


@pytest.mark.parametrize("folder", [FRAGMENT_FOLDER, SNAPSHOT_FOLDER, CURSOR_FOLDER])
def test_denied_part_of_a_log_is_a_problem_of_that_log_and_the_rest_is_read_back(
    spark: SparkSession, local_url: str, local_store: ObjectStore, folder: str
) -> None:
    for log in BOTH:
        fill(local_store, log, fragments=45, snapshots=TREE)
        CursorStore(local_store, log).create("reader", LogPosition(35, 0))
    deny(local_store, life_path(local_store, BAD, folder).rstrip("/"))

    bad, good = verify_logs(spark, local_url, BOTH)

    assert good == scrub(local_store, GOOD)
    assert good.sound
    assert {problem.path.split("/")[0] for problem in bad.problems} == {folder.rstrip("/")}
    assert all("expected no other store inside" in problem.message for problem in bad.problems)
    read = {FRAGMENT_FOLDER: 0, CURSOR_FOLDER: good.num_fragments}.get(folder)
    assert read is None or bad.num_fragments == read


def test_log_destroyed_during_deletion_does_not_keep_another_log_s_document(
    spark: SparkSession, local_url: str, local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for log in BOTH:
        _make(local_store, log)
    documents = [(log, _prune(local_store, log)) for log in BOTH]
    run = maintenance.run_by_log

    def run_and_destroy(*args: object) -> object:
        found = run(*args)
        destroy(local_store, BAD)
        return found

    monkeypatch.setattr(maintenance, "run_by_log", run_and_destroy)
    bad, good = delete_objects(spark, local_url, documents, AT_ONCE)

    assert bad.refusal is not None
    assert bad.refusal.kind == "LogNotFoundError"
    assert good.deleted.finished
    assert good.refusal is None


def test_store_that_does_not_answer_fails_every_log(memory_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.0)
    fill(memory_store, GOOD, fragments=1)
    store = FaultyStore(memory_store)
    store.fail("get", GOOD, "unavailable", times=1_000)

    with pytest.raises(UnavailableError):
        plan_log(store, GOOD)
    with pytest.raises(UnavailableError):
        maintenance._store_now_us(store, [GOOD], AT_ONCE)
