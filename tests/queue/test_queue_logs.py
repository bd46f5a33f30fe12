"""What happens to logs happens to a queue's log: copies, restores, seals, other policies, many openings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.queue.pair import COMPACTING
from tests.stores import FaultyStore, damage, life_path
from tests.world import NOW, ClockStore
from wal3_core import (
    Cleanup,
    CorruptError,
    CursorStore,
    DelayQueue,
    FencedError,
    KeyCompactor,
    LogAt,
    LogError,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    Message,
    NewItem,
    PolicyStore,
    QueueDefinition,
    QueueOptions,
    SealedError,
    bootstrap,
    copy,
    destroy,
    read_queue_head,
    read_queue_stats,
    scrub,
    seal,
    update_copy,
)
from wal3_core.format.paths import MANIFEST
from wal3_core.log.collect.deleter import Deleter
from wal3_core.runtime import shared_runtime
from wal3_core.views.queue import checkpoint
from wal3_core.views.queue.encoding import STATE, VALUE, id_key

LOG = "q"
# Values come from the store, and there are many checkpoints.
COLD = QueueOptions(cache_bytes_max=0, prefetch_items=0, checkpoint_records=20)
# There is a checkpoint for every few fragments.
OFTEN = QueueOptions(checkpoint_fragments=20)


def filled(store: MemoryStore, **more: int) -> list[tuple[int, str]]:
    """Make a queue that has items in each state, before and after a checkpoint; return its leases."""
    with DelayQueue.open_or_create(store, LOG, QueueDefinition(lease_s=1000, **more), options=COLD) as queue:
        queue.enqueue_many([NewItem(b"%d" % number, dedupe_key=b"k%d" % number) for number in range(1, 7)])
        first, second, third = queue.dequeue(3)
        queue.bury(first.id, first.token)
        queue.release(second.id, second.token)
        queue.checkpoint()
        queue.enqueue_many([NewItem(b"7"), NewItem(b"8", delay_s=1000)])
        (fourth,) = queue.dequeue()
        queue.requeue(fourth.id, fourth.token, value=b"4 again", delay_s=2000)
        (fifth,) = queue.dequeue()
    return [(third.id, third.token), (fifth.id, fifth.token)]


def check_filled(store: MemoryStore, log: str, leases: list[tuple[int, str]]) -> None:
    """Open what ``filled`` has made, or a copy of it: nothing is lost, and its leases go on."""
    with DelayQueue.open(store, log, options=COLD) as queue:
        assert [item.value for item in queue.peek(9)] == [b"6", b"7", b"8", b"4 again"]
        assert [letter.value for letter in queue.dead()] == [b"1"]
        assert queue.enqueue(b"x", dedupe_key=b"k4").duplicate
        assert queue.enqueue(b"x", delay_s=3000).id == 9
        assert {item.id for item in queue.dequeue(9)} == {6, 7}
        queue.release_many(leases)
        assert queue.stats().leased == 2
        queue.checkpoint()
    assert read_queue_stats(store, log).pending == 3
    assert scrub(store, log).sound


@pytest.mark.slow
@pytest.mark.parametrize("with_cursors", [False, True])
@pytest.mark.parametrize("compacted", ["", "before", "after"])
def test_copy_of_a_queue_is_a_queue(memory_store: MemoryStore, compacted: str, *, with_cursors: bool) -> None:
    leases = filled(memory_store)
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, delete_retention_s=0))
    if compacted == "before":
        KeyCompactor(memory_store, LOG, options=COMPACTING).compact(force=True)
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "copy"), with_cursors=with_cursors)
    if compacted == "after":
        KeyCompactor(memory_store, "copy", options=COMPACTING).compact(force=True)

    check_filled(memory_store, "copy", leases)


@pytest.mark.parametrize("with_cursors", [False, True])
def test_copy_of_a_queue_is_updated_until_it_is_opened(memory_store: MemoryStore, *, with_cursors: bool) -> None:
    source, target = LogAt(memory_store, LOG), LogAt(memory_store, "copy")
    with DelayQueue.open_or_create(memory_store, LOG, options=COLD) as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b", delay_s=1000)])
        queue.checkpoint()
        copy(source, target, with_cursors=with_cursors)
        (item,) = queue.dequeue()
        queue.release(item.id, item.token)
        queue.enqueue(b"c", delay_s=2000)
        queue.checkpoint()
        update_copy(source, target, with_cursors=with_cursors)
    with DelayQueue.open(memory_store, "copy", options=COLD) as queue:
        assert [item.value for item in queue.peek(9)] == [b"b", b"c"]
        assert queue.enqueue(b"d").id == 4
    with pytest.raises(LogError):
        update_copy(source, target)


def test_sealed_queue_is_looked_at_and_goes_on_in_a_copy(memory_store: MemoryStore) -> None:
    leases = filled(memory_store)
    with DelayQueue.open(memory_store, LOG, options=COLD) as queue:
        seal(memory_store, LOG, reason="moved")
        with pytest.raises(SealedError):
            queue.enqueue(b"x")
        with pytest.raises(SealedError):
            queue.dequeue(timeout_s=0.01)
        assert (queue.stats().leased, len(queue.peek(9)), len(queue.dead())) == (2, 4, 1)
    assert read_queue_stats(memory_store, LOG).leased == 2
    with DelayQueue.open(memory_store, LOG, options=COLD) as queue:
        assert (queue.stats().leased, len(queue.peek(9)), len(queue.dead())) == (2, 4, 1)
        with pytest.raises(SealedError):
            queue.purge()
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "copy"), with_cursors=True)

    check_filled(memory_store, "copy", leases)


def test_bootstrapped_queue_is_a_queue(memory_store: MemoryStore) -> None:
    leases = filled(memory_store)
    bootstrap(memory_store, "again", LogReader.open(memory_store, LOG).records())

    check_filled(memory_store, "again", leases)
    assert PolicyStore(memory_store, "again").load().cleanup is Cleanup.COMPACT


def test_queue_restored_in_place_replaces_the_one_that_a_broker_has(memory_store: MemoryStore) -> None:
    leases = filled(memory_store)
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "backup"), with_cursors=True)
    broker = DelayQueue.open(memory_store, LOG, options=COLD)
    assert broker.enqueue(b"after the backup").id == 9
    destroy(memory_store, LOG)
    with pytest.raises(LogError):
        broker.enqueue(b"into nothing")
    copy(LogAt(memory_store, "backup"), LogAt(memory_store, LOG), with_cursors=True)
    for _ in range(2):
        with pytest.raises(LogReplacedError):
            broker.enqueue(b"into another life")
    broker.close()

    check_filled(memory_store, LOG, leases)


@pytest.mark.parametrize("idle", [False, True])
def test_broker_of_a_queue_that_was_made_again_changes_nothing_of_the_new_one(
    memory_store: MemoryStore, *, idle: bool
) -> None:
    broker = DelayQueue.open_or_create(memory_store, LOG)
    broker.enqueue(b"old")
    destroy(memory_store, LOG)
    if not idle:
        with pytest.raises(LogError):
            broker.dequeue()
    with DelayQueue.open_or_create(memory_store, LOG) as again:
        again.enqueue(b"new")
        with pytest.raises(LogReplacedError):
            broker.dequeue()
        broker.close()
        assert [item.value for item in again.dequeue(9)] == [b"new"]


def _collect(policy: object) -> object:
    return replace(
        policy,
        cleanup=Cleanup.COLLECT,
        delete_retention_s=None,
        compacted_fragment_bytes=None,
        receipt_retention_s=None,
        retention_s=100,
        without_cursors=True,
        percent_max=50,
    )


def _both(policy: object) -> object:
    return replace(policy, cleanup=Cleanup.BOTH, retention_s=100, percent_max=100)


def _arranged(policy: object) -> object:
    return replace(policy, arrange_by_key=True, compacted_fragment_bytes=4096)


@pytest.mark.parametrize("change", [_collect, _both, _arranged])
def test_queue_is_opened_whatever_its_policy_was_made(
    memory_store: MemoryStore, change: Callable[[object], object]
) -> None:
    leases = filled(memory_store)
    PolicyStore(memory_store, LOG).change(change)

    check_filled(memory_store, LOG, leases)
    assert PolicyStore(memory_store, LOG).load().cleanup is Cleanup.COMPACT


@pytest.mark.slow
def test_broker_with_an_old_checkpoint_reads_what_passes_have_arranged_and_deleted() -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    DelayQueue.create(store, LOG)
    PolicyStore(store, LOG).change(
        lambda policy: replace(policy, arrange_by_key=True, delete_retention_s=0, compacted_fragment_bytes=4096)
    )
    queue = DelayQueue.open(store, LOG, options=COLD)
    queue.enqueue_many([NewItem(b"%d" % number * 50) for number in range(80)])
    queue.checkpoint()
    for _ in range(3):
        items = queue.dequeue(20)
        queue.release_many([(item.id, item.token) for item in items[::2]])
        queue.checkpoint()
        for _ in range(2):
            KeyCompactor(store, LOG, options=COMPACTING).compact(force=True)
        store.pass_s(2 * 86_400)
        deleter = Deleter(store, LOG, options=NOW)
        for path in [meta.path for meta in deleter.documents()]:
            deleter.delete(path)
        assert all(item.value == b"%d" % (item.id - 1) * 50 for item in queue.peek(1000))
    before = queue.peek(1000), queue.stats()
    queue.close()
    with DelayQueue.open(store, LOG, options=COLD) as again:
        assert again.peek(1000) == before[0]
        assert again.stats().leased == before[1].leased
    assert read_queue_head(store, LOG, 1000) == before[0]


@pytest.mark.slow
def test_item_that_is_due_in_a_month_keeps_no_released_one_on_storage() -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    with DelayQueue.open_or_create(store, LOG, options=COLD) as queue:
        month = queue.enqueue(b"in a month", delay_s=30 * 86_400, dedupe_key=b"k")
        for _ in range(6):
            queue.enqueue_many([NewItem(bytes(200))] * 50)
            items = queue.dequeue(50)
            queue.release_many([(item.id, item.token) for item in items])
            KeyCompactor(store, LOG, options=COMPACTING).compact(force=True)
        queue.checkpoint()
        # An hour later the tombstones go, and what passes have replaced is deleted.
        for _ in range(3):
            store.pass_s(2 * 86_400)
            KeyCompactor(store, LOG, options=COMPACTING).compact(force=True)
            deleter = Deleter(store, LOG, options=NOW)
            for path in [meta.path for meta in deleter.documents()]:
                deleter.delete(path)

        assert queue.peek()[0].deadline_us == month.deadline_us
    left = [record.key for record in LogReader.open(store, LOG).records()]
    assert [key for key in left if key is not None and key[:1] in (VALUE, STATE)] == [id_key(VALUE, month.id)]
    assert sum(each.size for each in store.list_objects("") if "/log/" in each.path) < 20_000
    with DelayQueue.open(store, LOG, options=COLD) as queue:
        assert queue.enqueue(b"x", dedupe_key=b"k").id == month.id


def test_item_that_is_released_and_compacted_away_while_it_is_looked_at(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    queue = DelayQueue.open_or_create(memory_store, LOG, options=COLD)
    queue.enqueue_many([NewItem(b"1"), NewItem(b"2")])
    asked: list[str] = []
    store.before = lambda kind, path: asked.append(path) if kind == "get" and path.endswith(MANIFEST) else None
    assert [item.value for item in read_queue_head(store, LOG, 2)] == [b"1", b"2"]
    before_values = len(asked)

    def release(kind: str, path: str) -> None:
        asked.extend([path] * (kind == "get" and path.endswith(MANIFEST)))
        if len(asked) == before_values:
            asked.append("released")
            (first,) = queue.dequeue()
            queue.release(first.id, first.token)
            queue.checkpoint()
            KeyCompactor(memory_store, LOG, options=COMPACTING).compact(force=True)

    asked.clear()
    store.before = release
    assert [item.value for item in read_queue_head(store, LOG, 2)] == [b"2"]
    assert "released" in asked
    queue.close()


@pytest.mark.slow
def test_openings_without_a_change_do_not_make_a_queue_longer_to_load(memory_store: MemoryStore) -> None:
    leases = filled(memory_store)
    reader = LogReader.open(memory_store, LOG)
    for _ in range(45):
        DelayQueue.open(memory_store, LOG, options=OFTEN).close()
    end = reader.manifest().next.position.offset
    newest = max(record.offset for record in reader.records() if record.key == b"m")
    cursor = CursorStore(memory_store, LOG).load("queue")

    assert end - newest < 40
    assert cursor is not None
    assert end - cursor.cursor.position.offset < 40
    check_filled(memory_store, LOG, leases)


def test_checkpoint_is_written_after_enough_fragments(memory_store: MemoryStore) -> None:
    with DelayQueue.open_or_create(memory_store, LOG, options=OFTEN) as queue:
        for number in range(50):
            queue.enqueue(b"%d" % number)
    cursor = CursorStore(memory_store, LOG).load("queue")
    assert cursor is not None
    assert cursor.cursor.position.offset > 40


def test_records_of_others_never_hide_a_queue(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal3_core.views.queue.loading._FOREIGN_MAX", 100)
    leases = filled(memory_store)
    with LogWriter.open(memory_store, LOG) as writer:
        writer.append_many([Message(b"meant for another log", b"stray")] * 1000)

    check_filled(memory_store, LOG, leases)


def test_damaged_value_holds_up_no_other_item(memory_store: MemoryStore) -> None:
    DelayQueue.create(memory_store, LOG, QueueDefinition(max_deliveries=1, lease_s=0.01))
    with DelayQueue.open(memory_store, LOG, options=COLD) as queue:
        for number in range(3):
            queue.enqueue(b"%d" % number)
        pointers = [each for each in LogReader.open(memory_store, LOG).pointers() if each.num_records > 1]
        damage(memory_store, life_path(memory_store, LOG, pointers[2].path))

        assert [item.id for item in queue.dequeue(3)] == [1, 3]
        while queue.stats().dead < 3:
            pass
        queue.kick_ids([2])
        with pytest.raises(CorruptError):
            queue.dequeue()


@pytest.mark.parametrize("compacted", [False, True])
def test_checkpoint_that_is_no_parquet_file_leaves_the_queue_as_its_log_has_it(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, compacted: bool
) -> None:
    encode = checkpoint.encode
    monkeypatch.setattr(checkpoint, "encode", lambda table: [part[:-40] for part in encode(table)])
    leases = filled(memory_store)
    monkeypatch.undo()
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, delete_retention_s=0))
    for _ in range(2 * compacted):
        KeyCompactor(memory_store, LOG, options=COMPACTING).compact(force=True)

    check_filled(memory_store, LOG, leases)
    assert "the queue is read from all of its log instead" in caplog.text


def test_cursor_that_another_has_made_meanwhile_does_not_hinder_the_opening(memory_store: MemoryStore) -> None:
    filled(memory_store)
    cursors = CursorStore(memory_store, LOG)
    cursors.delete("queue")
    with DelayQueue.open(memory_store, LOG) as older, DelayQueue.open(memory_store, LOG) as newer:
        with pytest.raises(FencedError):
            older.enqueue(b"x")
        newer.enqueue(b"x")
