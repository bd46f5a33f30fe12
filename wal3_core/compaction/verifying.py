"""Verifies a log's last pass of key compaction from storage alone: what it read, what it wrote, and what is left.

Nothing of what the pass computed is trusted, and none of its code is used: records are compared with records, and each
dropped one must have its reason in what the log still holds. Keeps INV-42 and INV-43.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.errors import CorruptError, MissingError
from wal3_core.format import parquet
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import sum_setsums
from wal3_core.log.read.reader import read_fragment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.pass_record import PassRecord, Replacement
    from wal3_core.format.paths import LogId
    from wal3_core.format.strict_json import JsonObject
    from wal3_core.store.object_store import ObjectStore

# Findings are shown up to this many; a defect may concern every record.
_FINDINGS_MAX = 100
_RECORDS = pa.schema(
    [("offset", pa.uint64()), ("timestamp_us", pa.uint64()), ("key", pa.large_binary()), ("body", pa.large_binary())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found about a pass: nothing in ``findings`` if it holds.

    Of its ``num_replacements``, ``num_gone`` could not be compared: their old fragments are deleted, or their new ones
    were replaced since. ``num_records`` of the log were read. ``log_id`` is the life of the log that was verified.
    """

    log: str
    log_id: LogId
    token: str
    number: int
    limit: int
    num_replacements: int
    num_gone: int
    num_records: int
    num_dropped: int
    findings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "token": self.token,
            "number": self.number,
            "limit": self.limit,
            "replacements": self.num_replacements,
            "gone": self.num_gone,
            "records": self.num_records,
            "dropped": self.num_dropped,
            "holds": self.holds,
            "findings": list(self.findings),
        }


def verify_pass(
    objects: ObjectStore,
    log: str,
    record: PassRecord,
    held: Sequence[FragmentPointer],
    *,
    log_id: LogId,
    expanded_bytes_max: int,
) -> Verification:
    """Verify a log's newest pass. ``held`` are the fragments that the log holds below the pass's limit by now.

    Reads all of them, and the fragments that the pass replaced as far as they exist.
    """
    verifier = _Verifier(objects, record, expanded_bytes_max)
    verifier.read_held(held)
    paths = {pointer.path for pointer in held}
    for replacement in record.replacements:
        verifier.compare(replacement, still_held=replacement.pointer.path in paths)
    verifier.check_sums()
    verifier.check_left(held)
    return Verification(
        log=log,
        log_id=log_id,
        token=record.token,
        number=record.number,
        limit=record.limit,
        num_replacements=len(record.replacements),
        num_gone=verifier.num_gone,
        num_records=verifier.num_records,
        num_dropped=verifier.num_dropped,
        findings=tuple(verifier.findings[:_FINDINGS_MAX]),
    )


