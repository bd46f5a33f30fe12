"""A pass's work on records: which are dropped, the port to where that is found out, and the merge of fragments.

A merge keeps INV-41 and INV-42: the setsum of what was read is that of what was written and of what was left out, each
computed from the records themselves. What it leaves out is listed without a key: 16 bytes of the key's SHA-256, the
offset, the reason and the fragment that held the record.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal3_core.arguments import wrong
from wal3_core.errors import CorruptError, KeyCompactionRefusedError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_hashes import hash_keys
from wal3_core.format.parquet.decoding import open_file
from wal3_core.format.pass_record import Replacement
from wal3_core.format.paths import dropped_path, fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.setsum import EMPTY, SETSUM, Setsum
from wal3_core.format.strict_json import INTEGER, Fields, JsonObject, dump_members, member, read_members
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.log.read.reader import read_fragment
from wal3_core.options import (
    FRAGMENT_BYTES_MAX,
    FRAGMENT_EXPANDED_BYTES_MAX,
    KeyCompactorOptions,
    ReaderOptions,
    expanded_bytes,
)
from wal3_core.runtime import Runtime, map_ahead
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.object_store import ObjectStore, share_of
from wal3_core.store.rate_limits import rate_limited

if TYPE_CHECKING:
    from wal3_core.compaction.reports import Retried
    from wal3_core.compaction.scope import Group
    from wal3_core.log.log_stores import LogStores

    Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
    Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]


# One row for each keyed record that was looked at; ``seq_no`` is its fragment's.
ROWS = pa.schema(
    [("seq_no", pa.uint64()), ("offset", pa.uint64()), ("key", pa.large_binary()), ("tombstone", pa.bool_())]
)
LOSSES = pa.schema([("seq_no", pa.uint64()), ("offset", pa.uint64()), ("reason", pa.uint8())])


class DropReason(IntEnum):
    """Why a record is dropped; the number is part of stored records of passes."""

    SUPERSEDED = 1
    EXPIRED = 2


def find_losses(rows: pa.Table, *, expired_below: int) -> pa.Table:
    """Find the records to drop among ``rows`` (columns of ``ROWS``, offsets rising); columns of ``LOSSES``.

    A tombstone below the offset ``expired_below`` is dropped if it is its key's only record. The rows hold every record
    of each key that has a record in them, or at least its newest one and those to drop.
    """
    if not len(rows):
        return LOSSES.empty_table()
    rows = rows.combine_chunks()
    offsets, newest, oldest = ends_of_keys(rows)
    superseded, alone = offsets < newest, oldest == newest
    tombstones = rows["tombstone"].to_numpy(zero_copy_only=False)
    expired = tombstones & alone & (offsets < expired_below)
    lost = np.flatnonzero(superseded | expired)
    reasons = np.where(superseded[lost], DropReason.SUPERSEDED, DropReason.EXPIRED).astype(np.uint8)
    return pa.table([rows["seq_no"].take(lost), pa.array(offsets[lost]), pa.array(reasons)], schema=LOSSES)


def ends_of_keys(rows: pa.Table) -> tuple[Offsets, Offsets, Offsets]:
    """Return each row's offset, and the newest and the oldest one of its key among ``rows``, whose offsets rise."""
    encoded = rows["key"].combine_chunks().dictionary_encode()
    codes, offsets = encoded.indices.to_numpy(zero_copy_only=False), rows["offset"].to_numpy()
    newest, oldest = np.zeros((2, len(encoded.dictionary)), dtype=np.uint64)
    # Of several values for one place numpy keeps the last: with rising offsets that of the newest record.
    newest[codes] = offsets
    oldest[codes[::-1]] = offsets[::-1]
    return offsets, newest[codes], oldest[codes]


@dataclass(frozen=True, slots=True)
class LossCount:
    """How many records of one fragment are dropped."""

    superseded: int
    expired: int

    @property
    def total(self) -> int:
        """All that are dropped."""
        return self.superseded + self.expired


