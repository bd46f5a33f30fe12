"""A queue's index as Parquet: one row for each item, without the values. Read as strictly as a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal3_core.model.parquet import unreadable
from wal3_core.model.parquet.pages import BYTE_STREAM_SPLIT, PLAIN_OR_DICTIONARY, RECORD_BYTES, measure, read_footer
from wal3_core.model.parquet.reading import open_file
from wal3_core.views.queue.encoding import NEVER, NO_TOKEN
from wal3_core.views.queue.held_items import Buried, Lease
from wal3_core.views.queue.items import DEDUPE_BYTES_MAX, PRIORITY_MAX
from wal3_core.views.queue.runs import DTYPE, Pending, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wal3_core.views.queue.queue_state import QueueState
    from wal3_core.views.queue.runs import Rows

PART_BYTES = 4 * 2**20
_PENDING, _LEASED, _DEAD = range(3)
_ENCODINGS = PLAIN_OR_DICTIONARY | {BYTE_STREAM_SPLIT}
# Of the columns for each item, with room to grow and the longest dedupe key; and for all else.
_ITEM_BYTES, _FIXED_BYTES = 2 * (10 * 8 + DEDUPE_BYTES_MAX), 2**16
_NUMBERS: dict[str, pa.DataType] = {
    "deadline_ms": pa.int64(),
    "id": pa.uint64(),
    "offset": pa.uint64(),
    "length": pa.uint32(),
    "deliveries": pa.uint32(),
    "enqueued_ms": pa.int64(),
    "requeued_ms": pa.int64(),
}
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
    try:
        return _read(data, items_max, what)
    except pa.ArrowMemoryError:
        # This process is out of memory; the checkpoint may be sound.
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        detail = f"expected a Parquet file, found {len(data)} bytes that fail to decode: {error}"
        raise unreadable(what, detail) from error


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


class Known(NamedTuple):
    """An item of a checkpoint, but for its state."""

    row: Row
    priority: int
    dedupe_key: bytes | None


def restore(state: QueueState, table: pa.Table, changed: Iterable[int]) -> dict[int, Known]:
    """Put a checkpoint's items into an empty queue, all but those changed since; return these by their ids."""
    apart = np.isin(table["id"].to_numpy(), np.fromiter(changed, dtype=np.uint64))
    _restore(state, table.filter(pa.array(~apart)))
    return {known.row.id: known for known, _ in _listed(table.filter(pa.array(apart)))}


def _restore(state: QueueState, table: pa.Table) -> None:
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
    for known, _ in _listed(table.filter(table["dedupe_key"].is_valid())):
        state.name(known.row, known.dedupe_key)
    for known, fields in _listed(table.filter(pa.array(kinds != _PENDING))):
        if fields["state"] == _LEASED:
            state.hold(Lease(known.row, known.priority, fields["until_ms"], fields["token"].to_bytes(len(NO_TOKEN))))
        else:
            state.dead[known.row.id] = Buried(known.row, known.priority)


def _listed(table: pa.Table) -> Iterator[tuple[Known, dict[str, Any]]]:
    for fields in table.to_pylist():
        row = Row(*(fields[name] for name in _NUMBERS))
        yield Known(row, fields["priority"], fields["dedupe_key"]), fields
