"""Scrub: read a whole log back and say of each object whether it is what it should be.

Checks the manifest's invariants, every snapshot, every fragment, the whole log's balance, and that
every cursor is readable and lies in the log. Damage ends nothing: the rest is still looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, function, instance_of, optional
from wal3_core.errors import CorruptError, LogError, LogNotFoundError, MissingError
from wal3_core.log.reader import LogReader
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.paths import MANIFEST, check_log_name
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Runtime, a_runtime, ahead, shared_runtime
from wal3_core.storage.cursor_store import CursorStore
from wal3_core.storage.manifest_store import ManifestStore, lost_manifest
from wal3_core.storage.object_store import a_store, log_store, share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer, SnapshotPointer
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectStore

_FETCHES_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad object: its path in the log, and what was expected and found."""

    path: str
    message: str

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {"path": self.path, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What scrubbing one log found; counts are of what was read and is sound."""

    log: str
    setsum: str
    num_records: int
    num_bytes: int
    num_fragments: int
    num_snapshots: int
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "sound": self.sound,
            "setsum": self.setsum,
            "num_records": self.num_records,
            "num_bytes": self.num_bytes,
            "num_fragments": self.num_fragments,
            "num_snapshots": self.num_snapshots,
            "problems": [problem.to_json() for problem in self.problems],
        }


@dataclass(slots=True)
class _Tally:
    """What was found so far; ``missing`` may yet turn out to have been collected or replaced meanwhile."""

    setsum: Setsum = EMPTY
    num_records: int = 0
    num_bytes: int = 0
    num_fragments: int = 0
    num_snapshots: int = 0
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)

    def blame(self, path: str, error: LogError) -> None:
        """Note a bad object."""
        kind = self.missing if isinstance(error, MissingError) else self.problems
        kind.append(Problem(path, str(error)))

    def add(self, pointer: FragmentPointer) -> None:
        """Note a sound fragment."""
        self.setsum += pointer.setsum
        self.num_records += pointer.num_records
        self.num_bytes += pointer.num_bytes
        self.num_fragments += 1


@checked(
    store=a_store,
    log=check_log_name,
    runtime=optional(a_runtime),
    options=optional(instance_of(ReaderOptions)),
    progress=optional(function),
)
def scrub(
    store: ObjectStore,
    log: str,
    *,
    runtime: Runtime | None = None,
    options: ReaderOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScrubReport:
    """Read a whole log back. ``progress`` hears of records read and records there are.

    Raises LogNotFoundError when there is no log, UnavailableError when the store does not answer;
    whatever is wrong with the log itself is in the report.
    """
    runtime = runtime or shared_runtime()
    reader = LogReader(store, log, options=options or ReaderOptions(), runtime=runtime)
    tally = _Tally()
    manifest = _load_manifest(reader, log_store(store, log), runtime, tally)
    if manifest is None:
        return _report(log, EMPTY, tally)

    def examine(pointer: FragmentPointer) -> tuple[FragmentPointer, CorruptError | None]:
        try:
            reader.fetch(pointer)
        except CorruptError as error:
            return pointer, error
        return pointer, None

    walk, share = _walk(reader, manifest.pointers, tally), share_of(log_store(store, log))
    for pointer, damage in ahead(runtime, examine, walk, count=_FETCHES_AHEAD, share=share):
        if damage is None:
            tally.add(pointer)
        else:
            tally.blame(pointer.path, damage)
        if progress is not None:
            progress(tally.num_records, manifest.num_records)
    if tally.missing:
        _settle_missing(reader, tally)
    else:
        _check_balance(manifest, tally)
    tally.problems += cursor_problems(store, log, runtime, manifest)
    return _report(log, manifest.setsum, tally)


def _load_manifest(reader: LogReader, root: ObjectStore, runtime: Runtime, tally: _Tally) -> Manifest | None:
    try:
        return reader.manifest()
    except CorruptError as error:
        tally.blame(MANIFEST, error)
    except LogNotFoundError:
        lost = lost_manifest(root, runtime)
        if lost is None:
            raise
        tally.problems.append(Problem(MANIFEST, str(lost)))
    return None


def _report(log: str, setsum: Setsum, tally: _Tally) -> ScrubReport:
    return ScrubReport(
        log=log,
        setsum=setsum.hexdigest(),
        num_records=tally.num_records,
        num_bytes=tally.num_bytes,
        num_fragments=tally.num_fragments,
        num_snapshots=tally.num_snapshots,
        problems=tuple(tally.problems),
    )


def _walk(reader: LogReader, pointers: Iterable[Pointer], tally: _Tally) -> Iterator[FragmentPointer]:
    for pointer in pointers:
        if isinstance(pointer, FragmentPointer):
            yield pointer
        else:
            yield from _walk(reader, _below(reader, pointer, tally), tally)


def _below(reader: LogReader, pointer: SnapshotPointer, tally: _Tally) -> tuple[Pointer, ...]:
    try:
        pointers = reader.load_snapshot(pointer).pointers
    except CorruptError as error:
        tally.blame(pointer.path, error)
        return ()
    tally.num_snapshots += 1
    return pointers


def _settle_missing(reader: LogReader, tally: _Tally) -> None:
    """Blame what is missing only if the newest manifest still refers to it."""
    missing, tally.missing = tally.missing, []
    counted = tally.num_snapshots
    named = {pointer.path for pointer in _every(reader, reader.manifest().pointers, tally)}
    tally.num_snapshots = counted
    known = {problem.path for problem in tally.problems}
    tally.problems += [problem for problem in missing if problem.path in named and problem.path not in known]


def _every(reader: LogReader, pointers: Iterable[Pointer], tally: _Tally) -> Iterator[Pointer]:
    for pointer in pointers:
        yield pointer
        if not isinstance(pointer, FragmentPointer):
            yield from _every(reader, _below(reader, pointer, tally), tally)


def _check_balance(manifest: Manifest, tally: _Tally) -> None:
    """Compare what was read with the whole log's checksum; told only where nothing else explains it."""
    balance = tally.setsum + manifest.pruned
    if not tally.problems and balance != manifest.setsum:
        message = f"log: expected setsum {manifest.setsum}, found {balance} in what was read and pruned"
        tally.problems.append(Problem(MANIFEST, message))


def cursor_problems(store: ObjectStore, log: str, runtime: Runtime, manifest: Manifest) -> Iterator[Problem]:
    """Name every cursor that can not be read, or points outside what the log holds."""
    first, limit = manifest.first.position.offset, manifest.next.position.offset
    log_id = manifest.log_id
    for path, witness in CursorStore(store, log, runtime=runtime, log_id=log_id).survey():
        if isinstance(witness, CorruptError):
            yield Problem(path, str(witness))
            continue
        found = witness.cursor.position.offset
        if found > limit:
            # It may have been moved after the manifest was read, onto what was appended since.
            now = ManifestStore(log_store(store, log), runtime, log_id=log_id).load().manifest
            limit = now.next.position.offset
        if not first <= found <= limit:
            yield Problem(path, f"cursor: expected an offset from {first} to {limit}, found {found}")
