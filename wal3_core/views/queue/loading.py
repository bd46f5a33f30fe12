"""Loads a queue from its log: the newest checkpoint, and what came after it; or all of the log.

Records that are none of a queue's are passed, and fragments that are damaged are left out; both are counted and said.

A checkpoint counts only if the queue's cursor lies at or before it, and no pass of key compaction went beyond it: none
then has dropped anything behind it. Otherwise tombstones of items that the checkpoint has may be gone.
Source: docs/protocol/queue.md, "Delay queue".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from wal3_core.arguments import Check, checked, integer, optional, positive
from wal3_core.errors import (
    ConditionNotMetError,
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogExistsError,
    LogNotFoundError,
)
from wal3_core.format.cursor import Owner
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import QUEUE_CURSOR, LogId, check_log_name
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.format.record import Message
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import trim
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import MIB, Limits, ReaderOptions, View, WriterOptions
from wal3_core.runtime import Runtime, shared_runtime, wall_us
from wal3_core.runtime.loggers import QUEUE
from wal3_core.store.documents.cursor_store import CursorStore, Witness
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore, a_store
from wal3_core.views.queue import encoding
from wal3_core.views.queue.calls import ValueCache, fitting, peeked
from wal3_core.views.queue.checkpoint import RecordTotals, StoredItem, decode, restore
from wal3_core.views.queue.encoding import Meta
from wal3_core.views.queue.operations import ItemStats, Peeked, QueueDefinition, QueueStats
from wal3_core.views.queue.queue_state import US_PER_MS, DeadLetter, Lease, QueueState, Row

T = TypeVar("T")

# The next search for what the queue has come to, in the last search's records: as a rule, the log's last one has it.
_WINDOW_GROWTH = 8
# Reads that find a fragment damaged before that is believed; each of them reads twice.
_READS = 3
# Records of others that may lie behind the last of a queue that has lost its cursor.
_FOREIGN_MAX = 100_000
_TRIES_MAX = 8
_OF_ITEMS = (encoding.VALUE, encoding.STATE)


@contextlib.contextmanager
def expecting_a_queue() -> Iterator[None]:
    """Say of a log that does not exist how a queue is made: `wal3 init` makes none."""
    try:
        yield
    except LogNotFoundError as error:
        found, _, _ = str(error).partition(": create ")
        message = f"{found}: create the queue first (`wal3 queue create`, or DelayQueue.create)"
        raise LogNotFoundError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedQueue:
    """A queue as its log was below ``end``. ``broker`` is the token of the last one to take it.

    ``parts`` are the keys of all parts of checkpoints. ``since_checkpoint`` counts what came after the newest one.
    ``behind`` is how many records came after that of the queue as a whole. ``time_us`` is the log's time. ``displaced``
    are the keys of what has to be written again, before key compaction drops it: a record of others is the newest of
    that key, or the definition is lost. ``leaves_out`` says that it lacks what damaged fragments hold, until they are
    repaired.
    """

    state: QueueState
    meta: Meta
    end: int
    time_us: int
    broker: bytes
    parts: set[bytes]
    since_checkpoint: RecordTotals
    behind: int
    displaced: set[bytes]
    leaves_out: bool

    def acquired(self, broker: bytes, time_us: int) -> LoadedQueue:
        """Return the queue once the record of another broker was appended at its end."""
        since = self.since_checkpoint.with_more(1, len(broker), 1)
        return replace(
            self, end=self.end + 1, time_us=time_us, broker=broker, since_checkpoint=since, behind=self.behind + 1
        )


class _NewestMeta(NamedTuple):
    """What a queue has come to, the offset of that record, and the token of the last broker to take it."""

    meta: Meta
    offset: int
    broker: bytes


class _Changes:
    """What the records after a checkpoint say: by id, None where a tombstone is the newest record."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self.values: dict[int, StoredItem | None] = {}
        # In the order of their newest records, as the dead letters are listed.
        self.states: dict[int, encoding.StateRecord | None] = {}
        self.parts: set[bytes] = set()
        # Those of the newest checkpoint's parts, by their offsets.
        self.bodies: dict[int, bytes] = {}
        # Records of others, by their offsets, with their keys.
        self.strays: dict[int, bytes | None] = {}
        # Keys whose newest record is one of others.
        self.displaced: set[bytes] = set()
        self.totals = RecordTotals()

    def add(self, table: pa.Table) -> None:
        """Add the records that follow."""
        num_parts = part_bytes = num_fragments = 0
        for key, body, offset in _rows(table):
            kind = (key or b"")[:1]
            if kind in _OF_ITEMS and self._add_item(key, body, offset):
                self.displaced.discard(key)
            elif kind == encoding.PART and len(key) == encoding.PART_KEY_BYTES:
                (self.parts.discard if body is None else self.parts.add)(key)
                if offset in self._meta.parts and body is not None:
                    self.bodies[offset] = body
                num_parts, part_bytes = num_parts + 1, part_bytes + len(key) + len(body or b"")
            elif encoding.is_broker(key, body) or (key == encoding.META_KEY and Meta.if_one(body, what="") is not None):
                # One ends each fragment of a broker, or is the first.
                num_fragments += 1
            elif key != encoding.DEFINITION_KEY or offset > self._meta.definition:
                # It was meant for another log. It stays where it is, and is no item.
                self.strays[offset] = key
                if key is not None and (_is_of_item(key) or key == encoding.DEFINITION_KEY):
                    self.displaced.add(key)
        num_bytes = max(0, table.nbytes - part_bytes)
        self.totals = self.totals.with_more(len(table) - num_parts, num_bytes, num_fragments)

    def _add_item(self, key: bytes, body: bytes | None, offset: int) -> bool:
        """Add an item's value or state; return whether it is one. None has an id above the last one."""
        item_id = encoding.id_of(key)
        if not _is_of_item(key) or not 0 < item_id <= self._meta.last_id:
            return False
        try:
            if key[:1] == encoding.STATE:
                state = None if body is None else encoding.state_record(body, "")
                self.states.pop(item_id, None)
                self.states[item_id] = state
            else:
                self.values[item_id] = None if body is None else self._item(item_id, body, offset)
        except CorruptError:
            # It was read as it was written, and no queue wrote it.
            return False
        return True

    def _item(self, item_id: int, body: bytes, offset: int) -> StoredItem:
        header = encoding.value_header(body, self._meta.created_ms, "")
        row = Row(header.deadline_ms, item_id, offset, len(body) - header.length, 0, header.enqueued_ms, encoding.NEVER)
        return StoredItem(row, header.priority, header.dedupe_key)


