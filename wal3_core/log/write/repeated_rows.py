"""Compares an append that is repeated under its name with what the log has of it: no other rows are lost in silence.

Rows are compared as a multiset: tasks may stage them in another order the second time. What was compacted or collected
since cannot be compared, nor what is no longer staged.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.errors import GarbageCollectedError, NotDurableError, UnknownDurabilityError
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import select
from wal3_core.log.write.staging import MESSAGE_SCHEMA
from wal3_core.model.parquet import table_setsum
from wal3_core.model.position import LogPosition
from wal3_core.model.setsum import EMPTY
from wal3_core.options import Limits, ReaderOptions
from wal3_core.runtime.loggers import WRITER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wal3_core.log.write.once import Once
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.named_append import NamedAppend
    from wal3_core.model.paths import LogId
    from wal3_core.model.setsum import Setsum
    from wal3_core.model.snapshot import Snapshot, SnapshotPointer
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


def held_rows(
    store: ObjectStore, log: str, start: int, limit: int, *, log_id: LogId, runtime: Runtime
) -> Iterator[pa.Table]:
    """Read what the log has from the offset ``start`` to ``limit``."""
    reader = LogReader(store, log, options=ReaderOptions(), runtime=runtime, log_id=log_id)
    for batch in reader.batches(start, Limits(offset=limit)):
        yield pa.Table.from_batches([batch])


def check_rows(
    once: Once, log: str, done: NamedAppend, held: Iterable[pa.Table], staged: Iterable[pa.Table], num_staged: int
) -> None:
    """Refuse an append whose records differ from those that the log has of it, or warn, as ``once`` says.

    NotDurableError says how they differ. It is a warning if they cannot be compared.
    """
    num_held = done.limit - done.start
    expected, found = f"{num_held} records", f"{num_staged}"
    if num_held == num_staged:
        sums = _setsum(held, num_held), _setsum(staged, num_staged)
        if sums[0] == sums[1] is not None:
            return
        expected, found = (f"{num_held} records, setsum {each and each.hexdigest()}" for each in sums)
        if None in sums:
            text = "log %s: append %r of cursor %s: not compared with what the log has of it: %s there, found %s"
            WRITER.warning(text, log, once.append, once.cursor, expected, found)
            return
    message = (
        f"log {log}: append {once.append!r} of cursor {once.cursor}: expected what the log has of it at the offsets"
        f" {done.start} to {done.limit - 1}, {expected}, found {found}, which are not appended"
    )
    if once.same_rows:
        raise NotDurableError(f"{message}: give other records another name")
    WRITER.warning("%s", message)


def has_same_rows(held: Iterable[pa.Table], staged: Iterable[pa.Table], num_records: int) -> bool:
    """Tell whether the log holds what is staged, whatever the order; False if it holds less, or lost some."""
    return _setsum(staged, num_records) == _setsum(held, num_records) is not None


def check_not_compacted(
    url: str, staged: FragmentPointer, rows: Iterable[pa.Table], read: Callable[[FragmentPointer], pa.Table]
) -> None:
    """Refuse to append a fragment again that was installed without a name, as it was staged, and compacted since.

    ``rows`` lie at its offsets now. Those of another writer there have another time, or at least other contents.
    """
    with contextlib.suppress(GarbageCollectedError):
        for table in rows:
            timely = table.filter(pc.equal(table["timestamp_us"], staged.start.timestamp_us)).slice(0, 1)
            if len(timely) and _has_row(read(staged), timely):
                message = (
                    f"log {url}: expected what no install has put there, found records of {staged.path} at its offset"
                    f" {staged.start.offset}: installed before without a name, and compacted since: the log has it"
                )
                raise UnknownDurabilityError(message)


def _has_row(staged: pa.Table, row: pa.Table) -> bool:
    found: pa.Table = staged.filter(pc.equal(staged["offset"], row["offset"][0])).select(row.column_names)
    return bool(found.to_pylist() == row.to_pylist())


def num_offsets_with(
    manifest: Manifest, fragment: FragmentPointer, count: int, load: Callable[[SnapshotPointer], Snapshot]
) -> int | None:
    """Return how many offsets its commit has, looking at ``count`` around it; None if that is not known any more.

    An install is an epoch of its own, of one commit. The manifest forgets epochs, and a pass joins fragments.
    """
    bounds = [*(entry.first_seq_no for entry in manifest.epochs), manifest.next.seq_no]
    at = bisect_right(bounds, fragment.seq_no)
    if not 0 < at < len(bounds):
        return None
    start = LogPosition(max(fragment.start.offset - count, manifest.first.position.offset), 0)
    near = select(manifest.pointers, start, Limits(offset=fragment.limit.offset + count), load)
    of_it = [each for each in near if each.first_seq_no < bounds[at] and bounds[at - 1] <= each.seq_no]
    if of_it[0].first_seq_no < bounds[at - 1] or bounds[at] <= of_it[-1].seq_no:
        return None
    return of_it[-1].limit.offset - of_it[0].start.offset


def _setsum(tables: Iterable[pa.Table], num_records: int) -> Setsum | None:
    """Sum keys and bodies, as if all records had one position; None if not all of them are there."""
    total, count = EMPTY, 0
    try:
        for table in tables:
            same = pa.array(np.ones(len(table), dtype=np.uint64))
            rows = pa.table(
                [same, same, table["key"], table["body"]], ["offset", "timestamp_us", *MESSAGE_SCHEMA.names]
            )
            total += table_setsum(rows)
            count += len(table)
    except (GarbageCollectedError, NotDurableError):
        return None
    return total if count == num_records else None
