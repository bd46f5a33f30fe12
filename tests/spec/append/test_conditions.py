"""``expect_next``: a record is appended at that offset or not at all, and the caller learns where the log ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    ConditionNotMetError,
    InvalidRequestError,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    UnknownDurabilityError,
    WriterOptions,
)
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

QUICK = RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01)
OPTIONS = WriterOptions(retry=QUICK, delivery_timeout_s=0.05, batch_age_s_max=0.001)


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.create(memory_store, "a")
    return FaultyStore(memory_store)


def test_append_lands_where_it_is_expected_or_not_at_all(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        assert writer.append(b"1", expect_next=1).offset == 1
        for wrong in (1, 3, 2**64 - 1):
            with pytest.raises(ConditionNotMetError, match=f"expected {wrong} as the next offset, found 2") as caught:
                writer.append(b"no", expect_next=wrong)
            assert caught.value.next_offset == 2
        assert writer.append_many([b"2", b"3"], expect_next=2).offset == 2
        assert writer.submit_many([b"4"], expect_next=4).result(30).offset == 4

    assert World(store).bodies() == [b"1", b"2", b"3", b"4"]


def test_writer_with_an_old_manifest_reports_where_the_log_ends_now(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer, LogWriter.open(memory_store, "a") as other:
        for number in range(5):
            other.append(b"%d" % number)

        with pytest.raises(ConditionNotMetError) as caught:
            writer.append(b"late", expect_next=1)
        assert caught.value.next_offset == 6
        with pytest.raises(ConditionNotMetError) as caught:
            writer.append(b"early", expect_next=7)
        assert caught.value.next_offset == 6
        # The records that this writer did not see are there.
        other.append(b"5")
        assert writer.append(b"6", expect_next=7).offset == 7

    assert World(memory_store).bodies() == [b"%d" % number for number in range(7)]


def test_consecutive_conditions_hold_within_one_commit(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        futures = []
        for number in range(100):
            futures.append(writer.submit(b"%d" % number, expect_next=2 * number + 1))
            futures.append(writer.submit(b"beside"))
        offsets = [future.result(30).offset for future in futures]

    assert offsets == list(range(1, 201))
    assert len(LogReader.open(memory_store, "a").scan()) < 50


def test_condition_is_not_failed_on_a_guess_that_proves_wrong(faulty: FaultyStore) -> None:
    """An append in flight would take the offset; then its upload fails, and the offset is free."""
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

    assert World(faulty.inner).bodies() == [b"conditional"]


def test_append_that_loses_its_place_meanwhile_reports_the_new_end(faulty: FaultyStore) -> None:
    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            faulty.before = lambda _kind, _path: None
            with LogWriter.open(faulty.inner, "a") as other:
                other.append_many([b"x", b"y"])

    with LogWriter.open(faulty, "a", options=WriterOptions(contentions_max=0)) as writer:
        faulty.before = overtake
        first, second = writer.submit(b"first", expect_next=1), writer.submit(b"second", expect_next=3)
        with pytest.raises(ConditionNotMetError) as caught:
            first.result(30)
        assert caught.value.next_offset == 3
        # The other one happens to end there.
        assert second.result(30).offset == 3

    assert World(faulty.inner).bodies() == [b"x", b"y", b"second"]


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown"])
def test_unanswered_commit_with_a_condition_is_applied_once_or_reported(faulty: FaultyStore, fault: str) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("replace", "MANIFEST", fault)
        assert writer.append(b"1", expect_next=1).offset == 1
        faulty.fail("replace", "MANIFEST", fault, times=10_000)
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"2", expect_next=2)
        faulty.heal()
        # After a repeat with the same condition, it is in the log once.
        caught = writer.submit(b"2", expect_next=2).exception(30)
        assert getattr(caught, "next_offset", None) == (3 if fault == "applied-unknown" else None)

    assert World(faulty.inner).bodies() == [b"1", b"2"]


@pytest.mark.parametrize("contentions_max", [0, 3])
def test_condition_holds_after_another_writer_appended_behind_an_unanswered_commit(
    memory_store: MemoryStore, faulty: FaultyStore, contentions_max: int
) -> None:
    """Regression: the caller got the end left by the writer's own commit, though another had appended since."""
    with (
        LogWriter.open(faulty, "a", options=WriterOptions(contentions_max=contentions_max)) as writer,
        LogWriter.open(memory_store, "a") as other,
    ):
        faulty.fail("replace", "MANIFEST", "applied-unknown")

        def come_between(kind: str, path: str) -> None:
            if kind == "get" and "MANIFEST" in path and faulty.fired["applied-unknown"]:
                faulty.before = lambda _kind, _path: None
                other.append(b"2")

        faulty.before = come_between
        writer.append(b"1")

        with pytest.raises(ConditionNotMetError) as caught:
            writer.append(b"no", expect_next=2)
        assert caught.value.next_offset == 3
        assert writer.append(b"3", expect_next=3).offset == 3
        other.append(b"4")
        assert writer.stats().contentions == 0

    assert World(memory_store).bodies() == [b"1", b"2", b"3", b"4"]


def test_counter_raised_by_compare_and_append_counts_every_time_once(store: ObjectStore) -> None:
    """Each appends the number it read plus one at the place it read it from: none is skipped or repeated."""
    LogWriter.create(store, "a")

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

    assert World(store).bodies() == [b"%d" % number for number in range(1, 33)]
    assert refused < 32 * 4


@pytest.mark.parametrize("offset", [0, -1, 2**64, "1", 1.0, True])
def test_condition_that_is_no_offset_is_refused_by_name(memory_store: MemoryStore, offset: int) -> None:
    with (
        LogWriter.open_or_create(memory_store, "a") as writer,
        pytest.raises(InvalidRequestError, match="expect_next"),
    ):
        writer.append(b"x", expect_next=offset)
