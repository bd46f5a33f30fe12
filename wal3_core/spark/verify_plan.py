"""What the driver reads of a log before its verification: the manifest, the top of its tree, its cursors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogNotFoundError
from wal3_core.log.reader import LogReader
from wal3_core.log.scrub import Problem, cursor_problems
from wal3_core.model.paths import MANIFEST
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import ReaderOptions
from wal3_core.runtime import shared_runtime
from wal3_core.spark.tasks import cost
from wal3_core.spark.verify_task import Problematic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer
    from wal3_core.storage.object_store import ObjectStore

    _Opened = dict[SnapshotPointer, tuple[Pointer, ...] | Problematic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One log's verification: what was found so far, and the ``pointers`` left to the tasks.

    ``manifest`` is None when it could not be read; ``problems`` then say why. ``num_snapshots`` were
    read and are sound, those in ``bad`` are not.
    """

    log: str
    manifest: Manifest | None = None
    pointers: tuple[Pointer, ...] = ()
    num_snapshots: int = 0
    bad: tuple[Problematic, ...] = ()
    problems: tuple[Problem, ...] = ()


def plan_log(store: ObjectStore, log: str) -> Plan:
    """Read the top of a log; what is wrong with it is in the plan."""
    reader = LogReader(store, log, options=ReaderOptions(), runtime=shared_runtime())
    try:
        manifest = reader.manifest()
    except (CorruptError, LogNotFoundError) as error:
        return Plan(log=log, problems=(Problem(MANIFEST, str(error)),))
    # A snapshot of snapshots holds too much for one task; those of fragments below it are what a task reads.
    opened: _Opened = {}
    waiting = [pointer for pointer in manifest.snapshots if pointer.depth > 1]
    while waiting:
        pointer = waiting.pop()
        opened[pointer] = _below(reader, pointer)
        waiting += [each for each in _pieces(pointer, opened) if isinstance(each, SnapshotPointer) and each.depth > 1]
    return Plan(
        log=log,
        manifest=manifest,
        pointers=tuple(each for pointer in manifest.pointers for each in _all_pieces(pointer, opened)),
        num_snapshots=sum(not isinstance(below, Problematic) for below in opened.values()),
        bad=tuple(below for below in opened.values() if isinstance(below, Problematic)),
        problems=tuple(cursor_problems(store, log, shared_runtime(), manifest)),
    )


def _below(reader: LogReader, pointer: SnapshotPointer) -> tuple[Pointer, ...] | Problematic:
    try:
        return reader.load_snapshot(pointer).pointers
    except CorruptError as error:
        return Problematic.of(pointer, error)


def _pieces(pointer: Pointer, opened: _Opened) -> tuple[Pointer, ...]:
    if not isinstance(pointer, SnapshotPointer) or pointer not in opened:
        return (pointer,)
    below = opened[pointer]
    return () if isinstance(below, Problematic) else below


def _all_pieces(pointer: Pointer, opened: _Opened) -> Iterator[Pointer]:
    for each in _pieces(pointer, opened):
        if each == pointer:
            yield each
        else:
            yield from _all_pieces(each, opened)


def pointer_cost(pointer: Pointer) -> int:
    """Estimate the cost of reading all that a pointer names."""
    requests = 1 + pointer.num_pointers if isinstance(pointer, SnapshotPointer) else 1
    return cost(pointer.num_bytes, requests=requests)


def still_named(manifest: Manifest, reader: LogReader, missing: Problematic) -> bool:
    """Tell whether a manifest leads to an object that was found missing."""
    start, limit = int(missing.start), int(missing.limit)

    def leads(pointers: tuple[Pointer, ...]) -> bool:
        return any(
            pointer.path == missing.path or (isinstance(pointer, SnapshotPointer) and leads(below(pointer)))
            for pointer in pointers
            if pointer.start.offset < limit and start < pointer.limit.offset
        )

    def below(pointer: SnapshotPointer) -> tuple[Pointer, ...]:
        # One that is bad itself is told of where it is read.
        found = _below(reader, pointer)
        return () if isinstance(found, Problematic) else found

    return leads(manifest.pointers)
