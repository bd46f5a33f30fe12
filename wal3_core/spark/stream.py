"""``spark.readStream.format("wal3")``: logs as a stream, each record once into a sink with a checkpoint.

docs/spark.md describes the options. The offsets in the checkpoint hold each log's life, where the stream began in it,
and the next offset; and which logs were asked for. The option ``cursor`` names followers: the checkpoint says where the
stream is.
Spark keeps one reader in a process of its own for as long as a query runs, and makes others for its tasks.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from wal3_core.errors import (
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogReplacedError,
)
from wal3_core.fleet.discovery import list_logs
from wal3_core.format import strict_json
from wal3_core.format.cursor import Owner
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LOG_ID, LogId
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import INTEGER, SET, Fields, JsonObject, Stored, member
from wal3_core.log.read.following import destroyed
from wal3_core.options import Limits
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.jobs import LogPiece, reader_of
from wal3_core.spark.planning import LOGS_PLANNED_AT_ONCE, Runs, manifest_unless_vacant, plan_log, read_runs, tasks_of
from wal3_core.spark.requests import BEGINNING, EVERYTHING, Bounds, Span, StreamRequest
from wal3_core.store.documents.cursor_store import CursorStore, Witness
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Names in an offset that no log has: what the stream was asked for, and the places of logs that do not change often.
# Spark gives a stream that is started again its last two offsets and nothing else: each must lead to all places.
_SELECTION, _PACKED = "", "*"
# Fewer take little space, and people can read them.
_PACKED_LOGS_MIN = 100
_NAMED_SHARE = 8


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """Which logs a stream was asked for: those named, or else those at or below a prefix."""

    prefix: str
    logs: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"prefix {self.prefix!r}" if self.logs is None else f"logs {','.join(self.logs)[:200]}"

    def is_within(self, other: StreamSelection) -> bool:
        """Tell whether the other one selects all that this one does."""
        if other.logs is not None:
            return self.logs is not None and set(self.logs) <= set(other.logs)
        above = _parts(other.prefix)
        return all(_parts(each)[: len(above)] == above for each in self.logs or (self.prefix,))

    def to_json(self) -> JsonObject:
        """Encode for the checkpoint."""
        return {"prefix": self.prefix} if self.logs is None else {"logs": ",".join(self.logs)}


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part]


def selection_of(found: Mapping[str, object]) -> StreamSelection | None:
    """Return what the checkpoint's stream was asked for; None if it began with a version that did not note it."""
    match found.get(_SELECTION):
        case None:
            return None
        case {"prefix": str(prefix), **others} if not others:
            return StreamSelection(prefix, None)
        case {"logs": str(logs), **others} if logs and not others:
            return StreamSelection("", tuple(logs.split(",")))
        case other:
            message = f"offset of the stream: expected prefix or logs as what it reads, found {str(other)[:200]}"
            raise CorruptError(message)


@dataclass(frozen=True, slots=True)
class Reached(Stored):
    """A stream has the records of one life of a log from ``first`` to ``offset``, without that one.

    ``initial``: as a stream without a checkpoint begins. Spark does not keep that place, and asks for it again when
    the first batch is repeated; then ``first`` of the batch's end, which it keeps, says where the batch begins.
    """

    log_id: LogId
    first: int
    offset: int
    initial: bool = False
    MEMBERS = (
        member("id", LOG_ID, "log_id"),
        member("first", INTEGER),
        member("offset", INTEGER),
        member("initial", SET, default=False),
    )

    def check_stored(self, what: str) -> None:
        """Refuse a place before the stream's first one."""
        if not 1 <= self.first <= self.offset:
            message = f"{what}: expected first and offset, from 1 and rising, found {self.first} and {self.offset}"
            raise CorruptError(message)


def to_json(
    places: Mapping[str, Reached],
    selection: StreamSelection | None = None,
    before: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, object]:
    """Encode the places of all logs, and what the stream was asked for; equal arguments give equal text.

    Of many logs, only those are named that are not where the packed text of the offset ``before`` has them. When these
    have become many, all are packed again.
    """
    found: dict[str, object] = {} if selection is None or not places else {_SELECTION: selection.to_json()}
    if len(places) < _PACKED_LOGS_MIN:
        return found | _named(places)
    packed = before.get(_PACKED)
    known = {} if packed is None else _unpacked(str(packed))
    moved = {log: place for log, place in places.items() if known.get(log) != place}
    if len(moved) > len(places) // _NAMED_SHARE or not known.keys() <= places.keys():
        packed, moved = base64.b64encode(zlib.compress(strict_json.dump(_named(places)))).decode(), {}
    return found | {_PACKED: packed} | _named(moved)


