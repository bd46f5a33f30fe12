"""Staged appends: processes upload fragments, one of them installs them in a log: all in one manifest CAS, or none.

A fragment is encoded as if it came next in the log; an install encodes it again where it does not. What is never
installed is an orphan, as the fragments of a writer that died, and is collected as one.

With ``Once``, an append that is repeated is done once, and compared with what the log has of it, as a multiset: tasks
may stage their rows in another order the second time. What was compacted or collected since cannot be compared, nor
what is no longer staged. Source: docs/protocol/staged.md, "Staged appends". Keeps INV-4 and INV-11.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.arguments import checked, instance_of, optional, several
from wal3_core.errors import (
    ContentionError,
    GarbageCollectedError,
    InvalidRequestError,
    KeyRequiredError,
    LogReplacedError,
    NotDurableError,
    UnavailableError,
    UnknownDurabilityError,
)
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Epoch, Manifest
from wal3_core.format.named_append import NamedAppend
from wal3_core.format.parquet import table_setsum
from wal3_core.format.parquet.encoding import encode_table
from wal3_core.format.paths import LogId, check_log_name
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import select
from wal3_core.log.write.appends import pointer_to, sealed_error, view_required
from wal3_core.log.write.columns import check_each, lengths_of
from wal3_core.log.write.commit import (
    Committed,
    Committer,
    Displaced,
    Failed,
    LogClock,
    SealedOut,
    Undetermined,
    WriterTerm,
)
from wal3_core.log.write.once import IdempotentAppend, Kept, Once
from wal3_core.log.write.snapshotter import rolled_now
from wal3_core.log.write.stats import Meter
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, Limits, ReaderOptions, WriterOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime, wall_us
from wal3_core.runtime.loggers import WRITER
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, a_store, log_store, object_url
from wal3_core.store.retrying import delivery_s_of, reread_if_damaged, with_retries

if TYPE_CHECKING:
    from wal3_core.log.write.columns import Lengths


MESSAGE_SCHEMA = pa.schema([("key", pa.large_binary()), ("body", pa.large_binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFragment:
    """A fragment that waits to be installed in one life of a log.

    It was encoded for the place in its pointer, under that fence. ``num_bytes`` are those of keys and bodies.
    ``keyless``: one of its records has no key. ``log_end`` is the offset at which the log ended when staging began.
    """

    pointer: FragmentPointer
    log_id: LogId
    fence: int
    num_bytes: int
    keyless: bool
    log_end: int


class Stager:
    """Stages records of one append to one log, in order. Not safe to share between threads."""

    @checked(store=a_store, log=check_log_name)
    def __init__(
        self, store: ObjectStore, log: str, *, options: WriterOptions | None = None, runtime: Runtime | None = None
    ) -> None:
        """Open the log: one GET. LogNotFoundError when it was never created."""
        self._runtime = runtime or shared_runtime()
        self._options = options or WriterOptions()
        inside = with_retries(log_store(store, log), self._runtime, self._options.retry)
        self._manifests = ManifestStore(inside, self._runtime, self._options.retry)
        manifest = self._manifests.load().manifest
        if not manifest.is_of(self._options.view):
            raise view_required(self._manifests.url, manifest.view, self._options.view)
        self._keyed, self._fence, self._log_id = manifest.keyed, manifest.fence, manifest.log_id
        self._place = manifest.next
        self._log_end = manifest.next.position.offset
        # One for all that it stages: an append whose fragments are installed as they are has one time.
        self._time_us = max(wall_us(self._runtime), self._place.position.timestamp_us)
        # A new one for each stager, as for each writer term: paths are never used again.
        self._token = self._runtime.token()

    @checked(table=instance_of(pa.Table))
    def stage(self, table: pa.Table) -> list[StagedFragment]:
        """Upload records, given as the columns key and body of ``MESSAGE_SCHEMA``; they are durable when this returns.

        InvalidRequestError names a row that cannot be a record; then nothing of the table is staged. UnavailableError
        when the store does not answer.
        """
        if table.schema != MESSAGE_SCHEMA:
            raise InvalidRequestError(f"stage: expected columns {_named(MESSAGE_SCHEMA)}, found {_named(table.schema)}")
        if not len(table):
            return []
        sizes = self._sizes(table)
        return [self._stage(table.slice(low, high - low), int(sizes[low:high].sum())) for low, high in self._cut(sizes)]

    def _sizes(self, table: pa.Table) -> Lengths:
        """Return the rows' sizes in bytes, after checking each row."""
        sizes = {name: lengths_of(name, table[name]) for name in MESSAGE_SCHEMA.names}
        missing = {name: table[name].is_null().to_numpy() for name in MESSAGE_SCHEMA.names}
        check_each("stage: row", sizes, missing, self._options.record_bytes_max)
        if self._keyed and missing["key"].any():
            # The policy may have been changed since.
            self._keyed = self._manifests.load().manifest.keyed
            if self._keyed:
                raise key_required(self._manifests.url)
        return sizes["key"] + sizes["body"]

    def _cut(self, sizes: Lengths) -> Iterator[tuple[int, int]]:
        """Cut rows into fragments of the options' size; each has at least one row."""
        ends, low = sizes.cumsum(), 0
        while low < len(sizes):
            before = int(ends[low - 1]) if low else 0
            fits = int(np.searchsorted(ends, before + self._options.batch_bytes_max, side="right"))
            high = min(len(sizes), low + self._options.batch_records_max, max(low + 1, fits))
            yield low, high
            low = high

    def _stage(self, table: pa.Table, num_bytes: int) -> StagedFragment:
        place = self._place
        start = LogPosition(place.position.offset, self._time_us)
        pointer = write_fragment(
            self._manifests.objects,
            place_records(table, start),
            place.seq_no,
            self._token,
            self._options,
            self._runtime,
        )
        self._place = Boundary(FragmentSeqNo(pointer.seq_no + 1), pointer.limit)
        keyless = table["key"].null_count > 0
        return StagedFragment(
            pointer=pointer,
            log_id=self._log_id,
            fence=self._fence,
            num_bytes=num_bytes,
            keyless=keyless,
            log_end=self._log_end,
        )


