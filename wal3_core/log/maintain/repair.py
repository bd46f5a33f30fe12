"""Repairs a log's damaged and missing fragments and snapshots, in place, from a copy of the log.

What is written has the setsum, positions, count and size that the log's pointer states, and replaces only the damaged
version that was read. So any number of calls may run at once, be cut short and be repeated. Source:
docs/protocol/copies.md, "Repair".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from wal3_core.arguments import checked, flag, function
from wal3_core.errors import (
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    LogNotFoundError,
    StoreDeniedError,
    UnavailableError,
)
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import (
    SNAPSHOT_FOLDER,
    LogId,
    check_fragment_path,
    fragment_folder,
    fragment_seq_no,
    is_snapshot_path,
    snapshot_path,
)
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.snapshot import BYTES_MAX, Pointer, Snapshot, SnapshotPointer, sum_setsums
from wal3_core.format.strict_json import Shown
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.reader import LogReader, read_fragment
from wal3_core.log.read.scrub import FETCHES_AHEAD, Problem, examine, still_named
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, Limits, RetryOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.object_store import (
    ObjectMeta,
    ObjectStore,
    PutOutcome,
    Unknown,
    Versioned,
    canonical_url,
    log_store,
    object_url,
    share_of,
)
from wal3_core.store.retrying import attempts, for_store

if TYPE_CHECKING:
    import pyarrow as pa

    from wal3_core.log.maintain.copy.copier import LogAt


# Bytes beyond a fragment's size that are read of a longer file, for its version.
_EXTRA_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport(Shown):
    """What a repair found damaged or missing in a log, and what became of it.

    ``repaired`` are the paths of the objects that are sound now, also if another call repaired them meanwhile; in a
    dry run, those that can be repaired. ``problems`` name the others, each with what is wrong, and why it stays so.
    ``num_fragments`` and ``num_records`` count the fragments that are sound now, or would be.
    """

    log: str
    log_id: str
    dry_run: bool
    num_fragments: int
    num_records: int
    repaired: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def complete(self) -> bool:
        """Whether everything could be repaired, or nothing had to be."""
        return not self.problems

    SHOWN = "log log_id dry_run complete num_fragments num_records repaired problems"


@checked(dry_run=flag, progress=function)
def repair_log(
    log: LogAt,
    copy: LogAt,
    *,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda _records, _total: None,
    runtime: Runtime | None = None,
) -> RepairReport:
    """Write a log's damaged and missing fragments and snapshots again, from a copy of the log.

    Reads every object that the manifest leads to. Changes neither the manifest, nor a sound object, nor one that only
    a pin keeps. A limit of ``log.reading`` that is lower than the default one counts as that: no sound fragment is
    beyond it. The copy may hold a fragment's records in other fragments; they must have its setsum. ``dry_run`` writes
    nothing. ``progress`` gets the number of records that were looked at, and of all. What the copy cannot repair
    is in the report. LogNotFoundError when either is no log, InvalidRequestError when both are the same, CorruptError
    when the log's manifest is damaged, UnavailableError when a store does not answer: what was repaired until then
    stays repaired, and the next call repairs the rest.
    """
    runtime = runtime or shared_runtime()
    report = _Repairing(log, copy, runtime, dry_run=dry_run).run(progress)
    if report.repaired and not dry_run:
        MAINTAIN.info("log %s: repaired from %s: %d objects", log.log, copy.log, len(report.repaired))
    return report


class _Repairing:
    def __init__(self, log: LogAt, copy: LogAt, runtime: Runtime, *, dry_run: bool) -> None:
        self._log = log
        # With a lower limit, a sound fragment would be taken for a damaged one.
        expanded_bytes_max = max(log.reading.fragment_expanded_bytes_max, FRAGMENT_EXPANDED_BYTES_MAX)
        self._reading = replace(log.reading, verify=True, fragment_expanded_bytes_max=expanded_bytes_max)
        self._runtime = runtime
        self._dry_run = dry_run
        self._url = log_store(log.store, log.log).url
        if canonical_url(self._url) == canonical_url(log_store(copy.store, copy.log).url):
            raise InvalidRequestError(f"log {self._url}: expected a copy of it, found itself")
        self._reader = LogReader(log.store, log.log, options=self._reading, runtime=runtime)
        self._manifest = self._reader.manifest()
        self._objects = LogStores(log.store, log.log, runtime=runtime, log_id=self._manifest.log_id).objects
        self._source = RepairSource(copy, runtime)
        self._reloads_left = log.reading.reloads_max
        self._repaired: list[str] = []
        self._problems: list[Problem] = []

    def run(self, progress: Callable[[int, int], None]) -> RepairReport:
        """Look at every object, and repair the bad ones in turn."""
        manifest, sound, records, seen = self._manifest, 0, 0, 0
        walk = self._walk(manifest.pointers, manifest.first.position.offset, manifest.next.position.offset)
        share = share_of(self._objects)
        for pointer, damage in map_ahead(
            self._runtime, partial(examine, self._reader), walk, count=FETCHES_AHEAD, share=share
        ):
            if damage is None or self._repair_fragment(pointer, damage):
                sound, records = sound + 1, records + pointer.num_records
            seen += pointer.num_records
            progress(seen, manifest.num_records)
        return RepairReport(
            log=self._log.log,
            log_id=manifest.log_id,
            dry_run=self._dry_run,
            num_fragments=sound,
            num_records=records,
            repaired=tuple(self._repaired),
            problems=tuple(self._problems),
        )

    # ------------------------------------------------------------------ what is bad

    def _walk(self, pointers: Iterable[Pointer], start: int, limit: int) -> Iterator[FragmentPointer]:
        """Go through the fragments of a range of offsets; a bad snapshot is repaired first."""
        for pointer in pointers:
            if pointer.limit.offset <= start or limit <= pointer.start.offset:
                continue
            if isinstance(pointer, FragmentPointer):
                yield pointer
                continue
            try:
                below = self._reader.load_snapshot(pointer).pointers
            except CorruptError as damage:
                below = self._below_bad(pointer, damage)
            yield from self._walk(below, start, limit)

    def _below_bad(self, pointer: SnapshotPointer, damage: CorruptError) -> tuple[Pointer, ...]:
        """Return what stood in a damaged snapshot, once it is repaired; if it was replaced meanwhile, what did that."""
        if self._is_named(pointer):
            snapshot = self._repair_snapshot(pointer, damage)
            return () if snapshot is None else snapshot.pointers
        if not self._reloads_left:
            message = f"log {self._url}: maintenance replaced what was to be read again and again: repair it again"
            raise UnavailableError(message)
        self._reloads_left -= 1
        start, limit = pointer.start.offset, pointer.limit.offset
        newest = self._reader.manifest().pointers
        return tuple(self._walk(newest, start, limit))

    def _is_named(self, pointer: Pointer) -> bool:
        """Tell whether the newest manifest leads to an object: if not, it was collected or replaced, and is done."""
        newest = self._reader.manifest()
        return still_named(self._reader, newest, pointer.path, pointer.start.offset, pointer.limit.offset)

    # ------------------------------------------------------------------ repairs

    def _repair_fragment(self, pointer: FragmentPointer, damage: CorruptError) -> bool:
        """Repair a fragment; False when it cannot be, or is not the log's any more."""
        if not self._is_named(pointer):
            return False

        def is_sound(data: bytes) -> bool:
            try:
                parquet.decode(data, pointer, expanded_bytes_max=self._reading.fragment_expanded_bytes_max)
            except CorruptError:
                return False
            return len(data) == pointer.num_bytes

        try:
            data = self._source.fragment(pointer)
            return self._write(pointer, data, is_sound, bytes_max=pointer.num_bytes + _EXTRA_BYTES_MAX)
        except UnrepairableError as error:
            self._problems.append(Problem(pointer.path, f"{damage}; not repaired: {error}"))
            return False

    def _repair_snapshot(self, pointer: SnapshotPointer, damage: CorruptError) -> Snapshot | None:
        """Repair a snapshot; None when it cannot be, or is not the log's any more."""
        try:
            snapshot = self._rebuilt(pointer)
            data = snapshot.to_bytes()
            written = self._write(pointer, data, lambda found: found == data, bytes_max=BYTES_MAX)
        except UnrepairableError as error:
            self._problems.append(Problem(pointer.path, f"{damage}; not repaired: {error}"))
            return None
        return snapshot if written else None

    def _rebuilt(self, pointer: SnapshotPointer) -> Snapshot:
        parts: Iterator[Pointer]
        if pointer.depth == 1:
            parts = own_fragments(pointer, self._source.pointers(pointer), self._objects)
        else:
            parts = own_snapshots(self._objects)
        snapshot = rebuild(pointer, parts, self._manifest.log_id, self._reader.manifest().fence)
        if snapshot is None:
            offsets = f"offsets {pointer.start.offset} to {pointer.limit.offset - 1}"
            raise UnrepairableError(
                f"the pointers to the {pointer.num_pointers} objects below it ({offsets}) were found neither in log"
                f" {self._source.url} nor beside it: restore the file from an older version of the object, or the"
                f" whole log from the copy"
            )
        return snapshot

    def _write(self, pointer: Pointer, data: bytes, is_sound: Callable[[bytes], bool], *, bytes_max: int) -> bool:
        """Write an object in place of a bad one, and read it back; False when the log needs it no more."""
        if self._dry_run:
            self._repaired.append(pointer.path)
            return True
        cause = "refused"
        for _ in attempts(for_store(RetryOptions(), self._objects), self._runtime):
            bad = self._stored(pointer, is_sound, bytes_max)
            if bad is None or not is_sound(bad.data):
                # After the read: what is named now is not deleted until an interval later.
                if not self._is_named(pointer):
                    return False
                outcome = self._put(pointer.path, data, bad)
                cause = outcome.cause if isinstance(outcome, Unknown) else cause
                # Whatever the answer was: only the object shows what stands there now.
                bad = self._stored(pointer, is_sound, bytes_max)
            if bad is not None and is_sound(bad.data):
                self._repaired.append(pointer.path)
                return True
        message = f"{object_url(self._objects, pointer.path)}: not repaired: {cause}: repair the log again"
        raise UnavailableError(message)

    def _put(self, path: str, data: bytes, bad: Versioned | None) -> PutOutcome:
        try:
            return self._objects.create(path, data) if bad is None else self._objects.replace(path, data, bad.etag)
        except StoreDeniedError:
            raise
        except UnavailableError as error:
            # It was not sent, for lack of a lock or a file descriptor: retried while there is time.
            return Unknown(str(error))

    def _stored(self, pointer: Pointer, is_sound: Callable[[bytes], bool], bytes_max: int) -> Versioned | None:
        """Return what is stored; read once more if it is not sound, as that may be damage in transit."""
        found = self._get(pointer, bytes_max)
        return found if found is not None and is_sound(found.data) else self._get(pointer, bytes_max)

    def _get(self, pointer: Pointer, bytes_max: int) -> Versioned | None:
        try:
            found = self._objects.get(pointer.path, length_max=bytes_max)
        except CorruptError as error:
            raise UnrepairableError(f"{error}: delete this object by hand, then repair the log again") from error
        assert found is None or isinstance(found, Versioned)
        return found


