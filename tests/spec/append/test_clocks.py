"""No process's clock moves a log's time far ahead of the store's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.stores import CountingStore, FaultyStore
from tests.world import ClockStore
from wal3_core import (
    AtTime,
    Collector,
    CursorStore,
    InvalidRequestError,
    Limits,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    PinStore,
    PolicyStore,
    WriterOptions,
    copy,
    create_successor,
    destroy,
    migrate,
    records_across,
    scrub,
    seal,
)
from wal3_core.options import CLOCK_AHEAD_S_MAX, CollectorOptions, RetryOptions
from wal3_core.runtime import US_PER_S, ThreadRuntime
from wal3_core.store.object_store import ObjectStore

LOG = "a"

CENTURY_S = 100 * 365 * 86_400
BOUND_US = int(CLOCK_AHEAD_S_MAX * US_PER_S)
# The furthest that options let a clock be trusted.
TRUSTING = WriterOptions(clock_ahead_s_max=10 * 365 * 86_400)
QUICK = WriterOptions(retry=RetryOptions(attempts_max=2, pause_s_min=0.001, pause_s_max=0.001))
AHEAD_S = 9 * 365 * 86_400


class SetRuntime(ThreadRuntime):
    """A process whose clocks a test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0
        self.passed_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + int((self.ahead_s + self.passed_s) * US_PER_S)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.passed_s


@pytest.fixture
def runtime() -> Iterator[SetRuntime]:
    with SetRuntime() as runtime:
        yield runtime


def now_us() -> int:
    return time.time_ns() // 1000


def next_us(store: ObjectStore, log: str = LOG) -> int:
    return LogReader.open(store, log).manifest().next.position.timestamp_us


def append_years_ahead(store: ObjectStore, log: str = LOG) -> None:
    """Write a log with three good records, two dated nine years ahead, and one after them."""
    with SetRuntime() as map_ahead:
        with LogWriter.open_or_create(store, log) as writer:
            writer.append_many([b"1", b"2", b"3"])
        map_ahead.ahead_s = AHEAD_S
        with LogWriter.open(store, log, options=TRUSTING, runtime=map_ahead) as writer:
            writer.append_many([b"4", b"5"])
        with LogWriter.open(store, log) as writer:
            writer.append(b"6")


# ---------------------------------------------------------------------- writers


def test_clock_a_century_ahead_moves_a_log_by_the_bound_and_its_records_age(
    store: ObjectStore, runtime: SetRuntime
) -> None:
    runtime.ahead_s = CENTURY_S
    LogWriter.create(store, LOG, runtime=runtime)
    for who in (None, runtime, None):
        with LogWriter.open(store, LOG, runtime=who) as writer:
            for _ in range(3):
                writer.append(b"x")

    moved_us = next_us(store) - now_us()
    assert moved_us <= BOUND_US
    assert [record.offset for record in LogReader.open(store, LOG).records()] == list(range(1, 10))
    assert scrub(store, LOG).sound
    PolicyStore(store, LOG).change(lambda policy: replace(policy, retention_s=1, without_cursors=True))
    # By the store's clock, all of them are old an hour later.
    later = ClockStore(FaultyStore(store), now_us=now_us() + 3600 * US_PER_S)
    runtime.ahead_s = 3600.0
    assert Collector(later, LOG, options=CollectorOptions(fraction_max=1), runtime=runtime).plan().num_records == 9


def test_clock_that_is_set_ahead_while_a_writer_is_open_is_detected(
    memory_store: MemoryStore, runtime: SetRuntime
) -> None:
    with LogWriter.open_or_create(memory_store, LOG, runtime=runtime) as writer:
        writer.append(b"right")
        runtime.ahead_s = CENTURY_S
        late = [writer.append(b"ahead").timestamp_us for _ in range(3)]
        runtime.ahead_s = 2 * CENTURY_S
        late += [writer.append(b"further").timestamp_us for _ in range(3)]

    assert late == sorted(late)
    assert late[-1] <= now_us() + BOUND_US


def test_store_is_asked_for_its_time_once_an_hour_and_only_for_appends(
    memory_store: MemoryStore, runtime: SetRuntime
) -> None:
    clock = ClockStore(FaultyStore(memory_store))
    counting = CountingStore(clock)
    LogWriter.create(clock, LOG)
    with LogWriter.open(counting, LOG, runtime=runtime) as writer:
        asked = [counting.requests["head"]]
        for passed_s in (0.0, 0.0, 3500.0, 200.0, 3500.0, 200.0, 100_000.0):
            runtime.passed_s += passed_s
            clock.pass_s(passed_s)
            writer.append(b"x")
            asked.append(counting.requests["head"])

    assert asked == [0, 1, 1, 1, 2, 2, 3, 4]
    # No other request besides the upload and the CAS.
    assert counting.requests["create"] == counting.requests["replace"] == 7
    assert (counting.requests["get"], counting.requests["list"], counting.requests["read"]) == (1, 0, 0)


