"""A queue's index as Parquet: one row for each item, without the values. Read as strictly as a fragment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError, LogError
from wal3_core.format.cursor import Owner
from wal3_core.format.parquet import unreadable
from wal3_core.format.parquet.decoding import open_file, refusing
from wal3_core.format.parquet.pages import BYTE_STREAM_SPLIT, PLAIN_OR_DICTIONARY, RECORD_BYTES, measure, read_footer
from wal3_core.format.paths import QUEUE_CURSOR
from wal3_core.format.position import LogPosition
from wal3_core.runtime import Outcome, Runtime
from wal3_core.runtime.loggers import QUEUE
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.views.queue.calls import complete
from wal3_core.views.queue.encoding import NEVER, NO_TOKEN, part_key
from wal3_core.views.queue.operations import DEDUPE_BYTES_MAX, PRIORITY_MAX, QueueOptions
from wal3_core.views.queue.queue_state import DTYPE, DeadLetter, Lease, Pending, QueueState, Row, Turn

if TYPE_CHECKING:
    from wal3_core.views.queue.loading import LoadedQueue
    from wal3_core.views.queue.queue_state import Rows

PART_BYTES = 4 * 2**20
_PENDING, _LEASED, _DEAD = range(3)
_ENCODINGS = PLAIN_OR_DICTIONARY | {BYTE_STREAM_SPLIT}
# Bytes of the columns for each item, with room to grow and the longest dedupe key; and of all else.
_ITEM_BYTES, _FIXED_BYTES = 2 * (10 * 8 + DEDUPE_BYTES_MAX), 2**16
_NUMBERS: dict[str, pa.DataType] = {name: pa.from_numpy_dtype(DTYPE[name]) for name in Row._fields}
_SCHEMA = pa.schema(
    [
        *(pa.field(name, kind, nullable=False) for name, kind in _NUMBERS.items()),
        pa.field("priority", pa.uint8(), nullable=False),
        pa.field("state", pa.uint8(), nullable=False),
        pa.field("until_ms", pa.int64(), nullable=False),
        pa.field("token", pa.uint64(), nullable=False),
        pa.field("dedupe_key", pa.binary()),
    ]
)


def table_of(state: QueueState) -> pa.Table:
    """Copy a queue's items as a table; the dead ones in the order in which they were buried."""
    parts = [
        _rows(rows, state, _PENDING, priorities=[priority] * len(rows))
        for priority, queue in state.pending.items()
        for rows in queue.arrays()
    ]
    leases, buried = list(state.leased.values()), list(state.dead.values())
    for held, kind in ((leases, _LEASED), (buried, _DEAD)):
        if held:
            rows = np.array([each.row for each in held], dtype=DTYPE)
            parts.append(_rows(rows, state, kind, [each.priority for each in held], leases if kind == _LEASED else ()))
    return pa.concat_tables(parts) if parts else _SCHEMA.empty_table()


def _rows(rows: Rows, state: QueueState, kind: int, priorities: list[int], leases: Iterable[Lease] = ()) -> pa.Table:
    named, leases = state.dedupe_keys, list(leases)
    keys = [named.get(item_id) for item_id in rows["id"].tolist()] if named else [None] * len(rows)
    columns = [
        *(pa.array(np.ascontiguousarray(rows[name]), _NUMBERS[name]) for name in _NUMBERS),
        pa.array(np.array(priorities, dtype=np.uint8)),
        pa.array(np.full(len(rows), kind, dtype=np.uint8)),
        pa.array([lease.until_ms for lease in leases] or np.full(len(rows), NEVER), pa.int64()),
        pa.array([int.from_bytes(lease.token) for lease in leases] or np.zeros(len(rows)), pa.uint64()),
        pa.array(keys, pa.binary()),
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def encode(table: pa.Table) -> list[bytes]:
    """Encode a table, as parts of at most 4 MiB."""
    sink = pa.BufferOutputStream()
    # The bytes of numbers that are close to each other compress well when they lie apart.
    numbers = dict.fromkeys((*_NUMBERS, "until_ms", "token"), "BYTE_STREAM_SPLIT")
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["priority", "state"],
        column_encoding={**numbers, "dedupe_key": "PLAIN"},
        write_statistics=False,
        store_schema=False,
    )
    data = sink.getvalue().to_pybytes()
    return [data[begin : begin + PART_BYTES] for begin in range(0, len(data), PART_BYTES)]


def decode(parts: Iterable[bytes], items_max: int, *, what: str) -> pa.Table:
    """Decode a table; CorruptError names ``what`` when it is none, or has more than ``items_max`` rows."""
    data = memoryview(b"".join(parts))
    with refusing(data, what, by_checksum=unreadable):
        return _read(data, items_max, what)