NO_LOSS = LossCount(0, 0)


def count_losses(losses: pa.Table) -> Mapping[FragmentSeqNo, LossCount]:
    """Count them by fragment."""
    grouped = losses.group_by(["seq_no", "reason"]).aggregate([("offset", "count")])
    return sum_counts(grouped.rename_columns(["seq_no", "reason", "count"]))


def sum_counts(grouped: pa.Table) -> Mapping[FragmentSeqNo, LossCount]:
    """Put together the counts of each reason, given as columns seq_no, reason and count."""
    counts = Counter[tuple[FragmentSeqNo, int]]()
    for row in grouped.to_pylist():
        counts[row["seq_no"], row["reason"]] += row["count"]
    return {
        seq_no: LossCount(counts[seq_no, DropReason.SUPERSEDED], counts[seq_no, DropReason.EXPIRED])
        for seq_no, _ in counts
    }


KEY_HASH_BYTES = 16
# ``seq_no`` is that of the fragment that held the record before the pass.
DROPPED = pa.schema(
    [("key_hash", pa.binary(KEY_HASH_BYTES)), ("offset", pa.uint64()), ("reason", pa.uint8()), ("seq_no", pa.uint64())]
)
DROPPED_BYTES_MAX = 2**30


def key_digest(key: bytes) -> bytes:
    """Return what a list of dropped records holds of a key."""
    return hashlib.sha256(key).digest()[:KEY_HASH_BYTES]


def dropped_rows(records: pa.Table, seq_no: FragmentSeqNo, reason: DropReason) -> pa.Table:
    """Make rows of ``DROPPED`` from records of a fragment, with the columns key and offset."""
    digests = pa.array(map(key_digest, records["key"].to_pylist()), type=pa.binary(KEY_HASH_BYTES))
    reasons = pa.array(np.full(len(records), reason, dtype=np.uint8))
    seq_nos = pa.array(np.full(len(records), seq_no, dtype=np.uint64))
    return pa.table([digests, records["offset"], reasons, seq_nos], schema=DROPPED)


def dropped_to_bytes(rows: pa.Table) -> memoryview:
    """Encode rows as Parquet, by key."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.sort_by([("key_hash", "ascending"), ("offset", "ascending")]),
        sink,
        compression="zstd",
        use_dictionary=False,
        column_encoding={
            "key_hash": "PLAIN",
            "offset": "DELTA_BINARY_PACKED",
            "reason": "PLAIN",
            "seq_no": "DELTA_BINARY_PACKED",
        },
        write_page_checksum=True,
    )
    return memoryview(sink.getvalue()).cast("B")


def dropped_from_bytes(data: bytes, what: str) -> pa.Table:
    """Decode rows; CorruptError when they are not what was written."""
    try:
        # Not in Arrow's threads: one that still holds the bytes when the interpreter ends aborts the process.
        table = open_file(memoryview(data)).read(use_threads=False).replace_schema_metadata(None)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"{what}: expected a list of dropped records, found {len(data)} bytes that fail to decode: {error}"
        raise CorruptError(message) from error
    if table.schema != DROPPED:
        raise CorruptError(f"{what}: expected columns {DROPPED.names}, found {table.schema.names}")
    return table


# ---------------------------------------------------------------------- the port, and this process behind it

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


# ---------------------------------------------------------------------- merges


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A replacement of members of one group, and the setsums of what was left out."""

    replacement: Replacement
    superseded: Setsum
    expired: Setsum
    num_superseded: int
    num_expired: int

    MEMBERS = (
        *(member(name, SETSUM) for name in ("superseded", "expired")),
        *(member(name, INTEGER) for name in ("num_superseded", "num_expired")),
    )

    def to_json(self) -> JsonObject:
        """Return as a JSON object, without the members: who asked for the merge has them."""
        return {"pointer": self.replacement.pointer.to_json(), **dump_members(self, self.MEMBERS)}

    @classmethod
    def from_json(cls, fields: Fields, members: Sequence[FragmentPointer]) -> Merged:
        """Read from a JSON object; ``members`` are those of its group."""
        pointer = FragmentPointer.from_json(fields.object("pointer"))
        run = tuple(each for each in members if pointer.first_seq_no <= each.seq_no <= pointer.seq_no)
        merged = cls(replacement=Replacement(run, pointer), **read_members(fields, cls.MEMBERS))
        fields.finish()
        return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """How the groups of one pass are merged: ``token`` is in the names of the new fragments.

    Without ``write`` nothing is uploaded. With ``arrange`` the new fragments are arranged by key.
    """

    token: str
    write: bool = True
    arrange: bool = False


