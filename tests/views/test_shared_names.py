"""Cursors, consumers by key and subscriptions share their names; what is saved for one is never taken for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from wal3_core import (
    Consumer,
    ConsumerOptions,
    CorruptError,
    CursorStore,
    DelayQueue,
    FeedSubscription,
    InvalidRequestError,
    KeyedLog,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    NotDurableError,
    Owner,
    RollUp,
)
from wal3_core.format.cursor import Cursor
from wal3_core.format.strict_json import Fields
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged

LOG = "a"
GOLDEN = Path(__file__).parent.parent / "golden"


def test_name_of_a_subscription_is_not_a_consumer_s_and_the_other_way_round(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_many([Message(b"x", b"k"), Message(b"y", b"k")])
    FeedSubscription.open(memory_store, LOG, "subscription").close()
    KeyedLog.open(memory_store, LOG).consumer("by-key").save()
    cursors = CursorStore(memory_store, LOG)
    before = cursors.list()

    with pytest.raises(InvalidRequestError, match="found that of a subscription to a feed"):
        KeyedLog.open(memory_store, LOG).consumer("subscription")
    with (
        pytest.raises(InvalidRequestError, match="found that of a subscription to a feed"),
        Consumer(memory_store, LOG, "subscription"),
    ):
        pass
    with pytest.raises(InvalidRequestError, match="found that of a consumer by key"):
        FeedSubscription.open(memory_store, LOG, "by-key")
    with pytest.raises(InvalidRequestError, match="found that of a consumer by key"):
        FeedSubscription.remove(memory_store, LOG, "by-key")
    with pytest.raises(InvalidRequestError, match="found that of a subscription to a feed"):
        cursors.save("subscription", LogPosition(1, 0), before["subscription"], owner=Owner.KEYED_CONSUMER)

    assert cursors.list() == before


def test_cursor_of_a_writer_that_repeats_appends_is_no_consumer_s(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, LOG)
    once = Once("writer-nightly", "batch 7")
    table = pa.table([[b"k"], [b"x"]], schema=MESSAGE_SCHEMA)
    # Its process dies before it knows.
    install_staged(memory_store, LOG, Stager(memory_store, LOG).stage(table), once=once)

    with pytest.raises(InvalidRequestError, match="found that of a writer"):
        KeyedLog.open(memory_store, LOG).consumer(once.cursor)
    with pytest.raises(InvalidRequestError, match="found that of a writer"), Consumer(memory_store, LOG, once.cursor):
        pass

    assert install_staged(memory_store, LOG, Stager(memory_store, LOG).stage(table), once=once).repeated


def test_cursor_of_both_is_refused() -> None:
    stored = json.loads((GOLDEN / "cursor_of_keys_without_owner.json").read_bytes())
    other = json.loads((GOLDEN / "cursor_of_a_subscription_without_owner.json").read_bytes())
    del stored["checksum"]

    with pytest.raises(CorruptError, match="expected none in the cursor of a consumer by key"):
        Cursor.from_fields(Fields({**stored, "subscribed": other["subscribed"]}, "cursor/c.json"))


def consumed(store: MemoryStore, name: str) -> None:
    with Consumer(store, LOG, name, options=ConsumerOptions(idle_s=0)) as consumer:
        list(consumer)


def appended_once(store: MemoryStore, name: str) -> None:
    staged = Stager(store, LOG).stage(pa.table([[b"k"], [b"x"]], schema=MESSAGE_SCHEMA))
    install_staged(store, LOG, staged, once=Once(name, "batch 7"))


def rolled_up(store: MemoryStore, _name: str) -> None:
    roll_up = RollUp(store, LOG)
    roll_up.finish(roll_up.read(), handled=())


def brokered(store: MemoryStore, _name: str) -> None:
    DelayQueue.open(store, LOG).close()


USERS: dict[Owner, Callable[[MemoryStore, str], None]] = {
    Owner.CONSUMER: consumed,
    Owner.KEYED_CONSUMER: lambda store, name: KeyedLog.open(store, LOG).consumer(name).save() and None,
    Owner.SUBSCRIPTION: lambda store, name: FeedSubscription.open(store, LOG, name).close(),
    Owner.WRITER: appended_once,
    Owner.ROLLUP: rolled_up,
    Owner.QUEUE: brokered,
}
FIXED_NAMES = {Owner.WRITER: "writer-w", Owner.ROLLUP: "rollup", Owner.QUEUE: "queue"}


@pytest.mark.parametrize(("user", "owner"), [(user, owner) for user in Owner for owner in Owner if user is not owner])
def test_who_is_not_its_owner_is_refused_and_moves_nothing(
    memory_store: MemoryStore, user: Owner, owner: Owner
) -> None:
    if user is Owner.QUEUE:
        DelayQueue.create(memory_store, LOG)
    else:
        with LogWriter.open_or_create(memory_store, LOG) as writer:
            writer.append_many([Message(b"x", b"k"), Message(b"y", b"k")])
    name, cursors = FIXED_NAMES.get(user, "c"), CursorStore(memory_store, LOG)
    cursors.delete(name)
    other = Cursor(position=LogPosition(1, 0), epoch_us=0, generation=0, owner=owner)
    cursors.carry(name, other, None)
    before, end = cursors.list(), LogReader.open(memory_store, LOG).manifest().next

    with pytest.raises((InvalidRequestError, NotDurableError), match=f"found that of {owner.described}"):
        USERS[user](memory_store, name)

    assert cursors.list() == before
    if user is not Owner.QUEUE:
        assert LogReader.open(memory_store, LOG).manifest().next == end


def test_name_of_a_writer_s_cursor_is_no_consumer_s(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, LOG)

    with pytest.raises(InvalidRequestError, match="expected a name that does not begin with writer-"):
        consumed(memory_store, "writer-audit")

    assert CursorStore(memory_store, LOG).list() == {}
