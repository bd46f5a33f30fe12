"""Brings a copy up to date: appends what its source has gained since, at the same positions, and moves its cursors.

The copy must hold exactly the source's records up to the copy's end. Cursors of writers are also moved before records
are appended: from the first record on, the copy knows which appends were begun. An update that was cut short leaves a
copy that is behind. Keeps INV-51. Source: docs/protocol/copies.md, "Updating a copy".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, flag, function
from wal3_core.errors import GarbageCollectedError, InvalidRequestError, MissingError, UnavailableError
from wal3_core.format import parquet
from wal3_core.format.cursor import Cursor, is_writers
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Epoch, Manifest
from wal3_core.format.named_append import NAMED_APPENDS_MAX, Places
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import Setsum
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer, sum_setsums
from wal3_core.format.strict_json import Shown
from wal3_core.log.belongings import take_cursors
from wal3_core.log.log_stores import LogStores
from wal3_core.log.maintain.copy.target import delete_retired, encode_checked, load_cursors
from wal3_core.log.read.reader import read_fragment
from wal3_core.log.read.scan import select, trim
from wal3_core.log.tree.splice import cut_below
from wal3_core.log.write.commit import Committed, Committer, Displaced, Failed, SealedOut, Undetermined, WriterTerm
from wal3_core.log.write.once import fenced
from wal3_core.log.write.snapshotter import rolled_now
from wal3_core.log.write.stats import Meter
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, UNLIMITED, Limits, WriterOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.cursor_store import Witness
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.object_store import canonical_url, share_of
from wal3_core.store.retrying import timeout_s_of

if TYPE_CHECKING:
    from wal3_core.log.maintain.copy.copier import LogAt

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
            raise InvalidRequestError(f"log {self._from.url}: expected another log to update, found itself")
        # The source after the copy, each time: another update may have copied what the source has gained since.
        base, source = self._into.manifests.load(), self._from.manifests.load()
        began = base.manifest.next.position.offset
        if with_cursors and base.manifest.follows != source.manifest.follows:
            raise InvalidRequestError(
                f"log {self._from.url}: expected the log that {self._into.url} is a copy of, to take its cursors, found"
                f" a successor of it, whose cursors say nothing of the records before: update it without cursors, or"
                f" copy that one to another name"
            )
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
            raise GarbageCollectedError(
                f"log {self._into.url}: expected its end within log {self._from.url}, which begins at offset {first},"
                f" found it at {offset}: the records between were collected: copy to another name"
            )
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
                raise GarbageCollectedError(
                    f"log {self._into.url}: expected log {self._from.url} to hold all records from its end on, offset"
                    f" {offset}, found that a compaction dropped some or joined them with others: copy to another name"
                )
            found = f"other records below offset {offset}"
        raise InvalidRequestError(f"log {self._into.url}: expected a copy of log {self._from.url}, found {found}")

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
        # As the source says it of a whole fragment: its snapshots are repaired from the copy's pointers.
        continues = pointer.continues if piece.start == pointer.start.offset else piece.continues
        pointer = replace(pointer, continues=continues)
        copied, data = encode_checked(
            table, pointer, seq_no=seq_no, token=token, expanded_bytes_max=FRAGMENT_EXPANDED_BYTES_MAX
        )
        write_immutable(self._into.objects, copied.path, data, self._options.retry, self._runtime)
        return copied

    def _read(self, pointer: FragmentPointer) -> parquet.Fragment:
        try:
            most = self._source.reading.fragment_expanded_bytes_max
            return read_fragment(self._from.objects, pointer, expanded_bytes_max=most)[1]
        except MissingError:
            first = self._from.manifests.load().manifest.first.position.offset
            if pointer.start.offset >= first:
                raise
            raise GarbageCollectedError(
                f"log {self._from.url}: expected records from offset {pointer.start.offset}, found them collected"
                f" while they were copied: it begins at {first} now"
            ) from None


# ---------------------------------------------------------------------- pieces

# Fragments of one commit: one that dies leaves as many to be copied again.
_FRAGMENTS_PER_COMMIT = 16
# Fragments of one time that are taken for one append: earlier versions did not mark those of an append.
_FRAGMENTS_OF_ONE_TIME_MAX = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """The records of a fragment of the source from ``start`` to ``limit``, which become one of the copy's own.

    ``continues`` says whether the first of them belongs to the same append as the record before.
    """

    pointer: FragmentPointer
    start: int
    limit: int
    continues: bool


def pieces(
    pointers: Iterable[Pointer], offset: int, places: Places, load: Callable[[SnapshotPointer], Snapshot]
) -> Iterator[Piece]:
    """Cut fragments where a named append begins or ends: a pass may have joined it with others."""
    for pointer in select(pointers, offset, UNLIMITED, load):
        cuts = places.cut(max(pointer.start.offset, offset), pointer.limit.offset)
        for start, limit in pairwise(cuts):
            continues = pointer.continues and start == pointer.start.offset
            yield Piece(pointer, start, limit, continues or places.continue_at(start))


def groups(copied: Iterable[tuple[Piece, FragmentPointer]]) -> Iterator[list[FragmentPointer]]:
    """Yield what one commit appends; given is each piece with the copy's own fragment of it."""
    group: list[FragmentPointer] = []
    for piece, pointer in copied:
        if len(group) >= _FRAGMENTS_PER_COMMIT and not piece.continues:
            # An append's records have one time.
            same = group[-1].limit.timestamp_us == pointer.start.timestamp_us
            if not same or len(group) >= _FRAGMENTS_OF_ONE_TIME_MAX:
                yield group
                group = []
        group.append(pointer)
    if group:
        yield group


