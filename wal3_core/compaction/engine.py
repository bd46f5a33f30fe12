"""Where a pass's work on records is done: in this process, or elsewhere behind the same port."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa

from wal3_core.arguments import wrong
from wal3_core.compaction.dropped import ROWS, count_losses, find_losses
from wal3_core.compaction.merge import Merger
from wal3_core.format.key_hashes import hash_keys
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead
from wal3_core.store.object_store import share_of
from wal3_core.store.rate_limits import rate_limited

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from wal3_core.compaction.dropped import LossCount
    from wal3_core.compaction.merge import Merged, Merging
    from wal3_core.compaction.reports import KeyCompactorOptions
    from wal3_core.compaction.retried import Retried
    from wal3_core.compaction.selection import Group
    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.position import FragmentSeqNo
    from wal3_core.log.log_stores import LogStores
    from wal3_core.runtime import Runtime

    Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

Rows = TypeVar("Rows")
Losses = TypeVar("Losses")


class Engine(Protocol):
    """Where passes do their work."""

    def open(self, stores: LogStores, options: KeyCompactorOptions) -> AbstractContextManager[Work[Any, Any]]:
        """Begin the work of one pass over one life of a log; what it keeps meanwhile is dropped at the end."""
        ...


class Work(Protocol[Rows, Losses]):
    """Reads keys, finds what is dropped, and merges. ``Rows`` and ``Losses`` are its own, and may lie elsewhere."""

    @property
    def retried(self) -> Retried | None:
        """What was run again, known when the work has ended; None where nothing is."""
        ...

    def rows(self, fragments: Sequence[FragmentPointer]) -> Rows:
        """Read the keys of fragments, given in log order."""
        ...

    def hashes(self, rows: Rows, *, tombstones_below: int | None = None) -> Hashes:
        """Return the distinct hashes of the keys, rising; of those with a tombstone below an offset, if given."""
        ...

    def losses(self, rows: Sequence[Rows], *, expired_below: int) -> Losses:
        """Find the records to drop among all rows together."""
        ...

    def counts(self, losses: Losses) -> Mapping[FragmentSeqNo, LossCount]:
        """Count them by fragment."""
        ...

    def merge(self, groups: Sequence[Group], losses: Losses, merging: Merging) -> Iterator[Sequence[Merged]]:
        """Merge each group without the records to drop; yield what became of each, in log order."""
        ...


def an_engine(value: object, name: str) -> Engine:
    """Take an engine from a caller."""
    if not callable(getattr(value, "open", None)) or isinstance(value, type):
        raise wrong(name, "an engine, such as LocalEngine()", value)
    return cast("Engine", value)


class LocalEngine:
    """Does it in this process: for logs whose keys fit into memory, 200 bytes and more a record."""

    @contextmanager
    def open(self, stores: LogStores, options: KeyCompactorOptions) -> Iterator[LocalWork]:
        """Begin a pass; what it keeps is memory."""
        yield LocalWork(stores, options)


class LocalWork:
    """One pass's work in this process."""

    retried = None

    def __init__(self, stores: LogStores, options: KeyCompactorOptions) -> None:
        self._options = options
        self._runtime = stores.runtime
        # One pace for everything that the pass reads and writes.
        self._objects = rate_limited(stores.objects, options.bytes_per_s_max, stores.runtime)
        reading = ReaderOptions(fragment_expanded_bytes_max=options.fragment_expanded_bytes_max)
        self._columns = KeyColumns(self._objects, reading)

    def rows(self, fragments: Sequence[FragmentPointer]) -> pa.Table:
        """Read the keys of fragments, some at a time."""
        count = self._options.requests_ahead
        return pa.concat_tables([ROWS.empty_table(), *read_keyed(self._columns, fragments, self._runtime, count=count)])

    def hashes(self, rows: pa.Table, *, tombstones_below: int | None = None) -> Hashes:
        """Hash the keys."""
        if tombstones_below is not None:
            below = rows["tombstone"].to_numpy() & (rows["offset"].to_numpy() < tombstones_below)
            rows = rows.filter(pa.array(below))
        return np.unique(hash_keys(rows["key"]))

    def losses(self, rows: Sequence[pa.Table], *, expired_below: int) -> pa.Table:
        """Find the records to drop."""
        # Parts of a log, read one after another, but not in its order.
        return find_losses(pa.concat_tables([ROWS.empty_table(), *rows]).sort_by("offset"), expired_below=expired_below)

    def counts(self, losses: pa.Table) -> Mapping[FragmentSeqNo, LossCount]:
        """Count them by fragment."""
        return count_losses(losses)

    def merge(self, groups: Sequence[Group], losses: pa.Table, merging: Merging) -> Iterator[Sequence[Merged]]:
        """Merge the groups, some at a time."""
        merger = Merger(self._objects, self._runtime, self._options, merging)
        offsets = losses["offset"].to_numpy()

        def merged(group: Group) -> Sequence[Merged]:
            start, limit = group.members[0].start.offset, group.members[-1].limit.offset
            # As what they are: beside plain integers, numpy compares them as floats, of which many are equal.
            low, high = np.searchsorted(offsets, np.array([start, limit], dtype=np.uint64))
            return merger.merge(group.members, losses.slice(low, high - low))

        count, share = self._options.requests_ahead, share_of(self._objects)
        yield from map_ahead(self._runtime, merged, groups, count=count, share=share)


def read_keyed(
    columns: KeyColumns, fragments: Iterable[FragmentPointer], runtime: Runtime, *, count: int
) -> Iterator[pa.Table]:
    """Yield ``ROWS`` of the records of each fragment that have a key, while ``count`` fragments are read at a time."""

    def read(fragment: FragmentPointer) -> pa.Table:
        table = columns.read(fragment)
        keyed = table.filter(table["key"].is_valid())
        seq_nos = pa.array(np.full(len(keyed), fragment.seq_no, dtype=np.uint64))
        return pa.table([seq_nos, keyed["offset"], keyed["key"].cast(pa.large_binary()), keyed["tombstone"]], ROWS)

    return map_ahead(runtime, read, fragments, count=count, share=columns.share)
