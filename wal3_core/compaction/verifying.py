"""What a log's storage alone says about its passes: whether the last one holds, and what became of a key's records.

Nothing of what the pass computed is trusted, and none of its code is used: records are compared with records, and each
dropped one must have its reason in what the log still holds. Keeps INV-42 and INV-43. A receipt goes by the lists of
dropped records.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.compaction.engine import DROPPED_BYTES_MAX, DropReason, dropped_from_bytes, key_digest
from wal3_core.errors import CorruptError, MissingError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Compaction
from wal3_core.format.pass_record import PassRecord, Replacement
from wal3_core.format.paths import (
    COMPACTION_FOLDER,
    LogId,
    dropped_path,
    listed_fragment_path,
    pass_object_token,
    pass_path,
    pass_token,
)
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import sum_setsums
from wal3_core.format.strict_json import U64_MAX, JsonObject, Shown
from wal3_core.log.read.reader import read_fragment
from wal3_core.store.documents.pass_store import PassStore
from wal3_core.store.object_store import ObjectStore, object_url

# Findings are shown up to this many; a defect may concern every record.
_FINDINGS_MAX = 100
_RECORDS = pa.schema(
    [("offset", pa.uint64()), ("timestamp_us", pa.uint64()), ("key", pa.large_binary()), ("body", pa.large_binary())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Shown):
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

    SHOWN = (
        "log token number limit replacements=num_replacements gone=num_gone records=num_records dropped=num_dropped"
        " holds findings"
    )

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify_pass(
    objects: ObjectStore, log: str, record: PassRecord, held: Sequence[FragmentPointer], *, expanded_bytes_max: int
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
        log_id=record.log_id,
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


# ---------------------------------------------------------------------- receipts


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased(Shown):
    """A record that a pass dropped. ``path`` is the object that held it.

    ``stored`` says whether that object still exists, or one of which earlier passes had made it, or one that may have
    been made of it by a pass that was never installed; ``deleted_us`` is the store's time at which everything that the
    installed passes replaced was deleted, None while that is not known. It stays unknown if a pin held some of it.
    """

    offset: int
    reason: DropReason
    token: str
    number: int
    planned_us: int
    path: str
    stored: bool
    deleted_us: int | None

    SHOWN = "offset reason pass=token number planned_us path stored deleted_us"

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {**Shown.to_json(self), "reason": self.reason.name.lower()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGone(Shown):
    """What a pass dropped ``num_dropped`` records by, and is no longer kept: which keys they had is not known any more.

    A ``receipt_retention_s`` that the policy has, or had before, deleted the lists; or they were lost.
    """

    token: str
    number: int
    planned_us: int
    num_dropped: int

    SHOWN = "pass=token number planned_us dropped=num_dropped"

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {**Shown.to_json(self), "list": "gone"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The records of a key that passes dropped, newest pass first, as far as is known: iterate over it for them alone.

    Of the passes in ``lists_gone`` only the number of all dropped records is known. Of the oldest passes,
    ``num_passes_unknown`` of them, this log has nothing: they went over the log of which it is a copy.
    """

    records: tuple[Erased, ...]
    lists_gone: tuple[ListGone, ...] = ()
    num_passes_unknown: int = 0

    def __iter__(self) -> Iterator[Erased]:
        """Go through the dropped records."""
        return iter(self.records)


