"""Collections of many logs as Spark jobs: plan them, list orphans, delete what is due.

Executors read and delete; the driver alone writes garbage documents and swaps manifests. A task
that is retried, or runs twice, does no harm. A failing log is reported alongside the others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import LogDeletion, LogOrphans, Refusal, try_log
from wal3_core.fleet.survey import Survey
from wal3_core.log.collect.deleter import Deleter, DeletionReport, oldest
from wal3_core.model.paths import DATA_FOLDERS, FRAGMENT_FOLDER, SNAPSHOT_FOLDER, check_log_name
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import CollectorOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.collect_task import (
    DeleteWork,
    OrphanWork,
    SurveyWork,
    deleted_from_text,
    object_from_text,
    part_texts,
)
from wal3_core.spark.jobs import Item, JobResults, LogResults, cores, run_by_log
from wal3_core.spark.requests import check_shared
from wal3_core.spark.tasks import cost
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.object_store import ObjectStore, log_store
from wal3_core.storage.open_store import open_store
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from wal3_core.compaction.retried import Retried
    from wal3_core.model.garbage import Garbage
    from wal3_core.model.snapshot import Pointer

# Manifest, cursors, garbage documents, a few snapshots.
_SURVEY_REQUESTS = 10
# A folder holds thousands of objects, a thousand a request.
_FOLDER_REQUESTS = 8
_LOGS_AT_ONCE = 16


def plan_collections(
    spark: SparkSession, store_url: str, logs: Sequence[str], options: CollectorOptions | None = None
) -> JobResults[Survey]:
    """Plan the collection of many logs in one job and verify the plans; one survey per log, in the order given."""
    items = [Item(check_log_name(log), "", cost(0, requests=_SURVEY_REQUESTS)) for log in dict.fromkeys(logs)]
    found, retried = run_by_log(spark, store_url, items, SurveyWork(options or CollectorOptions()))
    surveys = {log: _survey(log, each) for log, each in found.items()}
    return JobResults((surveys[log] for log in logs), retried)


def _survey(log: str, found: LogResults) -> Survey:
    if not found.results:
        return Survey(log=log, refusal=found.refusal)
    survey = try_log(Survey.from_text, found.results[0])
    return Survey(log=log, refusal=Refusal.of(survey)) if isinstance(survey, LogError) else survey


def list_orphans(
    spark: SparkSession, store_url: str, logs: Sequence[str], options: CollectorOptions | None = None
) -> JobResults[LogOrphans]:
    """List the orphans of many logs, each folder of fragments a part of the job; one result per log."""
    options = options or CollectorOptions()
    store = open_store(check_shared(store_url))
    names = [check_log_name(log) for log in dict.fromkeys(logs)]
    if not names:
        return JobResults()
    now_us = _store_now_us(store, names, options)
    folders = dict(
        zip(names, map_ahead(shared_runtime(), partial(_folders, store), names, count=_LOGS_AT_ONCE), strict=True)
    )
    items = [Item(log, folder, cost(0, requests=_FOLDER_REQUESTS)) for log, each in folders.items() for folder in each]
    found, retried = run_by_log(spark, store_url, items, OrphanWork(options, now_us))
    return JobResults((_orphans(log, found.get(log, LogResults()), options) for log in logs), retried)


def _store_now_us(store: ObjectStore, logs: Sequence[str], options: CollectorOptions) -> int:
    """Return the store's time, read through one of the logs; 0, when nothing is an orphan yet, if all fail."""
    for log in logs:
        now_us = try_log(lambda name: Deleter(store, name, options=options).store_now_us(), log)
        if not isinstance(now_us, LogError):
            return now_us
        # Its task reports the error.
    return 0


def _folders(store: ObjectStore, log: str) -> list[str]:
    runtime = shared_runtime()
    objects = ManifestStore(with_retries(log_store(store, log), runtime), runtime).objects
    try:
        others = [folder for folder in DATA_FOLDERS if folder != FRAGMENT_FOLDER]
        return [*objects.list_folders(FRAGMENT_FOLDER), *others]
    except LogError:
        # Its task reports the error.
        return [SNAPSHOT_FOLDER]


