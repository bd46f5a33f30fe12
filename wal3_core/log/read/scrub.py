"""Scrub: read a log back, whole or a range of it, and check every object.

Checks the manifest's invariants, every snapshot, every fragment, the whole log's balance, that every
cursor is readable and lies in the log, and that key roll-ups are those of their fragments. After
damage the rest is still checked.

Reports of adjoining ranges add up to one of the whole log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from wal3_core.errors import CorruptError, InvalidRequestError, LogNotFoundError, MissingError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import KEY_ROLLUP_FOLDER, MANIFEST, check_log_id, key_rollup_path, life_folder
from wal3_core.format.position import ReadStart
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.snapshot import Pointer, SnapshotPointer
from wal3_core.format.strict_json import (
    FLAG,
    INTEGER,
    TEXT,
    JsonObject,
    Stored,
    dump_members,
    load,
    member,
    read_members,
    several,
    text_as,
)
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import offset_of
from wal3_core.options import POINTERS_MAX, UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.manifest_store import lost_manifest
from wal3_core.store.object_store import ObjectStore, log_store, object_url, share_of

FETCHES_AHEAD = 4


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

    def _pass(self, start: int, pointer: Pointer) -> None:
        first, following = self.range or (start, start)
        # A bad snapshot is reported before the fragments that lie before it.
        self.range = min(first, start), max(following, pointer.limit.offset)


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
        return ScrubReport(log=log, problems=(manifest,))
    stores = LogStores(store, log, runtime=runtime, log_id=manifest.log_id)
    begin = _begin(manifest, start)
    tally = _Tally(begin=offset_of(begin) or 0)
    walk = reader.walk(manifest, begin, limits, on_damage=tally.blame)
    share = share_of(stores.objects)
    for pointer, damage in map_ahead(runtime, partial(examine, reader), walk, count=FETCHES_AHEAD, share=share):
        tally.add(pointer) if damage is None else tally.blame(pointer, damage)
        progress(tally.num_records, manifest.num_records)
    lost = list(_lost(reader, tally))
    # A range that touches no fragment.
    nowhere = manifest.first if begin is None else manifest.next
    first, following = tally.range or (offset_of(begin) or nowhere.position.offset,) * 2
    tally.problems += [*lost, *_key_rollup_problems(stores, reader, manifest, first, following)]
    if following >= manifest.next.position.offset:
        tally.problems += cursor_problems(store, log, runtime, manifest)
    whole, asked = begin is None and len(lost) == len(tally.missing), offset_of(begin) or first
    return ScrubReport(
        log=log,
        log_id=manifest.log_id,
        setsum=manifest.setsum.hexdigest(),
        num_records=tally.num_records,
        num_bytes=tally.num_bytes,
        num_fragments=tally.num_fragments,
        num_snapshots=walk.num_opened,
        problems=tuple(tally.problems),
        first_offset=first,
        next_offset=following,
        end_offset=manifest.next.position.offset,
        covered=(manifest.pruned + tally.setsum).hexdigest() if whole else None,
        asked_offset=asked if first < asked else None,
        pruned=pruned_where_gaps(manifest),
        found=tally.setsum.hexdigest(),
    ).weighed()


def _begin(manifest: Manifest, start: ReadStart) -> ReadStart:
    """Return where to begin, None for the log's first fragment: what lay below was collected, which is no damage."""
    offset, end = offset_of(start), manifest.next.position.offset
    if offset is None:
        return start
    if not 1 <= offset <= end:
        raise InvalidRequestError(f"scrub: expected an offset from 1 to {end}, found {offset}")
    return None if offset <= manifest.first.position.offset else offset


def pruned_where_gaps(manifest: Manifest) -> str | None:
    """Return the setsum of what was pruned if that includes records among those that the log holds, else None."""
    num_offsets = manifest.next.position.offset - manifest.first.position.offset
    return manifest.pruned.hexdigest() if manifest.num_records < num_offsets else None


def examine(reader: LogReader, pointer: FragmentPointer) -> tuple[FragmentPointer, CorruptError | None]:
    """Read a fragment; return it with what is wrong with it."""
    try:
        reader.fetch(pointer)
    except CorruptError as error:
        return pointer, error
    return pointer, None


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
            pointer.path == path or (isinstance(pointer, SnapshotPointer) and leads(_below(reader, pointer)))
            for pointer in pointers
            if pointer.start.offset < limit and start < pointer.limit.offset
        )

    return leads(manifest.pointers)


