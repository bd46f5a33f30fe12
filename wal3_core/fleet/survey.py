"""What a collection would find in one log: the plan or why there is none, and signs that something is stuck.

A survey only reads: several may run at once, and be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wal3_core.errors import CollectionRefusedError, LogError, LogReplacedError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.format import strict_json
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CURSOR_FOLDER, cursor_name
from wal3_core.format.strict_json import INTEGER, TEXT, Kind, Stored, member, nested, several
from wal3_core.log.collect.collector import Collector, Plan, is_consumed
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.reader import LogReader
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectMeta, ObjectStore

# A survey as text names all cursors and garbage documents of its log, each in some 200 bytes: consumers of a feed are
# thousands.
_BYTES_MAX = 2**29
_LISTED_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorAge(Stored):
    """How many records lie at and after a cursor, and for how many seconds it stood still while the log grew."""

    name: str
    lag: int
    idle_s: int
    MEMBERS = (member("name", TEXT), member("lag", INTEGER), member("idle_s", INTEGER))

    @classmethod
    def of(
        cls, name: str, cursor: Cursor, manifest: Manifest, now_us: int, *, written_us: int | None = None
    ) -> CursorAge:
        """Measure a cursor in its log; ``written_us`` is when it was written, if its own clock was wrong."""
        since_us = cursor.epoch_us if written_us is None else written_us
        grew = manifest.next.position.timestamp_us > since_us
        lag = manifest.next.position.offset - cursor.position.offset
        idle_us = max(0, now_us - since_us) if grew and lag > 0 else 0
        return cls(name=name, lag=max(0, lag), idle_s=idle_us // US_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageDocumentStatus(Stored):
    """A garbage document that still exists, its age, and whether the manifest still announces it."""

    path: str
    age_s: int
    announced: bool = False
    MEMBERS = (
        member("path", TEXT),
        member("age_s", INTEGER),
        member("announced", Kind(lambda fields, name: bool(fields.integer(name)), int)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey(Stored):
    """One log as a collection would find it.

    ``refusal`` says why nothing can be collected; ``plan`` is then the refused plan, if there is one.
    ``documents`` are the log's garbage documents.
    """

    log: str
    plan: Plan | None = None
    refusal: Refusal | None = None
    cursors: tuple[CursorAge, ...] = ()
    documents: tuple[GarbageDocumentStatus, ...] = ()
    MEMBERS = (
        member("log", TEXT),
        member("plan", nested(Plan), default=None),
        member("refusal", nested(Refusal), default=None),
        member("cursors", several(CursorAge.from_json, _LISTED_MAX, CursorAge.to_json)),
        member("documents", several(GarbageDocumentStatus.from_json, _LISTED_MAX, GarbageDocumentStatus.to_json)),
    )

    @property
    def announced(self) -> GarbageDocumentStatus | None:
        """The collection that the manifest announces."""
        return next((each for each in self.documents if each.announced), None)

    @property
    def unclaimed(self) -> bool:
        """Whether the log is refused because no consumer has a cursor, which is no fault."""
        refused = self.refusal is not None and self.refusal.kind == CollectionRefusedError.__name__
        return refused and self.plan is None and not is_consumed(each.name for each in self.cursors)

    @property
    def due(self) -> bool:
        """Whether a collection has something to do, and is not refused."""
        planned = self.plan is not None and not self.plan.empty
        return self.refusal is None and (planned or self.announced is not None)

    @classmethod
    def from_text(cls, text: str) -> Survey:
        """Read what ``to_json`` returns, as text."""
        return cls.from_json(strict_json.load(text.encode(), what="survey", bytes_max=_BYTES_MAX))


def survey_log(store: ObjectStore, log: str, options: CollectorOptions) -> Survey:
    """Plan a log's collection and verify the plan. Changes nothing; an error of the log becomes the refusal."""
    survey, now_us = Survey(log=log), shared_runtime().now_us()
    try:
        manifest = LogReader.open(store, log).manifest()
        # Of the same life as the cursors.
        collector = Collector(store, log, options=options, log_id=manifest.log_id)
        documents = Deleter(store, log, options=options, log_id=manifest.log_id).documents()
        survey = replace(survey, documents=tuple(_document_status(meta, manifest, now_us) for meta in documents))
        cursors = sorted(CursorStore(store, log, retry=options.retry, log_id=manifest.log_id).list().items())
        # A subscription that pins nothing holds nothing back.
        pinning = ((name, witness.cursor) for name, witness in cursors if witness.cursor.pins)
        survey = replace(survey, cursors=tuple(_ages(store, log, list(pinning), manifest, now_us)))
        plan = collector.plan()
        survey = replace(survey, plan=plan)
        collector.verify(plan)
    except LogReplacedError:
        # The name has another life since the first request: that one is surveyed.
        return survey_log(store, log, options)
    except LogError as error:
        return replace(survey, refusal=Refusal.of(error))
    return survey


def _ages(
    store: ObjectStore, log: str, cursors: Sequence[tuple[str, Cursor]], manifest: Manifest, now_us: int
) -> Iterator[CursorAge]:
    """Measure cursors; one that was written in the future, by its own clock, by the store's clock."""
    written_us: dict[str, int] = {}
    if any(cursor.epoch_us > now_us for _, cursor in cursors):
        objects = LogStores(store, log, runtime=shared_runtime(), log_id=manifest.log_id).objects
        listed = objects.list_objects(CURSOR_FOLDER)
        written_us = {cursor_name(meta.path): meta.last_modified_us for meta in listed}
    for name, cursor in cursors:
        ahead = cursor.epoch_us > now_us
        yield CursorAge.of(name, cursor, manifest, now_us, written_us=written_us.get(name) if ahead else None)


def _document_status(meta: ObjectMeta, manifest: Manifest, now_us: int) -> GarbageDocumentStatus:
    announcement = manifest.announced
    return GarbageDocumentStatus(
        path=meta.path,
        age_s=max(0, now_us - meta.last_modified_us) // US_PER_S,
        announced=announcement is not None and announcement.garbage == meta.path,
    )
