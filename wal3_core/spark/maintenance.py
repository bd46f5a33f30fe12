"""Collections and roll-ups of many logs as Spark jobs: plan them, list orphans, delete what is due; fold dirty logs.

Executors read and delete; the driver alone writes garbage documents, swaps manifests, and finishes plans of roll-ups. A
task that is retried, or runs twice, does no harm. A failing log is reported alongside the others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from wal3_core.errors import LogError, UnavailableError
from wal3_core.fleet.dirty.rollup import RollUp, probe_log
from wal3_core.fleet.dirty.rollup_plan import (
    LogProbe,
    MarkerRange,
    RollUpOptions,
    RollUpPlan,
    RollUpTime,
    by_log,
    plan_of,
)
from wal3_core.fleet.outcomes import LogDeletion, LogOrphans, Refusal, try_log
from wal3_core.fleet.survey import Survey, survey_log
from wal3_core.format.garbage import Garbage
from wal3_core.format.marker import Marker, fold
from wal3_core.format.paths import DATA_FOLDERS, FRAGMENT_FOLDER, SNAPSHOT_FOLDER, LogId, check_log_id, check_log_name
from wal3_core.format.position import LogPosition
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.format.strict_json import JsonObject
from wal3_core.log.collect.deleter import Deleter, DeletionPart, DeletionReport, oldest
from wal3_core.options import CollectorOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.jobs import Item, JobResults, LogResults, cores, cost, from_text, pointer_of, run_by_log, to_text
from wal3_core.spark.requests import check_shared
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectMeta, ObjectStore, log_store
from wal3_core.store.open_store import open_store
from wal3_core.store.retrying import with_retries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal3_core.compaction.reports import Retried

# Manifest, cursors, garbage documents, a few snapshots.
_SURVEY_REQUESTS = 10
# A folder holds thousands of objects, a thousand a request.
_FOLDER_REQUESTS = 8
_LOGS_AT_ONCE = 16

# ---------------------------------------------------------------------- plans


def survey_task(store: ObjectStore, log: str, _texts: Sequence[str], *, options: CollectorOptions) -> Iterable[str]:
    """Survey a log once, however often it was named."""
    yield to_text(survey_log(store, log, options).to_json())


def plan_collections(
    spark: SparkSession, store_url: str, logs: Sequence[str], options: CollectorOptions | None = None
) -> JobResults[Survey]:
    """Plan the collection of many logs in one job and verify the plans; one survey per log, in the order given."""
    items = [Item(check_log_name(log), "", cost(0, requests=_SURVEY_REQUESTS)) for log in dict.fromkeys(logs)]
    work = partial(survey_task, options=options or CollectorOptions())
    found, retried = run_by_log(spark, store_url, items, work, "plans for collection")
    surveys = {log: _survey(log, each) for log, each in found.items()}
    return JobResults((surveys[log] for log in logs), retried)


def _survey(log: str, found: LogResults) -> Survey:
    if not found.results:
        return Survey(log=log, refusal=found.refusal)
    survey = try_log(Survey.from_text, found.results[0])
    return Survey(log=log, refusal=Refusal.of(survey)) if isinstance(survey, LogError) else survey


# ---------------------------------------------------------------------- orphans


def orphan_task(
    store: ObjectStore, log: str, texts: Sequence[str], *, options: CollectorOptions, now_us: int
) -> Iterable[str]:
    """List the orphans below folders of a log, which are the texts, the oldest first; a result describes an object."""
    deleter = Deleter(store, log, options=options)
    for meta in deleter.orphans_below(texts, deleter.load(deleter.documents()), now_us=now_us):
        yield json.dumps(asdict(meta))


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
    work = partial(orphan_task, options=options, now_us=now_us)
    found, retried = run_by_log(spark, store_url, items, work, "lists of orphans")

    def orphans(log: str) -> LogOrphans:
        listed = found.get(log, LogResults())
        objects = oldest((ObjectMeta(**json.loads(text)) for text in listed.results), options.orphans_max)
        return LogOrphans(log=log, objects=tuple(objects), refusal=listed.refusal)

    return JobResults(map(orphans, logs), retried)


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


# ---------------------------------------------------------------------- deletion


def delete_task(store: ObjectStore, log: str, texts: Sequence[str], *, options: CollectorOptions) -> Iterable[str]:
    """Delete parts of garbage documents that are due; a result is the report on one document's parts."""
    for (document, log_id), some in groupby(map(_part_from_text, texts), key=itemgetter(0)):
        named = defaultdict[str, list[Any]](list)
        for _, kind, part in some:
            named[kind].append(part)
        # In the document's life of the log: another life may have objects at the same relative paths.
        deleter = Deleter(store, log, options=options, log_id=log_id)
        whole = DeletionPart(**{kind: tuple(parts) for kind, parts in named.items()})
        yield json.dumps(asdict(deleter.delete_part(document, whole)))


