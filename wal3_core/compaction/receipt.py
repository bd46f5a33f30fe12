"""The erasure receipt of a key: which of its records were dropped, by which passes, and when their objects went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from wal3_core.compaction.dropped import BYTES_MAX, DropReason, dropped_from_bytes, key_digest
from wal3_core.errors import MissingError
from wal3_core.format.paths import (
    COMPACTION_FOLDER,
    dropped_path,
    listed_fragment_path,
    pass_object_token,
    pass_path,
    pass_token,
)
from wal3_core.format.strict_json import U64_MAX
from wal3_core.store.object_store import object_url

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from wal3_core.format.manifest import Compaction
    from wal3_core.format.pass_record import PassRecord, Replacement
    from wal3_core.format.strict_json import JsonObject
    from wal3_core.store.documents.pass_store import PassStore
    from wal3_core.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
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

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "offset": self.offset,
            "reason": self.reason.name.lower(),
            "pass": self.token,
            "number": self.number,
            "planned_us": self.planned_us,
            "path": self.path,
            "stored": self.stored,
            "deleted_us": self.deleted_us,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGone:
    """What a pass dropped ``num_dropped`` records by, and is no longer kept: which keys they had is not known any more.

    A ``receipt_retention_s`` that the policy has, or had before, deleted the lists; or they were lost.
    """

    token: str
    number: int
    planned_us: int
    num_dropped: int

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "pass": self.token,
            "number": self.number,
            "planned_us": self.planned_us,
            "dropped": self.num_dropped,
            "list": "gone",
        }


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
    data = objects.read(path, length=BYTES_MAX)
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