class _Verifier:
    def __init__(self, objects: ObjectStore, record: PassRecord, expanded_bytes_max: int) -> None:
        self.objects = objects
        self.record = record
        self.expanded_bytes_max = expanded_bytes_max
        self.findings: list[str] = []
        self.num_gone = self.num_records = self.num_dropped = 0
        # Each key that the log holds: its newest and oldest offset.
        self.left = _RECORDS.empty_table()
        self.superseded = self.expired = self.merged = EMPTY

    def read_held(self, held: Iterable[FragmentPointer]) -> None:
        """Read what the log holds: each key must have one record, unless the pass left some to the next or kept all."""
        columns = []
        for pointer in held:
            table = self._read(pointer)
            if table is None:
                self.findings.append(f"fragment {pointer.seq_no}: expected in the log, found none")
                continue
            self.num_records += len(table)
            columns.append(table.filter(table["key"].is_valid()).select(["key", "offset"]))
        keyed = pa.concat_tables([_RECORDS.empty_table().select(["key", "offset"]), *columns])
        grouped = keyed.group_by("key").aggregate([("offset", "max"), ("offset", "min")])
        self.left = grouped.rename_columns(["key", "newest", "oldest"])
        if self.record.partial or self.record.keeps_all:
            return
        twice = self.left.filter(pc.not_equal(self.left["newest"], self.left["oldest"]))
        for row in twice.slice(0, _FINDINGS_MAX).to_pylist():
            self.findings.append(
                f"key {row['key'][:40]!r}: expected one record below offset {self.record.limit}, found some from"
                f" {row['oldest']} to {row['newest']}"
            )

    def compare(self, replacement: Replacement, *, still_held: bool) -> None:
        """Compare a fragment that the pass wrote with those that it stands for."""
        tables = [self._read(member) for member in replacement.members]
        after = self._read(replacement.pointer) if still_held else None
        if after is None or any(table is None for table in tables):
            self.num_gone += 1
            return
        before = pa.concat_tables(tables).combine_chunks()
        stays = np.isin(before["offset"].to_numpy(), after["offset"].to_numpy())
        if not before.filter(pa.array(stays)).equals(after.combine_chunks()):
            pointer = replacement.pointer
            self.findings.append(
                f"fragment {pointer.seq_no}: expected records of fragments {pointer.first_seq_no} to"
                f" {pointer.seq_no} as they were, found others, or others' order"
            )
        self.merged += parquet.table_setsum(after)
        self._judge(before.filter(pa.array(~stays)))

    def _judge(self, dropped: pa.Table) -> None:
        """Find the reason of each dropped record in what is left."""
        self.num_dropped += len(dropped)
        if self.record.keeps_all:
            for offset in dropped["offset"].to_pylist():
                self.findings.append(f"record {offset}: expected to be kept, as the pass keeps all, found it dropped")
            return
        for offset in dropped.filter(dropped["key"].is_null())["offset"].to_pylist():
            self.findings.append(f"record {offset}: expected to be kept, as it has no key, found it dropped")
        keyed = dropped.filter(dropped["key"].is_valid())
        numbered = keyed.select(["key", "offset"]).append_column("row", pa.array(range(len(keyed)), type=pa.int64()))
        found = numbered.join(self.left, keys="key").sort_by("row")
        offsets = found["offset"].to_numpy()
        newest = found["newest"].fill_null(0).to_numpy()
        superseded = newest > offsets
        tombstones = keyed["body"].is_null().to_numpy()
        expired = ~superseded & tombstones & (offsets < self.record.expired_below)
        for row in np.flatnonzero(~superseded & ~expired).tolist():
            what = "tombstone whose time had not come" if tombstones[row] else "record without a newer one of its key"
            self.findings.append(f"record {offsets[row]}: expected to be kept, found a dropped {what}")
        for row in np.flatnonzero(expired & (newest > 0)).tolist():
            self.findings.append(
                f"record {offsets[row]}: expected a dropped tombstone's key to have no record, found one at"
                f" {newest[row]}"
            )
        self.superseded += parquet.table_setsum(keyed.filter(pa.array(superseded)))
        self.expired += parquet.table_setsum(keyed.filter(pa.array(expired)))

    def check_sums(self) -> None:
        """Compare what was found with what the pass stated."""
        stated = self.record.proof
        if not stated.holds:
            self.findings.append("the pass's setsums do not add up")
        if self.num_gone:
            return
        for name, found in (("superseded", self.superseded), ("expired", self.expired), ("merged", self.merged)):
            expected = getattr(stated, name)
            if found != expected:
                self.findings.append(f"{name} records: expected setsum {expected}, found {found}")

    def check_left(self, held: Sequence[FragmentPointer]) -> None:
        """Compare what the log holds with what the pass left: it may have changed more than it stated."""
        if not held or held[0].start.offset != self.record.first:
            # Some of it was collected since.
            return
        expected, found = self.record.proof.after, sum_setsums(held)
        if found != expected:
            self.findings.append(
                f"records below offset {self.record.limit}: expected setsum {expected} after the pass, found {found}"
            )

    def _read(self, pointer: FragmentPointer) -> pa.Table | None:
        try:
            _, read = read_fragment(self.objects, pointer, expanded_bytes_max=self.expanded_bytes_max)
            return read.table.cast(_RECORDS)
        except MissingError:
            return None
        except CorruptError as error:
            self.findings.append(str(error))
            return None
