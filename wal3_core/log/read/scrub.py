"""Scrub: read a log back, whole or a range of it, and check every object.

Checks the manifest's invariants, every snapshot, every fragment, the whole log's balance, that every
cursor is readable and lies in the log, and that key roll-ups are those of their fragments. After
damage the rest is still checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from wal3_core.arguments import checked, function, instance_of, optional
from wal3_core.errors import CorruptError, InvalidRequestError, LogNotFoundError, MissingError
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import offset_of
from wal3_core.log.read.scrub_key_rollups import KeyRollupScrub
from wal3_core.log.read.scrub_report import Problem, ScrubReport
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.paths import MANIFEST, check_log_name
from wal3_core.model.position import read_start
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import Runtime, a_runtime, map_ahead, shared_runtime
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.documents.manifest_store import ManifestStore, lost_manifest
from wal3_core.storage.object_store import a_store, log_store, share_of
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.position import ReadStart
    from wal3_core.model.snapshot import Pointer
    from wal3_core.storage.object_store import ObjectStore

__all__ = ["Problem", "ScrubReport", "cursor_problems", "pruned_where_gaps", "scrub", "still_named"]

_FETCHES_AHEAD = 4


class _Counts(TypedDict):
    num_records: int
    num_bytes: int
    num_fragments: int
    found: str


@dataclass(slots=True)
class _Tally:
    """What was found so far, from ``begin`` on; ``missing`` may yet turn out to have been collected or replaced."""

    begin: int = 0
    setsum: Setsum = EMPTY
    num_records: int = 0
    num_bytes: int = 0
    num_fragments: int = 0
    range: tuple[int, int] | None = None
    problems: list[Problem] = field(default_factory=list)
    missing: list[tuple[Pointer, MissingError]] = field(default_factory=list)

    def blame(self, pointer: Pointer, error: CorruptError) -> None:
        """Record a bad object."""
        self._pass(max(pointer.start.offset, self.begin), pointer)
        if isinstance(error, MissingError):
            self.missing.append((pointer, error))
        else:
            self.problems.append(Problem(pointer.path, str(error)))

    def add(self, pointer: FragmentPointer) -> None:
        """Record a sound fragment."""
        self._pass(pointer.start.offset, pointer)
        self.setsum += pointer.setsum
        self.num_records += pointer.num_records
        self.num_bytes += pointer.num_bytes
        self.num_fragments += 1

    @property
    def counts(self) -> _Counts:
        """What is sound, as a report counts it."""
        return {
            "num_records": self.num_records,
            "num_bytes": self.num_bytes,
            "num_fragments": self.num_fragments,
            "found": self.setsum.hexdigest(),
        }

    def _pass(self, start: int, pointer: Pointer) -> None:
        first, following = self.range or (start, start)
        # A bad snapshot is reported before the fragments that lie before it.
        self.range = min(first, start), max(following, pointer.limit.offset)


@checked(
    store=a_store,
    log=check_log_name,
    start=read_start,
    limits=instance_of(Limits),
    runtime=optional(a_runtime),
    progress=function,
)
def scrub(
    store: ObjectStore,
    log: str,
    start: ReadStart = None,
    limits: Limits = UNLIMITED,
    *,
    runtime: Runtime | None = None,
    progress: Callable[[int, int], None] = lambda _records, _total: None,
) -> ScrubReport:
    """Read a log back, whole or the fragments that a range touches.

    A range's report says where the next one begins, and reports of adjoining ranges add up: so a long
    scrub can be continued, in another process as well. Cursors are checked by the range that reaches
    the log's end, and setsums compared when the ranges cover the log. ``progress`` gets the number of
    records read and of all records. Raises LogNotFoundError when there is no log,
    InvalidRequestError for a start beyond its end, UnavailableError when the store does not answer;
    anything wrong with the log itself is in the report.
    """
    runtime = runtime or shared_runtime()
    reader = LogReader(store, log, options=ReaderOptions(), runtime=runtime)
    manifest = _load_manifest(reader, log_store(store, log), runtime)
    if isinstance(manifest, Problem):
        return _unread(log, manifest)
    begin = _begin(manifest, start)
    tally = _Tally(begin=offset_of(begin) or 0)
    walk = reader.walk(manifest, begin, limits, on_damage=tally.blame)
    share = share_of(log_store(store, log))
    for pointer, damage in map_ahead(runtime, partial(_examine, reader), walk, count=_FETCHES_AHEAD, share=share):
        tally.add(pointer) if damage is None else tally.blame(pointer, damage)
        progress(tally.num_records, manifest.num_records)
    lost = list(_lost(reader, tally))
    first, following = tally.range or (_nowhere(manifest, begin),) * 2
    tally.problems += [*lost, *KeyRollupScrub(store, log, reader, manifest, runtime).problems(first, following)]
    if following >= manifest.next.position.offset:
        tally.problems += cursor_problems(store, log, runtime, manifest)
    whole, asked = begin is None and len(lost) == len(tally.missing), offset_of(begin) or first
    return ScrubReport(
        log=log,
        log_id=manifest.log_id,
        setsum=manifest.setsum.hexdigest(),
        num_snapshots=walk.num_opened,
        problems=tuple(tally.problems),
        first_offset=first,
        next_offset=following,
        end_offset=manifest.next.position.offset,
        covered=(manifest.pruned + tally.setsum).hexdigest() if whole else None,
        asked_offset=asked if first < asked else None,
        pruned=pruned_where_gaps(manifest),
        **tally.counts,
    ).weighed()


def _begin(manifest: Manifest, start: ReadStart) -> ReadStart:
    """Return where to begin, None for the log's first fragment: what lay below was collected, which is no damage."""
    offset, end = offset_of(start), manifest.next.position.offset
    if offset is None:
        return start
    if not 1 <= offset <= end:
        message = f"scrub: expected an offset from 1 to {end}, found {offset}"
        raise InvalidRequestError(message)
    return None if offset <= manifest.first.position.offset else offset


