"""A long log is cut into tasks without reading every pointer, at the same places as if all were read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.large_logs import Grower
from tests.stores import CountingStore, FaultyStore, damage
from wal3_core import LogReader, MemoryStore
from wal3_core.format.fragment import FragmentPointer
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.spark.jobs import ROWS_AT_ONCE, LogPiece, cost, cut, group, reader_of, work_table
from wal3_core.spark.planning import plan_log
from wal3_core.spark.requests import Bounds, Span
from wal3_core.spark.verify import work_of
from wal3_core.store.object_store import ObjectStore

TREE = SnapshotOptions(fragments_per_snapshot=8, fragments_kept=4, snapshots_per_roll=4, snapshot_pointers_max=16)
SIZE = 700
LEVELS = 3


@pytest.fixture(scope="module")
def long_log() -> MemoryStore:
    """Seven hundred fragments of a second each, below three levels of snapshots."""
    store = MemoryStore(shared_runtime())
    Grower(store, tree=TREE, real=False).grow(SIZE)
    assert max(pointer.depth for pointer in LogReader.open(store, "a").manifest().snapshots) == LEVELS
    return store


def planned(store: ObjectStore, bounds: Bounds = Bounds()) -> list[LogPiece]:  # noqa: B008 - it never changes
    return plan_log(store, "a", reader_of(store, "a").manifest(), bounds)


def seq_nos(store: ObjectStore, piece: LogPiece) -> Iterator[int]:
    """The fragments that a task reads for a piece."""
    if piece.opened:
        return
    if isinstance(piece.pointer, FragmentPointer):
        yield piece.pointer.seq_no
        return
    for pointer in LogReader.open(store, "a").load_snapshot(piece.pointer).pointers:
        yield from seq_nos(store, replace(piece, pointer=pointer))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 699, 700, 5000])
def test_cuts_equal_those_of_one_list_of_all_fragments(long_log: MemoryStore, count: int) -> None:
    fragments = LogReader.open(long_log, "a").scan()
    expected = group(
        [pointer.seq_no for pointer in fragments], [cost(pointer.num_bytes) for pointer in fragments], count
    )

    found: dict[int, list[int]] = {}
    for number, piece in cut(long_log, planned(long_log), count=count):
        found.setdefault(number, []).extend(seq_nos(long_log, piece))

    assert [task for task in found.values() if task] == expected


@pytest.mark.parametrize("count", [1, 4, 16])
def test_plan_opens_the_snapshots_a_task_begins_in_and_holds_no_pointers(long_log: MemoryStore, count: int) -> None:
    """The driver once loaded every snapshot and held every fragment's pointer."""
    store = CountingStore(long_log)

    pieces = planned(store)
    assert store.requests == {"get": 1}
    assert len(pieces) < 40
    cuts = list(cut(store, pieces, count=count))

    assert store.requests["read"] <= LEVELS * (count - 1)
    fan_outs = (LEVELS - 1) * TREE.snapshot_pointers_max + TREE.fragments_per_snapshot
    assert len(cuts) <= len(pieces) + (count - 1) * fan_outs


def test_bounds_open_only_the_snapshots_at_their_edges(long_log: MemoryStore) -> None:
    fragments = LogReader.open(long_log, "a").scan()
    first, last = fragments[123].start.timestamp_us, fragments[456].start.timestamp_us
    for bounds in (
        Bounds(offsets=Span(124, 457)),
        Bounds(timestamps_us=Span(first, last)),
        Bounds(offsets=Span(124, 600), timestamps_us=Span(0, last)),
    ):
        store = CountingStore(long_log)
        pieces = planned(store, bounds)

        assert store.requests["read"] <= 4
        assert [number for piece in pieces for number in seq_nos(long_log, piece)] == list(range(124, 457)), bounds


@pytest.mark.parametrize("spoil", ["delete", "damage"])
def test_snapshot_that_cannot_be_opened_is_left_to_its_task(spoil: str) -> None:
    """The task finds its replacement, or reports the error."""
    store = MemoryStore(shared_runtime())
    Grower(store, tree=TREE, real=False).grow(200)
    victim = LogReader.open(store, "a").manifest().snapshots[0]
    path = next(meta.path for meta in store.list_objects("a/") if meta.path.endswith(victim.path))
    if spoil == "delete":
        store.delete(path)
    else:
        damage(store, path)

    placed = [piece for _, piece in cut(store, planned(store), count=10)]

    assert [piece.pointer for piece in placed if piece.pointer == victim] == [victim]
    assert not any(piece.opened for piece in placed if piece.pointer == victim)


def test_snapshots_are_opened_in_parallel(long_log: MemoryStore) -> None:
    at_once: list[int] = []
    under_way = [0]

    class Watching(FaultyStore):
        def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
            under_way[0] += 1
            at_once.append(under_way[0])
            shared_runtime().sleep(0.01)
            try:
                return super().read(path, start=start, length=length)
            finally:
                under_way[0] -= 1

    list(cut(Watching(long_log), planned(long_log), count=20))

    assert max(at_once) > 1


def test_the_work_of_a_verification_has_a_row_for_each_piece_of_each_log(long_log: MemoryStore) -> None:
    pieces = [*cut(long_log, planned(long_log), count=SIZE)]
    numbered = [(task, replace(piece, log=log)) for log in ("a", "b", "c") for task, piece in pieces]
    assert len(numbered) > 2 * ROWS_AT_ONCE

    work = work_table(work_of(numbered))

    found = [(row["task"], row["log"], json.loads(row["text"])) for row in work.to_pylist()]
    assert found == [
        (task, each.log, {"log_id": each.log_id, "pointer": each.pointer.to_json(), "opened": each.opened})
        for task, each in numbered
    ]