@dataclass(frozen=True, slots=True)
class Merger:
    """Merges groups of one pass. ``objects`` are the log's."""

    objects: ObjectStore
    runtime: Runtime
    options: KeyCompactorOptions
    merging: Merging

    def merge(
        self, members: Sequence[FragmentPointer], losses: pa.Table, *, reads_ahead: int = 0
    ) -> tuple[Merged, ...]:
        """Make one fragment of consecutive ones, without the losses (columns of ``LOSSES``, offsets rising).

        Makes several if one would expand to more than readers take, or than this process reads; of a member that would
        be alone then, loses nothing, and is not to be arranged by key, none is made.
        With ``reads_ahead`` so many members are read ahead by the shared workers, so that none of them may call it.
        The same members, losses and token make the same bytes, so a repeated merge finds its object written.
        """
        merged: list[Merged] = []
        draft = _Draft()
        expanded_bytes_max = min(self.options.fragment_expanded_bytes_max, FRAGMENT_EXPANDED_BYTES_MAX)
        share = share_of(self.objects)
        ahead = map_ahead(self.runtime, self._read, members, count=reads_ahead, share=share)
        tables = ahead if reads_ahead else map(self._read, members)
        for pointer, read in zip(members, tables, strict=True):
            # What is dropped takes no memory while the next member is read.
            records, dropped = _split(read, pointer.seq_no, losses)
            if not draft.takes(records, expanded_bytes_max):
                merged += self._merged(draft)
                draft = _Draft()
            draft.add(pointer, records, dropped)
        merged += self._merged(draft)
        num_lost = sum(each.num_superseded + each.num_expired for each in merged)
        if len(losses) != num_lost:
            raise _unaccounted(members, f"{len(losses)} records to drop", f"{num_lost}")
        return tuple(merged)

    def _merged(self, draft: _Draft) -> Iterator[Merged]:
        """Make the fragment of a draft; nothing if it would be the one it stands for."""
        members, dropped = draft.members, pa.concat_tables(draft.left_out.values())
        if len(members) == 1 and not (self.merging.arrange or len(dropped)):
            return
        table = pa.concat_tables(draft.kept)
        first, last = members[0], members[-1]
        encode = parquet.encode_arranged if self.merging.arrange else parquet.encode_table
        encoded = encode(table, seq_no=last.seq_no, token=self.merging.token)
        before = sum((member.setsum for member in members), start=EMPTY)
        after = sum(draft.setsums.values(), start=encoded.setsum)
        if before != after:
            raise _unaccounted(members, f"setsum {before}", f"{after} in what is kept and dropped")
        pointer = FragmentPointer(
            path=fragment_path(last.seq_no, self.merging.token),
            first_seq_no=first.first_seq_no,
            seq_no=last.seq_no,
            start=first.start,
            limit=last.limit,
            setsum=encoded.setsum,
            num_bytes=len(encoded.data),
            num_records=len(table),
            continues=first.continues,
        )
        if self.merging.write:
            if len(dropped):
                path = dropped_path(self.merging.token, pointer.seq_no)
                self._write(path, dropped_to_bytes(dropped))
            self._write(pointer.path, encoded.data)
        yield Merged(
            replacement=Replacement(tuple(members), pointer),
            superseded=draft.setsums[DropReason.SUPERSEDED],
            expired=draft.setsums[DropReason.EXPIRED],
            num_superseded=len(draft.left_out[DropReason.SUPERSEDED]),
            num_expired=len(draft.left_out[DropReason.EXPIRED]),
        )

    def _write(self, path: str, data: memoryview) -> None:
        write_immutable(self.objects, path, data, self.options.retry, self.runtime)

    def _read(self, member: FragmentPointer) -> pa.Table:
        expanded_bytes_max = self.options.fragment_expanded_bytes_max
        table = read_fragment(self.objects, member, expanded_bytes_max=expanded_bytes_max)[1].table
        return table.cast(pa.schema([(name, _TYPES[name]) for name in table.column_names]))