def delete_objects(
    spark: SparkSession, store_url: str, documents: Sequence[tuple[str, str]], options: CollectorOptions | None = None
) -> JobResults[LogDeletion]:
    """Delete the objects of garbage documents (log, path) that are due, in one job; one result per document.

    A snapshot is deleted after what it holds, whichever task deletes that: until then it lists what is left.
    """
    options = options or CollectorOptions()
    store = open_store(check_shared(store_url))
    named: dict[str, dict[str, None]] = {}
    for log, path in documents:
        named.setdefault(log, {})[path] = None
    look = partial(_due_documents, store, options)
    surveyed = [*chain.from_iterable(map_ahead(shared_runtime(), look, named.items(), count=_LOGS_AT_ONCE))]
    done = {key: each for key, each in surveyed if isinstance(each, LogDeletion)}
    due = {key: each for key, each in surveyed if not isinstance(each, LogDeletion)}
    items = [item for (log, path), garbage in due.items() for item in _parts(log, path, garbage)]
    # Tasks run at once and share the limit on deletes.
    shared = replace(options, deletes_per_s=options.deletes_per_s / min(cores(spark), max(1, len(items))))
    work = partial(delete_task, options=shared)
    found, retried = run_by_log(spark, store_url, items, work, "deletion of garbage")
    done |= {key: _finish(store, key, found.get(key[0], LogResults()), options) for key in due}
    return JobResults((done[key] for key in documents), retried)


def _due_documents(
    store: ObjectStore, options: CollectorOptions, documents: tuple[str, Iterable[str]]
) -> list[tuple[tuple[str, str], Garbage | LogDeletion]]:
    """Load those of a log's documents that are due; the store's time is asked for once."""
    log, paths = documents
    deleter = Deleter(store, log, options=options)

    def refused(path: str, error: LogError) -> LogDeletion:
        return LogDeletion(log=log, deleted=DeletionReport(path=path), refusal=Refusal.of(error))

    def due(path: str) -> Garbage | LogDeletion:
        try:
            found = deleter.due(path, now_us=now_us)
        except LogError as error:
            return refused(path, error)
        return LogDeletion(log=log, deleted=found) if isinstance(found, DeletionReport) else found

    try:
        now_us = deleter.store_now_us()
    except LogError as error:
        return [((log, path), refused(path, error)) for path in paths]
    return [((log, path), due(path)) for path in paths]


def _parts(log: str, document: str, garbage: Garbage) -> Iterator[Item]:
    """Take a garbage document apart for ``delete_task``: each text says to which field of a DeletionPart it belongs."""
    named: JsonObject = {"document": document, "log_id": garbage.log_id}
    for pointer in garbage.dropped:
        count = pointer.last_seq_no - pointer.first_seq_no + 1 if isinstance(pointer, SnapshotPointer) else 1
        yield Item(log, to_text({**named, "dropped": pointer.to_json()}), cost(0, requests=count))
    whole = DeletionPart.whole(garbage)
    for kind, paths in (("replaced", whole.replaced), ("orphans", whole.orphans)):
        yield from (Item(log, to_text({**named, kind: path}), cost(0)) for path in paths)


def _part_from_text(text: str) -> tuple[tuple[str, LogId], str, Any]:
    fields = from_text(text, "part")
    document = fields.string("document"), check_log_id(fields.string("log_id"), "part")
    if fields.has("dropped"):
        return document, "dropped", pointer_of(fields.object("dropped"))
    kind = "replaced" if fields.has("replaced") else "orphans"
    return document, kind, fields.string(kind)


def _deleted_from_text(text: str) -> DeletionReport:
    fields = json.loads(text)
    return DeletionReport(**{**fields, "problems": tuple(fields["problems"])})


def _finish(store: ObjectStore, document: tuple[str, str], found: LogResults, options: CollectorOptions) -> LogDeletion:
    log, path = document
    parts = [part for part in map(_deleted_from_text, found.results) if part.path == path]
    refusal = found.refusal
    if refusal is None:
        try:
            return LogDeletion(log=log, deleted=Deleter(store, log, options=options).finish(path, parts))
        except LogError as error:
            refusal = Refusal.of(error)
    # A task of this log failed, or the document could not be removed: it lists what is left.
    partly = DeletionReport(path=path, num_deleted=sum(part.num_deleted for part in parts))
    return LogDeletion(log=log, deleted=partly, refusal=refusal)


# ---------------------------------------------------------------------- roll-ups

# A task reads whole slices; a marker takes some 48 bytes.
_SLICE_MARKERS = 20_000
_MARKER_BYTES = 48
_MARKERS_OF_A_TEXT = 5_000
# The manifest, and a cursor.
_PROBE_REQUESTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollUp:
    """The plan of one dirty log, or why there is none."""

    dirty_log: str
    plan: RollUpPlan | None = None
    refusal: Refusal | None = None