def _orphans(log: str, found: LogResults, options: CollectorOptions) -> LogOrphans:
    objects = oldest(map(object_from_text, found.results), options.orphans_max)
    return LogOrphans(log=log, objects=tuple(objects), refusal=found.refusal)


def delete_objects(
    spark: SparkSession, store_url: str, documents: Sequence[tuple[str, str]], options: CollectorOptions | None = None
) -> JobResults[LogDeletion]:
    """Delete the objects of garbage documents (log, path) that are due, in one job; one result per document.

    A snapshot is deleted after what it holds, whichever task deletes that: until then it lists what is left.
    """
    options = options or CollectorOptions()
    store = open_store(check_shared(store_url))
    due: dict[tuple[str, str], Garbage] = {}
    done: dict[tuple[str, str], LogDeletion] = {}
    named: dict[str, dict[str, None]] = {}
    for log, path in documents:
        named.setdefault(log, {})[path] = None
    for log, looked in zip(
        named,
        map_ahead(shared_runtime(), partial(_look, store, options), named.items(), count=_LOGS_AT_ONCE),
        strict=True,
    ):
        for path, found in looked.items():
            if isinstance(found, LogDeletion):
                done[log, path] = found
            else:
                due[log, path] = found
    deleted, retried = _delete(spark, store_url, due, options)
    done |= deleted
    return JobResults((done[key] for key in documents), retried)


def _look(
    store: ObjectStore, options: CollectorOptions, documents: tuple[str, Iterable[str]]
) -> dict[str, Garbage | LogDeletion]:
    """Load those of a log's documents that are due; the store's time is asked for once."""
    log, paths = documents
    deleter = Deleter(store, log, options=options)
    try:
        now_us = deleter.store_now_us()
    except LogError as error:
        return {
            path: LogDeletion(log=log, deleted=DeletionReport(path=path), refusal=Refusal.of(error)) for path in paths
        }
    return {path: _due(deleter, path, now_us) for path in paths}


def _due(deleter: Deleter, path: str, now_us: int) -> Garbage | LogDeletion:
    try:
        found = deleter.due(path, now_us=now_us)
    except LogError as error:
        return LogDeletion(log=deleter.log, deleted=DeletionReport(path=path), refusal=Refusal.of(error))
    return LogDeletion(log=deleter.log, deleted=found) if isinstance(found, DeletionReport) else found


def _delete(
    spark: SparkSession, store_url: str, due: dict[tuple[str, str], Garbage], options: CollectorOptions
) -> tuple[dict[tuple[str, str], LogDeletion], Retried]:
    items = [
        Item(log, text, _delete_cost(pointer))
        for (log, path), garbage in due.items()
        for pointer, text in part_texts(path, garbage)
    ]
    # Tasks run at once and share the limit on deletes.
    shared = replace(options, deletes_per_s=options.deletes_per_s / min(cores(spark), max(1, len(items))))
    found, retried = run_by_log(spark, store_url, items, DeleteWork(shared))
    store = open_store(store_url)
    return {key: _finish(store, key, found.get(key[0], LogResults()), options) for key in due}, retried


def _delete_cost(pointer: Pointer | None) -> int:
    count = pointer.last_seq_no - pointer.first_seq_no + 1 if isinstance(pointer, SnapshotPointer) else 1
    return cost(0, requests=count)


def _finish(store: ObjectStore, document: tuple[str, str], found: LogResults, options: CollectorOptions) -> LogDeletion:
    log, path = document
    parts = [part for part in map(deleted_from_text, found.results) if part.path == path]
    refusal = found.refusal
    if refusal is None:
        try:
            return LogDeletion(log=log, deleted=Deleter(store, log, options=options).finish(path, parts))
        except LogError as error:
            refusal = Refusal.of(error)
    # A task of this log failed, or the document could not be removed: it lists what is left.
    partly = DeletionReport(path=path, num_deleted=sum(part.num_deleted for part in parts))
    return LogDeletion(log=log, deleted=partly, refusal=refusal)
