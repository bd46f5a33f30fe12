"""Tasks of key compaction: they read keys, hash them, and merge groups of fragments.

They write only fragments that nothing refers to yet, create-only, under names that hold the pass's token. A task that
is killed, retried, or runs twice at once makes the same bytes under the same names: what it leaves is an orphan, or
what the other attempt finds written.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from wal3_core.compaction.dropped import LOSSES
from wal3_core.compaction.engine import keyed_rows
from wal3_core.compaction.merge import Merger
from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.key_hashes import hash_keys
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.collect_task import from_text, to_text
from wal3_core.spark.columns import BATCH_BYTES_MAX, batch_of
from wal3_core.spark.task_context import earlier_attempts
from wal3_core.storage.open_store import open_store
from wal3_core.storage.rate_limits import rate_limited

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.compaction.merge import Merging
    from wal3_core.compaction.reports import KeyCompactorOptions
    from wal3_core.model.paths import LogId
    from wal3_core.storage.object_store import ObjectStore

T = TypeVar("T")

# One row for each keyed record. ``repeated``: its fragment holds a newer record of its key; ``repeats``: an older one.
KEYS = (
    "seq_no long not null, offset long not null, key binary not null, tombstone boolean not null,"
    " repeated boolean not null, repeats boolean not null"
)
_ARROW_KEYS = pa.schema(
    [
        pa.field("seq_no", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("tombstone", pa.bool_(), nullable=False),
        pa.field("repeated", pa.bool_(), nullable=False),
        pa.field("repeats", pa.bool_(), nullable=False),
    ]
)
HASHES = "hash long not null"
_ARROW_HASHES = pa.schema([pa.field("hash", pa.int64(), nullable=False)])
# A group's number, and what became of it; for REPEATED, how many attempts of the task were before.
MERGED = "group int not null, merged string not null"
_ARROW_MERGED = pa.schema(
    [pa.field("group", pa.int32(), nullable=False), pa.field("merged", pa.string(), nullable=False)]
)
REPEATED = -1
# Before a refusal in the text of an error that a task has raised.
REFUSED = "wal3 refusal: "
_READS_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTask:
    """Where a pass works, and how; ``bytes_per_s_max`` is the share of one task."""

    store_url: str
    log: str
    log_id: LogId
    options: KeyCompactorOptions
    bytes_per_s_max: float | None = None

    def objects(self) -> ObjectStore:
        """Open the objects of the life, in a task."""
        runtime = shared_runtime()
        stores = LogStores(
            open_store(self.store_url),
            self.log,
            runtime=runtime,
            retry=self.options.retry,
            snapshots_loaded_max=0,
            log_id=self.log_id,
        )
        return rate_limited(stores.objects, self.bytes_per_s_max, runtime)


def pointer_from_text(text: str) -> FragmentPointer:
    """Read a fragment's pointer."""
    return FragmentPointer.from_json(from_text(text, "fragment pointer"))


def refusing(results: Iterator[T]) -> Iterator[T]:
    """Yield a task's results; the text of a LogError says what it is, so that the driver can raise it again."""
    try:
        yield from results
    except LogError as error:
        error.add_note(f"{REFUSED}{to_text(Refusal.of(error).to_json())}")
        raise


# ---------------------------------------------------------------------- keys


def read_keys(batches: Iterable[pa.RecordBatch], *, part: PassTask) -> Iterator[pa.RecordBatch]:
    """Read the keys of the fragments in rows of (pointer); yield rows of KEYS."""
    return refusing(_read_keys(batches, part))


def _read_keys(batches: Iterable[pa.RecordBatch], part: PassTask) -> Iterator[pa.RecordBatch]:
    options = ReaderOptions(fragment_expanded_bytes_max=part.options.fragment_expanded_bytes_max)
    columns = KeyColumns(part.objects(), options)

    def read(text: str) -> pa.Table:
        pointer = pointer_from_text(text)
        return _marked(keyed_rows(columns.read(pointer), pointer))

    texts = (text for batch in batches for text in batch["pointer"].to_pylist())
    count = part.options.requests_ahead
    for table in map_ahead(shared_runtime(), read, texts, count=count, share=columns.share):
        if len(table):
            yield from table.to_batches(max_chunksize=max(1, len(table) * BATCH_BYTES_MAX // table.nbytes))


def _marked(rows: pa.Table) -> pa.Table:
    """Add which records of a fragment another one of it repeats: so a task gets at most one of a key and fragment."""
    rows = rows.combine_chunks()
    encoded = rows["key"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    places = np.arange(len(codes))
    newest, oldest = np.zeros((2, len(encoded.dictionary)), dtype=np.int64)
    # Of several values for one place numpy keeps the last.
    newest[codes] = places
    oldest[codes[::-1]] = places[::-1]
    marks = [pa.array(places < newest[codes]), pa.array(places > oldest[codes])]
    columns = [rows[name].cast(_ARROW_KEYS.field(name).type) for name in rows.column_names]
    return pa.table([*columns, *marks], schema=_ARROW_KEYS)


def hash_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hash the keys of rows of (key); yield rows of HASHES, each hash once a batch."""
    for batch in batches:
        hashes = np.unique(hash_keys(batch["key"])).view(np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(hashes)], schema=_ARROW_HASHES)


# ---------------------------------------------------------------------- merges


def merge_task(batches: Iterable[pa.RecordBatch], *, part: PassTask, merging: Merging) -> Iterator[pa.RecordBatch]:
    """Merge groups of rows (group, offset, reason, pointer), sorted by group and offset; yield rows of MERGED.

    A row is a member, with its pointer, or a record to drop, with the reason.
    """
    return refusing(_merged(batches, part, merging))


def _merged(batches: Iterable[pa.RecordBatch], part: PassTask, merging: Merging) -> Iterator[pa.RecordBatch]:
    if earlier := earlier_attempts():
        yield batch_of([(REPEATED, str(earlier))], _ARROW_MERGED)
    merger = Merger.of(part.options, part.objects(), shared_runtime(), merging)
    for number, parts in _by_group(batches):
        rows = pa.Table.from_batches(parts)
        members = [pointer_from_text(text) for text in rows["pointer"].drop_null().to_pylist()]
        merged = merger.merge(members, _losses(rows), reads_ahead=_READS_AHEAD)
        yield batch_of([(number, to_text({"merged": [each.to_json() for each in merged]}))], _ARROW_MERGED)


def _losses(rows: pa.Table) -> pa.Table:
    dropped = rows.filter(rows["reason"].is_valid())
    return dropped.select(LOSSES.names).cast(LOSSES)


def _by_group(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Sequence[pa.RecordBatch]]]:
    """Put together the rows of each group, which follow each other."""
    number, parts = -1, list[pa.RecordBatch]()
    for batch in batches:
        groups = batch["group"].to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        for start, limit in pairwise(cuts if len(groups) else []):
            if groups[start] != number and parts:
                yield number, parts
                parts = []
            number = int(groups[start])
            parts.append(batch.slice(start, limit - start))
    if parts:
        yield number, parts
