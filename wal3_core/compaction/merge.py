"""Makes one fragment of several: reads and checks them, leaves records out, and writes the rest under a new path.

Keeps INV-41 and INV-42: the setsum of what was read is that of what was written and of what was left out, each computed
from the records themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.compaction.dropped import DROPPED, DropReason, dropped_rows, dropped_to_bytes
from wal3_core.errors import KeyCompactionRefusedError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.pass_record import Replacement
from wal3_core.format.paths import dropped_path, fragment_path
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.log.read.reader import read_fragment
from wal3_core.options import FRAGMENT_BYTES_MAX, FRAGMENT_EXPANDED_BYTES_MAX, expanded_bytes
from wal3_core.runtime import map_ahead
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.object_store import share_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.compaction.reports import KeyCompactorOptions
    from wal3_core.format.position import FragmentSeqNo
    from wal3_core.format.strict_json import Fields, JsonObject
    from wal3_core.runtime import Runtime
    from wal3_core.store.object_store import ObjectStore

    _LeftOut = dict[DropReason, tuple[Setsum, pa.Table]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A replacement of members of one group, and the setsums of what was left out."""

    replacement: Replacement
    superseded: Setsum
    expired: Setsum
    num_superseded: int
    num_expired: int

    def to_json(self) -> JsonObject:
        """Return as a JSON object, without the members: who asked for the merge has them."""
        return {
            "pointer": self.replacement.pointer.to_json(),
            "superseded": self.superseded.hexdigest(),
            "expired": self.expired.hexdigest(),
            "num_superseded": self.num_superseded,
            "num_expired": self.num_expired,
        }

    @classmethod
    def from_json(cls, fields: Fields, members: Sequence[FragmentPointer]) -> Merged:
        """Read from a JSON object; ``members`` are those of its group."""
        pointer = FragmentPointer.from_json(fields.object("pointer"))
        run = tuple(each for each in members if pointer.first_seq_no <= each.seq_no <= pointer.seq_no)
        merged = cls(
            replacement=Replacement(run, pointer),
            superseded=Setsum.from_hexdigest(fields.string("superseded")),
            expired=Setsum.from_hexdigest(fields.string("expired")),
            num_superseded=fields.integer("num_superseded"),
            num_expired=fields.integer("num_expired"),
        )
        fields.finish()
        return merged

    @property
    def bytes_read(self) -> int:
        """Bytes of the fragments that were read."""
        return sum(member.num_bytes for member in self.replacement.members)


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
        for member, read in zip(members, tables, strict=True):
            # What is dropped takes no memory while the next member is read.
            records, dropped = _split(read, member.seq_no, losses)
            if not draft.takes(records, expanded_bytes_max):
                merged += self._merged(draft)
                draft = _Draft()
            draft.add(member, records, dropped)
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
    message = (
        f"merge of fragments {members[0].first_seq_no} to {members[-1].seq_no}: expected {expected}, found {found}"
    )
    return KeyCompactionRefusedError(message)


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