def _read(data: memoryview, items_max: int, what: str) -> pa.Table:
    footer = read_footer(data)
    if footer.num_records > items_max:
        raise unreadable(what, f"expected at most {items_max} items, found {footer.num_records}")
    file = open_file(data)
    if [(field.name, field.type) for field in file.schema_arrow] != [(field.name, field.type) for field in _SCHEMA]:
        raise unreadable(what, f"expected a checkpoint's columns, found {file.schema_arrow.to_string()[:200]!r}")
    allowed = footer.num_records * (RECORD_BYTES + _ITEM_BYTES) + _FIXED_BYTES
    measure(data, footer, _SCHEMA.names, what=what, expanded_bytes_max=allowed, encodings=_ENCODINGS)
    table = file.read(use_threads=False).combine_chunks()
    if any(table[name].null_count for name in _SCHEMA.names if name != "dedupe_key"):
        raise unreadable(what, "expected no nulls but for dedupe keys, found others")
    return table


class RecordTotals(NamedTuple):
    """How much came after a checkpoint, but for the parts of others."""

    records: int = 0
    num_bytes: int = 0
    fragments: int = 0

    def with_more(self, records: int, num_bytes: int, fragments: int) -> RecordTotals:
        """Add what came after it."""
        return RecordTotals(self.records + records, self.num_bytes + num_bytes, self.fragments + fragments)


class StoredItem(NamedTuple):
    """An item of a checkpoint, but for its state."""

    row: Row
    priority: int
    dedupe_key: bytes | None


def restore(state: QueueState, table: pa.Table, changed: Iterable[int]) -> dict[int, StoredItem]:
    """Put a checkpoint's items into an empty queue, all but those changed since; return these by their ids."""
    apart = np.isin(table["id"].to_numpy(), np.fromiter(changed, dtype=np.uint64))
    known = {item.row.id: item for item, _ in _listed(table.filter(pa.array(apart)))}
    table = table.filter(pa.array(~apart))
    kinds, priorities = table["state"].to_numpy(), table["priority"].to_numpy()
    for priority in range(PRIORITY_MAX + 1):
        chosen = (kinds == _PENDING) & (priorities == priority)
        if chosen.any():
            part = table.filter(pa.array(chosen))
            rows = np.empty(len(part), dtype=DTYPE)
            for name in _NUMBERS:
                rows[name] = part[name].to_numpy()
            state.pending[priority] = Pending(rows)
    state.num_bytes += int(table["length"].to_numpy().sum(dtype=np.uint64))
    for item, _ in _listed(table.filter(table["dedupe_key"].is_valid())):
        state.name(item.row, item.dedupe_key)
    for item, fields in _listed(table.filter(pa.array(kinds != _PENDING))):
        if fields["state"] == _LEASED:
            state.hold(Lease(item.row, item.priority, fields["until_ms"], fields["token"].to_bytes(len(NO_TOKEN))))
        else:
            state.dead[item.row.id] = DeadLetter(item.row, item.priority)
    return known


def _listed(table: pa.Table) -> Iterator[tuple[StoredItem, dict[str, Any]]]:
    for fields in table.to_pylist():
        row = Row(*(fields[name] for name in _NUMBERS))
        yield StoredItem(row, fields["priority"], fields["dedupe_key"]), fields


# Items for each record after a checkpoint that makes it worth another one, and bytes of values for each byte.
_SHARE = 4
# Items for each such fragment.
_ITEMS_A_FRAGMENT = 500


