"""Cursors, consumers by key and subscriptions share their names; what is saved for one is never taken for another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from wal3_core import (
    Consumer,
    CorruptError,
    CursorConflictError,
    CursorStore,
    FeedSubscription,
    InvalidRequestError,
    KeyedLog,
    LogPosition,
    LogWriter,
    Message,
)
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_install import install_staged
from wal3_core.log.write.staging import MESSAGE_SCHEMA, Stager
from wal3_core.model.cursor import Cursor

if TYPE_CHECKING:
    from wal3_core.storage.backends.memory import MemoryStore

LOG = "a"


def test_name_of_a_subscription_is_not_a_consumer_s_and_the_other_way_round(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_initialize(memory_store, LOG) as writer:
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
    with pytest.raises(InvalidRequestError, match="found the cursor of something else"):
        FeedSubscription.open(memory_store, LOG, "by-key")
    with pytest.raises(CursorConflictError, match="found that of a subscription to a feed"):
        cursors.save("subscription", LogPosition(1, 0), before["subscription"], keys=[(b"k", 3)])

    assert cursors.list() == before


def test_cursor_of_a_writer_that_repeats_appends_is_no_consumer_s(memory_store: MemoryStore) -> None:
    LogWriter.initialize(memory_store, LOG)
    once = Once("writer-nightly", "batch 7")
    table = pa.table([[b"k"], [b"x"]], schema=MESSAGE_SCHEMA)
    # Its process dies before it knows.
    install_staged(memory_store, LOG, Stager(memory_store, LOG).stage(table), once=once)

    with pytest.raises(InvalidRequestError, match="found that of a writer"):
        KeyedLog.open(memory_store, LOG).consumer(once.cursor)
    with pytest.raises(InvalidRequestError, match="found that of a writer"), Consumer(memory_store, LOG, once.cursor):
        pass

    assert install_staged(memory_store, LOG, Stager(memory_store, LOG).stage(table), once=once).repeated


def test_cursor_of_both_is_refused(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_initialize(memory_store, LOG) as writer:
        writer.append(b"x", key=b"k")
    FeedSubscription.open(memory_store, LOG, "subscription").close()
    witness = CursorStore(memory_store, LOG).load("subscription")
    assert witness is not None

    of_both = replace(witness.cursor, keys=((b"k", witness.cursor.position.offset + 1),))

    with pytest.raises(CorruptError, match="found one of both"):
        Cursor.from_bytes(of_both.to_bytes(), what="cursor/c.json")
