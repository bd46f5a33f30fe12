"""What one commit of an update appends to a copy: some fragments, and never a part of a staged append."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    LogAt,
    LogReader,
    LogWriter,
    MemoryStore,
    Origin,
    Record,
    WriterOptions,
    bootstrap,
    copy,
    update_copy,
)
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.policy import Policy
from wal3_core.log.maintain.copy import update as updating
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.policy_store import PolicyStore

ONE_EACH = WriterOptions(batch_records_max=1)


@pytest.fixture
def log(memory_store: MemoryStore) -> MemoryStore:
    """A log whose time is ahead of the clock: all that is appended has one time. And a copy of it, ``b``."""
    ahead_us = shared_runtime().now_us() + 50_000_000
    bootstrap(memory_store, "a", [Record(1, ahead_us, b"k", b"first")], Origin())
    copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"))
    return memory_store


def append(log: MemoryStore, count: int) -> None:
    with LogWriter.open(log, "a", options=ONE_EACH) as writer:
        for number in range(count):
            writer.append(Random(number).randbytes(3000), key=b"k")


def stage(log: MemoryStore, count: int) -> None:
    rows = pa.table(
        [[b"k"] * count, [Random(-number).randbytes(3000) for number in range(count)]], schema=MESSAGE_SCHEMA
    )
    install_staged(log, "a", Stager(log, "a", options=ONE_EACH).stage(rows), options=ONE_EACH)


def commits(log: MemoryStore) -> list[list[FragmentPointer]]:
    """Update the copy, and return the fragments that each commit has appended."""
    world = World(log, "b")
    limit, found = world.manifest().next.seq_no, []

    def look(kind: str, path: str) -> None:
        nonlocal limit
        if (kind, path) == ("get", "b/manifest/MANIFEST.json"):
            return
        if (manifest := world.manifest()).next.seq_no > limit:
            found.append([each for each in manifest.fragments if each.seq_no >= limit])
            limit = manifest.next.seq_no

    update_copy(LogAt(log, "a"), LogAt(FaultyStore(log, before=look), "b"))
    look("", "")
    assert world.bodies() == World(log).bodies()
    return found


def test_update_of_records_of_one_time_is_many_commits(log: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "_FRAGMENTS_PER_COMMIT", 4)
    monkeypatch.setattr(updating, "_FRAGMENTS_OF_ONE_TIME_MAX", 6)
    append(log, 5)
    stage(log, 10)
    append(log, 20)

    found = commits(log)

    # The staged append is in the first one, whatever its size: earlier versions may have made any other of one time.
    assert [len(each) for each in found] == [15, 6, 6, 6, 2]
    marks = [each.continues for group in found for each in group]
    assert marks == [False] * 6 + [True] * 9 + [False] * 20
    assert marks == [each.continues for each in LogReader.open(log, "a").scan()][1:]


def test_append_that_a_pass_has_joined_with_others_is_copied_in_one_commit(
    log: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FRAGMENTS_PER_COMMIT", "_FRAGMENTS_OF_ONE_TIME_MAX"):
        monkeypatch.setattr(updating, name, 2)
    append(log, 2)
    stage(log, 5)
    append(log, 2)
    PolicyStore(log, "a").change(
        lambda _: Policy(arrange_by_key=True, min_dirty_percent=0, compacted_fragment_bytes=9000)
    )
    assert KeyCompactor(log, "a").compact().installed
    append(log, 4)

    joined = [each for each in LogReader.open(log, "a").scan() if each.compacted]
    found = commits(log)

    # Some begin within the append.
    assert [each.continues for each in joined].count(True) in range(1, len(joined) - 1)
    assert len(found) > 2
    assert not any(group[0].continues for group in found)