def place_records(table: pa.Table, start: LogPosition) -> pa.Table:
    """Give the records of a table, with the columns key and body, their offsets and one timestamp."""
    count = len(table)
    offsets = np.arange(start.offset, start.offset + count, dtype=np.uint64)
    timestamps_us = np.full(count, start.timestamp_us, dtype=np.uint64)
    columns = [pa.array(offsets), pa.array(timestamps_us), table["key"], table["body"]]
    return pa.table(columns, names=["offset", "timestamp_us", "key", "body"])


def write_fragment(
    store: ObjectStore, table: pa.Table, seq_no: FragmentSeqNo, token: str, options: WriterOptions, runtime: Runtime
) -> FragmentPointer:
    """Encode records that have their places, and make them durable; nothing names them yet."""
    encoded = encode_table(table, seq_no=seq_no, token=token)
    start = LogPosition(table["offset"][0].as_py(), table["timestamp_us"][0].as_py())
    pointer = pointer_to(encoded, seq_no, token, start, len(table))
    write_immutable(store, pointer.path, encoded.data, options.retry, runtime)
    return pointer


def key_required(url: str) -> KeyRequiredError:
    """Return the error of a log that takes no record without a key."""
    return KeyRequiredError(
        f"log {url}: expected a key in each row, found none in some: the log is keyed, since its policy compacts it"
    )


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """What became of an append; ``repeated``: the log had it already, and what was staged now is not used."""

    log: str
    num_records: int
    num_fragments: int
    repeated: bool


@checked(store=a_store, log=check_log_name, staged=several, once=optional(instance_of(Once)))
def install_staged(
    store: ObjectStore,
    log: str,
    staged: Iterable[StagedFragment],
    *,
    once: Once | None = None,
    options: WriterOptions | None = None,
    runtime: Runtime | None = None,
) -> InstallReport:
    """Append what was staged, in the order given, in one commit: all or nothing.

    Errors as ``LogWriter.append``: NotDurableError (ContentionError, SealedError, KeyRequiredError) when nothing of it
    is in the log and never will be, also when the log has other records under its name; UnknownDurabilityError when
    that is unknown, as when staged objects of an append without a name are gone: collected, or installed before.
    LogReplacedError when it was staged for another log of this name.
    """
    parts = list(staged)
    if not parts:
        return InstallReport(log=log, num_records=0, num_fragments=0, repeated=False)
    return _Installing(store, log, parts, once, options or WriterOptions(), runtime or shared_runtime()).run()


