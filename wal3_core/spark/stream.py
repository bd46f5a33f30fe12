"""``spark.readStream.format("wal3")``: logs as a stream, each record once into a sink with a checkpoint.

Options are those of the batch read that say what to read (``store``; ``log``, ``logs`` or ``prefix``; ``columns``,
``verify``, ``partitions``, ``partition_bytes``) and ``start`` (``beginning`` or ``end``, of a stream without a
checkpoint), ``maxRecordsPerTrigger``, ``failOnDataLoss`` (true), and ``cursor``. The offsets in the checkpoint name
each log's life, where the stream began in it, and the next offset; and which logs were asked for. New logs under the
prefix are found at each trigger and read from their beginning, whatever ``start`` says; a sealed log's
successor is read, too.

With ``cursor``, the cursor of that name in each log keeps from collection what the stream has not read, and is moved
when Spark has committed a batch. It is a follower: the checkpoint says where the stream is.

Spark keeps one reader in a process of its own for as long as a query runs, and makes others for its tasks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from wal3_core.errors import (
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogReplacedError,
)
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.read.following import destroyed
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.bounds import EVERYTHING, Bounds, Span
from wal3_core.spark.planning import (
    LOGS_PLANNED_AT_ONCE,
    Runs,
    manifest_unless_vacant,
    plan_log,
    read_runs,
    reader_of,
    tasks_of,
)
from wal3_core.spark.stream_cursors import StreamCursors
from wal3_core.spark.stream_offsets import Reached, Selection, begin_of, from_json, selection_of, share_out, to_json
from wal3_core.spark.stream_request import BEGINNING
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from wal3_core.model.manifest import Manifest
    from wal3_core.spark.cutting import Piece
    from wal3_core.spark.stream_request import StreamRequest
    from wal3_core.storage.object_store import ObjectStore

_GO_ON = "set the option failOnDataLoss to false to go on without them, or start the stream with a new checkpoint"


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and runs the batches of one stream."""

    def __init__(self, request: StreamRequest, schema: StructType) -> None:
        self._request = request
        self._schema = schema
        self._selection = Selection(request.reading.prefix, request.reading.logs)
        # Where the logs ended when a query that takes only what is there was started.
        self._target: dict[str, Reached] | None = None
        self._cursors = None if request.cursor is None else StreamCursors(request.reading.store, request.cursor)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint begins."""
        if self._request.start == BEGINNING:
            return {}
        ends = self._ends({})
        places = {log: replace(end, first=end.offset, initial=True) for log, end in ends.items()}
        return dict(to_json(places, self._selection))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch."""
        count = self._request.records_max
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of a query that takes only what is there."""
        self._target = self._ends({})

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Return where the next batch ends: one small request for each log, many at a time.

        GarbageCollectedError when a collection took records that were not read, LogReplacedError and LogNotFoundError
        when a log is another one by now, or gone, or about to be; each names the log and says what to do.
        InvalidRequestError when the checkpoint is that of a stream of other logs.
        """
        before = from_json(start)
        self._check_selection(start)
        ends = self._ends(before)
        if self._target is not None:
            # Of a successor, that the checkpoint alone knows of when the log before it is gone.
            self._target = {log: ends[log] for log in before if log in ends} | self._target
            ends = _capped(ends, before, self._target)
        if isinstance(limit, ReadMaxRows):
            ends = _limited(ends, before, limit.max_rows)
        if self._cursors is not None:
            self._cursors.begin({log: (end.log_id, begin_of(log, before, end)) for log, end in ends.items()})
        # Nothing new is no batch, also where what the stream was asked for is not noted yet.
        return start if ends == before else dict(to_json(ends, self._selection))

    def _check_selection(self, start: dict[str, object]) -> None:
        """Refuse a checkpoint of other logs, which the stream would read on."""
        known = selection_of(start)
        if known is not None and not known.is_within(self._selection):
            message = (
                f"stream: expected {known}, of which its checkpoint is, or more logs than that, found"
                f" {self._selection}: it would read the others, too: start it with a new checkpoint"
            )
            raise InvalidRequestError(message)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Cut a batch into tasks: those of a batch read of the same records."""
        before, store = from_json(start), open_store(self._request.reading.store)
        begins = {log: (begin_of(log, before, reached), reached) for log, reached in from_json(end).items()}
        wanted = {log: place for log, place in begins.items() if place[0] < place[1].offset}
        bounds = {log: Bounds(offsets=Span(begin, reached.offset)) for log, (begin, reached) in wanted.items()}
        plan = partial(self._plan, store, wanted, bounds)
        planned = map_ahead(shared_runtime(), plan, sorted(wanted), count=LOGS_PLANNED_AT_ONCE)
        pieces = [piece for log in planned for piece in log]
        # Spark wants a list.
        return list(tasks_of(store, self._request.reading, pieces, bounds.__getitem__)) if pieces else []

    def _plan(
        self, store: ObjectStore, wanted: Mapping[str, tuple[int, Reached]], bounds: dict[str, Bounds], log: str
    ) -> list[Piece]:
        begin, reached = wanted[log]
        try:
            manifest = reader_of(store, log, reached.log_id).manifest()
        except (LogNotFoundError, LogReplacedError) as error:
            if not self._request.fail_on_loss:
                return []
            error.add_note(f"the stream is at offset {begin} of it: {_GO_ON}")
            raise
        # Of a batch that is repeated: planned longer ago.
        _check_reaches(log, reached.offset, manifest)
        first = manifest.first.position.offset
        if begin < first:
            self._check_loss(log, begin, first)
            bounds[log] = Bounds(offsets=Span(first, reached.offset))
        return plan_log(store, log, manifest, bounds[log])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's records, verified unless asked not to; an error names the fragment."""
        assert isinstance(partition, Runs), partition
        return read_runs(self._request.reading, self._schema, partition, EVERYTHING)

    def commit(self, end: dict[str, object]) -> None:
        """Move the cursors, if there are any, to where Spark has committed a batch."""
        if self._cursors is not None:
            self._cursors.commit({log: (reached.log_id, reached.offset) for log, reached in from_json(end).items()})

    # ------------------------------------------------------------------ where the logs end

    def _ends(self, before: Mapping[str, Reached]) -> dict[str, Reached]:
        """Return where each log ends: those asked for, those that the stream has read, and their successors."""
        store = open_store(self._request.reading.store)
        names = set(self._request.reading.logs or list_logs(store, self._request.reading.prefix)) | set(before)
        look = partial(self._look, store, before)
        ends: dict[str, Reached] = {}
        waiting = sorted(names)
        while waiting:
            found = list(map_ahead(shared_runtime(), look, waiting, count=LOGS_PLANNED_AT_ONCE))
            successors = set()
            for log, manifest in zip(waiting, found, strict=True):
                if manifest is not None:
                    ends[log] = self._end(log, before.get(log), manifest)
                    seal = manifest.seal
                    successors |= {seal.successor} if seal is not None and seal.successor is not None else set()
                elif log in before:
                    ends[log] = before[log]
            waiting = sorted(successors - names)
            names |= successors
        return ends

    def _look(self, store: ObjectStore, before: Mapping[str, Reached], log: str) -> Manifest | None:
        """Load a log's manifest; None when it is not there, and need not be."""
        request = self._request
        known = before.get(log)
        # A successor may not exist yet.
        named = request.reading.logs is not None and log in request.reading.logs
        try:
            found = manifest_unless_vacant(store, log, listed=not named)
        except LogNotFoundError as error:
            found = error
        if not isinstance(found, LogNotFoundError):
            return found
        if (known is not None or named) and request.fail_on_loss:
            if known is not None:
                found.add_note(f"the stream is at offset {known.offset} of it: {_GO_ON}")
            raise found
        return None

    def _end(self, log: str, known: Reached | None, manifest: Manifest) -> Reached:
        """Return where a log ends, after checking that the stream can go on from where it is."""
        offset, first = manifest.next.position.offset, manifest.first.position.offset
        if known is not None and known.log_id != manifest.log_id:
            if self._request.fail_on_loss:
                message = (
                    f"log {log}: expected log {known.log_id}, of which the stream has read up to offset {known.offset},"
                    f" found log {manifest.log_id} under its name: it was destroyed and created again, or restored:"
                    f" {_GO_ON}"
                )
                raise LogReplacedError(message)
            known = None
        if known is not None and known.offset < first:
            self._check_loss(log, known.offset, first)
            known = None
        if known is None:
            # What an announced collection is about to take is not begun with.
            return Reached(manifest.log_id, manifest.first_kept.position.offset, offset)
        _check_reaches(log, known.offset, manifest)
        if manifest.doomed and known.offset == offset and self._request.fail_on_loss:
            error = destroyed(log, manifest)
            error.add_note(f"the stream is at offset {offset} of it: {_GO_ON}")
            raise error
        return Reached(known.log_id, known.first, offset)

    def _check_loss(self, log: str, begin: int, first: int) -> None:
        if self._request.fail_on_loss:
            message = (
                f"log {log}: expected the records from offset {begin} on, where the stream is, found those below"
                f" {first} collected: {_GO_ON}; the option cursor keeps them from collection"
            )
            raise GarbageCollectedError(message)