def _rows(table: pa.Table) -> Iterator[tuple[Any, Any, Any]]:
    """Go through the keys, bodies and offsets of records."""
    return zip(*(table[name].to_pylist() for name in ("key", "body", "offset")), strict=True)


def _is_of_item(key: bytes) -> bool:
    return key[:1] in _OF_ITEMS and len(key) == encoding.ID_KEY_BYTES


class QueueLoader:
    """Reads one life of one queue's log. With ``without_damaged``, also where damage hides what it has come to."""

    def __init__(
        self,
        store: ObjectStore,
        log: str,
        options: ReaderOptions,
        runtime: Runtime,
        log_id: LogId | None = None,
        *,
        without_damaged: bool = False,
    ) -> None:
        self.reader = LogReader(store, log, options=options, runtime=runtime, log_id=log_id)
        self._store, self._log, self._runtime = store, log, runtime
        self._url = f"{store.url}/{log}"
        self._without_damaged = without_damaged
        # Fragments that one load has left out, by their offsets, and the error of the first one.
        self._damaged: dict[int, FragmentPointer] = {}
        self._damage: CorruptError | None = None
        # Records of others: how many were found, the newest, and up to where they were reported.
        self._num_strays, self._stray_offset, self._reported_to = 0, 0, 0

    def broker(self) -> tuple[bytes, int]:
        """Return the token of the broker that has the queue, and the offset at which the log ended then."""
        return self._steady(lambda manifest: (self._find(manifest).broker, manifest.next.position.offset))

    def _steady(self, read: Callable[[Manifest], T]) -> T:
        """Read what a manifest refers to; when records were compacted away meanwhile, by a newer one, once more."""
        tries = 0
        while True:
            self._damaged, self._damage = {}, None
            try:
                return read(self.reader.manifest())
            except GarbageCollectedError:
                tries += 1
                if tries > _TRIES_MAX:
                    raise

    def _find(self, manifest: Manifest) -> _NewestMeta:
        """Find what the queue has come to, and its broker's token; InvalidRequestError when the log is no queue.

        It lies at the end, but for the records of brokers that did nothing yet, and any that others put there.
        """
        first, end = manifest.first.position.offset, manifest.next.position.offset
        broker: bytes | None = None
        window, limit = 1, end
        while limit > first:
            if limit <= end - _FOREIGN_MAX and self._cursor(manifest) is None:
                break
            start = max(first, limit - window)
            records = [row for table in self._tables(start, limit, manifest) for row in _rows(table)]
            for key, body, offset in reversed(records):
                meta = Meta.if_one(body, what=self._what(offset)) if key == encoding.META_KEY else None
                if meta is not None:
                    return _NewestMeta(self._behind_damage(meta, offset), offset, broker or meta.broker)
                if encoding.is_broker(key, body):
                    broker = broker or body
            window, limit = window * _WINDOW_GROWTH, start
        if self._damage is not None:
            raise self._damage
        raise InvalidRequestError(
            f"log {self._url}: expected a queue, found a log of other records, or an empty one: name a queue"
            " (`wal3 queue list` shows them), or create one under a name that is free or of an empty log"
        )

    def _behind_damage(self, meta: Meta, at: int) -> Meta:
        """Return what the queue has come to, though a damaged fragment behind that record may say otherwise.

        Ids that it gave are not given again. CorruptError unless that was asked for.
        """
        torn = [pointer for offset, pointer in self._damaged.items() if offset > at]
        if torn and not self._without_damaged:
            raise self._torn(f"what the queue has come to at its end, {torn[0].path}") from self._damage
        return replace(meta, last_id=meta.last_id + sum(pointer.num_records for pointer in torn))

    def _torn(self, what: str) -> CorruptError:
        return CorruptError(
            f"queue {self._url}: expected to read {what}, found damage: {self._damage}: get the fragment from a copy"
            f" (`wal3 repair`), or let the queue go on without what it held (`wal3 queue repair --without-damaged`, or"
            f" DelayQueue.repair)"
        )

    def _cursor(self, manifest: Manifest) -> Witness | None:
        """Load the queue's cursor; None when the log has none, as one that is no queue."""
        return CursorStore(self._store, self._log, runtime=self._runtime, log_id=manifest.log_id).load(
            QUEUE_CURSOR, Owner.QUEUE
        )

    def _what(self, offset: int) -> str:
        return f"queue {self._url}: record {offset}"

    def _tables(self, start: int, limit: int, manifest: Manifest) -> Iterator[pa.Table]:
        """Go through the records of a range, but for those of damaged fragments."""
        limits = Limits(offset=limit)
        while start < limit:
            try:
                for fragment, begin in self.reader.fragments(start, limits, manifest=manifest):
                    start = fragment.pointer.limit.offset
                    yield trim(fragment.table, begin, limits)
            except CorruptError as error:
                # By the newest manifest: what it does not name any more was replaced.
                pointer = next(iter(self.reader.pointers(start, Limits(offset=start + 1))))
                if self._is_damaged(pointer):
                    self._damaged[pointer.start.offset] = pointer
                    self._damage = self._damage or error
                    start = pointer.limit.offset
            else:
                return

    def _is_damaged(self, pointer: FragmentPointer) -> bool:
        for _ in range(_READS):
            with contextlib.suppress(CorruptError):
                self.reader.fetch(pointer)
                return False
        return True

    def load(self) -> LoadedQueue:
        """Load the queue; InvalidRequestError when the log is none.

        A damaged fragment is left out, unless it hides what the queue has come to: then CorruptError says what helps.
        """
        try:
            return self._steady(self._load)
        finally:
            # Reading takes several times what the items do.
            pa.default_memory_pool().release_unused()

    def _load(self, manifest: Manifest) -> LoadedQueue:
        meta, meta_at, broker = self._find(manifest)
        definition = self._definition(meta, manifest)
        state = QueueState(definition or QueueDefinition(), meta.definition, meta.created_ms)
        state.last_id, state.floors_ms = meta.last_id, dict(meta.floors_ms)
        changes, table = self._checkpointed(meta, manifest)
        known = {} if table is None else restore(state, table, changes.values.keys() | changes.states.keys())
        self._add(state, changes, known)
        self._report(state, changes.strays)
        end = manifest.next.position
        return LoadedQueue(
            state=state,
            meta=meta,
            end=end.offset,
            time_us=end.timestamp_us,
            broker=broker,
            parts=changes.parts | {encoding.part_key(meta.as_of, number) for number in range(len(meta.parts))},
            since_checkpoint=changes.totals,
            behind=end.offset - meta_at - 1,
            displaced=changes.displaced | ({encoding.DEFINITION_KEY} if definition is None else set()),
            leaves_out=bool(self._damaged) and not self._without_damaged,
        )

    def _report(self, state: QueueState, strays: Mapping[int, bytes | None]) -> None:
        """Count the records of others that were not known yet, and say where they and damaged fragments are."""
        new = [offset for offset in strays if offset > self._reported_to]
        if new:
            self._num_strays, self._stray_offset = self._num_strays + len(new), new[-1]
            self._reported_to = new[-1]
            QUEUE.warning(
                "queue %s: %d records from offset %d on are none of a queue's, the first has the key %s: passed;"
                " `wal3 policy %s --view queue` has such appends refused",
                self._url,
                len(new),
                new[0],
                ascii(strays[new[0]])[:80],
                self._log,
            )
        state.num_strays, state.stray_offset = self._num_strays, self._stray_offset or None
        state.num_damaged = len(self._damaged)
        if self._damaged:
            QUEUE.error(
                "queue %s: %d damaged fragments are left out: items may be missing, and released ones may be back: get"
                " them from a copy (`wal3 repair`), or go on without (`wal3 queue repair --without-damaged`): %s",
                self._url,
                len(self._damaged),
                self._damage,
            )

    def _definition(self, meta: Meta, manifest: Manifest) -> QueueDefinition | None:
        """Read the definition; None when a record of others took its place, or damage to it is accepted."""
        offset = meta.definition
        for table in self._tables(offset, offset + 1, manifest):
            for _, body, at in _rows(table):
                if at == offset and body is not None:
                    return QueueDefinition.from_bytes(body, what=self._what(offset))
        if self._damage is not None and self._without_damaged:
            return None
        if self._damage is not None:
            raise self._torn("the queue's definition") from self._damage
        QUEUE.error(
            "queue %s: its definition at offset %d is gone, as a record of others has its key: the default holds until"
            " it is defined again (DelayQueue.define)",
            self._url,
            offset,
        )
        return None

    def _checkpointed(self, meta: Meta, manifest: Manifest) -> tuple[_Changes, pa.Table | None]:
        """Read the newest checkpoint, if it can be relied on, and what came after it; or else all."""
        if self._is_reliable(meta, manifest):
            changes = self._changes(meta.as_of, meta, manifest)
            try:
                parts = [changes.bodies[offset] for offset in meta.parts if offset in changes.bodies]
                if len(parts) == len(meta.parts):
                    what = f"queue {self._url}: checkpoint at {meta.as_of}"
                    return changes, decode(parts, meta.last_id, what=what)
                error: object = f"queue {self._url}: expected {len(meta.parts)} parts, found {len(parts)}"
            except CorruptError as caught:
                error = caught
            # All that it says is in the log, too.
            QUEUE.warning("%s: the queue is read from all of its log instead", error)
        return self._changes(manifest.first.position.offset, meta, manifest), None

    def _changes(self, start: int, meta: Meta, manifest: Manifest) -> _Changes:
        changes = _Changes(meta)
        for table in self._tables(start, manifest.next.position.offset, manifest):
            changes.add(table)
        return changes

    def _is_reliable(self, meta: Meta, manifest: Manifest) -> bool:
        if not meta.parts or manifest.compaction.clean_limit > meta.as_of:
            # Where the cursor is by now does not matter: a pass has gone beyond.
            return False
        witness = self._cursor(manifest)
        return witness is not None and witness.cursor.position.offset <= meta.as_of

    def _add(self, state: QueueState, changes: _Changes, known: Mapping[int, StoredItem]) -> None:
        """Put the items that changed after the checkpoint into the queue."""
        for item_id in [*(changes.values.keys() - changes.states.keys()), *changes.states]:
            record = changes.states.get(item_id)
            item = changes.values.get(item_id, known.get(item_id))
            if item is None:
                # Its value may be in a fragment that was left out, or a record of others has its key.
                value_key = encoding.id_key(encoding.VALUE, item_id)
                is_lost = self._damaged or item_id in changes.values or value_key in changes.displaced
                if record is not None and not is_lost:
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
                state.dead[item_id] = DeadLetter(row, priority)


