"""Reading on from a sealed log into its successors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.spec.seals import bodies, collect, fill
from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    AtTime,
    Consumer,
    ConsumerOptions,
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    Limits,
    LogNotFoundError,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    Setsum,
    destroy,
    follow_across,
    migrate,
    records_across,
    seal,
)
from wal3_core.format.manifest import Seal
from wal3_core.format.paths import LogId
from wal3_core.format.position import ReadStart
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store


def chain(store: ObjectStore) -> None:
    """Three logs of two records each: 1, 2 in a; 3, 4 in b; 5, 6 in c."""
    for number, (log, successor) in enumerate((("a", "b"), ("b", "c"), ("c", None))):
        fill(store, log, b"%d" % (2 * number + 1), b"%d" % (2 * number + 2))
        if successor is not None:
            migrate(store, log, successor, reason="a test")


@pytest.mark.parametrize(
    ("start", "limits", "expected"),
    [
        (None, Limits(), "123456"),
        (2, Limits(), "23456"),
        (3, Limits(), "3456"),
        (np.uint64(6), Limits(), "6"),
        (7, Limits(), ""),
        (None, Limits(records=3), "123"),
        (2, Limits(records=1), "2"),
        (None, Limits(records=0), ""),
        (None, Limits(offset=4), "123"),
        (5, Limits(offset=6), "5"),
        (None, Limits(fragments=3), "123"),
        (None, Limits(num_bytes=1), "1"),
        (AtTime(0), Limits(), "123456"),
        (AtTime(2**63), Limits(), ""),
    ],
)
def test_records_are_read_from_log_to_log(store: ObjectStore, start: ReadStart, limits: Limits, expected: str) -> None:
    chain(store)

    assert b"".join(body or b"" for body in bodies(store, "a", start, limits)).decode() == expected


def test_start_may_be_any_record_s_position_or_time(store: ObjectStore) -> None:
    chain(store)
    every = list(records_across(store, "a"))

    assert [record.offset for record in every] == [1, 2, 3, 4, 5, 6]
    for record in every:
        [found] = records_across(store, "a", AtTime(record.timestamp_us), Limits(records=1))
        assert found.timestamp_us == record.timestamp_us


def test_start_beyond_every_log_is_refused(memory_store: MemoryStore) -> None:
    chain(memory_store)

    with pytest.raises(InvalidRequestError, match="from 1 to 7, found 8"):
        bodies(memory_store, "a", 8)


def test_missing_successor_is_an_error_after_the_log_s_records(store: ObjectStore) -> None:
    fill(store, "a", b"1", b"2")
    seal(store, "a", reason="full", successor="b")
    reading = records_across(store, "a")

    assert [next(reading).body, next(reading).body] == [b"1", b"2"]
    with pytest.raises(LogNotFoundError, match=r"log a: sealed with successor b .*: create the successor"):
        next(reading)
    assert bodies(store, "a", limits=Limits(records=2)) == [b"1", b"2"]


def test_reading_a_missing_log_says_so_plainly(memory_store: MemoryStore) -> None:
    with pytest.raises(LogNotFoundError, match="create the log first"):
        bodies(memory_store, "none")


def test_gap_between_two_logs_is_an_error_and_never_skipped(store: ObjectStore) -> None:
    chain(store)
    collect(store, "b", 4)

    for start in (None, 1, 3, AtTime(0)):
        with pytest.raises(GarbageCollectedError, match="from 4, found 3"):
            bodies(store, "a", start)
    assert bodies(store, "a", 4) == [b"4", b"5", b"6"]


def test_start_that_was_collected_is_an_error(memory_store: MemoryStore) -> None:
    chain(memory_store)
    collect(memory_store, "a", 2)

    with pytest.raises(GarbageCollectedError, match="from 2, found 1"):
        bodies(memory_store, "a", 1)
    assert bodies(memory_store, "a") == [b"2", b"3", b"4", b"5", b"6"]


def test_log_that_was_collected_entirely_is_read_from_its_successor_s_first_record(memory_store: MemoryStore) -> None:
    chain(memory_store)
    collect(memory_store, "a", 3)
    collect(memory_store, "b", 4)

    assert bodies(memory_store, "a") == [b"4", b"5", b"6"]
    with pytest.raises(GarbageCollectedError):
        bodies(memory_store, "a", 3)


def test_cycle_of_successors_ends_in_an_error(memory_store: MemoryStore) -> None:
    for log, successor in (("a", "b"), ("b", "a")):
        fill(memory_store, log)
        manifests = ManifestStore(log_store(memory_store, log), shared_runtime())
        base = manifests.load()
        first = replace(base.manifest.first, position=replace(base.manifest.first.position, timestamp_us=1))
        mark = Seal(reason="a cycle", sealed_by="a test", timestamp_us=1, successor=successor)
        follows = LogId(("b" if log == "a" else "a") * 32)
        changed = replace(base.manifest, log_id=LogId(log * 32), follows=follows, seal=mark, first=first, next=first)
        base = replace(base, manifest=replace(base.manifest, log_id=LogId(log * 32)))
        assert isinstance(manifests.install(changed, base), Installed)

    again = f"log a: expected a log that none of its successors leads to, found log {'a' * 32} again"
    with pytest.raises(CorruptError, match=again):
        bodies(memory_store, "a")
    with pytest.raises(CorruptError, match=again):
        list(follow_across(memory_store, "a", idle_s=5.0))


@pytest.mark.slow
def test_chain_of_any_number_of_successors_is_read_to_its_end(memory_store: MemoryStore) -> None:
    days = 260
    for day in range(days):
        with LogWriter.open_or_create(memory_store, f"day{day}") as writer:
            writer.append(b"%d" % day)
        migrate(memory_store, f"day{day}", f"day{day + 1}", reason="a log a day")

    assert len(bodies(memory_store, "day0")) == days
    assert len(list(follow_across(memory_store, "day0", idle_s=0.0))) == days
    with Consumer(memory_store, "day0", "c", options=ConsumerOptions(idle_s=0.0)) as consumer:
        assert len(list(consumer)) == days


@pytest.mark.parametrize("look", [1, 2, 3])
def test_read_ends_where_the_log_ended_when_its_manifest_was_read(memory_store: MemoryStore, look: int) -> None:
    """Appends and a seal may come between two requests: no record is skipped before one that is read."""
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)
    left = [look]

    def move_on(kind: str, path: str) -> None:
        left[0] -= kind == "get" and path == "a/manifest/MANIFEST.json"
        if left[0] == 0:
            left[0] = 1000
            fill(memory_store, "a", b"2")
            migrate(memory_store, "a", "b", reason="full")
            fill(memory_store, "b", b"3")

    store.before = move_on
    found = bodies(store, "a")

    assert found == ([b"1"] if look == 3 else [b"1", b"2", b"3"])
    assert bodies(store, "a") == [b"1", b"2", b"3"]


def test_setsum_of_the_successor_is_the_sum_of_every_log_s_records(store: ObjectStore) -> None:
    chain(store)

    whole = Setsum.from_hexdigest("0" * 64)
    for log in "abc":
        manifest = World(store, log).manifest()
        whole += manifest.setsum - manifest.pruned

    assert whole == World(store, "c").manifest().setsum


def test_cursor_at_the_end_of_a_sealed_log_is_where_its_successor_begins(memory_store: MemoryStore) -> None:
    chain(memory_store)
    witness = CursorStore(memory_store, "a").create("reader", World(memory_store).manifest().next.position)

    assert bodies(memory_store, "a", witness.cursor.position) == [b"3", b"4", b"5", b"6"]


def test_migration_of_a_log_whose_name_is_used_again_meanwhile_begins_nothing(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)

    def use_again(kind: str, path: str) -> None:
        if kind == "get" and path == "a/manifest/MANIFEST.json" and World(memory_store).manifest().seal is not None:
            store.before = lambda _kind, _path: None
            destroy(memory_store, "a")
            LogWriter.create(memory_store, "a")

    store.before = use_again
    with pytest.raises(LogReplacedError, match="expected the log that was sealed for b, found another one"):
        migrate(store, "a", "b", reason="full")
    with pytest.raises(LogNotFoundError):
        World(memory_store, "b").manifest()
