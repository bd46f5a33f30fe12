"""A consumer by key: what it keeps, what it gives again, and that it never skips a record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.stores import FaultyStore, life_store
from tests.views.keyed_queries import KEYS, LOG, OPTIONS, records_of
from tests.world import LATER, NOW, QUICK, SMALL
from wal3_core import (
    Cleanup,
    CorruptError,
    CursorConflictError,
    CursorStore,
    Extension,
    InvalidRequestError,
    KeyCompactor,
    KeyCompactorOptions,
    KeyedLog,
    LogAt,
    LogPosition,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    Message,
    Owner,
    Policy,
    PolicyStore,
    Record,
    UnavailableError,
    collect,
    copy,
    destroy,
    update_copy,
)
from wal3_core.format.strict_json import JsonObject
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.keyed.keyed_consumer import extension_of


def fill(store: ObjectStore, *batches: list[bytes | None]) -> KeyedLog:
    """Append a fragment of each batch, a record of each key."""
    with LogWriter.open_or_create(store, LOG, options=OPTIONS.writer) as writer:
        for batch in batches:
            writer.append_many([Message(b"x", key) for key in batch])
    return KeyedLog.open(store, LOG, options=OPTIONS)


def objects_of(store: ObjectStore, folder: str) -> list[str]:
    return [meta.path for meta in life_store(store, LOG).list_objects(folder)]


def test_each_key_has_its_own_position_in_one_object(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"a", b"b", b"a"], [b"b", b"c"], [b"a"])
    consumer = log.consumer("c")
    for record in log.scan(b"a"):
        consumer.finish(record)
    consumer.finish(next(log.scan(b"b", consumer.position(b"b"))))
    assert consumer.save() == 0

    again = KeyedLog.open(memory_store, LOG).consumer("c")

    assert objects_of(memory_store, "cursor/") == ["cursor/c.json"]
    assert [again.position(key) for key in (b"a", b"b", b"c")] == [7, 4, 4]
    assert again.lags() == {b"b": 1, b"c": 1}
    assert [again.lag(key) for key in (b"a", b"b", b"c", b"d")] == [0, 1, 1, 0]
    assert [record.offset for record in again.follow(idle_s=0)] == [4, 5]


def test_collection_and_key_compaction_keep_everything_from_the_least_position_on(memory_store: MemoryStore) -> None:
    log = fill(memory_store, *[[b"a", b"slow"]] * 3, *[[b"a", b"b"]] * 5)
    consumer = log.consumer("c")
    for key in (b"a", b"b"):
        for record in log.scan(key):
            consumer.finish(record)
    consumer.finish(next(log.scan(b"slow")))
    consumer.save()
    kept = [record for record in records_of(memory_store) if record.offset >= 4]
    assert consumer.floor == 4

    collect(memory_store, LOG, options=NOW)
    PolicyStore(memory_store, LOG).change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    KeyCompactor(memory_store, LOG, options=KeyCompactorOptions(snapshots=SMALL, retry=QUICK)).compact(force=True)

    assert [record for record in records_of(memory_store) if record.offset >= 4] == kept
    assert [record.offset for record in KeyedLog.open(memory_store, LOG).consumer("c").follow(idle_s=0)] == [4, 6]


def test_consumer_of_a_prefix_keeps_no_records_of_other_keys(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"b", b"a1"], [b"b", None], [b"a2", b"b"])
    consumer = log.consumer("c", prefix=b"a")
    for record in consumer.follow(idle_s=0):
        consumer.finish(record)
        consumer.save()

    assert consumer.floor == 7
    with pytest.raises(InvalidRequestError, match="expected a record of its keys, found the key b'b'"):
        consumer.finish(next(log.scan(b"b")))
    with pytest.raises(InvalidRequestError, match="expected a record below the log's end, 7, found 7"):
        consumer.finish(Record(7, 0, b"a1", b"x"))


KEY = st.sampled_from([*KEYS[:5], None])


@pytest.mark.slow
@settings(max_examples=some(40))
@given(
    batches=st.lists(st.lists(KEY, min_size=1, max_size=4), min_size=1, max_size=8),
    more=st.lists(st.lists(KEY, min_size=1, max_size=4), max_size=4),
    finished=st.lists(st.integers(1, 32), max_size=30),
    fault=st.sampled_from([None, "applied-unknown", "unknown", "conflict", "late", "denied"]),
)
def test_restarted_consumer_gives_each_record_that_was_not_processed_whatever_failed(
    batches: list[list[bytes | None]], more: list[list[bytes | None]], finished: list[int], fault: str | None
) -> None:
    store = FaultyStore(MemoryStore(shared_runtime()))
    log = fill(store, *batches)
    consumer = log.consumer("c")
    done: dict[bytes, int] = {}
    keys = {record.offset: record for record in records_of(store) if record.key is not None}
    for step, offset in enumerate(finished):
        if (record := keys.get(offset)) is None or record.key is None:
            continue
        consumer.finish(record)
        done[record.key] = max(done.get(record.key, 0), offset)
        if step % 5 == 4:
            consumer.save()
    if fault is not None:
        store.fail("replace", "cursor", fault)
    try:
        consumer.save()
        saved = True
    except (CursorConflictError, UnavailableError):
        saved = False
    fill(store, *more)
    store.arrive()
    collect(store, LOG, options=NOW)

    unprocessed = [
        record for record in records_of(store) if record.key is not None and record.offset > done.get(record.key, 0)
    ]
    again = KeyedLog.open(store, LOG).consumer("c")
    given_again = list(again.follow(idle_s=0))
    if saved:
        assert given_again == unprocessed
        assert again.lags() == {
            key: sum(record.key == key for record in unprocessed) for key in {each.key for each in unprocessed}
        }
    else:
        assert {record.offset for record in given_again} >= {record.offset for record in unprocessed}
    assert all(again.floor <= record.offset for record in unprocessed)


def test_collection_under_way_when_a_consumer_saves_is_never_past_its_floor(memory_store: MemoryStore) -> None:
    log = fill(memory_store, *[[b"a"], [b"b"]] * 6)
    consumer = log.consumer("c")
    for record in log.scan(b"a"):
        consumer.finish(record)
    store = FaultyStore(memory_store)
    # Announced by the cursor before this save; the save moves it by one record only.
    for number in range(1, 12):
        fill(memory_store, [b"a"])
        consumer.finish(list(log.scan(b"a"))[-1])
        seen = 0

        def save(_kind: str, _path: str, *, at: int = number) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                consumer.save()

        store.before = save
        collect(store, LOG, options=LATER)
        assert records_of(memory_store)[0].offset <= consumer.floor == 2
        assert consumer.lags() == {b"b": 6}


def test_second_consumer_of_a_name_is_refused_when_it_saves(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"a", b"b"])
    first, second = log.consumer("c"), log.consumer("c")
    for each in (first, second):
        each.finish(next(log.scan(b"b")))

    first.save()
    with pytest.raises(CursorConflictError):
        second.save()
    first.save()


def test_consumer_created_again_under_its_name_has_forgotten_its_keys(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"a", b"b", b"a"])
    consumer = log.consumer("c")
    consumer.finish(list(log.scan(b"a"))[-1])
    consumer.save()
    consumer.delete()

    again = log.consumer("c")

    assert [record.offset for record in again.follow(idle_s=0)] == [1, 2, 3]
    with pytest.raises(CursorConflictError):
        consumer.finish(next(log.scan(b"b")))
        consumer.save()


def test_consumer_of_a_log_created_again_begins_again(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"a", b"b"])
    consumer = log.consumer("c")
    consumer.finish(next(log.scan(b"b")))
    consumer.save()

    destroy(memory_store, LOG)
    new = fill(memory_store, [b"b", b"b"])

    with pytest.raises(LogReplacedError):
        consumer.save()
    assert [record.offset for record in new.consumer("c").follow(idle_s=0)] == [1, 2]


def test_consumer_of_a_log_that_was_replaced_creates_no_cursor_in_the_other_one(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"a"])
    destroy(memory_store, LOG)
    fill(memory_store, [b"a"])

    with pytest.raises(LogReplacedError):
        log.consumer("c")

    assert CursorStore(memory_store, LOG).load("c") is None


def test_positions_of_keys_that_are_beyond_the_end_are_not_saved(memory_store: MemoryStore) -> None:
    fill(memory_store, [b"a", b"b"])
    cursors = CursorStore(memory_store, LOG)
    witness = cursors.create("c", LogPosition(1, 0), owner=Owner.KEYED_CONSUMER)

    with pytest.raises(InvalidRequestError, match="expected an offset from 1 to 3, found 4"):
        cursors.save("c", LogPosition(1, 0), witness, extension=extension_of(b"", ((b"a", 4),)))

    assert cursors.load("c") == witness


@pytest.mark.parametrize(
    ("keys", "limit"),
    [({"YQ==": 1}, 3), ({"YQ==": 4}, 3), ({"a": 2}, 3), ({"YQ": 2}, 3), ({"YQ==": "2"}, 3), ({"YQ==": 2, "": None}, 3)],
)
def test_positions_of_keys_that_are_none_are_refused_when_the_consumer_is_opened(
    memory_store: MemoryStore, keys: JsonObject, limit: int
) -> None:
    log = fill(memory_store, [b"a", b"b"])
    kept = Extension(ahead={"keys": keys}, limit=limit)
    CursorStore(memory_store, LOG).create("c", LogPosition(1, 0), owner=Owner.KEYED_CONSUMER, extension=kept)

    with pytest.raises(CorruptError, match="consumer c"):
        log.consumer("c")


def test_consumer_of_other_keys_does_not_take_the_cursor(memory_store: MemoryStore) -> None:
    """It would be moved over records of keys that the other one does not look at."""
    log = fill(memory_store, [b"a1", b"b1"])
    log.consumer("c", prefix=b"a").save()

    with pytest.raises(InvalidRequestError, match="expected a consumer of keys with the prefix b'b'"):
        log.consumer("c", prefix=b"b")

    assert [each.key for each in log.consumer("c", prefix=b"a").follow(idle_s=0)] == [b"a1"]


def test_cursor_that_is_moved_by_hand_forgets_the_keys_and_skips_none(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"a", b"b", b"a", b"b"])
    consumer = log.consumer("c")
    consumer.finish(list(log.scan(b"a"))[-1])
    consumer.save()
    cursors = CursorStore(memory_store, LOG)
    witness = cursors.load("c")
    assert witness is not None
    assert witness.cursor.extension == extension_of(b"", ((b"a", 4),))

    cursors.save("c", LogPosition(2, 0), witness)

    assert [record.offset for record in log.consumer("c").follow(idle_s=0)] == [2, 3, 4]


def test_consumer_ahead_of_the_end_of_a_restored_log_is_refused(memory_store: MemoryStore) -> None:
    """Its positions would skip what is appended there."""
    log = fill(memory_store, [b"a", b"b"])
    older = memory_store.read(f"{LOG}/manifest/MANIFEST.json")
    consumer = fill(memory_store, [b"b"]).consumer("c")
    consumer.finish(list(log.scan(b"b"))[-1])
    consumer.save()
    memory_store.delete(f"{LOG}/manifest/MANIFEST.json")
    assert older is not None
    memory_store.create(f"{LOG}/manifest/MANIFEST.json", older)

    with pytest.raises(InvalidRequestError, match="expected positions up to the log's end, 3, found 4"):
        KeyedLog.open(memory_store, LOG).consumer("c")


@pytest.mark.slow
def test_positions_that_do_not_fit_are_counted_and_their_records_given_again(memory_store: MemoryStore) -> None:
    keys = [b"%05d" % number + b"k" * 1000 for number in range(1000)]
    log = fill(memory_store, [b"slow", *keys])
    consumer = log.consumer("c")
    for record in log.scan_prefix(b"0"):
        consumer.finish(record)

    left_out = consumer.save()

    again = log.consumer("c")
    given = [record.key for record in again.follow(idle_s=0)]
    assert 0 < left_out < 1000
    assert given == [b"slow", *keys[:left_out]]
    assert consumer.lags() == {b"slow": 1}


def test_key_too_long_for_a_cursor_keeps_no_other_key_out_of_it(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"slow", b"a", b"k" * 300_000])
    consumer = log.consumer("c")
    for prefix in (b"a", b"k"):
        consumer.finish(next(log.scan_prefix(prefix)))

    assert consumer.save() == 1

    assert [record.offset for record in log.consumer("c").follow(idle_s=0)] == [1, 3]


@pytest.mark.slow
def test_as_many_short_keys_as_a_cursor_takes_are_saved(memory_store: MemoryStore) -> None:
    log = fill(memory_store, [b"slow", *(number.to_bytes(2, "big") for number in range(8192))])
    consumer = log.consumer("c")
    for record in log.scan_prefix(b""):
        if record.key != b"slow":
            consumer.finish(record)

    assert consumer.save() == 0

    assert log.consumer("c").lags() == {b"slow": 1}


def test_updated_copy_gives_what_was_finished_in_it_alone(memory_store: MemoryStore) -> None:
    """A trial on the copy leaves no key ahead of where the consumer of the source is."""
    log = fill(memory_store, [b"a", b"b", b"c"])
    consumer = log.consumer("c")
    consumer.finish(next(log.scan(b"a")))
    consumer.save()
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "copy"), with_cursors=True)
    trial = KeyedLog.open(memory_store, "copy").consumer("c")
    trial.finish(next(log.scan(b"c")))
    trial.save()
    assert CursorStore(memory_store, "copy").list()["c"].cursor.extension == extension_of(b"", ((b"c", 4),))

    moved = update_copy(LogAt(memory_store, LOG), LogAt(memory_store, "copy"), with_cursors=True)

    again = KeyedLog.open(memory_store, "copy").consumer("c")
    assert [record.key for record in again.follow(idle_s=0)] == [b"b", b"c"]
    assert moved.num_cursors == 1