def pruned_where_gaps(manifest: Manifest) -> str | None:
    """Return the setsum of what was pruned if that includes records among those that the log holds, else None."""
    num_offsets = manifest.next.position.offset - manifest.first.position.offset
    return manifest.pruned.hexdigest() if manifest.num_records < num_offsets else None


def _examine(reader: LogReader, pointer: FragmentPointer) -> tuple[FragmentPointer, CorruptError | None]:
    try:
        reader.fetch(pointer)
    except CorruptError as error:
        return pointer, error
    return pointer, None


def _nowhere(manifest: Manifest, begin: ReadStart) -> int:
    """Return the offset of a range that touches no fragment."""
    if begin is None:
        return manifest.first.position.offset
    offset = offset_of(begin)
    return manifest.next.position.offset if offset is None else offset


def _load_manifest(reader: LogReader, root: ObjectStore, runtime: Runtime) -> Manifest | Problem:
    try:
        return reader.manifest()
    except CorruptError as error:
        return Problem(MANIFEST, str(error))
    except LogNotFoundError:
        lost = lost_manifest(root, runtime)
        if lost is None:
            raise
        return Problem(MANIFEST, str(lost))


def _unread(log: str, problem: Problem) -> ScrubReport:
    return ScrubReport(
        log=log,
        setsum=EMPTY.hexdigest(),
        num_records=0,
        num_bytes=0,
        num_fragments=0,
        num_snapshots=0,
        problems=(problem,),
    )


def _lost(reader: LogReader, tally: _Tally) -> Iterator[Problem]:
    """Report a missing object only if the newest manifest still refers to it."""
    newest = reader.manifest() if tally.missing else None
    for pointer, error in tally.missing:
        assert newest is not None
        if still_named(reader, newest, pointer.path, pointer.start.offset, pointer.limit.offset):
            yield Problem(pointer.path, str(error))


def still_named(reader: LogReader, manifest: Manifest, path: str, start: int, limit: int) -> bool:
    """Tell whether a manifest leads to an object that stands for the offsets from ``start`` to ``limit``."""

    def leads(pointers: Iterable[Pointer]) -> bool:
        return any(
            pointer.path == path or (isinstance(pointer, SnapshotPointer) and leads(below(pointer)))
            for pointer in pointers
            if pointer.start.offset < limit and start < pointer.limit.offset
        )

    def below(pointer: SnapshotPointer) -> tuple[Pointer, ...]:
        try:
            return reader.load_snapshot(pointer).pointers
        except CorruptError:
            # It is reported where it is read.
            return ()

    return leads(manifest.pointers)


def cursor_problems(store: ObjectStore, log: str, runtime: Runtime, manifest: Manifest) -> Iterator[Problem]:
    """Report every cursor that cannot be read, or points outside what the log holds."""
    first, limit = manifest.first.position.offset, manifest.next.position.offset
    log_id = manifest.log_id
    for path, witness in CursorStore(store, log, runtime=runtime, log_id=log_id).survey():
        if isinstance(witness, CorruptError):
            yield Problem(path, str(witness))
            continue
        found = witness.cursor.position.offset
        if found > limit:
            # It may have been moved after the manifest was read, onto what was appended since.
            root = with_retries(log_store(store, log), runtime)
            now = ManifestStore(root, runtime, log_id=log_id).load().manifest
            limit = now.next.position.offset
        if not (first if witness.cursor.pins else 1) <= found <= limit:
            yield Problem(path, f"cursor: expected an offset from {first} to {limit}, found {found}")