def _named(places: Mapping[str, Reached]) -> JsonObject:
    return {log: places[log].to_json() for log in sorted(places)}


def from_json(found: Mapping[str, object]) -> dict[str, Reached]:
    """Decode the places of all logs; CorruptError when they are none."""
    packed = _unpacked(str(found[_PACKED])) if _PACKED in found else {}
    named = {log: place for log, place in found.items() if log not in {_SELECTION, _PACKED}}
    return {**packed, **_places(named)}


# A batch has a start and an end, and mostly the packed text of the batch before.
@lru_cache(maxsize=2)
def _unpacked(text: str) -> Mapping[str, Reached]:
    try:
        return MappingProxyType(_places({**json.loads(zlib.decompress(base64.b64decode(text, validate=True)))}))
    except (ValueError, TypeError, zlib.error) as error:
        message = f"offset of the stream: expected packed places of logs, found {text[:80]!r}"
        raise CorruptError(message) from error


def _places(named: Mapping[str, Any]) -> dict[str, Reached]:
    what = "offset of the stream in log"
    return {log: Reached.from_json(Fields(place, f"{what} {log[:80]!r}")) for log, place in named.items()}


def begin_of(log: str, before: Mapping[str, Reached], end: Reached) -> int:
    """Return the offset at which a batch that ends at ``end`` begins in a log."""
    known = before.get(log)
    # Of a new log, another life of it, and the first batch, the end itself says where it begins.
    if known is None or known.initial or known.log_id != end.log_id:
        return end.first
    # The end's first is further on where records were lost.
    return max(known.offset, end.first)


