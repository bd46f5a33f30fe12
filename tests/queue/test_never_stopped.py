"""Nothing stops a queue for good: no record of others, no failed opening, no damage, no clock, no worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.queue.test_values import CountingStore
from tests.stores import FaultyStore, damage, life_path
from tests.world import QUICK, ClockStore
from wal3_core import (
    CorruptError,
    CursorStore,
    DelayQueue,
    FencedError,
    InvalidRequestError,
    KeyCompactor,
    LogError,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    NewItem,
    PolicyStore,
    QueueDefinition,
    QueueOptions,
    StaleTokenError,
    UnknownItemError,
    WriterOptions,
    read_queue_stats,
)
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.strict_json import dump_checksummed
from wal3_core.runtime import US_PER_S, ThreadRuntime, shared_runtime
from wal3_core.views.queue.encoding import BROKER_KEY, DEFINITION_KEY, META_KEY, STATE, VALUE, id_key, part_key
from wal3_core.views.queue.operations import Dequeue, ItemState

LOG = "q"
LIMIT_S = 30
YEAR_S = 365 * 86_400
COLD = QueueOptions(cache_bytes_max=0, prefetch_items=0)
# Each could be one of a queue's by its key, and is none by its body, or by its id.
STRAYS = (
    Message(b"text", None),
    Message(b"text", b"stray"),
    Message(b"{}", META_KEY),
    Message(None, META_KEY),
    Message(b"no token", b"b1"),
    Message(b"longer than a token", BROKER_KEY),
    Message(b"{}", DEFINITION_KEY),
    Message(b"text", id_key(VALUE, 2**40)),
    Message(b"text", id_key(STATE, 1)),
    Message(b"", id_key(STATE, 10)),
    Message(b"text", part_key(1, 2) + b"x"),
)


def stray(store: MemoryStore, *records: Message) -> int:
    with LogWriter.open(store, LOG) as writer:
        return writer.append_many(records).offset


def fragments(store: MemoryStore) -> list[FragmentPointer]:
    return list(LogReader.open(store, LOG).pointers())


def passed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "none of a queue's" in record.getMessage()]


# ------------------------------------------------------------------ records of others


def test_records_of_others_are_passed_counted_and_said_once(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue(b"a")
        at = stray(memory_store, Message(b"1", b"stray"), Message(b"2", b"stray"))
        queue.enqueue(b"b")
        queue.enqueue(b"c")

        stats = queue.stats()
        assert (stats.strays, stats.stray_offset, stats.pending) == (2, at + 1, 3)
        (said,) = passed(caplog)
        assert f"2 records from offset {at} on" in said
        assert "--view queue" in said
        later = stray(memory_store, Message(b"3", b"stray"))
        assert [item.value for item in queue.dequeue(3)] == [b"a", b"b", b"c"]
        assert (queue.stats().strays, queue.stats().stray_offset) == (3, later)
        assert len(passed(caplog)) == 2
    assert read_queue_stats(memory_store, LOG).strays == 3


@pytest.mark.slow
@pytest.mark.parametrize("record", STRAYS, ids=repr)
def test_record_of_others_is_passed_whatever_its_key(memory_store: MemoryStore, record: Message) -> None:
    with DelayQueue.open_or_create(memory_store, LOG, QueueDefinition(lease_s=7.0)) as queue:
        queue.enqueue(b"a")
        (item,) = queue.dequeue()
        if record.key is None:
            PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, **_COLLECTED))
        stray(memory_store, record)
        for number in range(2, 12):
            assert queue.enqueue(b"more").id == number
        assert queue.stats().strays == 1
        queue.checkpoint()
        KeyCompactor(memory_store, LOG).compact(force=True) if record.key is not None else None
    with DelayQueue.open(memory_store, LOG) as queue:
        assert queue.definition == QueueDefinition(lease_s=7.0)
        queue.release(item.id, item.token)
        assert queue.stats().pending == 10
        assert len(queue.dequeue(20)) == 10


@pytest.mark.parametrize("record", [STRAYS[6], Message(b"\x7f", id_key(VALUE, 1))], ids=repr)
def test_queue_goes_on_though_a_pass_took_its_records_for_those_of_others(
    memory_store: MemoryStore, record: Message, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the queue's cursor, nothing keeps the older records of a key."""
    with DelayQueue.open_or_create(memory_store, LOG, QueueDefinition(lease_s=7.0)) as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b")])
        queue.dequeue()
    CursorStore(memory_store, LOG).delete("queue")
    stray(memory_store, record)
    KeyCompactor(memory_store, LOG).compact(force=True)

    with DelayQueue.open(memory_store, LOG) as queue:
        is_defined = record.key != DEFINITION_KEY
        assert queue.definition == (QueueDefinition(lease_s=7.0) if is_defined else QueueDefinition())
        assert queue.stats().strays == 1
        assert queue.stats().pending + queue.stats().leased == (1 if is_defined else 2)
        queue.enqueue(b"c")
        assert [item.value for item in queue.dequeue(2)] == [b"b", b"c"]
    assert ("DelayQueue.define" in caplog.text) != is_defined