def _below(reader: LogReader, pointer: SnapshotPointer) -> tuple[Pointer, ...]:
    """Return what a snapshot leads to; nothing for one that cannot be read, which is reported where it is read."""
    try:
        return reader.load_snapshot(pointer).pointers
    except CorruptError:
        return ()


def cursor_problems(store: ObjectStore, log: str, runtime: Runtime, manifest: Manifest) -> Iterator[Problem]:
    """Report every cursor that cannot be read, or points outside what the log holds."""
    first, limit = manifest.first.position.offset, manifest.next.position.offset
    stores = LogStores(store, log, runtime=runtime, log_id=manifest.log_id)
    for path, witness in stores.cursors.survey():
        if isinstance(witness, CorruptError):
            yield Problem(path, str(witness))
            continue
        found = witness.cursor.position.offset
        if found > limit:
            # It may have been moved after the manifest was read, onto what was appended since.
            limit = stores.manifests.load().manifest.next.position.offset
        if not (first if witness.cursor.pins else 1) <= found <= limit:
            yield Problem(path, f"cursor: expected an offset from {first} to {limit}, found {found}")


_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Problem(Stored):
    """One bad object: its path in the log, and what was expected and found."""

    path: str
    message: str

    MEMBERS = (member("path", TEXT), member("message", TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What scrubbing one log found; counts are of what was read and is sound.

    It covers the whole fragments from ``first_offset`` to ``next_offset``, where the next range
    begins; the log ended at ``end_offset`` then. ``setsum`` is the log's own, ``found`` that of what was
    read, and ``covered`` that of all that was pruned or read: None when the range began further on, or when something
    was collected or replaced before it was read. Records that were dropped above ``next_offset`` are pruned, too; where
    there are any, ``pruned`` is the log's. ``asked_offset`` is where the range was to begin, if that is inside its
    first fragment.
    """

    log: str
    setsum: str = EMPTY.hexdigest()
    num_records: int = 0
    num_bytes: int = 0
    num_fragments: int = 0
    num_snapshots: int = 0
    problems: tuple[Problem, ...] = ()
    log_id: str = ""
    first_offset: int = 0
    next_offset: int = 0
    end_offset: int = 0
    found: str = EMPTY.hexdigest()
    covered: str | None = None
    pruned: str | None = None
    asked_offset: int | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    @property
    def finished(self) -> bool:
        """Whether it reaches the log's end."""
        return self.next_offset >= self.end_offset

    @property
    def balanced(self) -> bool:
        """Whether what was pruned and what was read sum to the log's setsum, which covers every record."""
        return self.sound and self.finished and self.covered == self.setsum

    def __add__(self, behind: ScrubReport) -> ScrubReport:
        """Join the report of the range behind this one, and compare the setsums where both cover the log.

        InvalidRequestError when the other is of another log, or begins elsewhere. It may begin
        further on if the log does by then: what lay between was collected. A snapshot that both
        ranges touch counts twice, and so does a fragment that stands for both ends of the ranges by then. After a
        compaction between the two, setsums are not compared.
        """
        collected = behind.covered is not None and behind.first_offset > self.next_offset
        same = (behind.log, behind.log_id) == (self.log, self.log_id)
        adjoins = behind.first_offset == self.next_offset
        if not same or not (adjoins or behind.asked_offset == self.next_offset or collected):
            raise InvalidRequestError(
                f"scrub of log {self.log}: expected a report that goes on at {self.next_offset}, found one of"
                f" log {behind.log} {behind.log_id} from {behind.first_offset}"
            )
        covered = None
        if adjoins and self.covered is not None and self.pruned == behind.pruned:
            covered = _sum(self.covered, behind.found)
        joined = replace(
            behind,
            num_records=self.num_records + behind.num_records,
            num_bytes=self.num_bytes + behind.num_bytes,
            num_fragments=self.num_fragments + behind.num_fragments,
            num_snapshots=self.num_snapshots + behind.num_snapshots,
            problems=tuple(dict.fromkeys((*self.problems, *behind.problems))),
            first_offset=self.first_offset,
            found=_sum(self.found, behind.found),
            covered=behind.covered or covered,
            asked_offset=self.asked_offset,
        )
        return joined.weighed()

    def weighed(self) -> ScrubReport:
        """Return it with one more problem if its setsums contradict each other and no other problem explains that."""
        if self.problems or not self.finished or self.covered in {None, self.setsum}:
            return self
        message = f"log: expected setsum {self.setsum}, found {self.covered} in what was read and pruned"
        return replace(self, problems=(Problem(MANIFEST, message),))

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return dump_members(self, _MEMBERS)

    @classmethod
    def from_bytes(cls, data: bytes) -> ScrubReport:
        """Read what ``to_json`` showed, as JSON text; CorruptError when it is something else."""
        fields = load(data, what="scrub report", bytes_max=_BYTES_MAX)
        read = read_members(fields, _MEMBERS)
        fields.finish()
        del read["sound"]
        return cls(**read)


_SUM = text_as(lambda digits, _: Setsum.from_hexdigest(digits).hexdigest())
_COUNTS = ("num_records", "num_bytes", "num_fragments", "num_snapshots", "first_offset", "next_offset", "end_offset")
_MEMBERS = (
    member("log", TEXT),
    member("log_id", TEXT),
    member("sound", FLAG),
    member("setsum", _SUM),
    *(member(name, INTEGER) for name in _COUNTS),
    member("found", _SUM),
    member("covered", _SUM, default=None),
    member("pruned", _SUM, default=None),
    member("asked_offset", INTEGER, default=None),
    member("problems", several(Problem.from_json, POINTERS_MAX, Problem.to_json)),
)


def place_of_object(store: ObjectStore, report: ScrubReport, problem: Problem) -> str:
    """Return where a problem's object is stored: a URL without options."""
    life = life_folder(check_log_id(report.log_id, "report")) if report.log_id and problem.path != MANIFEST else ""
    return object_url(log_store(store, report.log), f"{life}{problem.path}")


def _sum(one: str, other: str) -> str:
    return (Setsum.from_hexdigest(one) + Setsum.from_hexdigest(other)).hexdigest()


_REMEDY = "delete this object: it holds no records, and is computed again"


def _key_rollup_problems(
    stores: LogStores, reader: LogReader, manifest: Manifest, first: int, limit: int
) -> Iterator[Problem]:
    """Compare the key roll-ups of the snapshots that end in a range, so that each is in one of adjoining ranges.

    A log without any costs one request.
    """
    snapshots = _leaves(reader, manifest.pointers, first, limit)
    pointer = next(snapshots, None)
    if pointer is None:
        # Many ranges have none.
        return
    present = {meta.path for meta in stores.objects.list_objects(KEY_ROLLUP_FOLDER)}
    columns = KeyColumns(stores.objects, ReaderOptions())
    for each in chain((pointer,), snapshots) if present else ():
        path = key_rollup_path(each.path)
        if path in present and (wrong := _compared(stores, reader, columns, each)) is not None:
            yield Problem(path, f"{wrong}: {_REMEDY}")


def _leaves(reader: LogReader, pointers: Sequence[Pointer], first: int, limit: int) -> Iterator[SnapshotPointer]:
    """Go through the snapshots of depth 1 that end in a range; unreadable ones are reported elsewhere."""
    for pointer in pointers:
        inside = pointer.start.offset < limit and first < pointer.limit.offset
        if not isinstance(pointer, SnapshotPointer) or not inside:
            continue
        if pointer.depth > 1:
            yield from _leaves(reader, _below(reader, pointer), first, limit)
        elif pointer.limit.offset <= limit:
            yield pointer


def _compared(stores: LogStores, reader: LogReader, columns: KeyColumns, pointer: SnapshotPointer) -> str | None:
    """Say what is wrong with a key roll-up; None when nothing is, or when it cannot be found out."""
    try:
        found = stores.key_rollups.read(pointer)
    except CorruptError as error:
        return str(error)
    try:
        expected = build_key_rollup(reader.load_snapshot(pointer), columns, runtime=stores.runtime)
    except CorruptError:
        # What is damaged, or was collected, is reported where the records are read.
        return None
    if found is None or found == expected:
        return None
    return f"key roll-up {key_rollup_path(pointer.path)}: expected the keys of its fragments, found others"
