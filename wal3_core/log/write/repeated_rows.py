"""Compares an append that is repeated under its name with what the log has of it: no other rows are lost in silence.

Rows are compared as a multiset: tasks may stage them in another order the second time. What was compacted or collected
since cannot be compared, nor what is no longer staged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from wal3_core.errors import GarbageCollectedError, NotDurableError
from wal3_core.log.read.reader import LogReader
from wal3_core.log.write.staging import MESSAGE_SCHEMA
from wal3_core.model.parquet import table_setsum
from wal3_core.model.setsum import EMPTY
from wal3_core.options import Limits, ReaderOptions
from wal3_core.runtime.loggers import WRITER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wal3_core.log.write.once import Once
    from wal3_core.model.named_append import NamedAppend
    from wal3_core.model.paths import LogId
    from wal3_core.model.setsum import Setsum
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


def held_rows(
    store: ObjectStore, log: str, done: NamedAppend, *, log_id: LogId, runtime: Runtime
) -> Iterator[pa.Table]:
    """Read what the log has of an append."""
    reader = LogReader(store, log, options=ReaderOptions(), runtime=runtime, log_id=log_id)
    for batch in reader.batches(done.start, Limits(offset=done.limit)):
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
