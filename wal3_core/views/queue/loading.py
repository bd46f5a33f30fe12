"""Loads a queue from its log: the newest checkpoint, and what came after it; or all of the log.

A checkpoint counts only if the queue's cursor lies at or before it, and no pass of key compaction went beyond it: none
then has dropped anything behind it. Otherwise tombstones of items that the checkpoint has may be gone.
Source: docs/protocol.md, "Delay queue".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from wal3_core.errors import CorruptError, GarbageCollectedError, InvalidRequestError, LogNotFoundError
from wal3_core.log.read.reader import LogReader
from wal3_core.model.cursor import Owner
from wal3_core.model.paths import QUEUE_CURSOR
from wal3_core.options import Limits
from wal3_core.runtime.loggers import QUEUE
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.views.queue import encoding
from wal3_core.views.queue.checkpoint import Known, decode, restore
from wal3_core.views.queue.definition import QueueDefinition
from wal3_core.views.queue.encoding import (
    ID_KEY_BYTES,
    NEVER,
    PART_KEY_BYTES,
    Meta,
    StateRecord,
    id_of,
    part_key,
    state_record,
    value_header,
)
from wal3_core.views.queue.held_items import Buried, Lease
from wal3_core.views.queue.queue_state import QueueState
from wal3_core.views.queue.runs import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.options import ReaderOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.cursor_store import Witness
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.queue.encoding import ValueHeader

T = TypeVar("T")

# The cursor of this name keeps key compaction from what came after the newest checkpoint.
CURSOR = QUEUE_CURSOR
_WINDOW = 64
_OF_ITEMS = (encoding.VALUE, encoding.STATE)
# How many records of others may lie behind the last of a queue that has lost its cursor.
_FOREIGN_MAX = 100_000
_TRIES_MAX = 8


@contextlib.contextmanager
def expecting_a_queue() -> Iterator[None]:
    """Say of a log that does not exist how a queue is made: `wal3 init` makes none."""
    try:
        yield
    except LogNotFoundError as error:
        found, _, _ = str(error).partition(": initialize ")
        message = f"{found}: create the queue first (`wal3 queue create`, or DelayQueue.create)"
        raise LogNotFoundError(message) from error


class _Value(NamedTuple):
    offset: int
    length: int
    header: ValueHeader


@dataclass(frozen=True, slots=True)
class LoadedQueue:
    """A queue as its log was below ``end``. ``broker`` is the token of the last one to take it.

    ``parts`` are the keys of all parts of checkpoints. ``tail`` counts what came after the newest one. ``behind`` is
    how many records came after that of the queue as a whole.
    """

    state: QueueState
    meta: Meta
    end: int
    broker: bytes
    parts: set[bytes]
    tail: Tail
    behind: int


class Tail(NamedTuple):
    """How much came after a checkpoint, but for the parts of others."""

    records: int = 0
    num_bytes: int = 0
    fragments: int = 0

    def with_more(self, records: int, num_bytes: int, fragments: int) -> Tail:
        """Add what came after it."""
        return Tail(self.records + records, self.num_bytes + num_bytes, self.fragments + fragments)


class _Found(NamedTuple):
    """What a queue has come to, the offset of that record, and the token of the last broker to take it."""

    meta: Meta
    offset: int
    broker: bytes


@dataclass(frozen=True, slots=True)
class _Tail:
    """What the records after a checkpoint say: by id, None where a tombstone is the newest record."""

    values: dict[int, _Value | None] = field(default_factory=dict)
    states: dict[int, StateRecord | None] = field(default_factory=dict)
    parts: set[bytes] = field(default_factory=set)


class QueueLoader:
    """Reads one queue's log."""

    def __init__(
        self, store: ObjectStore, log: str, options: ReaderOptions, runtime: Runtime, log_id: LogId | None = None
    ) -> None:
        self.reader = LogReader(store, log, options=options, runtime=runtime, log_id=log_id)
        self._store, self._log, self._runtime = store, log, runtime
        self._url = f"{store.url}/{log}"

    def check(self) -> LogId:
        """Return the id of the log; InvalidRequestError when it is no queue."""
        return self._steady(self._checked)

    def _checked(self, manifest: Manifest) -> LogId:
        self._find(manifest)
        return manifest.log_id

    def broker(self) -> tuple[bytes, int]:
        """Return the token of the broker that has the queue, and the offset at which the log ended then."""
        return self._steady(lambda manifest: (self._find(manifest).broker, manifest.next.position.offset))

    def _steady(self, read: Callable[[Manifest], T]) -> T:
        """Read what a manifest refers to; when records were compacted away meanwhile, by a newer one, once more."""
        for _ in range(_TRIES_MAX):
            try:
                return read(self.reader.manifest())
            except GarbageCollectedError:
                continue
        return read(self.reader.manifest())

    def _find(self, manifest: Manifest) -> _Found:
        """Find what the queue has come to, and its broker's token; InvalidRequestError when the log is no queue.

        It lies at the end, but for the records of brokers that did nothing yet, and any that others put there.
        """
        first, end = manifest.first.position.offset, manifest.next.position.offset
        broker: bytes | None = None
        window, limit = _WINDOW, end
        while limit > first:
            if limit <= end - _FOREIGN_MAX and self._cursor(manifest) is None:
                break
            start = max(first, limit - window)
            for key, body, offset in reversed(list(self._records(start, limit, manifest))):
                if key == encoding.META_KEY and body is not None:
                    meta = Meta.from_bytes(body, what=self._what(offset))
                    return _Found(meta, offset, broker or meta.broker)
                if key == encoding.BROKER_KEY:
                    broker = broker or body
            window, limit = window * 4, start
        message = (
            f"log {self._url}: expected a queue, found a log of other records, or an empty one: name a queue"
            " (`wal3 queue list` shows them), or create one under a name that is free or of an empty log"
        )
        raise InvalidRequestError(message)

    def _cursor(self, manifest: Manifest) -> Witness | None:
        """Load the queue's cursor; None when the log has none, as one that is no queue."""
        return CursorStore(self._store, self._log, runtime=self._runtime, log_id=manifest.log_id).load(
            CURSOR, Owner.QUEUE
        )

    def _what(self, offset: int) -> str:
        return f"queue {self._url}: record {offset}"

    def _records(self, start: int, limit: int, manifest: Manifest) -> Iterator[tuple[bytes | None, bytes | None, int]]:
        for batch in self.reader.batches(start, Limits(offset=limit), manifest=manifest):
            keys, bodies, offsets = (batch[name].to_pylist() for name in ("key", "body", "offset"))
            yield from zip(keys, bodies, offsets, strict=True)

    def load(self) -> LoadedQueue:
        """Load the queue; InvalidRequestError when the log is none."""
        try:
            return self._steady(self._load)
        finally:
            # Reading takes several times what the items do.
            pa.default_memory_pool().release_unused()

    def _load(self, manifest: Manifest) -> LoadedQueue:
        meta, meta_at, broker = self._find(manifest)
        state = QueueState(self._definition(meta, manifest), meta.definition, meta.created_ms)
        state.last_id, state.floors_ms = meta.last_id, dict(meta.floors_ms)
        table = self._checkpoint(meta, manifest)
        start = meta.as_of if table is not None else manifest.first.position.offset
        end = manifest.next.position.offset
        tail, size = _Tail(), Tail()
        for batch in self.reader.batches(start, Limits(offset=end), manifest=manifest):
            size = size.with_more(*self._fold(batch, tail, meta))
        known = {} if table is None else restore(state, table, tail.values.keys() | tail.states.keys())
        self._add(state, tail, known)
        parts = tail.parts | {part_key(meta.as_of, number) for number in range(len(meta.parts))}
        return LoadedQueue(state, meta, end, broker, parts, size, end - meta_at - 1)

    def _definition(self, meta: Meta, manifest: Manifest) -> QueueDefinition:
        return QueueDefinition.from_bytes(self._body(meta.definition, manifest), what=self._what(meta.definition))

    def _body(self, offset: int, manifest: Manifest) -> bytes:
        for _, body, at in self._records(offset, offset + 1, manifest):
            if at == offset and body is not None:
                return body
        message = f"{self._what(offset)}: expected a record with a body, found none"
        raise CorruptError(message)

    def _checkpoint(self, meta: Meta, manifest: Manifest) -> pa.Table | None:
        """Read the newest checkpoint, if it can be relied on."""
        if not meta.parts or manifest.compaction.clean_limit > meta.as_of:
            # Where the cursor is by now does not matter: a pass has gone beyond.
            return None
        witness = self._cursor(manifest)
        if witness is None or witness.cursor.position.offset > meta.as_of:
            return None
        try:
            parts = [self._body(offset, manifest) for offset in meta.parts]
            return decode(parts, meta.last_id, what=f"queue {self._url}: checkpoint at {meta.as_of}")
        except CorruptError as error:
            # All that it says is in the log, too. A fragment that is damaged is found again on the way there.
            QUEUE.warning("%s: the queue is read from all of its log instead", error)
            return None

    def _fold(self, batch: pa.RecordBatch, tail: _Tail, meta: Meta) -> Tail:
        """Take note of records; return how much they are."""
        num_parts = part_bytes = num_fragments = 0
        keys, bodies, offsets = (batch[name].to_pylist() for name in ("key", "body", "offset"))
        values, states = tail.values, tail.states
        for key, body, offset in zip(keys, bodies, offsets, strict=True):
            kind = (key or b"")[:1]
            item_id = id_of(key) if kind in _OF_ITEMS and len(key) == ID_KEY_BYTES else 0
            # No item has an id above the last one.
            is_of_item = 0 < item_id <= meta.last_id
            if kind == encoding.VALUE and is_of_item:
                if body is None:
                    values[item_id] = None
                else:
                    header = value_header(body, meta.created_ms, self._what(offset))
                    values[item_id] = _Value(offset, len(body) - header.length, header)
            elif kind == encoding.STATE and is_of_item:
                # In the order of their newest records, as the dead letters are listed.
                states.pop(item_id, None)
                states[item_id] = None if body is None else state_record(body, self._what(offset))
            elif kind == encoding.PART and len(key) == PART_KEY_BYTES:
                (tail.parts.discard if body is None else tail.parts.add)(key)
                num_parts, part_bytes = num_parts + 1, part_bytes + len(key) + len(body or b"")
            elif key in (encoding.META_KEY, encoding.BROKER_KEY):
                # One ends each fragment of a broker, or is the first.
                num_fragments += 1
            elif key != encoding.DEFINITION_KEY:
                # It was meant for another log. It stays where it is, and is no item.
                QUEUE.warning("%s: expected one of a queue, found the key %s: ignored", self._what(offset), ascii(key))
        return Tail(len(batch) - num_parts, max(0, batch.nbytes - part_bytes), num_fragments)

    def _add(self, state: QueueState, tail: _Tail, known: dict[int, Known]) -> None:
        """Put the items that changed after the checkpoint into the queue."""
        for item_id in [*(tail.values.keys() - tail.states.keys()), *tail.states]:
            record = tail.states.get(item_id)
            item = _item(item_id, tail, known.get(item_id))
            if item is None:
                if record is not None:
                    message = f"queue {self._url}: item {item_id}: expected a value beside its state, found none"
                    raise CorruptError(message)
                continue
            row, priority, dedupe_key = item
            state.name(row, dedupe_key)
            state.num_bytes += row.length
            if record is not None:
                row = row._replace(
                    deadline_ms=record.deadline_ms, deliveries=record.deliveries, requeued_ms=record.requeued_ms
                )
            if record is None or record.kind == encoding.PENDING:
                state.add_pending(row, priority)
            elif record.kind == encoding.LEASED:
                state.hold(Lease(row, priority, record.until_ms, record.token))
            else:
                state.dead[item_id] = Buried(row, priority)


def _item(item_id: int, tail: _Tail, known: Known | None) -> Known | None:
    """Return an item from its newest value, None when it was removed."""
    if item_id not in tail.values:
        return known
    value = tail.values[item_id]
    if value is None:
        return None
    header = value.header
    row = Row(header.deadline_ms, item_id, value.offset, value.length, 0, header.enqueued_ms, NEVER)
    return Known(row, header.priority, header.dedupe_key)