# Fragments of key compaction: small enough to read one for a few values.
_FRAGMENT_BYTES = 2 * MIB
# Tombstones stay for as long as a load of the queue may take.
_DELETE_RETENTION_S = 60 * 60
# Receipts stay for a day: longer, the lists of what passes dropped would take more than the queue.
_RECEIPT_RETENTION_S = 24 * 60 * 60


def create_queue(store: ObjectStore, log: str, definition: QueueDefinition, runtime: Runtime) -> None:
    """Make a queue's log, or finish one that was begun."""
    LogWriter.open_or_create(store, log, runtime=runtime).close()
    manifest = LogReader.open(store, log, runtime=runtime).manifest()
    if manifest.next.position.offset > 1 or manifest.seal is not None:
        message = f"queue {store.url}/{log}: expected no log of that name, found one: open it, or choose another name"
        raise LogExistsError(message)
    log_id = manifest.log_id
    # Whatever step this ends at, the next call goes on from there.
    PolicyStore(store, log, runtime=runtime, log_id=log_id).change(_compacted)
    with contextlib.suppress(CursorConflictError):
        CursorStore(store, log, runtime=runtime, log_id=log_id).create(
            QUEUE_CURSOR, manifest.next.position, owner=Owner.QUEUE
        )
    created_ms = wall_us(runtime) // US_PER_MS
    # Its time begins with its first broker, whose clock the store bounds.
    meta = Meta(broker=encoding.NO_TOKEN, definition=1, last_id=0, created_ms=created_ms, now_ms=0, floors_ms={})
    records = [
        Message(definition.to_bytes(), encoding.DEFINITION_KEY),
        Message(meta.to_bytes(), encoding.META_KEY),
    ]
    with LogWriter.open(store, log, options=WriterOptions(view=View.QUEUE), runtime=runtime) as writer:
        try:
            writer.append_many(records, expect_next=1)
        except ConditionNotMetError as error:
            message = f"queue {store.url}/{log}: expected an empty log, found one that was written to meanwhile"
            raise LogExistsError(message) from error