def test_cursor_that_is_created_again_keeps_what_records_of_others_would_replace(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG, QueueDefinition(lease_s=7.0)) as queue:
        queue.enqueue(b"a")
    CursorStore(memory_store, LOG).delete("queue")
    stray(memory_store, *STRAYS[2:7])
    dying = FaultyStore(memory_store)

    def die(kind: str, path: str) -> None:
        if kind in {"create", "replace"} and path.endswith("cursor/queue.json"):
            dying.fail("create", "log/", "unavailable", times=1000)

    dying.before = die
    with suppress(LogError):
        DelayQueue.open(dying, LOG, options=QueueOptions(writer=WriterOptions(retry=QUICK))).close()

    KeyCompactor(memory_store, LOG).compact(force=True)

    with DelayQueue.open(memory_store, LOG) as queue:
        assert queue.definition == QueueDefinition(lease_s=7.0)
        assert [item.value for item in queue.dequeue(9)] == [b"a"]


_COLLECTED = {
    "cleanup": "collect",
    "compacted_fragment_bytes": None,
    "delete_retention_s": None,
    "receipt_retention_s": None,
}


def test_those_who_wait_are_served_in_order_though_records_of_others_come_between(
    memory_store: MemoryStore,
) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        waiting = [queue.submit(Dequeue(1, timeout_s=LIMIT_S)) for _ in range(4)]
        stray(memory_store, Message(b"1", b"stray"))
        ids = [queue.enqueue(b"%d" % number).id for number in range(2)]
        stray(memory_store, Message(b"2", b"stray"))
        ids += [queue.enqueue(b"%d" % number).id for number in range(2)]

        assert [future.result(LIMIT_S)[0].id for future in waiting] == ids
        stray(memory_store, Message(b"3", b"stray"))
        assert queue.purge(pending=True, leased=True) == 4


