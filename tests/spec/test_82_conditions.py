"""``expect_next``: a record lands at that offset or is not appended, and the caller learns where the log ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.spec.logs import bodies
from tests.stores import FaultyStore
from wal3_core import (
    ConditionNotMetError,
    InvalidRequestError,
    LogReader,
    LogWriter,
    NotDurableError,
    UnknownDurabilityError,
    WriterOptions,
)
from wal3_core.options import RetryOptions

if TYPE_CHECKING:
    from wal3_core.storage.backends.memory import MemoryStore
    from wal3_core.storage.object_store import ObjectStore

QUICK = RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01)
OPTIONS = WriterOptions(retry=QUICK, delivery_timeout_s=0.05, batch_age_s_max=0.001)


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.initialize(memory_store, "a")
    return FaultyStore(memory_store)


def test_append_lands_where_it_is_expected_or_not_at_all(store: ObjectStore) -> None:
    with LogWriter.open_or_initialize(store, "a") as writer:
        assert writer.append(b"1", expect_next=1).offset == 1
        for wrong in (1, 3, 2**64 - 1):
            with pytest.raises(ConditionNotMetError, match=f"expected {wrong} as the next offset, found 2") as told:
                writer.append(b"no", expect_next=wrong)
            assert told.value.next_offset == 2
        assert writer.append_many([b"2", b"3"], expect_next=2).offset == 2
        assert writer.submit_many([b"4"], expect_next=4).result(30).offset == 4

    assert bodies(store) == [b"1", b"2", b"3", b"4"]


def test_writer_whose_manifest_is_old_tells_where_the_log_ends_now(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_initialize(memory_store, "a") as writer, LogWriter.open(memory_store, "a") as other:
        for number in range(5):
            other.append(b"%d" % number)

        with pytest.raises(ConditionNotMetError) as told:
            writer.append(b"late", expect_next=1)
        assert told.value.next_offset == 6
        with pytest.raises(ConditionNotMetError) as told:
            writer.append(b"early", expect_next=7)
        assert told.value.next_offset == 6
        # What this writer did not see come is there.
        other.append(b"5")
        assert writer.append(b"6", expect_next=7).offset == 7

    assert bodies(memory_store) == [b"%d" % number for number in range(7)]


def test_conditions_hold_one_behind_the_other_within_one_commit(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_initialize(memory_store, "a") as writer:
        futures = []
        for number in range(100):
            futures.append(writer.submit(b"%d" % number, expect_next=2 * number + 1))
            futures.append(writer.submit(b"beside"))
        offsets = [future.result(30).offset for future in futures]

    assert offsets == list(range(1, 201))
    assert len(LogReader.open(memory_store, "a").scan()) < 50


def test_condition_is_not_failed_on_a_guess_that_proves_wrong(faulty: FaultyStore) -> None:
    """What is in flight would take the offset; then its upload fails, and the offset is free."""
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(10) and None if kind == "create" and "/log/" in path else None
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("create", "FragmentSeqNo=0000000000000001", "denied")
        ahead = writer.submit(b"ahead")
        conditional = writer.submit(b"conditional", expect_next=1)
        gate.set()
        with pytest.raises(NotDurableError, match="not uploaded"):
            ahead.result(30)
        assert conditional.result(30).offset == 1

    assert bodies(faulty.inner) == [b"conditional"]


def test_append_that_loses_its_place_meanwhile_is_told_the_new_end(faulty: FaultyStore) -> None:
    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            faulty.before = lambda _kind, _path: None
            with LogWriter.open(faulty.inner, "a") as other:
                other.append_many([b"x", b"y"])

    with LogWriter.open(faulty, "a", options=WriterOptions(reseals_max=0)) as writer:
        faulty.before = overtake
        first, second = writer.submit(b"first", expect_next=1), writer.submit(b"second", expect_next=3)
        with pytest.raises(ConditionNotMetError) as told:
            first.result(30)
        assert told.value.next_offset == 3
        # The other one came to end just there.
        assert second.result(30).offset == 3

    assert bodies(faulty.inner) == [b"x", b"y", b"second"]


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown"])
def test_unanswered_commit_with_a_condition_is_done_once_or_told(faulty: FaultyStore, fault: str) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("replace", "MANIFEST", fault)  # type: ignore[arg-type]
        assert writer.append(b"1", expect_next=1).offset == 1
        faulty.fail("replace", "MANIFEST", fault, times=10_000)  # type: ignore[arg-type]
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"2", expect_next=2)
        faulty.heal()
        # Tried again as it was, it is in the log once.
        told = writer.submit(b"2", expect_next=2).exception(30)
        assert getattr(told, "next_offset", None) == (3 if fault == "applied-unknown" else None)

    assert bodies(faulty.inner) == [b"1", b"2"]


@pytest.mark.parametrize("reseals_max", [0, 3])
def test_condition_is_met_behind_who_came_before_an_unanswered_commit_was_looked_up(
    memory_store: MemoryStore, faulty: FaultyStore, reseals_max: int
) -> None:
    """It was told that the log ends where the writer's own commit had left it, though that was not so."""
    with (
        LogWriter.open(faulty, "a", options=WriterOptions(reseals_max=reseals_max)) as writer,
        LogWriter.open(memory_store, "a") as other,
    ):
        faulty.fail("replace", "MANIFEST", "applied-unknown")

        def come_between(kind: str, path: str) -> None:
            if kind == "get" and "MANIFEST" in path and faulty.fired["applied-unknown"]:
                faulty.before = lambda _kind, _path: None
                other.append(b"2")

        faulty.before = come_between
        writer.append(b"1")

        with pytest.raises(ConditionNotMetError) as told:
            writer.append(b"no", expect_next=2)
        assert told.value.next_offset == 3
        assert writer.append(b"3", expect_next=3).offset == 3
        other.append(b"4")
        assert writer.stats().places_lost == 0

    assert bodies(memory_store) == [b"1", b"2", b"3", b"4"]


def test_counter_raised_by_compare_and_append_counts_every_time_once(store: ObjectStore) -> None:
    """Each appends the number it read plus one, where it read it: none is skipped, none there twice."""
    LogWriter.initialize(store, "a")

    def count(_: int) -> int:
        refused, known = 0, 1
        with LogWriter.open(store, "a") as writer:
            for _ in range(8):
                while True:
                    try:
                        known = writer.append(b"%d" % known, expect_next=known).offset + 1
                    except ConditionNotMetError as error:
                        known, refused = error.next_offset, refused + 1
                    else:
                        break
        return refused

    with ThreadPoolExecutor(4) as pool:
        refused = sum(pool.map(count, range(4)))

    assert bodies(store) == [b"%d" % number for number in range(1, 33)]
    assert refused < 32 * 4


@pytest.mark.parametrize("offset", [0, -1, 2**64, "1", 1.0, True])
def test_condition_that_is_no_offset_is_refused_by_name(memory_store: MemoryStore, offset: int) -> None:
    with (
        LogWriter.open_or_initialize(memory_store, "a") as writer,
        pytest.raises(InvalidRequestError, match="expect_next"),
    ):
        writer.append(b"x", expect_next=offset)
