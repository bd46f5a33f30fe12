"""A roll into snapshots that cannot be made fails no append, and is neither silent nor said each time."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from tests.stores import FaultyStore, damage, life_path
from tests.world import World
from wal3_core import LogAt, LogReader, LogWriter, MemoryStore, WriterOptions, copy, repair_log, update_copy
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.store.object_store import ObjectStore

TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=8)
RETRY = RetryOptions(attempts_max=2, pause_s_min=0.001, pause_s_max=0.002)
SMALL = WriterOptions(snapshots=TREE, retry=RETRY, batch_records_max=1, fragments_in_flight_max=1)


def append(store: ObjectStore, count: int, log: str = "a") -> None:
    with LogWriter.open_or_create(store, log, options=SMALL) as writer:
        for _ in range(count):
            writer.append(b"x")


def stage(store: ObjectStore) -> None:
    """Append a record as a staged one."""
    none, body = pa.array([None], pa.large_binary()), pa.array([b"staged"], pa.large_binary())
    staged = Stager(store, "a", options=SMALL).stage(pa.table([none, body], schema=MESSAGE_SCHEMA))
    install_staged(store, "a", staged, options=SMALL)


def damage_the_open_node(store: ObjectStore, log: str = "a") -> None:
    """Damage the newest snapshot that holds snapshots: the next roll of snapshots extends it."""
    node = [pointer for pointer in World(store, log).manifest().snapshots if pointer.depth > 1][-1]
    damage(store, life_path(store, log, node.path))


def bodies(store: ObjectStore, start: int) -> list[bytes | None]:
    return [record.body for record in LogReader.open(store, "a").records(start)]


@pytest.mark.parametrize("fault", ["damaged", "denied", "unavailable"])
def test_staged_append_is_made_although_a_roll_is_due_that_cannot_be(memory_store: MemoryStore, fault: str) -> None:
    """Regression: one damaged snapshot stopped all staged appends until a repair."""
    # The last roll of this writer may be under way when it is closed.
    append(memory_store, 18)
    store = FaultyStore(memory_store)
    if fault == "damaged":
        damage_the_open_node(memory_store)
    else:
        store.fail("create", "/snapshot/", "denied" if fault == "denied" else "unavailable", times=10**6)

    for _ in range(20):
        stage(store)

    assert bodies(memory_store, 19) == [b"staged"] * 20


@pytest.mark.slow
def test_copy_is_updated_although_a_roll_is_due_that_cannot_be(memory_store: MemoryStore) -> None:
    """Regression: one damaged snapshot of the copy stopped its updates until a repair."""
    append(memory_store, 400)
    source, target = LogAt(memory_store, "a"), LogAt(memory_store, "b")
    copy(source, target)
    damage_the_open_node(memory_store, "b")
    append(memory_store, 300)

    assert update_copy(source, target).num_records == 300

    assert World(memory_store, "b").manifest().next == World(memory_store).manifest().next
    repair_log(target, source)
    assert len(list(LogReader.open(memory_store, "b").records())) == 700


@pytest.mark.parametrize("fault", ["damaged", "denied"])
def test_writer_whose_rolls_fail_counts_them_and_warns_once(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """Regression: the manifest grew, and nothing said so."""
    caplog.set_level(logging.WARNING, "wal3.writer")
    # The last roll of this writer may be under way when it is closed.
    append(memory_store, 18)
    store = FaultyStore(memory_store)
    if fault == "damaged":
        damage_the_open_node(memory_store)
    else:
        store.fail("create", "/snapshot/", "denied", times=10**6)

    with LogWriter.open(store, "a", options=SMALL) as writer:
        for _ in range(40):
            writer.append(b"y")
        failed = writer.stats().rolls_failed

    assert failed > 1
    assert bodies(memory_store, 19) == [b"y"] * 40
    [warning] = [each.getMessage() for each in caplog.records if "rolled" in each.getMessage()]
    assert warning.startswith("log a: pointers are not rolled into snapshots, so the manifest grows: ")
    assert ("expected bytes" if fault == "damaged" else "403") in warning
