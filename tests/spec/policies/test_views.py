"""A log whose policy gives it to a view takes appends of that view alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    DelayQueue,
    FeedReader,
    FeedWriter,
    KeyedLog,
    LogAt,
    LogWriter,
    MemoryStore,
    Policy,
    PolicyStore,
    View,
    ViewRequiredError,
    WriterOptions,
    copy,
)
from wal3_core.format.paths import MANIFEST
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

ROWS = pa.table([[b"k"], [b"staged"]], schema=MESSAGE_SCHEMA)


def give(store: ObjectStore, view: View | None, log: str = "a") -> Policy:
    return PolicyStore(store, log).change(lambda policy: replace(policy, view=view))


def test_each_view_appends_to_its_own_log_and_nothing_else_does(store: ObjectStore) -> None:
    FeedWriter.open_or_create(store, "feed").close()
    KeyedLog.open_or_create(store, "keyed").close()
    DelayQueue.create(store, "queue")
    for view in View:
        give(store, view, view.value)
        with (
            pytest.raises(ViewRequiredError, match=f"of the view {view}, found one of none: .*--no-view"),
            LogWriter.open(store, view.value) as writer,
        ):
            writer.append(b"stray", key=b"k")

    with FeedWriter.open(store, "feed") as feed, KeyedLog.open(store, "keyed") as keyed:
        feed.publish("t", 1).result()
        keyed.append(b"k", b"v")
    with DelayQueue.open(store, "queue") as queue:
        assert queue.enqueue(b"item").id == 1
    with pytest.raises(ViewRequiredError), KeyedLog.open(store, "feed") as other:
        other.append(b"k", b"v")
    message = FeedReader.open(store, "feed").recv(timeout_s=5)
    assert message is not None
    assert message.message == 1


def test_writer_under_way_learns_that_the_log_is_a_view_s_and_no_longer(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"before")
        give(memory_store, View.FEED)
        with pytest.raises(ViewRequiredError):
            writer.append(b"refused")
    give(memory_store, None)
    with LogWriter.open(memory_store, "a") as writer:
        writer.append(b"after")

    assert world.bodies() == [b"before", b"after"]
    assert b'"view"' not in world.manifest().to_bytes()


def append_while_the_log_is_given_to_a_view() -> None:
    """What was uploaded before, and not committed, is not in the log."""
    store = FaultyStore(MemoryStore(shared_runtime()))

    def given(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith(MANIFEST):
            store.before = lambda _kind, _path: None
            PolicyStore(store.inner, "a").change(lambda policy: replace(policy, view=View.QUEUE))

    with LogWriter.open_or_create(store, "a") as writer:
        store.before = given
        with pytest.raises(ViewRequiredError):
            writer.append(b"late")
    assert World(store).manifest().next.position.offset == 1


def test_staged_appends_are_refused_when_staged_and_when_installed(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    staged = Stager(memory_store, "a").stage(ROWS)
    give(memory_store, View.KEYED)

    with pytest.raises(ViewRequiredError):
        install_staged(memory_store, "a", staged)
    with pytest.raises(ViewRequiredError):
        Stager(memory_store, "a")
    options = WriterOptions(view=View.KEYED)
    install_staged(memory_store, "a", Stager(memory_store, "a", options=options).stage(ROWS), options=options)
    assert World(memory_store).bodies() == [b"staged"]


def test_copy_is_of_the_view_that_its_source_is_of(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    give(memory_store, View.QUEUE)

    copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"))

    assert World(memory_store, "b").manifest().view is View.QUEUE