class _Installing:
    """One append."""

    def __init__(
        self,
        store: ObjectStore,
        log: str,
        parts: Sequence[StagedFragment],
        once: Once | None,
        options: WriterOptions,
        runtime: Runtime,
    ) -> None:
        log_id = parts[0].log_id
        others = {part.log_id for part in parts} - {log_id}
        if others:
            raise LogReplacedError(
                f"log {log}: expected all to be staged for log {log_id}, found some for {min(others)}: stage again"
            )
        self._store, self._log, self._parts = store, log, parts
        self._options, self._runtime = options, runtime
        self._manifests = ManifestStore(
            with_retries(log_store(store, log), runtime, options.retry), runtime, options.retry, log_id=log_id
        )
        self._snapshots = SnapshotStore(self._manifests, runtime, loaded_max=options.snapshots.loaded_max)
        self._clock = LogClock(self._manifests.objects, runtime, options)
        meter = Meter(runtime, log)
        amend = partial(rolled_now, snapshots=self._snapshots, options=options, failed=meter.roll_failed)
        self._committer = Committer(self._manifests, self._snapshots, runtime, options, amend=amend, meter=meter)
        self._naming = ""
        self._remembering: IdempotentAppend | None = None
        if once is not None:
            cursors = CursorStore(store, log, runtime=runtime, retry=options.retry, log_id=log_id)
            self._remembering = IdempotentAppend(once, log, self._manifests, self._snapshots, cursors)

    def run(self) -> InstallReport:
        """Append; see ``install_staged``."""
        kept = None
        if self._remembering is not None:
            kept = self._remembering.begin(min(part.log_end for part in self._parts))
            self._naming = kept.append.naming
        base = self._manifests.load()
        for _ in range(self._options.contentions_max + 1):
            found = self._repeated(base.manifest, kept) or self._append(base)
            if not isinstance(found, Displaced):
                return found
            base = found.base
        raise ContentionError(
            f"log {self._manifests.url}: other writers took the place {self._options.contentions_max + 1} times over"
        )

    def _repeated(self, manifest: Manifest, kept: Kept | None) -> InstallReport | None:
        """Return the report of an append that the log has; None if it has to be made on this manifest."""
        held = self._as_staged(manifest)
        if self._remembering is None or kept is None:
            self._check_whole(manifest, held)
            return self._report(held, manifest, repeated=True) if held else None
        done = self._remembering.find(manifest, kept)
        if done is None:
            self._remembering.check_kept(kept)
            self._check_unnamed(held)
            return None
        count = sum(part.pointer.num_records for part in self._parts)
        staged = (self._read(part.pointer) for part in self._parts)
        check_rows(self._remembering.once, self._log, done, self._held(done.start, done.limit), staged, count)
        return self._report(held, manifest, repeated=True)

    def _check_unnamed(self, held: Sequence[FragmentPointer]) -> None:
        """Refuse to append under a name what was installed without it, and to delete the log's own as not used."""
        if held:
            raise UnknownDurabilityError(
                f"log {self._manifests.url}: expected what no install has put there, found {held[0].path}, which was"
                f" staged for this append, and installed before without its name: the log has it"
            )

    def _check_whole(self, manifest: Manifest, held: Sequence[FragmentPointer]) -> None:
        """Refuse an append of which a part was installed by itself: the rest of it is not in the log.

        Where the rest is no longer staged, it was written again, if one commit has as many records; else an orphan
        was collected.
        """
        num_parts = len({part.pointer.path for part in self._parts})
        if not held or len(held) == num_parts:
            return
        start, count = held[0].start.offset, sum(part.pointer.num_records for part in self._parts)
        rows = self._held(start, min(start + count, manifest.next.position.offset))
        num_offsets = num_offsets_with(manifest, held[0], count, self._snapshots.load)
        try:
            staged = (self._read(part.pointer) for part in self._parts)
            same = num_offsets in (None, count) and _setsum(staged, count) == _setsum(rows, count) is not None
        except UnknownDurabilityError:
            if num_offsets == count:
                return
            raise
        if not same:
            raise UnknownDurabilityError(
                f"log {self._manifests.url}: expected all {num_parts} staged fragments, or none, found {len(held)} of"
                f" them, and other records behind, or none: they were installed by themselves: install the others alone"
            )

    def _held(self, start: int, limit: int) -> Iterator[pa.Table]:
        """Read what the log has from the offset ``start`` to ``limit``."""
        log_id = self._parts[0].log_id
        reader = LogReader(self._store, self._log, options=ReaderOptions(), runtime=self._runtime, log_id=log_id)
        for batch in reader.batches(start, Limits(offset=limit)):
            yield pa.Table.from_batches([batch])

    def _as_staged(self, manifest: Manifest) -> list[FragmentPointer]:
        """Return the fragments that the log has as they were staged: the append was installed before."""
        staged = {part.pointer.path: part.pointer for part in self._parts}
        start = min(pointer.start for pointer in staged.values())
        limit = Limits(offset=max(pointer.limit.offset for pointer in staged.values()))
        return [each for each in select(manifest.pointers, start, limit, self._snapshots.load) if each.path in staged]

    # ------------------------------------------------------------------ one try

    def _append(self, base: Installed) -> InstallReport | Displaced:
        manifest, keyless = base.manifest, any(part.keyless for part in self._parts)
        self._check_takes(base, keyless=keyless)
        first = self._parts[0].pointer
        if first.start.offset < max(manifest.compaction.clean_limit, manifest.compaction.arranged):
            rows = self._held(first.start.offset, first.limit.offset)
            check_not_compacted(self._manifests.url, first, rows, self._read)
        token = self._naming + self._runtime.token()[len(self._naming) :]
        term = WriterTerm(Epoch(manifest.last_epoch + 1, token, manifest.next.seq_no), manifest.fence)
        pointers = list(self._place(manifest, token))
        until_s = self._runtime.monotonic_s() + delivery_s_of(self._options, self._manifests.url)
        result = self._clock.refusal(base, pointers, until_s) or self._committer.commit(
            base, term, pointers, until_s, keyless=keyless
        )
        match result:
            case Committed(now):
                self._runtime.publish(self._manifests.url)
                return self._report(pointers, now.manifest, repeated=False)
            case Displaced():
                return result
            case SealedOut(found):
                assert found.manifest.seal is not None
                raise sealed_error(self._manifests.url, found.manifest.seal)
            case Failed(_, error) if error is not None and not isinstance(error, Exception):
                # An interrupt.
                raise error
            case Failed(cause, error):
                raise NotDurableError(f"log {self._manifests.url}: {cause}") from error
            case Undetermined(cause):
                raise UnknownDurabilityError(f"log {self._manifests.url}: {cause}")

    def _check_takes(self, base: Installed, *, keyless: bool) -> None:
        if base.manifest.seal is not None:
            raise sealed_error(self._manifests.url, base.manifest.seal)
        if not base.manifest.is_of(self._options.view):
            raise view_required(self._manifests.url, base.manifest.view, self._options.view)
        if base.manifest.keyed and keyless:
            raise key_required(self._manifests.url)

    def _place(self, manifest: Manifest, token: str) -> Iterator[FragmentPointer]:
        """Put what was staged at the log's end: fragments as they are where they fit, or written again."""
        groups = list(_groups(self._parts, self._options))
        todo: list[tuple[FragmentSeqNo, LogPosition, list[StagedFragment]]] = []
        seq_no, start = manifest.next.seq_no, self._start(manifest, groups[0])
        for group in groups:
            todo.append((seq_no, start, group))
            seq_no = FragmentSeqNo(seq_no + 1)
            start = replace(start, offset=start.offset + sum(part.pointer.num_records for part in group))

        def put(each: tuple[FragmentSeqNo, LogPosition, list[StagedFragment]]) -> FragmentPointer:
            found = self._fitting(manifest, *each) or self._write(*each, token)
            # No commit of an update of a copy ends between them.
            return replace(found, continues=each[0] != manifest.next.seq_no)

        return map_ahead(self._runtime, put, todo, count=self._options.uploads_max)

    def _start(self, manifest: Manifest, first: Sequence[StagedFragment]) -> LogPosition:
        """Return where the append begins, with the one time of all its records.

        It is that of the first fragment, if that one fits as it is.
        """
        place = manifest.next.position
        new = LogPosition(place.offset, max(self._clock.now_us(), place.timestamp_us))
        staged = first[0].pointer.start
        timely = place.timestamp_us <= staged.timestamp_us <= new.timestamp_us
        return staged if timely and self._fitting(manifest, manifest.next.seq_no, staged, first) else new

    def _fitting(
        self, manifest: Manifest, seq_no: FragmentSeqNo, start: LogPosition, group: Sequence[StagedFragment]
    ) -> FragmentPointer | None:
        """Return a fragment that was staged for just this place; None if it has to be written again.

        The name of an append is in the paths of its fragments, so one with a name is always written again.
        """
        part, pointer = group[0], group[0].pointer
        fits = (pointer.seq_no, pointer.start, part.fence) == (seq_no, start, manifest.fence)
        return pointer if len(group) == 1 and fits and not self._naming else None

    def _write(
        self, seq_no: FragmentSeqNo, start: LogPosition, group: Sequence[StagedFragment], token: str
    ) -> FragmentPointer:
        tables = [self._read(part.pointer).select(MESSAGE_SCHEMA.names).cast(MESSAGE_SCHEMA) for part in group]
        table = place_records(pa.concat_tables(tables), start)
        return write_fragment(self._manifests.objects, table, seq_no, token, self._options, self._runtime)

    def _read(self, pointer: FragmentPointer) -> pa.Table:
        return reread_if_damaged(lambda: self._decoded(pointer), self._manifests)

    def _decoded(self, pointer: FragmentPointer) -> pa.Table:
        store = self._manifests.objects
        what = f"staged fragment ({object_url(store, pointer.path)})"
        data = store.read(pointer.path, length=pointer.num_bytes + 1)
        if data is None:
            taken = "a collection of orphans took it, as the append took longer than the interval"
            if self._remembering is not None:
                # The log was searched for the append.
                raise NotDurableError(f"{what}: expected what was staged, found none: {taken}: stage it again")
            raise UnknownDurabilityError(
                f"{what}: expected what was staged, found none: {taken}, or it was installed before: read the log"
                f" before staging it again"
            )
        return parquet.decode(data, pointer, expanded_bytes_max=FRAGMENT_EXPANDED_BYTES_MAX, what=what).table

    def _report(self, pointers: Sequence[FragmentPointer], manifest: Manifest, *, repeated: bool) -> InstallReport:
        """Delete the staged objects that the log does not use; what that leaves is collected as orphans.

        So is what would fit at the log's end: another install may be putting it there as it is.
        """
        used, end = {pointer.path for pointer in pointers}, manifest.next.position.offset
        parts = (part.pointer for part in self._parts if part.pointer.start.offset < end)
        unused = [pointer.path for pointer in parts if pointer.path not in used]
        with contextlib.suppress(UnavailableError):
            for _ in map_ahead(self._runtime, self._manifests.objects.delete, unused, count=self._options.uploads_max):
                pass
        return InstallReport(
            log=self._log,
            num_records=sum(part.pointer.num_records for part in self._parts),
            num_fragments=0 if repeated else len(pointers),
            repeated=repeated,
        )