def fold_task(store: ObjectStore, log: str, texts: Sequence[str], *, options: RollUpOptions) -> Iterable[str]:
    """Fold slices of a dirty log, which are the texts, all of them together; a result is a list of folded markers."""
    rollup = RollUp(store, log, options=options)
    slices = (MarkerRange.from_json(from_text(text, "slice")) for text in texts)
    folded = list(fold(marker for each in slices for marker in rollup.markers(each)).values())
    for at in range(0, len(folded), _MARKERS_OF_A_TEXT):
        yield to_text({"markers": [each.to_json() for each in folded[at : at + _MARKERS_OF_A_TEXT]]})


def probe_task(store: ObjectStore, _log: str, texts: Sequence[str], *, options: RollUpOptions) -> Iterable[str]:
    """Look a marked log up once for all its markers, which are the texts; a result repeats the marker.

    An error of this log alone is part of the result.
    """
    fields = [from_text(text, "marked log") for text in texts]
    names = [each.string("dirty_log") for each in fields]
    markers = [Marker.from_json(each.object("marker")) for each in fields]
    found = probe_log(store, options, shared_runtime(), markers)
    for name, (marker, probe) in zip(names, found, strict=True):
        yield json.dumps([name, to_text(marker.to_json()), asdict(probe)])


def plan_rollups(
    spark: SparkSession, store_url: str, dirty_logs: Sequence[str], options: RollUpOptions | None = None
) -> JobResults[PlannedRollUp]:
    """Return what ``RollUp.read`` returns for each dirty log, in the order given; changes nothing.

    Raises UnavailableError when the store does not answer, InvalidRequestError for a name that no log can have.
    """
    options = options or RollUpOptions()
    store = open_store(check_shared(store_url))
    rollups = {name: RollUp(store, check_log_name(name), options=options) for name in dict.fromkeys(dirty_logs)}
    begun = {name: try_log(RollUp.marker_range, rollup) for name, rollup in rollups.items()}
    refused = {name: Refusal.of(error) for name, error in begun.items() if isinstance(error, LogError)}
    marker_ranges = {
        name: marker_range for name, marker_range in begun.items() if isinstance(marker_range, MarkerRange)
    }
    items = [item for marker_range in marker_ranges.values() for item in _slices(marker_range)]
    folded: dict[str, list[Marker]] = {}
    slices, retried = run_by_log(spark, store_url, items, partial(fold_task, options=options), "roll-up")
    for name, found in slices.items():
        if found.refusal is None:
            folds = (from_text(text, "folded") for text in found.results)
            parts = (part for fields in folds for part in fields.objects("markers", count_max=_MARKERS_OF_A_TEXT))
            folded[name] = [*chain.from_iterable(by_log(fold(map(Marker.from_json, parts))))]
        else:
            refused[name] = found.refusal
    probed, also_retried = _probe_all(spark, store_url, folded, options)
    plans = {
        name: plan_of(
            marker_range, some := probed.get(name, []), rollups[name].time() if some else RollUpTime(), options
        )
        for name, marker_range in marker_ranges.items()
        if name not in refused
    }
    results = (PlannedRollUp(dirty_log=name, plan=plans.get(name), refusal=refused.get(name)) for name in dirty_logs)
    return JobResults(results, retried + also_retried)


def _slices(marker_range: MarkerRange) -> Iterator[Item]:
    for start in range(marker_range.start, marker_range.limit.offset, _SLICE_MARKERS):
        limit = min(marker_range.limit, LogPosition(start + _SLICE_MARKERS, 0))
        part = replace(marker_range, start=start, limit=limit, skipped=0)
        yield Item(marker_range.dirty_log, to_text(part.to_json()), cost(part.num_markers * _MARKER_BYTES))


def _probe_all(
    spark: SparkSession, store_url: str, folded: dict[str, list[Marker]], options: RollUpOptions
) -> tuple[dict[str, list[tuple[Marker, LogProbe]]], Retried]:
    """Look up every marked log, after its markers were read; return what was found, by dirty log."""
    marked = sorted(
        ((marker.log, name, marker) for name, each in folded.items() for marker in each),
        key=lambda it: (*it[:2], it[2].life),
    )
    items = [
        Item(log, to_text({"dirty_log": name, "marker": marker.to_json()}), cost(0, requests=_PROBE_REQUESTS))
        for log, name, marker in marked
    ]
    probed: dict[str, list[tuple[Marker, LogProbe]]] = {}
    answers, retried = run_by_log(spark, store_url, items, partial(probe_task, options=options), "look-up")
    for found in answers.values():
        if found.refusal is not None:
            # An error of the log alone is a result: this one concerns the store.
            raise UnavailableError(found.refusal.message)
        for text in found.results:
            name, marker, probe = json.loads(text)
            probed.setdefault(name, []).append((Marker.from_json(from_text(marker, "marker")), LogProbe(**probe)))
    return probed, retried