class Checkpointer:
    """The checkpoints of one broker. ``as_of`` and ``offsets`` are those of the newest that is complete."""

    def __init__(
        self, loaded: LoadedQueue, options: QueueOptions, executor: Executor, cursors: CursorStore, runtime: Runtime
    ) -> None:
        self._options = options
        self._runtime = runtime
        self._executor = executor
        self._cursors = cursors
        # One would make what damaged fragments held be lost for good: an operator decides that.
        self.refuses = loaded.leaves_out
        self._known = set(loaded.parts)
        self.as_of, self.offsets = loaded.meta.as_of, loaded.meta.parts
        self._since = loaded.since_checkpoint
        self._num_items, self._num_bytes = len(loaded.state), loaded.state.num_bytes
        # The futures of those who wait for the next one, and for the one under way.
        self._wanted: list[Future[None]] = []
        self._awaited: list[Future[None]] = []
        self._encoding: Future[list[bytes]] | None = None
        self._begun_at = LogPosition(1, 0)
        self._appended: list[int] = []
        # All parts of the one under way are in the turn that is under way.
        self._finishing = False

    @property
    def busy(self) -> bool:
        """Whether there is one to begin or to finish."""
        return bool(self._wanted) or self._encoding is not None or self._is_due

    @property
    def _is_due(self) -> bool:
        if self.refuses:
            return False
        # Values that were released stay on storage until key compaction can go beyond them.
        options, since = self._options, self._since
        return (
            since.records >= max(options.checkpoint_records, self._num_items // _SHARE)
            or since.num_bytes >= max(options.checkpoint_bytes, self._num_bytes // _SHARE)
            # Each is a request of the next load, and a checkpoint takes as long as its items.
            or since.fragments >= max(options.checkpoint_fragments, self._num_items // _ITEMS_A_FRAGMENT)
        )

    def want(self) -> Future[None]:
        """Begin one with the next turn; the future is done when key compaction can go up to it. Or CorruptError."""
        if self.refuses:
            raise self._refusal()
        future: Outcome[None] = Outcome()
        self._wanted.append(future)
        return future

    def _refusal(self) -> CorruptError:
        return CorruptError(
            "queue: expected none of its fragments to be damaged, found some: get them from a copy (`wal3 repair`), or"
            " let the queue go on without what they held (`wal3 queue repair --without-damaged`)"
        )

    def take_over(self, earlier: Checkpointer) -> None:
        """Let those who wait for another's checkpoint wait for this one's."""
        self._wanted += earlier._wanted + earlier._awaited
        if self.refuses:
            self.give_up(self._refusal())

    def begin(self, state: QueueState, position: LogPosition) -> None:
        """Begin one if it is time, at the beginning of a turn: all of the state is durable, below ``position``."""
        self._num_items, self._num_bytes = len(state), state.num_bytes
        if self.refuses or self._encoding is not None or not (self._wanted or self._is_due):
            return
        self._begun_at, self._appended = position, []
        self._since = RecordTotals()
        self._awaited, self._wanted = self._wanted, []
        self._encoding = self._executor.submit(encode, table_of(state))

    def add_to(self, turn: Turn, *, wait: bool = False) -> None:
        """Add the next part to a turn, once they are encoded; with the last one in the log the checkpoint counts."""
        if self._encoding is None or not (wait or self._encoding.done()):
            return
        parts, number = self._runtime.wait(self._encoding), len(self._appended)
        self._appended.append(turn.add(part_key(self._begun_at.offset, number), parts[number]))
        if len(self._appended) == len(parts):
            new = {part_key(self._begun_at.offset, number) for number in range(len(parts))}
            for old in sorted(self._known - new):
                turn.add(old, None)
            self._known = new
            self.as_of, self.offsets = self._begun_at.offset, tuple(self._appended)
            self._finishing = True

    def committed(self, num_changes: int, num_bytes: int, end: LogPosition) -> None:
        """Take note of a turn that is durable; what it has of a checkpoint makes no other one due."""
        self._since = self._since.with_more(num_changes, num_bytes, 1)
        if self._finishing:
            self._finishing, self._encoding = False, None
            awaited, self._awaited = self._awaited, []
            self._executor.submit(self._move_cursor, self._begun_at, end, awaited)

    def _move_cursor(self, begun_at: LogPosition, end: LogPosition, awaited: list[Future[None]]) -> None:
        """Let key compaction go up to the checkpoint.

        Where there is no cursor, nothing was kept from compaction: only a checkpoint behind the new cursor counts.
        """
        try:
            witness = self._cursors.load(QUEUE_CURSOR, Owner.QUEUE)
            if witness is None:
                self._cursors.create(QUEUE_CURSOR, end, owner=Owner.QUEUE)
                self._wanted.append(Outcome())
            elif witness.cursor.position.offset < begun_at.offset:
                self._cursors.save(QUEUE_CURSOR, begun_at, witness, owner=Owner.QUEUE)
        except LogError as error:
            # The next checkpoint moves it; until then more is kept than needed.
            QUEUE.warning("queue: the cursor %s was not moved to %d: %s", QUEUE_CURSOR, begun_at.offset, error)
            for future in awaited:
                future.set_exception(error)
        else:
            for future in awaited:
                future.set_result(None)

    def fail(self, error: Exception, *, last: bool) -> None:
        """Give those who wait an error; one that was wanted is written later all the same, unless this was the last."""
        if self._wanted or self._awaited:
            self.give_up(error)
            self._wanted = [] if last else [Outcome()]

    def give_up(self, error: Exception) -> None:
        """Give those who wait an error."""
        waiting, self._wanted, self._awaited = [*self._wanted, *self._awaited], [], []
        for future in waiting:
            complete(future, None, error)