def keep_uncollected(store: ObjectStore, log: str, runtime: Runtime, log_id: LogId) -> None:
    """Make key compaction alone remove records again, if the policy was changed: collections take pending items."""
    policies = PolicyStore(store, log, runtime=runtime, log_id=log_id)
    policy = policies.load()
    if policy.collects:
        QUEUE.warning(
            "queue %s/%s: expected the policy to compact, found cleanup %s, which removes items: it compacts again",
            store.url,
            log,
            policy.cleanup.value,
        )
        policies.change(_compacted)


def _compacted(policy: Policy) -> Policy:
    # A policy that does not collect has no values of collections.
    policy = replace(policy, retention_s=None, percent_max=None, without_cursors=False)
    if policy.compacts:
        # A collection would take items that are still pending.
        return replace(policy, cleanup=Cleanup.COMPACT)
    return replace(
        policy,
        cleanup=Cleanup.COMPACT,
        compacted_fragment_bytes=_FRAGMENT_BYTES,
        delete_retention_s=_DELETE_RETENTION_S,
        receipt_retention_s=_RECEIPT_RETENTION_S,
    )


# ------------------------------------------------------------------ reads that leave the queue to its broker

_CACHE_BYTES = 64 * MIB
# The checks of what names a queue, for every function that takes one.
OF_QUEUE: dict[str, Check] = {"store": a_store, "log": check_log_name}