T = TypeVar("T")


class UnrepairableError(LogError):
    """An object cannot be repaired; the message says why, and what helps."""


class RepairSource:
    """A copy of the log, in any fragments."""

    def __init__(self, copy: LogAt, runtime: Runtime) -> None:
        self._reading = replace(copy.reading, verify=True)
        self._stores = LogStores(copy.store, copy.log, runtime=runtime, retry=copy.reading.retry)
        self.url = self._stores.url
        try:
            self._reader = LogReader.open(copy.store, copy.log, options=self._reading, runtime=runtime)
        except LogNotFoundError as error:
            message = f"log {self.url}: expected a copy to repair from, found no log: name the copy's store and log"
            raise LogNotFoundError(message) from error

    def fragment(self, pointer: FragmentPointer) -> bytes:
        """Return the bytes that a pointer of the log names; UnrepairableError when the copy does not give them."""
        own = self._same_file(pointer)
        data = self._encoded(pointer) if own is None else own
        try:
            parquet.decode(data, pointer, expanded_bytes_max=self._reading.fragment_expanded_bytes_max)
        except CorruptError as error:
            raise UnrepairableError(f"the records in log {self.url} do not give this fragment: {error}") from error
        return data

    def pointers(self, pointer: Pointer) -> list[FragmentPointer]:
        """List the copy's fragments of a pointer's range; UnrepairableError when it lacks some of it."""
        return self._within(pointer, self._reader.scan)

    def _same_file(self, pointer: FragmentPointer) -> bytes | None:
        """Return the copy's file at the fragment's path, if it is that fragment's: a full copy has the same files."""
        try:
            most = self._reading.fragment_expanded_bytes_max
            return read_fragment(self._stores.objects, pointer, expanded_bytes_max=most)[0]
        except CorruptError:
            return None

    def _encoded(self, pointer: FragmentPointer) -> bytes:
        """Encode the fragment's records as its writer did, under its own number and token."""
        records = self._within(pointer, lambda start, limits: list(self._reader.records(start, limits)))
        if len(records) > pointer.num_records:
            why = f"the log's compaction kept {pointer.num_records} of their {len(records)} records, and which is lost"
            raise self._lacking(pointer, why)
        if len(records) < pointer.num_records:
            raise self._lacking(pointer, f"it has {len(records)} of their {pointer.num_records} records")
        made = self._made_as(pointer, parquet.table_of(records))
        if made.setsum != pointer.setsum:
            otherwise = ", or was compacted otherwise" if pointer.compacted else ""
            raise UnrepairableError(
                f"log {self.url} is no copy of this log{otherwise}: expected records of setsum {pointer.setsum}, found"
                f" {made.setsum}"
            )
        if len(made.data) != pointer.num_bytes:
            raise UnrepairableError(
                f"log {self.url} has the records, but this version of wal3 or pyarrow encodes them in"
                f" {len(made.data)} bytes, not {pointer.num_bytes}: repair with the versions that wrote the log, or"
                f" restore the whole log from the copy"
            )
        return bytes(made.data)

    def _made_as(self, pointer: FragmentPointer, table: pa.Table) -> parquet.EncodedFragment:
        """Encode records as this version does, or else as one did that gives the size stated."""
        token, seq_no = check_fragment_path(pointer.path, pointer.seq_no), pointer.seq_no
        made = parquet.encode_table(table, seq_no=seq_no, token=token)
        for earlier in parquet.EARLIER_KEY_METADATA:
            if len(made.data) != pointer.num_bytes:
                made = parquet.encode_table(table, seq_no=seq_no, token=token, key_metadata=earlier)
        # A pass may have arranged it by key.
        arranged = len(made.data) != pointer.num_bytes
        return parquet.encode_arranged(table, seq_no=seq_no, token=token) if arranged else made

    def _within(self, pointer: Pointer, load: Callable[[int, Limits], list[T]]) -> list[T]:
        try:
            return load(pointer.start.offset, Limits(offset=pointer.limit.offset))
        except (GarbageCollectedError, InvalidRequestError, CorruptError) as error:
            raise self._lacking(pointer, f"they cannot be read there: {error}") from error

    def _lacking(self, pointer: Pointer, why: str) -> UnrepairableError:
        """Say which offsets the copy does not give: because it ends before them, or why else."""
        limit = self._reader.manifest().next.position.offset
        why = f"the copy ends at offset {limit - 1}" if limit < pointer.limit.offset else why
        offsets = f"offsets {pointer.start.offset} to {pointer.limit.offset - 1}"
        return UnrepairableError(f"log {self.url}: expected {offsets}, found that {why}")


