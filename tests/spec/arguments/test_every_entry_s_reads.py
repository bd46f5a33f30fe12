"""Every entry of ``wal3_core.__all__`` that reads a store retries unanswered requests and bounds the answer's size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

import wal3_core
from tests.stores import BoundedStore, FaultyStore
from wal3_core import (
    Cleanup,
    Collector,
    CollectorOptions,
    Consumer,
    ConsumerOptions,
    CursorStore,
    DelayQueue,
    Deleter,
    Delivery,
    DirtyLog,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    Fleet,
    FleetOptions,
    KeyCompactor,
    KeyedLog,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    Policy,
    PolicyStore,
    Record,
    RollUp,
    RollUpOptions,
    SnapshotCompactor,
    UnavailableError,
    WriterOptions,
    bootstrap,
    collect,
    copy,
    create_successor,
    destroy,
    dirty_logs,
    follow_across,
    is_queue,
    list_logs,
    migrate,
    open_pinned,
    over_limit,
    pinned_records,
    plan_destroy,
    read_queue_dead,
    read_queue_definition,
    read_queue_head,
    read_queue_item,
    read_queue_stats,
    records_across,
    repair_log,
    scrub,
    seal,
    undo_destroy,
    update_copy,
)
from wal3_core.fleet.identity import store_identity
from wal3_core.format.manifest import BYTES_MAX
from wal3_core.format.paths import MANIFEST, life_folder
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore

TREE = WriterOptions(
    snapshots=SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)
)
NOW = CollectorOptions(interval_s=0, fraction_max=1)
# Takes no store, or makes one.
# An engine gets the store of the compactor that opens it.
ASKS_NOTHING = {"assigned", "enable_metrics", "open_store", "Engine", "LogAt"}


@pytest.fixture
def filled(memory_store: MemoryStore) -> MemoryStore:
    """A log with a tree, a cursor, a pin and a policy; one that is sealed; one that was destroyed."""
    for log in ("a", "sealed", "gone"):
        with LogWriter.open_or_create(memory_store, log, options=TREE) as writer:
            for number in range(20):
                writer.append(b"%d" % number)
    CursorStore(memory_store, "a").create("c", LogPosition(9, 0))
    PinStore(memory_store, "a").create("p", reason="a test")
    PolicyStore(memory_store, "a").change(lambda policy: replace(policy, retention_s=0))
    seal(memory_store, "sealed", reason="full", successor="next")
    destroy(memory_store, "gone")
    store_identity(memory_store, create=True)
    return memory_store


def write(store: ObjectStore) -> object:
    LogWriter.create(store, "new")
    with LogWriter.open_or_create(store, "newer") as writer:
        writer.append(b"1")
    with LogWriter.open(store, "a", options=TREE, ordered=True) as writer:
        writer.append_many([b"1"] * 3)
        writer.append_table(pa.table({"body": [b"1"] * 3}))
        return writer.resume()


def read(store: ObjectStore) -> object:
    reader = LogReader.open(store, "a")
    return [reader.fetch(pointer) for pointer in reader.scan()], list(reader.follow(idle_s=0))


def consume(store: ObjectStore) -> object:
    with Consumer(store, ["a", "sealed"], "c", options=ConsumerOptions(idle_s=0)) as consumer:
        return list(consumer), consumer.lag()


def publish(store: ObjectStore) -> object:
    with FeedWriter.open_or_create(store, "feed") as writer:
        return writer.publish("t", 1).result()


def receive(store: ObjectStore) -> object:
    publish(store)
    return FeedReader.open(store, "feed").recv(0)


def subscribe(store: ObjectStore) -> object:
    publish(store)
    with FeedSubscription.open(store, "feed", "s") as subscription:
        delivered = subscription.recv(0)
        assert isinstance(delivered, Delivery)
        subscription.acknowledge(delivered)
    FeedSubscription.remove(store, "feed", "s")
    return delivered


def move_cursors(store: ObjectStore) -> object:
    cursors = CursorStore(store, "a")
    found = cursors.load("c")
    assert found is not None
    cursors.save("c", LogPosition(12, 0), found)
    cursors.create("d", LogPosition(20, 0))
    cursors.delete("d")
    return cursors.list(), cursors.offsets()


def pin(store: ObjectStore) -> object:
    pins = PinStore(store, "a")
    pins.create("q", reason="a test")
    pins.delete("q")
    return pins.list(), pins.load("p")


def prune(store: ObjectStore) -> object:
    collector = Collector(store, "a", options=NOW)
    plan = collector.plan()
    collector.verify(plan)
    return list(collector.objects(plan)), collector.prune(collector.announce(plan)), collector.resume_all()


def delete(store: ObjectStore) -> object:
    collector = Collector(store, "a", options=NOW)
    path = collector.announce(collector.plan())
    collector.prune(path)
    deleter = Deleter(store, "a", options=NOW)
    return deleter.pending(), deleter.orphans(), deleter.wait_s(path), deleter.delete(path)


def read_by_key(store: ObjectStore) -> object:
    with KeyedLog.open(store, "a") as log:
        log.append(b"k", b"1", expect_tail=0)
        consumer = log.consumer("k")
        consumer.finish(next(log.scan(b"k")))
        consumer.save()
        return (
            consumer.lags(),
            list(log.scan(b"k")),
            log.keys(),
            log.count(b"k"),
            log.lag("c", b"k"),
            list(log.follow(b"k", idle_s=0)),
        )


def work(store: ObjectStore) -> object:
    with DelayQueue.open_or_create(store, "queue") as queue:
        queue.enqueue(b"1", delay_s=60)
        queue.enqueue(b"2")
        leased = queue.dequeue()[0]
        queue.checkpoint()
        queue.release(leased.id, leased.token)
    with DelayQueue.open(store, "queue") as queue:
        return queue.peek(), queue.stats()


def look_at_queue(store: ObjectStore) -> object:
    work(store)
    return (
        is_queue(store, "queue"),
        read_queue_dead(store, "queue"),
        read_queue_head(store, "queue"),
        read_queue_stats(store, "queue"),
        read_queue_definition(store, "queue"),
        read_queue_item(store, "queue", 1),
    )


def pack(store: ObjectStore) -> object:
    compactor = SnapshotCompactor(store, "a")
    return compactor.shape(exact=True), compactor.plan(), compactor.compact()


def compact_by_key(store: ObjectStore) -> object:
    PolicyStore(store, "a").change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    compactor = KeyCompactor(store, "a")
    compactor.outline()
    compactor.plan()
    return compactor.compact(force=True), compactor.verify(), list(compactor.erased(b"k"))


def update(store: ObjectStore) -> object:
    copy(LogAt(store, "a"), LogAt(store, "copied"))
    with LogWriter.open(store, "a", options=TREE) as writer:
        writer.append(b"1")
    return update_copy(LogAt(store, "a"), LogAt(store, "copied"), with_cursors=True)


def write_many(store: ObjectStore) -> object:
    with Fleet.open(store, server="s", options=FleetOptions(creates=True)) as fleet:
        return fleet.append("a", b"1"), fleet.append("created", b"1")


def mark(store: ObjectStore) -> object:
    with DirtyLog.open_or_create(store, "s") as dirty, LogWriter.open(store, "a", options=TREE, marks=dirty) as writer:
        return writer.append(b"1")


def roll_up(store: ObjectStore) -> object:
    mark(store)
    rollup = RollUp(store, "dirty/s", options=RollUpOptions(cursor="c", take_all=True))
    plan = rollup.read()
    assert plan.selected == ("a",)
    return rollup.finish(plan, plan.selected)


def repair(store: ObjectStore) -> object:
    copy(LogAt(store, "a"), LogAt(store, "copied"))
    reader = LogReader.open(store, "a")
    life = f"a/{life_folder(reader.manifest().log_id)}"
    store.delete(life + reader.scan()[0].path)
    store.delete(life + reader.manifest().snapshots[0].path)
    return repair_log(LogAt(store, "a"), LogAt(store, "copied")).repaired or None


ENTRIES: dict[str, Callable[[ObjectStore], object]] = {
    "Collector": prune,
    "Consumer": consume,
    "CursorStore": move_cursors,
    "Deleter": delete,
    "DelayQueue": work,
    "DirtyLog": mark,
    "FeedReader": receive,
    "FeedSubscription": subscribe,
    "FeedWriter": publish,
    "Fleet": write_many,
    "LogReader": read,
    "LogWriter": write,
    "PinStore": pin,
    "RollUp": roll_up,
    "PolicyStore": lambda store: PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=1)),
    "KeyCompactor": compact_by_key,
    "KeyedLog": read_by_key,
    "SnapshotCompactor": pack,
    "bootstrap": lambda store: bootstrap(store, "new", [Record(1, 0, None, b"1")], options=TREE),
    "collect": lambda store: collect(store, "a", options=NOW),
    "copy": lambda store: copy(LogAt(store, "a"), LogAt(store, "copied"), with_cursors=True),
    "destroy": lambda store: destroy(store, "a", also_pinned=True),
    "dirty_logs": lambda store: [mark(store), dirty_logs(store)],
    "follow_across": lambda store: list(follow_across(store, "a", idle_s=0)),
    "create_successor": lambda store: create_successor(store, "sealed"),
    "list_logs": lambda store: list(list_logs(store)),
    "is_queue": look_at_queue,
    "read_queue_dead": look_at_queue,
    "read_queue_head": look_at_queue,
    "read_queue_stats": look_at_queue,
    "read_queue_definition": look_at_queue,
    "read_queue_item": look_at_queue,
    "over_limit": lambda store: over_limit(store, ["a", "sealed"], unprocessed_max=1000),
    "migrate": lambda store: [migrate(store, "a", "after", reason="full") for _ in range(2)],
    "open_pinned": lambda store: list(open_pinned(store, "a", "p").records()),
    "pinned_records": lambda store: list(pinned_records(store, "a", "p")),
    "plan_destroy": lambda store: plan_destroy(store, "a"),
    "records_across": lambda store: list(records_across(store, "a")),
    "repair_log": repair,
    "scrub": lambda store: scrub(store, "a"),
    "seal": lambda store: seal(store, "a", reason="full", successor="after"),
    "undo_destroy": lambda store: [undo_destroy(store, "a")],
    "update_copy": update,
    "store_identity": lambda store: [store_identity(store), store_identity(store, create=True)],
}


def test_every_entry_is_looked_at() -> None:
    public = {name: getattr(wal3_core, name) for name in wal3_core.__all__}
    functions = {name for name, entry in public.items() if not isinstance(entry, type)}
    # Classes that are opened, or constructed with a store.
    asking = {
        name
        for name, entry in public.items()
        if hasattr(entry, "open") or "store" in getattr(entry.__init__, "__annotations__", ())
    }

    assert {*functions, *asking} - ASKS_NOTHING <= ENTRIES.keys()
    assert {"LogReader", "CursorStore"} <= asking


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_read_of_an_entry_has_a_bound(filled: MemoryStore, entry: str) -> None:
    store = BoundedStore(filled)

    assert ENTRIES[entry](store) is not None

    assert store.requests["get"] + store.requests["read"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_whose_requests_each_go_unanswered_once_still_succeeds(filled: MemoryStore, entry: str) -> None:
    store, asked = FaultyStore(filled), set[tuple[str, str]]()

    def unanswered_at_first(kind: str, path: str) -> None:
        if kind in {"get", "read", "head", "list"} and (kind, path) not in asked:
            asked.add((kind, path))
            message = f"{kind} {path}: expected an answer, found none"
            raise UnavailableError(message)

    store.before = unanswered_at_first

    assert ENTRIES[entry](store) is not None

    assert asked


class BriefStore(FaultyStore):
    """A store whose URL limits retries to a fifth of a second."""

    @property
    def url(self) -> str:
        return "s3://bucket/brief?timeout_s=0.2"


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_gives_up_on_a_silent_store_after_the_time_in_its_url(filled: MemoryStore, entry: str) -> None:
    """Regression: two nested retry loops took two minutes whatever the URL said."""
    store, began_s = BriefStore(filled), time.monotonic()
    for kind in ("get", "read", "head", "list"):
        store.fail(kind, "", "unavailable", times=10**9)

    with pytest.raises(UnavailableError):
        ENTRIES[entry](store)

    assert time.monotonic() - began_s < 20


def test_log_with_an_oversized_manifest_is_listed_as_a_log(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    memory_store.create(f"huge/{MANIFEST}", b" " * (BYTES_MAX + 1))

    assert list(list_logs(BoundedStore(memory_store))) == ["a", "huge"]
