"""A destroy that was cut short can be taken back; until then the end of the log is no end for its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from tests.spec.consuming import BY_HAND
from tests.spec.pins import fill
from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    Consumer,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    SealedError,
    UnavailableError,
    copy,
    destroy,
    follow_across,
    seal,
    undo_destroy,
)
from wal3_core.format.manifest import BEING_DESTROYED
from wal3_core.store.object_store import ObjectStore

ANNOUNCED, SEALED = 1, 2


def cut_short(store: ObjectStore, log: str, steps: int, *, also_pinned: bool = False) -> None:
    """Destroy a log, and die before the step that follows so many."""
    faulty, replaces = FaultyStore(store), count()

    def die(kind: str, _path: str) -> None:
        if kind == "replace" and next(replaces) == steps:
            raise KeyboardInterrupt

    faulty.before = die
    with pytest.raises(KeyboardInterrupt):
        destroy(faulty, log, also_pinned=also_pinned)


def test_log_whose_destroy_was_taken_back_is_appended_to_pinned_and_copied_again(store: ObjectStore) -> None:
    fill(store, "a", 3)
    PinStore(store, "a").create("before", reason="a test")
    cut_short(store, "a", ANNOUNCED, also_pinned=True)

    assert undo_destroy(store, "a") is None

    assert not World(store).manifest().destroying
    fill(store, "a", 1)
    PinStore(store, "a").create("after", reason="a test")
    assert copy(LogAt(store, "a"), LogAt(store, "b")).num_records == 4
    with pytest.raises(InvalidRequestError, match="expected no pins, found after, before: remove them, or say that"):
        destroy(store, "a")


def test_log_that_a_destroy_has_sealed_stays_sealed_and_can_be_copied_again(store: ObjectStore) -> None:
    fill(store, "a", 3)
    cut_short(store, "a", SEALED)

    found = undo_destroy(store, "a")

    assert found is not None
    assert found.reason == BEING_DESTROYED
    assert World(store).manifest().seal == found
    with LogWriter.open(store, "a") as writer, pytest.raises(SealedError):
        writer.append(b"late")
    copy(LogAt(store, "a"), LogAt(store, "b"))
    fill(store, "b", 1)
    destroy(store, "a")


def test_undo_changes_nothing_in_other_logs_and_finds_none_at_a_destroyed_name(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    fill(memory_store, "a", 1)
    before = world.manifest()

    assert undo_destroy(memory_store, "a") is None

    assert world.manifest() == before
    destroy(memory_store, "a")
    with pytest.raises(LogNotFoundError, match="found that it was destroyed"):
        undo_destroy(memory_store, "a")


def test_errors_of_a_log_that_is_being_destroyed_name_the_way_out(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 1)
    PinStore(memory_store, "a").create("before", reason="a test")
    cut_short(memory_store, "a", ANNOUNCED, also_pinned=True)

    for call in (
        partial(PinStore(memory_store, "a").create, "p", reason="a test"),
        partial(copy, LogAt(memory_store, "a"), LogAt(memory_store, "b")),
        partial(destroy, memory_store, "a"),
    ):
        with pytest.raises(InvalidRequestError, match="being destroyed: destroy it again.*wal3 destroy LOG --undo"):
            call()


def test_pin_made_after_an_undo_beside_a_destroy_keeps_the_log_open(memory_store: MemoryStore) -> None:
    """A destroy has looked for pins and is about to seal the log; it is taken back, and a pin is made."""
    fill(memory_store, "a", 2)
    store, replaces = FaultyStore(memory_store), count()

    def meet(kind: str, _path: str) -> None:
        if kind == "replace" and next(replaces) == ANNOUNCED:
            undo_destroy(memory_store, "a")
            PinStore(memory_store, "a").create("audit", reason="a test")

    store.before = meet
    with pytest.raises(InvalidRequestError, match="expected no pins, found audit"):
        destroy(store, "a")

    manifest = World(memory_store).manifest()
    assert (manifest.seal, manifest.destroying) == (None, False)


def test_undo_beside_a_destroy_that_goes_on_says_so(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 2)
    cut_short(memory_store, "a", ANNOUNCED)
    store, gets = FaultyStore(memory_store), count()

    def announce(kind: str, _path: str) -> None:
        if kind == "get" and next(gets) == 1:
            cut_short(memory_store, "a", ANNOUNCED)

    store.before = announce
    with pytest.raises(UnavailableError, match="expected no process to destroy it, found that one does"):
        undo_destroy(store, "a")


# ---------------------------------------------------------------------- readers


def bodies_of_a_consumer(store: ObjectStore) -> Iterator[object]:
    with Consumer(store, "f", "c", options=BY_HAND) as consumer:
        yield from consumer


def messages_of_a_subscription(store: ObjectStore) -> Iterator[object]:
    with FeedSubscription.open(store, "f", name="s", start="beginning") as subscription:
        items = []
        while (item := subscription.recv(0)) is not None:
            items.append(item)
            yield item
        assert not subscription.ended
        for item in items:
            subscription.acknowledge(item)
        assert subscription.recv(0) is None
        assert subscription.ended


READERS: dict[str, Callable[[ObjectStore], Iterator[object]]] = {
    "follow": lambda store: LogReader.open(store, "f").follow(),
    "follow_across": lambda store: follow_across(store, "f"),
    "Consumer": bodies_of_a_consumer,
    "FeedReader": lambda store: iter(FeedReader.open(store, "f")),
    "FeedSubscription": messages_of_a_subscription,
}
DOOMED = "found it being destroyed, sealed for that at offset 4: destroy it"


@pytest.mark.parametrize("reader", READERS)
def test_log_sealed_to_be_destroyed_does_not_end_for_a_reader_until_it_stays(
    memory_store: MemoryStore, reader: str
) -> None:
    with FeedWriter.open_or_create(memory_store, "f") as writer:
        for number in range(3):
            writer.publish("t", number)
    cut_short(memory_store, "f", SEALED)
    found = list[object]()

    with pytest.raises(LogNotFoundError, match=DOOMED):
        for each in READERS[reader](memory_store):
            found.append(each)

    assert len(found) == 3
    undo_destroy(memory_store, "f")
    assert len(list(READERS[reader](memory_store))) == 3


def test_follower_from_beyond_a_log_sealed_to_be_destroyed_does_not_end_either(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "f", 3)
    cut_short(memory_store, "f", SEALED)

    with pytest.raises(LogNotFoundError, match=DOOMED):
        list(follow_across(memory_store, "f", 9))


def test_log_that_was_sealed_before_it_is_destroyed_ends_where_it_was_sealed(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 2)
    seal(memory_store, "a", reason="full")
    cut_short(memory_store, "a", ANNOUNCED)

    assert len(list(LogReader.open(memory_store, "a").follow())) == 2
