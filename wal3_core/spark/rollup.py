"""Roll-ups of many dirty logs as two Spark jobs: one reads and folds the markers, one looks the marked logs up.

The same fold and the same decisions as on one machine; the tasks only read. ``RollUp.finish`` finishes each plan in the
driver. A dirty log that cannot be read is its own answer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

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
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.format.marker import Marker, fold
from wal3_core.format.paths import check_log_name
from wal3_core.format.position import LogPosition
from wal3_core.runtime import shared_runtime
from wal3_core.spark.jobs import Item, JobResults, run_by_log
from wal3_core.spark.requests import check_shared
from wal3_core.spark.tasks import cost, from_text, to_text
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from wal3_core.compaction.retried import Retried
    from wal3_core.store.object_store import ObjectStore

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