# Chains that are tried: orphans with the numbers and sizes of its fragments make several fit.
_CHAINS_MAX = 64


def rebuild(pointer: SnapshotPointer, parts: Iterable[Pointer], log_id: LogId, fence: int) -> Snapshot | None:
    """Return the snapshot that a pointer names, if its pointers are among ``parts``; ``fence`` is the log's."""
    by_start: dict[int, list[Pointer]] = {}
    for part in parts:
        by_start.setdefault(part.start.offset, []).append(part)
    for chain in islice(_chains(by_start, pointer), _CHAINS_MAX):
        # Its upload began under the log's fence of that time.
        for earlier in range(fence, -1, -1):
            snapshot = Snapshot(chain, earlier, log_id)
            if snapshot_path(pointer.setsum, snapshot.to_bytes()) == pointer.path:
                return snapshot
    return None


def _chains(by_start: Mapping[int, list[Pointer]], whole: SnapshotPointer) -> Iterator[tuple[Pointer, ...]]:
    """Go through the runs of pointers without a gap that have a snapshot's range, size and setsum."""
    begun: list[tuple[Pointer, ...]] = [()]
    while begun:
        chain = begun.pop()
        at = chain[-1].limit.offset if chain else whole.start.offset
        if at == whole.limit.offset:
            fits = (len(chain), sum(part.num_bytes for part in chain)) == (whole.num_pointers, whole.num_bytes)
            if fits and sum_setsums(chain) == whole.setsum:
                yield chain
        elif at < whole.limit.offset and len(chain) < whole.num_pointers:
            begun += [(*chain, part) for part in by_start.get(at, ())]