def test_writer_with_a_bad_clock_asks_and_uploads_again_once_an_hour(
    memory_store: MemoryStore, runtime: SetRuntime
) -> None:
    runtime.ahead_s = CENTURY_S
    counting = CountingStore(memory_store)
    LogWriter.create(memory_store, LOG)
    with LogWriter.open(counting, LOG, runtime=runtime) as writer:
        for _ in range(10):
            writer.append(b"x")

    assert counting.requests["head"] == 1
    assert counting.requests["create"] == 11


def test_upload_longer_than_the_bound_is_repeated_once_under_a_clock_ahead(
    memory_store: MemoryStore, runtime: SetRuntime
) -> None:
    """Regression: a slow upload looked like a clock that was set, so the append never ended and left orphans."""
    runtime.ahead_s = 600
    clock = ClockStore(FaultyStore(memory_store), now_us=now_us())
    counting = CountingStore(clock)
    LogWriter.create(clock, LOG)
    slow_s = 2 * CLOCK_AHEAD_S_MAX

    def before(kind: str, _path: str) -> None:
        if kind == "create":
            clock.pass_s(slow_s)
            runtime.passed_s += slow_s

    clock.before = before
    with LogWriter.open(
        counting, LOG, options=WriterOptions(rebases_max=10, delivery_timeout_s=36_000), runtime=runtime
    ) as writer:
        writer.append(b"x")

    assert counting.requests["create"] == 2
    assert next_us(memory_store) <= clock.now_us + BOUND_US


def test_log_whose_time_is_ahead_already_costs_no_requests(memory_store: MemoryStore) -> None:
    append_years_ahead(memory_store)
    counting = CountingStore(memory_store)

    with LogWriter.open(counting, LOG) as writer:
        for _ in range(5):
            writer.append(b"x")

    assert counting.requests["head"] == 0


def test_suspended_machine_is_not_mistaken_for_one_with_a_clock_ahead(memory_store: MemoryStore) -> None:
    """Its monotonic clock stood still, so its estimate of the store's time is hours behind."""
    clock = ClockStore(FaultyStore(memory_store), now_us=now_us())
    with SetRuntime() as runtime, LogWriter.open_or_create(clock, LOG, runtime=runtime) as writer:
        writer.append(b"before")
        clock.pass_s(8 * 3600)
        runtime.ahead_s = 8 * 3600
        after = writer.append(b"after")

    assert abs(after.timestamp_us - clock.now_us) < 60 * US_PER_S


def test_append_fails_when_the_store_does_not_give_its_time_and_nothing_is_committed(
    memory_store: MemoryStore,
) -> None:
    faulty = FaultyStore(memory_store)
    with LogWriter.open_or_create(faulty, LOG, options=QUICK) as writer:
        faulty.fail("head", "log/", "unavailable", times=2)
        with pytest.raises(NotDurableError, match="the store's time is unknown"):
            writer.append(b"never")
        faulty.fail("head", "log/", "unavailable", times=1)
        writer.append(b"once")

    assert [record.body for record in LogReader.open(memory_store, LOG).records()] == [b"once"]


def test_fragment_that_is_gone_when_its_time_is_checked_is_uploaded_again(memory_store: MemoryStore) -> None:
    faulty = FaultyStore(memory_store)

    def prune_orphans(kind: str, path: str) -> None:
        if kind == "head":
            faulty.before = lambda _kind, _path: None
            memory_store.delete(path)

    faulty.before = prune_orphans
    with LogWriter.open_or_create(faulty, LOG) as writer:
        writer.append(b"once")

    assert [record.body for record in LogReader.open(memory_store, LOG).records()] == [b"once"]
    assert scrub(memory_store, LOG).sound


def test_bound_below_the_resolution_of_stores_clocks_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="clock_ahead_s_max"):
        WriterOptions(clock_ahead_s_max=0.5)


# ---------------------------------------------------------------------- a log whose time is ahead


def test_log_whose_time_is_ahead_continues_in_a_successor_at_the_store_s_time(store: ObjectStore) -> None:
    append_years_ahead(store)
    assert next_us(store) > now_us() + BOUND_US

    migrate(store, LOG, "b", reason="its time is years ahead")

    assert next_us(store, "b") <= now_us() + BOUND_US
    with LogWriter.open(store, "b") as writer:
        position = writer.append(b"7")
    assert (position.offset, position.timestamp_us <= now_us() + BOUND_US) == (7, True)
    assert [record.body for record in records_across(store, LOG)] == [b"%d" % n for n in range(1, 8)]
    # Repeated: the existing log is this log's successor.
    assert create_successor(store, LOG) == "b"


