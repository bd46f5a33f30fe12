"""The tasks of collections: survey logs, list orphans, delete what is due. They read and delete; repeating is harmless.

A task's inputs and results are small JSON texts, each of one log. An error of one log is its result;
the other logs go on.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.fleet.survey import survey_log
from wal3_core.log.collect.deleter import Deleter, DeletionPart, DeletionReport
from wal3_core.model import strict_json
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.paths import LogId, check_log_id
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.spark.columns import batch_of
from wal3_core.spark.task_context import AGAIN, earlier_attempts
from wal3_core.storage.object_store import ObjectMeta
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.model.garbage import Garbage
    from wal3_core.model.snapshot import Pointer
    from wal3_core.model.strict_json import Fields, JsonObject
    from wal3_core.options import CollectorOptions
    from wal3_core.storage.object_store import ObjectStore

RESULTS = "log string not null, refused boolean not null, result string not null"
_ARROW_RESULTS = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("refused", pa.bool_(), nullable=False),
        pa.field("result", pa.string(), nullable=False),
    ]
)
_LOGS_AT_ONCE = 8
_TEXT_BYTES_MAX = 4 * 2**20


class LogWork(Protocol):
    """What is done for one log."""

    @property
    def name(self) -> str:
        """What it is called, before the number of logs."""
        ...

    def __call__(self, store: ObjectStore, log: str, texts: Sequence[str]) -> Iterable[str]:
        """Turn the texts that a task has of a log into results; may raise LogError."""
        ...


@dataclass(frozen=True, slots=True)
class SurveyWork:
    """Survey a log; a result is a Survey."""

    options: CollectorOptions
    name = "plans for collection"

    def __call__(self, store: ObjectStore, log: str, texts: Sequence[str]) -> Iterable[str]:  # noqa: ARG002 - the log says it all
        """Survey it once, however often it was named."""
        yield to_text(survey_log(store, log, self.options).to_json())


@dataclass(frozen=True, slots=True)
class OrphanWork:
    """List orphans below folders of a log, which are the texts; a result is an object's description."""

    options: CollectorOptions
    now_us: int
    name = "lists of orphans"

    def __call__(self, store: ObjectStore, log: str, texts: Sequence[str]) -> Iterable[str]:
        """List them, the oldest first."""
        deleter = Deleter(store, log, options=self.options)
        for meta in deleter.orphans_below(texts, deleter.load(deleter.documents()), now_us=self.now_us):
            yield json.dumps(asdict(meta))


@dataclass(frozen=True, slots=True)
class DeleteWork:
    """Delete parts of garbage documents that are due; a result is the report on one document's parts."""

    options: CollectorOptions
    name = "deletion of garbage"

    def __call__(self, store: ObjectStore, log: str, texts: Sequence[str]) -> Iterable[str]:
        """Delete document by document."""
        parts = [_part_from_text(text) for text in texts]
        for (document, log_id), some in groupby(parts, key=itemgetter(0)):
            # In the document's life of the log: another life may have objects at the same relative paths.
            deleter = Deleter(store, log, options=self.options, log_id=log_id)
            part = _merged([part for _, part in some])
            yield json.dumps(asdict(deleter.delete_part(document, part)))


def collect_task(batches: Iterable[pa.RecordBatch], *, store_url: str, work: LogWork) -> Iterator[pa.RecordBatch]:
    """Do the work for each log of rows of (log, text), and yield its results.

    A row AGAIN comes first if this is not the first attempt.
    """
    store = open_store(store_url)
    rows = [row for batch in batches for row in zip(batch["log"].to_pylist(), batch["text"].to_pylist(), strict=True)]
    logs = [(log, [text for _, text in some]) for log, some in groupby(sorted(rows), key=itemgetter(0))]

    def do(named: tuple[str, list[str]]) -> list[tuple[str, bool, str]]:
        log, texts = named
        try:
            return [(log, False, result) for result in work(store, log, texts)]
        except LogError as error:
            return [(log, True, to_text(Refusal.of(error).to_json()))]

    if earlier := earlier_attempts():
        yield batch_of([(AGAIN, False, str(earlier))], _ARROW_RESULTS)
    # Threads of its own: the work on a log waits for the shared workers.
    with ThreadPoolExecutor(_LOGS_AT_ONCE, thread_name_prefix="collect") as threads:
        for found in threads.map(do, logs):
            if found:
                yield batch_of(found, _ARROW_RESULTS)


def to_text(document: JsonObject) -> str:
    """Encode."""
    return strict_json.dump(document).decode()


def from_text(text: str, what: str) -> Fields:
    """Decode."""
    return strict_json.load(text.encode(), what=what, bytes_max=_TEXT_BYTES_MAX)


def object_from_text(text: str) -> ObjectMeta:
    """Read a result of OrphanWork."""
    return ObjectMeta(**json.loads(text))


def part_texts(document: str, garbage: Garbage) -> Iterator[tuple[Pointer | None, str]]:
    """Take a garbage document apart into texts for DeleteWork, each with its pointer, if it has one."""
    named: JsonObject = {"document": document, "log_id": garbage.log_id}
    for pointer in garbage.dropped:
        yield pointer, to_text({**named, "pointer": pointer.to_json()})
    for replaced in garbage.replaced:
        yield None, to_text({**named, "replaced": replaced.path})
    for path in garbage.orphans:
        yield None, to_text({**named, "orphan": path})


def _part_from_text(text: str) -> tuple[tuple[str, LogId], DeletionPart]:
    fields = from_text(text, "part")
    document = fields.string("document"), check_log_id(fields.string("log_id"), "part")
    if fields.has("pointer"):
        return document, DeletionPart(dropped=(_pointer(fields.object("pointer")),))
    if fields.has("replaced"):
        return document, DeletionPart(replaced=(fields.string("replaced"),))
    return document, DeletionPart(orphans=(fields.string("orphan"),))


def _pointer(fields: Fields) -> Pointer:
    return SnapshotPointer.from_json(fields) if fields.has("depth") else FragmentPointer.from_json(fields)


def _merged(parts: Sequence[DeletionPart]) -> DeletionPart:
    return DeletionPart(
        dropped=tuple(pointer for part in parts for pointer in part.dropped),
        replaced=tuple(path for part in parts for path in part.replaced),
        orphans=tuple(path for part in parts for path in part.orphans),
    )


def deleted_from_text(text: str) -> DeletionReport:
    """Read a result of DeleteWork."""
    fields = json.loads(text)
    return DeletionReport(**{**fields, "problems": tuple(fields["problems"])})