@checked(**OF_QUEUE)
def is_queue(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> bool:
    """Tell whether a log is a queue, by its cursor: one GET."""
    witness = CursorStore(store, log, runtime=runtime).load(QUEUE_CURSOR)
    return witness is not None and witness.cursor.may_be_of(Owner.QUEUE)


@checked(**OF_QUEUE)
def read_queue_stats(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> QueueStats:
    """Return what a queue holds, by its log as of now; no call is known to wait. LogNotFoundError, as ``open``.

    Reads the newest checkpoint and all that came after it. An item whose lease has ended counts as leased until its
    broker takes it back, and among ``ended``.
    """
    runtime = runtime or shared_runtime()
    loaded = _load(QueueLoader(store, log, ReaderOptions(), runtime))
    return loaded.state.stats_without_broker(max(loaded.meta.now_ms, wall_us(runtime) // US_PER_MS))


@checked(**OF_QUEUE)
def read_queue_definition(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> QueueDefinition:
    """Return what holds for a queue's items, by its log as of now."""
    return _load(QueueLoader(store, log, ReaderOptions(), runtime or shared_runtime())).state.definition


@checked(**OF_QUEUE, item_id=integer)
def read_queue_item(store: ObjectStore, log: str, item_id: int, *, runtime: Runtime | None = None) -> ItemStats:
    """Return what is known of an item, as ``DelayQueue.item`` does, by the queue's log as of now."""
    return _load(QueueLoader(store, log, ReaderOptions(), runtime or shared_runtime())).state.item_stats(item_id)


@checked(**OF_QUEUE, count=positive, bytes_max=optional(positive))
def read_queue_head(
    store: ObjectStore, log: str, count: int = 1, *, bytes_max: int | None = None, runtime: Runtime | None = None
) -> list[Peeked]:
    """Return the pending items that come first, as ``DelayQueue.peek`` does, by the queue's log as of now."""
    return _read_items(store, log, lambda state: fitting(state.head(count), bytes_max), runtime)


@checked(**OF_QUEUE, count=positive, after=integer, bytes_max=optional(positive))
def read_queue_dead(
    store: ObjectStore,
    log: str,
    count: int = 100,
    *,
    after: int = 0,
    bytes_max: int | None = None,
    runtime: Runtime | None = None,
) -> list[Peeked]:
    """Return dead letters by rising ids, as ``DelayQueue.dead`` does, by the queue's log as of now."""
    return _read_items(store, log, lambda state: fitting(state.dead_letters(count, after), bytes_max), runtime)


def _load(loader: QueueLoader) -> LoadedQueue:
    with expecting_a_queue():
        return loader.load()


def _read_items(
    store: ObjectStore, log: str, choose: Callable[[QueueState], Sequence[tuple[Row, int]]], runtime: Runtime | None
) -> list[Peeked]:
    runtime = runtime or shared_runtime()
    loader = QueueLoader(store, log, ReaderOptions(), runtime)
    found = ""
    while True:
        state = _load(loader).state
        wanted = peeked(choose(state))
        values = ValueCache(loader.reader, _CACHE_BYTES, runtime, f"{store.url}/{log}")
        try:
            return [wanted.make(*each) for each in enumerate(values.read(wanted.rows, state.created_ms))]
        except CorruptError as error:
            # An item may have been released meanwhile, and its value compacted away. Damage is found again.
            if str(error) == found:
                raise
            found = str(error)