def share_out(behind: Mapping[str, int], records_max: int, turn: int) -> dict[str, int]:
    """Grant each log a part of what the stream is behind there, ``records_max`` in all.

    Each gets the same unless it is less behind. ``turn`` rotates who is first, so that none waits for ever when there
    are more logs than records.
    """
    waiting = sorted(log for log, count in behind.items() if count > 0)
    if waiting:
        at = turn % len(waiting)
        waiting = waiting[at:] + waiting[:at]
    granted, left = dict.fromkeys(behind, 0), records_max
    while waiting and left:
        share = max(1, left // len(waiting))
        for log in waiting:
            given = min(share, behind[log] - granted[log], left)
            granted[log] += given
            left -= given
        waiting = [log for log in waiting if granted[log] < behind[log]]
    return granted


_LOGS_AT_ONCE = 16


class StreamCursors:
    """Keeps a cursor in each log of a stream, from where it begins there. They only move forwards."""

    def __init__(self, store: str, name: str) -> None:
        self._store = store
        self._name = name
        # By log and life, where its cursor is.
        self._at: dict[tuple[str, LogId], int] = {}

    def begin(self, places: Mapping[str, tuple[LogId, int]]) -> None:
        """Create the cursors of logs that have none, at these offsets.

        InvalidRequestError for the cursor of something else.
        """
        self._each({log: place for log, place in places.items() if (log, place[0]) not in self._at})

    def commit(self, places: Mapping[str, tuple[LogId, int]]) -> None:
        """Move the cursors to these offsets. CursorConflictError when another process moves them, too."""
        self._each(
            {log: (life, offset) for log, (life, offset) in places.items() if self._at.get((log, life), 0) < offset}
        )

    def _each(self, places: Mapping[str, tuple[LogId, int]]) -> None:
        found = map_ahead(
            shared_runtime(), self._move, [(log, *place) for log, place in places.items()], count=_LOGS_AT_ONCE
        )
        for key, at in found:
            self._at[key] = at

    def _move(self, place: tuple[str, LogId, int]) -> tuple[tuple[str, LogId], int]:
        log, log_id, offset = place
        store = open_store(self._store)
        cursors = CursorStore(store, log, log_id=log_id)
        try:
            witness = cursors.load(self._name, Owner.CONSUMER)
            if witness is None:
                witness = self._created(cursors, self._position(log, log_id, offset))
            if witness.cursor.position.offset < offset:
                witness = cursors.save(self._name, self._position(log, log_id, offset), witness, owner=Owner.CONSUMER)
        except (LogNotFoundError, LogReplacedError):
            # What the stream makes of that, its next look at the log says.
            return (log, log_id), offset
        return (log, log_id), witness.cursor.position.offset

    def _created(self, cursors: CursorStore, position: LogPosition) -> Witness:
        try:
            return cursors.create(self._name, position)
        except CursorConflictError:
            witness = cursors.load(self._name, Owner.CONSUMER)
            if witness is None:
                raise
            return witness

    def _position(self, log: str, log_id: LogId, offset: int) -> LogPosition:
        """Return the position of an offset; its time is that of the fragment it lies in."""
        reader = reader_of(open_store(self._store), log, log_id)
        manifest = reader.manifest()
        if offset >= manifest.next.position.offset:
            return manifest.next.position
        for pointer in reader.pointers(offset, Limits(fragments=1), manifest=manifest):
            return LogPosition(offset, pointer.start.timestamp_us)
        return LogPosition(offset, manifest.first.position.timestamp_us)


_GO_ON = "set the option failOnDataLoss to false to go on without them, or start the stream with a new checkpoint"


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and runs the batches of one stream."""

    def __init__(self, request: StreamRequest, schema: StructType) -> None:
        self._request = request
        self._schema = schema
        self._selection = StreamSelection(request.reading.prefix, request.reading.logs)
        # Where the logs ended when a query that takes only what is there was started.
        self._target: dict[str, Reached] | None = None
        self._cursors = None if request.cursor is None else StreamCursors(request.reading.store, request.cursor)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint begins."""
        if self._request.start == BEGINNING:
            return {}
        ends = self._ends({})
        places = {log: replace(end, first=end.offset, initial=True) for log, end in ends.items()}
        return to_json(places, self._selection)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
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
        return start if ends == before else to_json(ends, self._selection, start)

    def _check_selection(self, start: dict[str, object]) -> None:
        """Refuse a checkpoint of other logs, which the stream would read on."""
        known = selection_of(start)
        if known is not None and not known.is_within(self._selection):
            raise InvalidRequestError(
                f"stream: expected {known}, of which its checkpoint is, or more logs than that, found"
                f" {self._selection}: it would read the others, too: start it with a new checkpoint"
            )

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
    ) -> list[LogPiece]:
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
        look = partial(self._present_manifest, store, before)
        ends: dict[str, Reached] = {}
        # They are looked at while the listing goes on.
        names = set[str]()
        waiting: Iterable[str] = self._names(store, before, names)
        while waiting:
            successors = set[str]()
            for log, manifest in map_ahead(shared_runtime(), look, waiting, count=LOGS_PLANNED_AT_ONCE):
                if manifest is not None:
                    ends[log] = self._end(log, before.get(log), manifest)
                    seal = manifest.seal
                    successors |= {seal.successor} if seal is not None and seal.successor is not None else set()
                elif log in before:
                    ends[log] = before[log]
            waiting = sorted(successors - names)
            names |= successors
        return ends

    def _names(self, store: ObjectStore, before: Mapping[str, Reached], seen: set[str]) -> Iterator[str]:
        """Yield each log asked for and each that the stream has read, once, and note it as seen."""
        reading = self._request.reading
        asked = list_logs(store, reading.prefix) if reading.logs is None else reading.logs
        for log in chain(asked, before):
            if log not in seen:
                seen.add(log)
                yield log

    def _present_manifest(
        self, store: ObjectStore, before: Mapping[str, Reached], log: str
    ) -> tuple[str, Manifest | None]:
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
            return log, found
        if (known is not None or named) and request.fail_on_loss:
            if known is not None:
                found.add_note(f"the stream is at offset {known.offset} of it: {_GO_ON}")
            raise found
        return log, None

    def _end(self, log: str, known: Reached | None, manifest: Manifest) -> Reached:
        """Return where a log ends, after checking that the stream can go on from where it is."""
        offset, first = manifest.next.position.offset, manifest.first.position.offset
        if known is not None and known.log_id != manifest.log_id:
            if self._request.fail_on_loss:
                raise LogReplacedError(
                    f"log {log}: expected log {known.log_id}, of which the stream has read up to offset {known.offset},"
                    f" found log {manifest.log_id} under its name: it was destroyed and created again, or restored:"
                    f" {_GO_ON}"
                )
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
            raise GarbageCollectedError(
                f"log {log}: expected the records from offset {begin} on, where the stream is, found those below"
                f" {first} collected: {_GO_ON}; the option cursor keeps them from collection"
            )


def _check_reaches(log: str, offset: int, manifest: Manifest) -> None:
    """Refuse a log that ends before where the stream is, or a batch ends: it would not read what comes there next."""
    end = manifest.next.position.offset
    if offset > end:
        raise CorruptError(
            f"log {log}: expected records up to offset {offset}, which the stream has read, found its end at"
            f" {end}: an older state of it was restored: start the stream with a new checkpoint"
        )


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