def _unaccounted(members: Sequence[FragmentPointer], expected: str, found: str) -> KeyCompactionRefusedError:
    """Refuse a merge that does not account for every record; not an assertion, which ``python -O`` drops."""
    return KeyCompactionRefusedError(
        f"merge of fragments {members[0].first_seq_no} to {members[-1].seq_no}: expected {expected}, found {found}"
    )


_LeftOut = dict[DropReason, tuple[Setsum, pa.Table]]


class _Draft:
    """A fragment that is being made of consecutive members of a group: what is kept of them, and what is left out."""

    def __init__(self) -> None:
        self.members: list[FragmentPointer] = []
        self.kept: list[pa.Table] = []
        self.num_records = self.num_bytes = 0
        self.setsums = dict.fromkeys(DropReason, EMPTY)
        self.left_out = {reason: DROPPED.empty_table() for reason in DropReason}

    def takes(self, records: pa.Table, expanded_bytes_max: int) -> bool:
        """Whether records can be added: a fragment has at least one, and no more than a reader can expand."""
        if not self.num_records or not len(records):
            return True
        num_bytes = self.num_bytes + _content_bytes(records)
        if num_bytes > FRAGMENT_BYTES_MAX:
            return False
        return expanded_bytes(num_bytes, self.num_records + len(records)) <= expanded_bytes_max

    def add(self, member: FragmentPointer, records: pa.Table, left_out: _LeftOut) -> None:
        """Take in the next member."""
        self.members.append(member)
        self.kept.append(records)
        self.num_records += len(records)
        self.num_bytes += _content_bytes(records)
        for reason, (setsum, rows) in left_out.items():
            self.setsums[reason] += setsum
            self.left_out[reason] = pa.concat_tables([self.left_out[reason], rows])


def _content_bytes(records: pa.Table) -> int:
    """Add up the bytes of keys and bodies."""
    return sum(pc.sum(pc.binary_length(records[name])).as_py() or 0 for name in ("key", "body"))


def _split(table: pa.Table, seq_no: FragmentSeqNo, losses: pa.Table) -> tuple[pa.Table, _LeftOut]:
    """Return a fragment's records without the losses; and of what is left out for each reason, setsum and DROPPED."""
    offsets = table["offset"].to_numpy()
    low, high = np.searchsorted(losses["offset"].to_numpy(), [offsets[0], offsets[-1] + np.uint64(1)])
    losses = losses.slice(low, high - low)
    lost, reasons = losses["offset"].to_numpy(), losses["reason"].to_numpy()
    found = {reason: table.filter(pa.array(np.isin(offsets, lost[reasons == reason]))) for reason in DropReason}
    left_out = {
        reason: (parquet.table_setsum(records), dropped_rows(records, seq_no, reason))
        for reason, records in found.items()
    }
    return table.filter(pa.array(~np.isin(offsets, lost))), left_out


_TYPES = {"offset": pa.uint64(), "timestamp_us": pa.uint64(), "key": pa.large_binary(), "body": pa.large_binary()}