def test_reads_by_time_skip_nothing_where_the_time_steps_back(memory_store: MemoryStore) -> None:
    append_years_ahead(memory_store)
    between_us = now_us() + 4 * 365 * 86_400 * US_PER_S
    migrate(memory_store, LOG, "b", reason="its time is years ahead")
    with LogWriter.open(memory_store, "b") as writer:
        writer.append_many([b"7", b"8"])

    def bodies(start: AtTime | None = None, limits: Limits = Limits()) -> list[bytes | None]:  # noqa: B008 - it never changes
        return [record.body for record in records_across(memory_store, LOG, start, limits)]

    # The first record at that time or later, and every record after it.
    assert bodies(AtTime(between_us)) == [b"4", b"5", b"6", b"7", b"8"]
    # Of each log the records before its first one at that time or later.
    assert bodies(None, Limits(timestamp_us=between_us)) == [b"1", b"2", b"3", b"7", b"8"]
    assert bodies() == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]


def test_successor_of_a_log_with_right_clocks_begins_at_its_very_end(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, LOG) as writer:
        end = writer.append(b"1")
    migrate(store, LOG, "b", reason="full")

    found = LogReader.open(store, "b").manifest()
    assert found.first == found.next == LogReader.open(store, LOG).manifest().next
    assert found.next.position.timestamp_us == end.timestamp_us


def test_copy_without_records_inherits_no_time_that_is_ahead(memory_store: MemoryStore) -> None:
    """A copy that has such records keeps their times; it is migrated afterwards."""
    append_years_ahead(memory_store)
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "whole"))
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "empty"), from_offset=7)

    assert next_us(memory_store, "whole") > now_us() + BOUND_US
    assert next_us(memory_store, "empty") <= now_us() + BOUND_US
    migrate(memory_store, "whole", "right", reason="its time is years ahead")
    assert next_us(memory_store, "right") <= now_us() + BOUND_US


# ---------------------------------------------------------------------- retention


def test_collector_whose_clock_is_a_year_ahead_collects_no_young_records(
    store: ObjectStore, runtime: SetRuntime
) -> None:
    with LogWriter.open_or_create(store, LOG) as writer:
        for _ in range(3):
            writer.append(b"young")
    PolicyStore(store, LOG).change(lambda policy: replace(policy, retention_s=86_400, without_cursors=True))
    runtime.ahead_s = 365 * 86_400
    collector = Collector(store, LOG, options=CollectorOptions(fraction_max=1), runtime=runtime)

    assert collector.plan().empty


def test_retention_asks_for_the_store_s_time_only_when_something_is_old(
    memory_store: MemoryStore, runtime: SetRuntime
) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append(b"young")
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, retention_s=86_400, without_cursors=True))
    counting = CountingStore(memory_store)

    assert Collector(counting, LOG, runtime=runtime).plan().empty

    assert counting.requests["head"] == counting.requests["create"] == counting.requests["replace"] == 0


def test_condition_is_not_failed_by_the_old_manifest_of_a_writer_that_was_ahead(
    memory_store: MemoryStore, runtime: SetRuntime
) -> None:
    """A commit refused for a clock ahead leaves the writer an old manifest; the writer must load it again."""
    runtime.ahead_s = CENTURY_S
    faulty, submitted = FaultyStore(memory_store), threading.Event()
    uploads: list[str] = []
    one_by_one = replace(QUICK, batch_bytes_max=1, fragments_in_flight_max=1)

    def before(kind: str, path: str) -> None:
        if kind == "create" and "/log/" in path:
            uploads.append(path)
            assert submitted.wait(30)
            if len(uploads) == 2:
                faulty.fail("create", path, "denied")

    with (
        LogWriter.open_or_create(faulty, LOG, options=one_by_one, runtime=runtime) as writer,
        LogWriter.open(memory_store, LOG) as other,
    ):
        other.append(b"other")
        faulty.before = before
        old = writer.submit(b"old", expect_next=1)
        new = writer.submit(b"new", expect_next=2)
        submitted.set()
        with pytest.raises(NotDurableError):
            old.result(30)
        assert new.result(30).offset == 2


@pytest.mark.parametrize(("wall_us", "counts_as_us"), [(-(10**15), 0), (2**65, 253_402_300_799_999_999)])
def test_clock_before_1970_or_beyond_the_calendar_counts_as_the_end_of_it(
    memory_store: MemoryStore, wall_us: int, counts_as_us: int
) -> None:
    """Regression: cursors, pins, seals and fragments could not be written, with an error about a field."""
    with SetRuntime() as runtime:
        runtime.ahead_s = (wall_us - runtime.now_us()) / US_PER_S
        with LogWriter.open_or_create(memory_store, "a", runtime=runtime) as writer:
            assert writer.append(b"x").offset == 1
        cursors = CursorStore(memory_store, "a", runtime=runtime)
        assert cursors.create("c", LogPosition(1, 0)).cursor.epoch_us == counts_as_us
        assert PinStore(memory_store, "a", runtime=runtime).create("p", reason="r").epoch_us == counts_as_us
        copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), runtime=runtime)
        assert seal(memory_store, "b", reason="r", runtime=runtime).timestamp_us == counts_as_us
        destroy(memory_store, "a", also_pinned=True, runtime=runtime)