def own_fragments(
    pointer: SnapshotPointer, copied: Iterable[FragmentPointer], objects: ObjectStore
) -> Iterator[FragmentPointer]:
    """Go through the pointers that a lost snapshot of fragments may have held.

    The copy has the positions and setsums, the log's own files have the paths and sizes.
    """
    numbers = [FragmentSeqNo(number) for number in range(pointer.first_seq_no, pointer.last_seq_no + 1)]
    stored: dict[FragmentSeqNo, list[ObjectMeta]] = {number: [] for number in numbers}
    for folder in sorted({fragment_folder(number) for number in numbers}):
        for meta in objects.list_objects(folder):
            # A foreign file is no fragment.
            with suppress(CorruptError):
                stored.get(fragment_seq_no(meta.path), []).append(meta)
    for part in _numbered(numbers, list(copied)):
        if part.path:
            # Its own file may be damaged: a full copy has its path and size.
            yield part
        for meta in stored.get(part.seq_no, []):
            if meta.path != part.path or meta.size != part.num_bytes:
                yield replace(part, path=meta.path, num_bytes=meta.size)


def _numbered(numbers: Sequence[FragmentSeqNo], copied: Sequence[FragmentPointer]) -> Iterator[FragmentPointer]:
    """Give a copy's fragments the log's numbers; those of an updated copy have their own, and no path is known.

    A compaction gives a fragment the numbers of the run that it stands for, which only a full copy has.
    """
    if len(numbers) != len(copied):
        yield from copied
        return
    for number, part in zip(numbers, copied, strict=True):
        yield part if part.seq_no == number else replace(part, path="", first_seq_no=number, seq_no=number)


def own_snapshots(objects: ObjectStore) -> Iterator[SnapshotPointer]:
    """Go through the pointers to the log's stored snapshots that are sound."""
    for meta in objects.list_objects(SNAPSHOT_FOLDER):
        if not is_snapshot_path(meta.path):
            continue
        data = objects.read(meta.path, length=BYTES_MAX + 1)
        # The sound ones may be all that are needed.
        with suppress(CorruptError):
            if data is not None:
                yield Snapshot.pointer_of(data, meta.path)