# ---------------------------------------------------------------------- cursors


class CopiedCursors:
    """The cursors of a source and of its copy; ``moved`` names those of the copy that were created or moved."""

    def __init__(self, source: LogStores, copy: LogStores) -> None:
        self._source, self._copy = source, copy
        self._ours = copy.cursors
        self.moved: set[str] = set()

    def of_writers(self, source: Manifest) -> dict[str, Cursor]:
        """Load the source's cursors of writers, as they are after a manifest of the source was loaded."""
        return {name: each for name, each in load_cursors(self._source, source).items() if is_writers(name, each)}

    def move_all(self, copied: Manifest, source: Manifest) -> None:
        """Let the copy's cursors be where the source's are, within the copy; delete those that were deleted there."""
        self.move(load_cursors(self._source, source), copied)
        delete_retired(self._source.cursors, self._ours, source)

    def move(self, cursors: dict[str, Cursor], copied: Manifest) -> None:
        """Let cursors of the copy be where these are, within the copy."""
        # What an announced collection of the copy is about to take, no cursor can keep any more.
        first, limit = copied.first_kept.position, copied.next.position
        for name, wanted in take_cursors(cursors, first, limit).items():
            if self._move(name, wanted, limit):
                self.moved.add(name)

    def _move(self, name: str, wanted: Cursor, limit: LogPosition) -> bool:
        """Move a cursor; return whether it had to be."""
        held = self._ours.load(name)
        if held is not None:
            if _is_in_use(name, held.cursor, wanted, limit):
                return False
            both = _with_begun(held.cursor, wanted)
            if len(both.appends) <= NAMED_APPENDS_MAX:
                wanted = both
            elif (held := self._rechecked(name, held, limit)) is None:
                return False
            if _content(held.cursor) == _content(wanted):
                return False
        # The name may be another cursor's by now: nothing of the old one stays.
        self._ours.carry(name, wanted, held)
        return True

    def _rechecked(self, name: str, held: Witness, limit: LogPosition) -> Witness | None:
        """Return a cursor whose appends without a place are not in the copy, nor will be; None if the copy has grown.

        What appends one of them is refused once the cursor has another version, at the copy's next fence.
        """
        held = self._ours.save(name, held.cursor.position, held)
        return held if fenced(self._copy.manifests).next.position == limit else None


def _is_in_use(name: str, held: Cursor, wanted: Cursor, limit: LogPosition) -> bool:
    """Tell whether another process has gone on with the copy, and with the cursor.

    It is beyond what was copied here; or a writer has begun an append to the copy, as a writer's cursor only moves on.
    """
    offset = held.position.offset
    return offset > limit.offset or (is_writers(name, held) and offset > wanted.position.offset)


def _with_begun(held: Cursor, wanted: Cursor) -> Cursor:
    """Keep the appends that may just begin at the same place of the copy: they would be made again.

    These may be more than a cursor can have.
    """
    if held.position != wanted.position:
        return wanted
    appends = wanted.appends
    named, newest = {each.naming for each in appends}, {each.series: each.number for each in appends if each.series}
    ours = [
        each
        for each in held.appends
        if not each.is_done and each.naming not in named and each.number > newest.get(each.series, -1)
    ]
    later = {each.series for each in ours if each.series}
    return replace(wanted, appends=(*ours, *(each for each in appends if each.series not in later)))


def _content(cursor: Cursor) -> tuple[object, ...]:
    return cursor.position, cursor.owner, cursor.pins, cursor.extension, cursor.appends, cursor.carried_from