def test_broker_that_does_nothing_passes_records_of_others(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.views.queue.broker.FENCE_CHECK_S", 0.0)
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        stray(memory_store, Message(b"1", b"stray"))
        for _ in range(1000):
            if queue.stats().strays:
                break
        assert queue.stats().strays == 1


def test_queue_of_a_log_that_others_append_to_all_the_time_refuses_what_it_cannot_do(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    with DelayQueue.open_or_create(store, LOG) as queue:

        def intrude(kind: str, path: str) -> None:
            if kind == "replace" and "manifest" in path:
                stray(memory_store, Message(b"1", b"stray"))

        store.before = intrude
        with pytest.raises(LogError):
            queue.enqueue(b"a")
        store.before = lambda _kind, _path: None
        assert queue.enqueue(b"b").id == 1


# ------------------------------------------------------------------ failed openings and damage


def test_opening_that_fails_leaves_the_queue_to_its_broker(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue(b"a")
        store.fail("read", "/log/", "denied", times=1000)
        with pytest.raises(LogError):
            DelayQueue.open(store, LOG)

        assert queue.enqueue(b"b").id == 2
        assert len(queue.dequeue(3)) == 2


def test_torn_last_fragment_leaves_the_queue_to_its_broker_and_has_a_way_out(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        for number in range(3):
            queue.enqueue(b"%d" % number)
        damage(memory_store, life_path(memory_store, LOG, fragments(memory_store)[-1].path))
        with pytest.raises(CorruptError, match=r"wal3 repair.*wal3 queue repair --without-damaged"):
            DelayQueue.open(memory_store, LOG)
        assert queue.enqueue(b"3").id == 4
        damage(memory_store, life_path(memory_store, LOG, fragments(memory_store)[-1].path))
    with pytest.raises(CorruptError, match="--without-damaged"):
        DelayQueue.repair(memory_store, LOG)

    assert DelayQueue.repair(memory_store, LOG, without_damaged=True).damaged == 2
    with DelayQueue.open(memory_store, LOG) as queue:
        assert queue.stats().damaged == 0
        assert [item.value for item in queue.peek(9)] == [b"0", b"1"]
        assert queue.enqueue(b"new").id > 4


@pytest.mark.parametrize("checkpointed", [False, True])
def test_damaged_value_holds_up_no_other_item_of_a_queue_that_is_opened(
    memory_store: MemoryStore, *, checkpointed: bool
) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        for number in range(5):
            queue.enqueue(b"%d" % number)
        if checkpointed:
            queue.checkpoint()
    damaged = [each for each in fragments(memory_store) if each.num_records == 2][3]
    path = life_path(memory_store, LOG, damaged.path)
    sound = memory_store.read(path)
    damage(memory_store, path)

    with DelayQueue.open(memory_store, LOG, options=COLD) as queue:
        found = queue.dequeue(9)
        assert [item.value for item in found] == [b"0", b"1", b"3", b"4"]
        queue.release_many([(item.id, item.token) for item in found])
        assert queue.stats().damaged == (not checkpointed)
        if not checkpointed:
            with pytest.raises(CorruptError, match="without-damaged"):
                queue.checkpoint()
    memory_store.delete(path)
    assert sound is not None
    memory_store.create(path, sound)
    with DelayQueue.open(memory_store, LOG, options=COLD) as queue:
        assert queue.stats().damaged == 0
        assert queue.stats().pending + queue.stats().leased == 1


def test_opening_reads_few_fragments_when_the_newest_record_is_a_checkpoint(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        for number in range(60):
            queue.enqueue(b"%d" % number)
        queue.checkpoint()
    store = CountingStore(memory_store)
    with DelayQueue.open(store, LOG, options=COLD):
        assert store.num_reads <= 4


# ------------------------------------------------------------------ time


class SkewedRuntime(ThreadRuntime):
    """A process whose wall clock a test sets, and which may be suspended: both of its clocks then go on at once."""

    skew_s = 0
    later_s = 0

    def now_us(self) -> int:
        return super().now_us() + (self.skew_s + self.later_s) * US_PER_S

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


@pytest.fixture
def runtime() -> Iterator[SkewedRuntime]:
    runtime = SkewedRuntime()
    yield runtime
    runtime.close()


@pytest.fixture
def store() -> ClockStore:
    """A store whose clock is right, until a test lets time pass."""
    return ClockStore(MemoryStore(shared_runtime()))


def now_us() -> int:
    return shared_runtime().now_us()


def test_clock_that_is_put_forward_ends_no_lease_and_makes_no_dead_letter(
    store: ClockStore, runtime: SkewedRuntime
) -> None:
    definition = QueueDefinition(lease_s=300, max_deliveries=2)
    with DelayQueue.open_or_create(store, LOG, definition, runtime=runtime) as queue:
        queue.enqueue(b"job")
        (item,) = queue.dequeue()
        for skew_s in (301, 602, 10 * YEAR_S):
            runtime.skew_s = skew_s
            queue.enqueue(b"other", delay_s=1000)
            assert queue.dequeue() == []
        assert queue.item(queue.stats().last_id).enqueued_us <= now_us() + 60 * US_PER_S
        runtime.later_s = 250
        queue.release(item.id, item.token)
        assert queue.stats().dead == 0


def test_lease_ends_by_the_monotonic_clock_though_the_wall_clock_was_right_to_jump(
    store: ClockStore, runtime: SkewedRuntime
) -> None:
    with DelayQueue.open_or_create(store, LOG, QueueDefinition(lease_s=300), runtime=runtime) as queue:
        queue.enqueue(b"job")
        (item,) = queue.dequeue()
        runtime.skew_s = 3600
        store.pass_s(3600)
        queue.enqueue(b"other", delay_s=10**6)
        moved_s = (queue.item(item.id).lease_until_us - item.lease_until_us) / US_PER_S
        assert abs(moved_s - 3600) < LIMIT_S
        stray(store, Message(b"1", b"stray"))
        runtime.later_s = 250
        assert queue.dequeue() == []
        queue.extend(item.id, item.token, 300)
        runtime.later_s = 500
        assert queue.item(item.id).state is ItemState.LEASED
        runtime.later_s = 600
        assert queue.dequeue()[0].deliveries == 2
        with pytest.raises(StaleTokenError):
            queue.release(item.id, item.token)


def test_clock_that_was_ahead_does_not_stop_the_time_of_brokers_that_live_shortly(
    store: ClockStore, runtime: SkewedRuntime
) -> None:
    runtime.skew_s = 10 * YEAR_S
    with DelayQueue.open_or_create(store, LOG, runtime=runtime) as queue:
        queue.enqueue(b"job", delay_s=100)
    for passed_s in (50, 100, 150, 200):
        runtime.skew_s = passed_s
        store.pass_s(50)
        with DelayQueue.open(store, LOG, runtime=runtime) as queue:
            found = queue.dequeue()
    assert [item.value for item in found] == [b"job"]


def test_idle_broker_asks_the_store_whether_its_clock_is_right_to_jump(
    store: ClockStore, runtime: SkewedRuntime
) -> None:
    with DelayQueue.open_or_create(store, LOG, runtime=runtime) as queue:
        queue.enqueue(b"job", delay_s=3600)
        waiting = queue.submit(Dequeue(1, timeout_s=10**6))
        queue.stats()
        store.pass_s(3600)
        runtime.skew_s = 3600
        assert [item.value for item in waiting.result(LIMIT_S)] == [b"job"]


def ahead(store: ClockStore, runtime: SkewedRuntime) -> int:
    """Make a queue whose time is ten years ahead, as earlier versions did; return a deadline in twenty years."""
    far_us = now_us() + 20 * YEAR_S * US_PER_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal3_core.views.queue.broker.QueueClock._limit_ms", lambda _self, _read_s: 10.0**17)
        with DelayQueue.open_or_create(store, LOG, QueueDefinition(lease_s=100), runtime=runtime) as queue:
            queue.enqueue(b"came back")
            queue.dequeue()
            queue.enqueue(b"far", deadline_us=far_us)
            runtime.skew_s = 10 * YEAR_S
            queue.enqueue(b"next", delay_s=1.0)
            runtime.later_s = 150
            queue.enqueue(b"delayed", delay_s=50)
            assert [item.value for item in queue.dequeue()] == [b"came back"]
            runtime.later_s = 300
            queue.define(QueueDefinition(lease_s=1000))
            (item,) = queue.dequeue()
            assert item.value == b"next"
    runtime.skew_s = 0
    return far_us


def test_time_that_is_years_ahead_is_set_back_by_a_repair(
    store: ClockStore, runtime: SkewedRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    far_us = ahead(store, runtime)
    with DelayQueue.open(store, LOG, runtime=runtime) as queue:
        assert queue.enqueue(b"last").deadline_us > now_us() + 9 * YEAR_S * US_PER_S
    assert "wal3 queue repair" in caplog.text

    assert DelayQueue.repair(store, LOG, runtime=runtime).retimed == 4
    assert DelayQueue.repair(store, LOG, runtime=runtime).retimed == 0
    with DelayQueue.open(store, LOG, runtime=runtime) as queue:
        assert {item.value for item in queue.dequeue(9)} == {b"came back", b"next", b"last"}
        new = queue.enqueue(b"new")
        assert not new.advanced
        assert new.deadline_us < now_us() + 1000 * US_PER_S
        runtime.later_s += 60
        assert {item.value for item in queue.dequeue(9)} == {b"new", b"delayed"}
        (far,) = queue.peek(1)
        assert (far.value, far.deadline_us // 1000) == (b"far", far_us // 1000 + (far_us % 1000 > 0))


def test_repair_of_a_sound_queue_changes_nothing(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG) as queue:
        queue.enqueue(b"a")
        (item,) = queue.dequeue()
    assert DelayQueue.repair(memory_store, LOG).to_json() == {"retimed": 0, "damaged": 0}
    with DelayQueue.open(memory_store, LOG) as queue:
        queue.release(item.id, item.token)


# ------------------------------------------------------------------ workers


def test_leased_item_is_reclaimed_without_its_token(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG, QueueDefinition(max_deliveries=2)) as queue:
        queue.enqueue(b"a")
        (item,) = queue.dequeue(lease_s=30 * 86_400)
        with pytest.raises(UnknownItemError, match="item 7"):
            queue.reclaim([item.id, 7])
        (back,) = queue.reclaim([item.id])
        assert not back.dead
        with pytest.raises(StaleTokenError):
            queue.release(item.id, item.token)
        (again,) = queue.dequeue()
        assert (again.id, again.deliveries) == (item.id, 2)
        (back,) = queue.reclaim([item.id])
        assert back.dead
        assert queue.item(item.id).state is ItemState.DEAD


def test_requeue_says_that_it_buried_the_item(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG, QueueDefinition(max_deliveries=2)) as queue:
        queue.enqueue(b"a")
        for buried in (False, True):
            (item,) = queue.dequeue()
            assert queue.requeue(item.id, item.token).dead is buried


def test_lease_has_a_largest_length(memory_store: MemoryStore) -> None:
    with pytest.raises(InvalidRequestError, match="lease_s"):
        QueueDefinition(lease_s=30 * 86_400 + 1)
    with DelayQueue.open_or_create(memory_store, LOG, QueueDefinition(lease_s=30 * 86_400)) as queue:
        queue.enqueue(b"a")
        with pytest.raises(InvalidRequestError, match="lease_s: .* up to 2592000"):
            queue.dequeue(lease_s=30 * 86_400 + 1)
        (item,) = queue.dequeue(lease_s=30 * 86_400)
        with pytest.raises(InvalidRequestError, match="lease_s"):
            queue.extend(item.id, item.token, 10**9)


def test_definition_of_an_earlier_version_with_a_longer_lease_is_read() -> None:
    longest = QueueDefinition(lease_s=30 * 86_400)
    data = dump_checksummed({"format_version": 1, "lease_ms": 10**11, "value_bytes_max": longest.value_bytes_max})

    assert QueueDefinition.from_bytes(data, what="a definition") == longest


def test_broker_is_still_fenced_by_another_one(memory_store: MemoryStore) -> None:
    older = DelayQueue.open_or_create(memory_store, LOG)
    older.enqueue(b"a")
    with DelayQueue.open(memory_store, LOG) as queue:
        stray(memory_store, Message(b"1", b"stray"))
        queue.enqueue(b"b")
        with pytest.raises(FencedError, match="another one has taken it"):
            older.enqueue(b"c")
        assert [item.value for item in queue.peek(9)] == [b"a", b"b"]