def receipt_of(objects: ObjectStore, passes: PassStore, compaction: Compaction, key: bytes) -> Receipt:
    """Say which records of a key the passes of a log dropped, and what became of the objects that held them.

    A list that is gone although the files of its records are not known to be deleted was lost: MissingError. Two keys
    whose SHA-256 begin with the same 16 bytes would be taken for one.
    """
    digest, found, gone = key_digest(key), list[Erased](), list[ListGone]()
    # The objects that held them, and which they are: an earlier pass may have made the object of others.
    made = dict[str, list[int]]()
    installed = set[str]()
    num_unknown = compaction.passes
    for record in passes.back_from(compaction.token):
        installed.add(record.token)
        num_unknown, num_gone = record.number - 1, 0
        for replacement in record.replacements:
            for at in made.pop(replacement.pointer.path, ()):
                earlier = next(each for each in replacement.members if found[at].offset < each.limit.offset)
                found[at] = _held_by(found[at], earlier.path, objects, passes, record.token)
                made.setdefault(earlier.path, []).append(at)
            dropped = _dropped(objects, passes, record, replacement, digest)
            num_gone += _num_dropped(replacement) if dropped is None else 0
            for erased in dropped or ():
                made.setdefault(erased.path, []).append(len(found))
                found.append(erased)
        if num_gone:
            token, number, planned_us = record.token, record.number, record.timestamp_us
            gone.append(ListGone(token=token, number=number, planned_us=planned_us, num_dropped=num_gone))
    strays = list(_strays(objects, passes, installed)) if found else []
    held = [any(first <= erased.offset < limit for first, limit in strays) for erased in found]
    records = (
        replace(erased, stored=True, deleted_us=None) if stray else erased
        for erased, stray in zip(found, held, strict=True)
    )
    return Receipt(records=tuple(records), lists_gone=tuple(gone), num_passes_unknown=num_unknown)


def _strays(objects: ObjectStore, passes: PassStore, installed: Container[str]) -> Iterator[tuple[int, int]]:
    """Go through the offsets of which a fragment exists that a pass has made, and which nothing ever referred to."""
    for meta in objects.list_objects(COMPACTION_FOLDER):
        token = pass_token(meta.path)
        if token in installed or pass_object_token(meta.path) is None:
            continue
        if meta.path == pass_path(token):
            made = [each.pointer for each in _replacements(passes, token)]
            yield from ((each.start.offset, each.limit.offset) for each in made if objects.head(each.path) is not None)
        elif objects.head(listed_fragment_path(meta.path)) is not None:
            # Where a merge was cut short, its list alone tells: not of how many fragments this one was made.
            yield 0, U64_MAX


def _replacements(passes: PassStore, token: str) -> tuple[Replacement, ...]:
    """Load what a pass has made; nothing if a collection has just deleted its record, which goes after the rest."""
    try:
        return passes.load(token).replacements
    except MissingError:
        return ()


def _held_by(erased: Erased, path: str, objects: ObjectStore, passes: PassStore, token: str) -> Erased:
    """Add an object that held the record, too, until the pass with this token replaced it."""
    stored = erased.stored or objects.head(path) is not None
    times = (erased.deleted_us, None if stored else passes.deleted_us(token))
    known = [each for each in times if each is not None]
    return replace(erased, stored=stored, deleted_us=max(known) if len(known) == len(times) else None)


def _num_dropped(replacement: Replacement) -> int:
    return sum(member.num_records for member in replacement.members) - replacement.pointer.num_records


def _dropped(
    objects: ObjectStore, passes: PassStore, record: PassRecord, replacement: Replacement, digest: bytes
) -> list[Erased] | None:
    """Return the dropped records of a key that one list names; None if the list is gone."""
    if not _num_dropped(replacement):
        return []
    path = dropped_path(record.token, replacement.pointer.seq_no)
    what = object_url(objects, path)
    data = objects.read(path, length=DROPPED_BYTES_MAX)
    if data is None:
        if passes.deleted_us(record.token) is not None:
            return None
        message = (
            f"{what}: expected the list of what pass {record.token} dropped, as what it replaced is not known to be"
            f" deleted, found none: it was lost"
        )
        raise MissingError(message, path=path)
    rows = dropped_from_bytes(data, what)
    found = list[Erased]()
    for row in rows.filter(pc.equal(rows["key_hash"], digest)).to_pylist():
        held = next(member for member in replacement.members if member.seq_no == row["seq_no"])
        stored = objects.head(held.path) is not None
        erased = Erased(
            offset=row["offset"],
            reason=DropReason(row["reason"]),
            token=record.token,
            number=record.number,
            planned_us=record.timestamp_us,
            path=held.path,
            stored=stored,
            deleted_us=None if stored else passes.deleted_us(record.token),
        )
        found.append(erased)
    return found