def _check_reaches(log: str, offset: int, manifest: Manifest) -> None:
    """Refuse a log that ends before where the stream is, or a batch ends: it would not read what comes there next."""
    end = manifest.next.position.offset
    if offset > end:
        message = (
            f"log {log}: expected records up to offset {offset}, which the stream has read, found its end at"
            f" {end}: an older state of it was restored: start the stream with a new checkpoint"
        )
        raise CorruptError(message)


def _capped(
    ends: Mapping[str, Reached], before: Mapping[str, Reached], target: Mapping[str, Reached]
) -> dict[str, Reached]:
    """Cut ends to the target; a log that was found later waits for the next query."""
    capped = {}
    for log, end in ends.items():
        limit = target.get(log)
        if limit is not None and limit.log_id == end.log_id:
            capped[log] = replace(end, offset=max(begin_of(log, before, end), min(end.offset, limit.offset)))
        elif log in before:
            capped[log] = before[log]
    return capped


def _limited(ends: Mapping[str, Reached], before: Mapping[str, Reached], records_max: int) -> dict[str, Reached]:
    begins = {log: begin_of(log, before, end) for log, end in ends.items()}
    behind = {log: end.offset - begins[log] for log, end in ends.items()}
    granted = share_out(behind, records_max, turn=sum(begins.values()))
    return {log: replace(end, offset=begins[log] + granted[log]) for log, end in ends.items()}