def _groups(parts: Iterable[StagedFragment], options: WriterOptions) -> Iterator[list[StagedFragment]]:
    """Join small fragments to those of the options' size."""
    group: list[StagedFragment] = []
    for part in parts:
        joined = [*group, part]
        if group and (
            sum(each.num_bytes for each in joined) > options.batch_bytes_max
            or sum(each.pointer.num_records for each in joined) > options.batch_records_max
        ):
            yield group
            joined = [part]
        group = joined
    if group:
        yield group


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
                raise UnknownDurabilityError(
                    f"log {url}: expected what no install has put there, found records of {staged.path} at its offset"
                    f" {staged.start.offset}: installed before without a name, and compacted since: the log has it"
                )


def _has_row(staged: pa.Table, row: pa.Table) -> bool:
    found: pa.Table = staged.filter(pc.equal(staged["offset"], row["offset"][0])).select(row.column_names)
    return bool(found.to_pylist() == row.to_pylist())


def num_offsets_with(
    manifest: Manifest, fragment: FragmentPointer, count: int, load: Callable[[SnapshotPointer], Snapshot]
) -> int | None:
    """Return how many offsets its commit has, looking at ``count`` around it; None if that is not known any more.

    An install is an epoch of its own, of one commit. The manifest forgets epochs, and a pass joins fragments.
    """
    bounds = [*(epoch.first_seq_no for epoch in manifest.epochs), manifest.next.seq_no]
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
