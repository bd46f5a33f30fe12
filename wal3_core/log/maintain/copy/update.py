"""Brings a copy up to date: appends what its source has gained since, at the same positions.

The copy must hold exactly the source's records up to the copy's end. The setsums prove that of the manifest that each
commit replaces. A path of the copy is written once, so the source's fragments are encoded again, under a writer term
of the copy. An update that was cut short leaves a copy that is behind. Source: docs/protocol.md, "Updating a copy".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, flag, function
from wal3_core.errors import (
    GarbageCollectedError,
    InvalidRequestError,
    MissingError,
    UnavailableError,
)
from wal3_core.format import parquet
from wal3_core.format.garbage import cut_below
from wal3_core.format.manifest import Epoch
from wal3_core.format.named_append import Places
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.snapshot import sum_setsums
from wal3_core.format.strict_json import Shown
from wal3_core.log.log_stores import LogStores
from wal3_core.log.maintain.copy.cursors import CopiedCursors
from wal3_core.log.maintain.copy.parts import Piece, groups, pieces
from wal3_core.log.read.reader import read_fragment
from wal3_core.log.read.scan import select, trim
from wal3_core.log.write.commit import Committed, Committer, Displaced, Failed, SealedOut, Undetermined, WriterTerm
from wal3_core.log.write.snapshotter import rolled_now
from wal3_core.log.write.stats import Meter
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, UNLIMITED, Limits, WriterOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.object_store import canonical_url, share_of
from wal3_core.store.retrying import timeout_s_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.manifest import Manifest
    from wal3_core.format.setsum import Setsum
    from wal3_core.log.maintain.copy.copier import LogAt
    from wal3_core.store.documents.manifest_store import Installed

_FRAGMENTS_AHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyUpdateReport(Shown):
    """What an update appended to a copy, and where the copy ends now.

    ``from_offset`` is the copy's end before, ``next_offset`` its end after. ``setsum`` covers every record ever
    appended to the source up to there. ``num_cursors`` counts the cursors that were created or moved.
    """

    log: str
    from_offset: int
    next_offset: int
    num_records: int
    num_bytes: int
    num_fragments: int
    num_cursors: int
    setsum: Setsum


@checked(progress=function, with_cursors=flag)
def update_copy(
    source: LogAt,
    target: LogAt,
    *,
    with_cursors: bool = False,
    progress: Callable[[int, int], None] = lambda _records, _total: None,
    runtime: Runtime | None = None,
) -> CopyUpdateReport:
    """Append to a copy what its source holds by now beyond the copy's end; positions stay as they are.

    ``with_cursors`` moves the copy's cursors to where the source's are, with what subscriptions have acknowledged and
    what writers' cursors say of named appends, creates those that it lacks, and deletes those that the source's owners
    have deleted; other cursors that the source lacks stay.
    ``progress`` gets the number of records appended and of those to append. Call it again after an error: it goes on
    from the copy's end, which lies behind whole fragments and whole staged appends, whatever fails.
    InvalidRequestError when the target is no copy of the source, holds records of its own, or is sealed; or, with
    cursors, when the source is a successor of the log that it is a copy of.
    CursorConflictError when another process has moved a cursor of the copy just now: call it again.
    GarbageCollectedError when the source no longer holds all records from the copy's end on, because they were
    collected or compacted away: copy to another name then.
    LogNotFoundError when either is no log. CorruptError when the source is damaged. UnavailableError when a store does
    not answer, also when it is undetermined whether the last records were appended.
    """
    runtime = runtime or shared_runtime()
    return _Updating(source, target, runtime, progress).run(with_cursors=with_cursors)


class _Updating:
    def __init__(self, source: LogAt, target: LogAt, runtime: Runtime, progress: Callable[[int, int], None]) -> None:
        self._source, self._target = source, target
        self._runtime = runtime
        self._progress = progress
        self._options = options = WriterOptions()
        self._from, self._into = (
            LogStores(each.store, each.log, runtime=runtime, retry=options.retry) for each in (source, target)
        )
        self._timeout_s = timeout_s_of(target.store.url)
        meter = Meter(runtime, target.log)
        amend = partial(rolled_now, snapshots=self._into.snapshots, options=options, failed=meter.roll_failed)
        self._committer = Committer(
            self._into.manifests, self._into.snapshots, runtime, options, amend=amend, meter=meter
        )
        self._appended: list[FragmentPointer] = []
        # Of those: to sum them up again for each commit would take longer with each.
        self._num_records = 0

    def run(self, *, with_cursors: bool) -> CopyUpdateReport:
        """Append what the source holds now; another process that changes the copy meanwhile makes it start over."""
        if canonical_url(self._from.url) == canonical_url(self._into.url):
            message = f"log {self._from.url}: expected another log to update, found itself"
            raise InvalidRequestError(message)
        # The source after the copy, each time: another update may have copied what the source has gained since.
        base, source = self._into.manifests.load(), self._from.manifests.load()
        began = base.manifest.next.position.offset
        if with_cursors and base.manifest.follows != source.manifest.follows:
            message = (
                f"log {self._from.url}: expected the log that {self._into.url} is a copy of, to take its cursors, found"
                f" a successor of it, whose cursors say nothing of the records before: update it without cursors, or"
                f" copy that one to another name"
            )
            raise InvalidRequestError(message)
        cursors = CopiedCursors(self._from, self._into) if with_cursors else None
        for _ in range(self._options.contentions_max + 1):
            try:
                self._check_copy(base.manifest, source.manifest)
                places = self._begin(base.manifest, source.manifest, cursors)
                result = self._append_all(base, source.manifest, places)
            except MissingError:
                # No damage if maintenance has replaced it since.
                seen = base.etag, source.etag
                base, source = self._into.manifests.load(), self._from.manifests.load()
                if (base.etag, source.etag) == seen:
                    raise
                continue
            if isinstance(result, Displaced):
                base, source = result.base, self._from.manifests.load()
                continue
            if cursors is not None:
                cursors.move_all(result, self._from.manifests.load().manifest)
            return CopyUpdateReport(
                log=self._target.log,
                from_offset=began,
                next_offset=result.next.position.offset,
                num_records=self._num_records,
                num_bytes=sum(pointer.num_bytes for pointer in self._appended),
                num_fragments=len(self._appended),
                num_cursors=len(cursors.moved) if cursors else 0,
                setsum=result.setsum,
            )
        message = f"log {self._into.url}: others changed it {self._options.contentions_max + 1} times: update it again"
        raise UnavailableError(message)

    def _check_copy(self, copied: Manifest, source: Manifest) -> None:
        """Refuse a target that does not hold exactly the source's records up to the target's end."""
        if copied.seal is not None:
            message = f"log {self._into.url}: expected an open copy, found it sealed: {copied.seal.reason}"
            raise InvalidRequestError(message)
        offset, first = copied.next.position.offset, source.first.position.offset
        if offset < first:
            message = (
                f"log {self._into.url}: expected its end within log {self._from.url}, which begins at offset {first},"
                f" found it at {offset}: the records between were collected: copy to another name"
            )
            raise GarbageCollectedError(message)
        found = f"records that it does not have, up to offset {offset - 1}"
        if offset <= source.next.position.offset:
            load = self._from.snapshots.load
            cut, around = cut_below(source, offset, load), next(select(source.pointers, offset, UNLIMITED, load), None)
            below = source.pruned + sum_setsums(cut.dropped)
            # The copy ends where a fragment of the source did, which a pass may have joined with others since.
            begins, compacted = cut.first.position.offset == offset, False
            if around is not None and around.start.offset < offset:
                begins, compacted = around.num_records == around.limit.offset - around.start.offset, around.compacted
                if begins:
                    below += parquet.table_setsum(trim(self._read(around).table, None, Limits(offset=offset)))
            if begins and below == copied.setsum:
                return
            # What was dropped is known only as a sum over the whole log: nothing shows what lay below the offset.
            width = source.next.position.offset - cut.first.position.offset
            if compacted or sum(pointer.num_records for pointer in cut.pointers) < width:
                message = (
                    f"log {self._into.url}: expected log {self._from.url} to hold all records from its end on, offset"
                    f" {offset}, found that a compaction dropped some or joined them with others: copy to another name"
                )
                raise GarbageCollectedError(message)
            found = f"other records below offset {offset}"
        message = f"log {self._into.url}: expected a copy of log {self._from.url}, found {found}"
        raise InvalidRequestError(message)

    # ------------------------------------------------------------------ records

    def _begin(self, copied: Manifest, source: Manifest, cursors: CopiedCursors | None) -> Places:
        """Have the copy's cursors of writers name the appends that are about to be copied; return where those lie.

        The source's are loaded after its manifest, so they name each append that it has, or a later one of its series.
        """
        offset = copied.next.position.offset
        if cursors is None or offset == source.next.position.offset:
            return Places((), offset)
        writers = cursors.of_writers(source)
        cursors.move(writers, copied)
        return Places((each for cursor in writers.values() for each in cursor.appends), offset)

    def _append_all(self, base: Installed, source: Manifest, places: Places) -> Manifest | Displaced:
        """Append the source's fragments behind the copy's end, some in each commit."""
        end, following = base.manifest.next.position, base.manifest.next.seq_no
        offset = end.offset
        total = self._num_records + source.next.position.offset - offset
        entry = Epoch(base.manifest.last_epoch + 1, self._runtime.token(), following)
        term = WriterTerm(entry, base.manifest.fence)
        wanted = enumerate(pieces(source.pointers, offset, places, self._from.snapshots.load))
        uploaded = map_ahead(
            self._runtime,
            lambda each: (each[1], self._upload(each[1], FragmentSeqNo(following + each[0]), entry.token, places)),
            wanted,
            count=_FRAGMENTS_AHEAD,
            share=share_of(self._into.objects),
        )
        for group in groups(uploaded):
            until_s = self._runtime.monotonic_s() + self._timeout_s
            match self._committer.commit(base, term, group, until_s, copies=True):
                case Committed(base):
                    self._appended += group
                    self._num_records += sum(pointer.num_records for pointer in group)
                    self._progress(self._num_records, total)
                    if base.manifest.next.position.offset != group[-1].limit.offset:
                        # Its answer was lost, and another writer has gone on: the target may be no copy any more.
                        return Displaced(base, "another writer went on", contended=True)
                case Displaced() as displaced:
                    return displaced
                case SealedOut(sealed):
                    self._check_copy(sealed.manifest, source)
                case Failed(cause, error):
                    raise error or UnavailableError(f"log {self._into.url}: {cause}: update it again")
                case Undetermined(cause):
                    message = f"log {self._into.url}: the last records may be in it or not: {cause}: update it again"
                    raise UnavailableError(message)
        return base.manifest

    def _upload(self, piece: Piece, seq_no: FragmentSeqNo, token: str, places: Places) -> FragmentPointer:
        """Write records of a fragment of the source as a fragment of the copy's own.

        They must have the source's setsum; of those of a part of it, the source's were checked.
        """
        table, pointer = trim(self._read(piece.pointer).table, piece.start, Limits(offset=piece.limit)), piece.pointer
        if len(table) != pointer.num_records:
            times_us = table["timestamp_us"]
            pointer = replace(
                pointer,
                start=LogPosition(piece.start, times_us[0].as_py()),
                limit=LogPosition(piece.limit, times_us[-1].as_py()),
                setsum=parquet.table_setsum(table),
                num_records=len(table),
            )
        # The name of an append is in the paths of its fragments.
        naming = places.naming_at(piece.start)
        token = naming + token[len(naming) :]
        encoded = parquet.encode_table(table, seq_no=seq_no, token=token)
        copied = replace(
            pointer,
            path=fragment_path(seq_no, token),
            first_seq_no=seq_no,
            seq_no=seq_no,
            num_bytes=len(encoded.data),
            # As the source says it of a whole fragment: its snapshots are repaired from the copy's pointers.
            continues=pointer.continues if piece.start == pointer.start.offset else piece.continues,
        )
        parquet.decode(encoded.data, copied, expanded_bytes_max=FRAGMENT_EXPANDED_BYTES_MAX)
        write_immutable(self._into.objects, copied.path, bytes(encoded.data), self._options.retry, self._runtime)
        return copied

    def _read(self, pointer: FragmentPointer) -> parquet.Fragment:
        try:
            most = self._source.reading.fragment_expanded_bytes_max
            return read_fragment(self._from.objects, pointer, expanded_bytes_max=most)[1]
        except MissingError:
            first = self._from.manifests.load().manifest.first.position.offset
            if pointer.start.offset >= first:
                raise
            message = (
                f"log {self._from.url}: expected records from offset {pointer.start.offset}, found them collected"
                f" while they were copied: it begins at {first} now"
            )
            raise GarbageCollectedError(message) from None
