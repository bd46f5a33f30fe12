"""Appends under way when a log becomes keyed: those without keys fail as not durable, and no other does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests.spec.keyed import clean_up, keyed_log, once
from tests.stores import FaultyStore, life_store
from tests.world import World
from wal3_core import (
    Cleanup,
    HaltedError,
    KeyRequiredError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    NotDurableError,
    Record,
    WriterOptions,
)
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

QUICK = RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01)
# Fragments of one append each, several in flight at a time.
ONE_EACH = WriterOptions(batch_bytes_max=1, uploads_max=4, batch_age_s_max=0.001)


def test_append_under_way_when_the_log_becomes_keyed_is_not_durable_and_says_why(store: ObjectStore) -> None:
    LogWriter.create(store, "a")
    faulty = FaultyStore(store)

    with LogWriter.open(faulty, "a") as writer:
        once(faulty, "replace", "MANIFEST", lambda: clean_up(store, Cleanup.COMPACT))
        with pytest.raises(NotDurableError, match=r"record 0 of 1: expected a key, found none: the log is keyed"):
            writer.append(b"no")
        assert writer.append(b"1", key=b"k").offset == 1

    assert World(store).bodies() == [b"1"]


def _submitted_together(faulty: FaultyStore, writer: LogWriter, act: Callable[[], object]) -> list[Future[LogPosition]]:
    """Submit appends with and without keys that go into one commit, before which ``act`` runs."""
    gate, stuck = threading.Event(), threading.Event()

    def hold() -> None:
        stuck.set()
        assert gate.wait(30)

    once(faulty, "replace", "MANIFEST", hold)
    futures = [writer.submit(b"0", key=b"k")]
    assert stuck.wait(30)
    futures += [
        writer.submit(b"1", key=b"k"),
        writer.submit(b"no 1"),
        writer.submit_many([Message(b"2", b"k"), Message(b"3", b"k")]),
        writer.submit_many([Message(b"no 2", b"k"), Message(b"no 3")]),
        writer.submit(None, key=b"k"),
    ]
    once(faulty, "replace", "MANIFEST", act)
    if writer.options == ONE_EACH:
        # So that most of them go into the next commit.
        deadline_s = time.monotonic() + 30
        while sum(1 for _ in life_store(faulty, "a").list_objects("log/")) < 5 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    gate.set()
    return futures


@pytest.mark.parametrize("options", [WriterOptions(), ONE_EACH], ids=["one fragment", "a fragment each"])
def test_neighbours_with_keys_of_an_append_that_fails_for_want_of_one_are_appended(
    store: ObjectStore, options: WriterOptions
) -> None:
    world = World(store)
    LogWriter.create(store, "a")
    faulty = FaultyStore(store)

    with LogWriter.open(faulty, "a", options=options) as writer:
        futures = _submitted_together(faulty, writer, lambda: clean_up(store, Cleanup.COMPACT))
        outcomes = [type(future.exception(30)) for future in futures]

    assert outcomes == [
        type(None),
        type(None),
        KeyRequiredError,
        type(None),
        KeyRequiredError,
        type(None),
    ]
    assert "record 1 of 2" in str(futures[4].exception())
    assert world.bodies() == [b"0", b"1", b"2", b"3", None]
    assert world.manifest().keyed


def test_ordered_writer_halts_at_an_append_that_fails_for_want_of_a_key(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    with LogWriter.open(faulty, "a", options=ONE_EACH, ordered=True) as writer:
        futures = _submitted_together(faulty, writer, lambda: clean_up(memory_store, Cleanup.COMPACT))
        outcomes = [type(future.exception(30)) for future in futures]
        resumed = writer.resume()
        again = writer.append(b"again", key=b"k")

    assert outcomes == [type(None), type(None), KeyRequiredError, HaltedError, HaltedError, HaltedError]
    assert (resumed.appends, resumed.records, resumed.next_offset) == (2, 2, 3)
    assert isinstance(resumed.failure, KeyRequiredError)
    assert again.offset == 3
    assert World(memory_store).bodies() == [b"0", b"1", b"again"]


def test_append_without_a_key_is_not_uploaded_again(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)
    uploads: list[str] = []

    def become_keyed() -> None:
        clean_up(memory_store, Cleanup.COMPACT)
        faulty.before = lambda kind, path: uploads.append(path) if kind == "create" and "/log/" in path else None

    with LogWriter.open(faulty, "a", options=ONE_EACH) as writer:
        futures = _submitted_together(faulty, writer, become_keyed)
        outcomes = [future.exception(30) for future in futures]

    assert sum(outcome is None for outcome in outcomes) == 4
    # The first one was in the log before, and the second one's first upload may have been committed alone.
    before = World(memory_store).manifest().epochs[0].token
    assert sum(before not in path for path in uploads) in {2, 3}


def test_ordered_writer_halts_only_when_the_appends_before_have_their_outcomes(memory_store: MemoryStore) -> None:
    """Else it could be resumed while one of them is under way, and its report would miss that one."""
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)
    halted: list[bool] = []

    def look() -> None:
        # Long enough for the writer's next step, if it does not wait for this commit.
        threading.Event().wait(0.1)
        halted.append(writer.stats().halted)

    def become_keyed() -> None:
        clean_up(memory_store, Cleanup.COMPACT)
        once(faulty, "replace", "MANIFEST", look)

    with LogWriter.open(faulty, "a", options=ONE_EACH, ordered=True) as writer:
        futures = _submitted_together(faulty, writer, become_keyed)
        outcomes = [type(future.exception(30)) for future in futures]

    assert halted == [False]
    assert outcomes[:3] == [type(None), type(None), KeyRequiredError]


def test_append_whose_commit_was_applied_before_the_log_became_keyed_is_durable(memory_store: MemoryStore) -> None:
    """Its answer was lost; the manifest that shows it is keyed."""
    world = World(memory_store)
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    with LogWriter.open(faulty, "a") as writer:
        faulty.fail("replace", "MANIFEST", "applied-unknown")
        # The first load of the manifest after the CAS.
        once(faulty, "get", "MANIFEST", lambda: clean_up(memory_store, Cleanup.COMPACT))
        position = writer.append(b"1")

    assert position.offset == 1
    assert world.bodies() == [b"1"]
    assert world.manifest().keyed


def test_unanswered_commit_that_was_not_applied_is_not_appended_to_a_keyed_log(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    with LogWriter.open(faulty, "a") as writer:
        faulty.fail("replace", "MANIFEST", "late")
        once(faulty, "get", "MANIFEST", lambda: clean_up(memory_store, Cleanup.COMPACT))
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")
        faulty.arrive()

    assert World(memory_store).bodies() == []


def test_append_that_lost_its_place_to_another_writer_is_not_put_into_a_keyed_log(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    def overtake() -> None:
        with LogWriter.open(memory_store, "a") as other:
            other.append(b"1")
        clean_up(memory_store, Cleanup.COMPACT)

    with LogWriter.open(faulty, "a") as writer:
        once(faulty, "replace", "MANIFEST", overtake)
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")

    assert World(memory_store).bodies() == [b"1"]


def test_conditional_append_behind_one_that_fails_lands_at_its_offset_or_nowhere(
    memory_store: MemoryStore,
) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    with LogWriter.open(faulty, "a") as writer:
        gate, stuck = threading.Event(), threading.Event()
        once(faulty, "replace", "MANIFEST", lambda: (stuck.set(), gate.wait(30)))
        futures = [writer.submit(b"0", key=b"k")]
        assert stuck.wait(30)
        futures.append(writer.submit(b"no"))
        futures.append(writer.submit(b"at 2", key=b"k", expect_next=2))
        futures.append(writer.submit(b"at 3", key=b"k", expect_next=3))
        once(faulty, "replace", "MANIFEST", lambda: clean_up(memory_store, Cleanup.COMPACT))
        gate.set()
        failures = [future.exception(30) for future in futures]

    assert isinstance(failures[1], KeyRequiredError)
    landed = [record.body for record in _records(memory_store)]
    assert landed[0] == b"0"
    assert landed[1:] == [
        body for body, failure in zip((b"at 2", b"at 3"), failures[2:], strict=True) if failure is None
    ]


def test_log_that_is_keyed_again_takes_no_append_of_the_time_between(
    memory_store: MemoryStore,
) -> None:
    keyed_log(memory_store)
    faulty = FaultyStore(memory_store)

    with LogWriter.open(faulty, "a") as writer:
        clean_up(memory_store, Cleanup.COLLECT)
        writer.append(b"1", key=b"k")
        once(faulty, "replace", "MANIFEST", lambda: clean_up(memory_store, Cleanup.COMPACT))
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")

    assert World(memory_store).bodies() == [b"1"]


def test_append_accepted_while_the_manifest_loads_is_refused_by_what_is_loaded(
    memory_store: MemoryStore,
) -> None:
    """After a commit without an outcome the writer knows nothing of the log."""
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    options = WriterOptions(retry=QUICK, delivery_timeout_s=0.1)
    with LogWriter.open(faulty, "a", options=options) as writer:
        faulty.fail("replace", "MANIFEST", "unavailable", times=1000)
        with pytest.raises(NotDurableError):
            writer.append(b"lost")
        faulty.heal()
        clean_up(memory_store, Cleanup.COMPACT)
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")
        assert writer.append(b"1", key=b"k").offset == 1


def _records(store: ObjectStore, log: str = "a") -> list[Record]:
    return list(LogReader.open(store, log).records())
