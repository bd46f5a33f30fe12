"""Sealing: a log is closed permanently and continues in a successor without a gap."""

from __future__ import annotations

import concurrent.futures
import threading
from dataclasses import replace

import pytest

from tests.spec.seals import bodies, collect, fill
from tests.stores import LOG_ID, FaultyStore
from tests.world import Crashed, World
from wal3_core import (
    CorruptError,
    InvalidRequestError,
    LogAt,
    LogExistsError,
    LogNotFoundError,
    LogReader,
    LogWriter,
    MemoryStore,
    SealedError,
    UnavailableError,
    copy,
    create_successor,
    destroy,
    migrate,
    scrub,
    seal,
)
from wal3_core.format.manifest import Manifest
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

# ---------------------------------------------------------------------- seal


def test_sealed_log_accepts_no_more_records_and_can_still_be_read(store: ObjectStore) -> None:
    world = World(store)
    fill(store, "a", b"1", b"2")
    before = world.manifest()
    open_before = LogWriter.open(store, "a")

    made = seal(store, "a", reason="full", successor="b")

    for writer in (open_before, LogWriter.open(store, "a")):
        with pytest.raises(SealedError, match="full; it goes on in b"):
            writer.append(b"3")
        writer.close()
    assert [record.body for record in LogReader.open(store, "a").records()] == [b"1", b"2"]
    after = world.manifest()
    assert after == replace(before, seal=made, generation=before.generation + 1, writer=after.writer)
    assert scrub(store, "a").sound


def test_log_is_sealed_once_and_a_repeat_names_the_first_sealer(store: ObjectStore) -> None:
    world = World(store)
    fill(store, "a")
    first = seal(store, "a", reason="full", sealed_by="ann", successor="b")
    sealed = world.manifest()

    again = seal(store, "a", reason="full", sealed_by="ann", successor="b")
    for other in ({"sealed_by": "bob"}, {"sealed_by": "ann", "reason": "old"}, {"sealed_by": "ann", "successor": "c"}):
        with pytest.raises(SealedError, match="sealed already, by ann: full; it goes on in b"):
            seal(store, "a", **{"reason": "full", "successor": "b", **other})

    assert again == first
    assert world.manifest() == sealed


def test_two_anonymous_seals_are_distinguished(memory_store: MemoryStore) -> None:
    fill(memory_store, "a")
    seal(memory_store, "a", reason="full")

    with pytest.raises(SealedError, match="full"):
        seal(memory_store, "a", reason="full")


def test_seal_can_be_repeated_by_the_same_sealer_after_its_successor_began(memory_store: MemoryStore) -> None:
    fill(memory_store, "a")
    first = seal(memory_store, "a", reason="full", sealed_by="ann", successor="b")
    create_successor(memory_store, "a")

    assert seal(memory_store, "a", reason="full", sealed_by="ann", successor="b") == first


@pytest.mark.parametrize(
    ("successor", "error", "complaint"),
    [
        ("a", InvalidRequestError, "another name"),
        ("../b", InvalidRequestError, "successor name"),
        ("log", InvalidRequestError, "reserved for a log's own folders"),
        ("taken", LogExistsError, "another log of that name"),
    ],
)
def test_impossible_successor_leaves_the_log_open(
    memory_store: MemoryStore, successor: str, error: type[Exception], complaint: str
) -> None:
    fill(memory_store, "a", b"1")
    fill(memory_store, "taken")

    with pytest.raises(error, match=complaint):
        seal(memory_store, "a", reason="full", successor=successor)

    assert World(memory_store).manifest().seal is None


def test_missing_log_cannot_be_sealed(store: ObjectStore) -> None:
    with pytest.raises(LogNotFoundError):
        seal(store, "none", reason="full")


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict"])
def test_seal_without_an_answer_determines_its_outcome(memory_store: MemoryStore, fault: str) -> None:
    world = World(memory_store)
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)
    store.fail("replace", "MANIFEST", fault, times=2)

    made = seal(store, "a", reason="full")

    assert store.fired[fault] == (1 if fault == "applied-unknown" else 2)
    assert world.manifest().seal == made
    assert world.manifest().generation == 3


def test_seal_that_never_gets_an_answer_says_so(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.2)
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)
    store.fail("replace", "MANIFEST", "unknown", times=100)

    with pytest.raises(UnavailableError, match="not sealed yet, unknown whether"):
        seal(store, "a", reason="full")

    assert World(memory_store).manifest().seal is None


def test_seal_applies_to_a_manifest_committed_meanwhile(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    fill(memory_store, "a", b"1")
    store = FaultyStore(memory_store)
    rounds = iter(range(3))

    def commit(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path and next(rounds, None) is not None:
            fill(memory_store, "a", b"more")

    store.before = commit
    made = seal(store, "a", reason="full")

    assert world.manifest().seal == made
    assert world.manifest().num_records == 4


def test_one_of_many_sealers_wins_and_the_others_learn_it(store: ObjectStore) -> None:
    fill(store, "a", b"1")

    def attempt(name: str) -> str:
        try:
            return seal(store, "a", reason="full", sealed_by=name).sealed_by
        except SealedError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(attempt, "wxyz"))

    found = World(store).manifest().seal
    assert found is not None
    winners = [answer for answer in answers if answer == found.sealed_by]
    assert len(winners) == 1
    assert sum(f"sealed already, by {found.sealed_by}: full" in answer for answer in answers) == 3


def test_records_acknowledged_before_the_seal_are_in_the_log_and_no_others(store: ObjectStore) -> None:
    fill(store, "a")
    acknowledged: list[list[int]] = [[], []]
    started = threading.Barrier(3)

    def append(mine: list[int], first: int) -> None:
        with LogWriter.open(store, "a") as writer:
            for number in range(first, first + 100_000):
                try:
                    writer.append(b"%d" % number)
                except SealedError:
                    return
                mine.append(number)
                if len(mine) == 3:
                    started.wait(60)

    threads = [threading.Thread(target=append, args=(mine, 100_000 * index)) for index, mine in enumerate(acknowledged)]
    for thread in threads:
        thread.start()
    started.wait(60)
    migrate(store, "a", "b", reason="a test")
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    read = [int(record.body or b"") for record in LogReader.open(store, "a").records()]
    for index, mine in enumerate(acknowledged):
        assert [number for number in read if number // 100_000 == index] == mine
    assert World(store, "b").manifest().first == World(store).manifest().next


def test_sealed_log_can_be_collected(store: ObjectStore) -> None:
    fill(store, "a", b"1", b"2", b"3")
    made = seal(store, "a", reason="full")

    collect(store, "a", 3)

    assert World(store).manifest().seal == made
    assert bodies(store, "a") == [b"3"]


# ---------------------------------------------------------------------- successor


def test_successor_begins_where_the_sealed_log_ends_and_covers_the_same_records(store: ObjectStore) -> None:
    world = World(store, "b")
    fill(store, "a", b"1", b"2")
    seal(store, "a", reason="full", successor="b")
    sealed = World(store).manifest()

    assert create_successor(store, "a") == "b"

    begun = world.manifest()
    assert (begun.first, begun.next) == (sealed.next, sealed.next)
    assert (begun.setsum, begun.pruned) == (sealed.setsum, sealed.setsum)
    fill(store, "b", b"3")
    assert [record.offset for record in LogReader.open(store, "b").records()] == [3]
    assert world.manifest().fragments[0].seq_no == sealed.next.seq_no
    assert scrub(store, "b").sound


@pytest.mark.parametrize("later", ["empty", "appended", "collected", "all collected"])
def test_creating_the_successor_again_changes_nothing(store: ObjectStore, later: str) -> None:
    world = World(store, "b")
    fill(store, "a", b"1", b"2")
    migrate(store, "a", "b", reason="full")
    if later != "empty":
        fill(store, "b", b"3", b"4")
    if later.endswith("collected"):
        collect(store, "b", 5 if later.startswith("all") else 4)
    before = world.manifest()

    assert create_successor(store, "a") == "b"

    assert world.manifest() == before


@pytest.mark.parametrize("held", [0, 1, 2, 5])
def test_another_log_under_the_successor_s_name_is_detected(memory_store: MemoryStore, held: int) -> None:
    """Destroying a kept name gives it up, so another log may take it first."""
    world = World(memory_store, "b")
    fill(memory_store, "a", b"1", b"2")
    seal(memory_store, "a", reason="full", successor="b")
    destroy(memory_store, "b")
    fill(memory_store, "b", *[b"other"] * held)
    if held == 5:
        collect(memory_store, "b", 4)
    before = world.manifest()

    with pytest.raises(LogExistsError, match="another log of that name: copy that one to another name and destroy it"):
        create_successor(memory_store, "a")
    with pytest.raises(CorruptError, match="expected it to go on from log a"):
        bodies(memory_store, "a")

    assert world.manifest() == before


def test_log_that_follows_another_is_no_successor_though_it_begins_there(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "a", b"1", b"2")
    seal(memory_store, "a", reason="full", successor="b")
    sealed = World(memory_store).manifest()
    destroy(memory_store, "b")
    impostor = Manifest.successor(replace(sealed, log_id=LOG_ID), log_id=LOG_ID, writer="a test")
    ManifestStore(log_store(memory_store, "b"), shared_runtime()).create(impostor)

    with pytest.raises(LogExistsError, match="another log of that name"):
        create_successor(memory_store, "a")


@pytest.mark.parametrize(("sealed", "complaint"), [(False, "found it open"), (True, "names none: full")])
def test_only_a_sealed_log_that_names_one_has_a_successor(
    memory_store: MemoryStore, *, sealed: bool, complaint: str
) -> None:
    fill(memory_store, "a", b"1")
    if sealed:
        seal(memory_store, "a", reason="full")

    with pytest.raises(InvalidRequestError, match=complaint):
        create_successor(memory_store, "a")


def test_migration_that_was_cut_short_anywhere_is_finished_by_the_next(memory_store: MemoryStore) -> None:
    cuts = 0
    for cut in range(100):
        log, successor = f"a{cut}", f"b{cut}"
        fill(memory_store, log, b"1")
        store = FaultyStore(memory_store)
        left = iter(range(cut))

        def crash(_kind: str, _path: str, left: object = left) -> None:
            if next(left, None) is None:
                raise Crashed

        store.before = crash
        try:
            migrate(store, log, successor, reason="full")
        except Crashed:
            cuts += 1
        else:
            break
        finally:
            migrate(memory_store, log, successor, reason="full")
            fill(memory_store, successor, b"2")
            assert bodies(memory_store, log) == [b"1", b"2"]

    # The manifest, the successor's absence, the seal, the manifest again, the create, its two probes and more.
    assert cuts >= 6


@pytest.mark.parametrize("there", ["a log", "a lost manifest", "a copy under way"])
def test_migration_to_a_taken_name_is_refused_before_anything_is_changed(store: ObjectStore, there: str) -> None:
    """Regression: it sealed the log, and then could not begin its successor."""
    fill(store, "a", b"1")
    fill(store, "b", b"another's")
    match there:
        case "a lost manifest":
            store.delete("b/manifest/MANIFEST.json")
        case "a copy under way":
            destroy(store, "b")
            into = FaultyStore(store)
            into.fail("replace", "Life=", "denied", times=99)
            into.fail("create", "Life=", "denied", times=99)
            with pytest.raises(UnavailableError):
                copy(LogAt(store, "a"), LogAt(into, "b"))

    with pytest.raises((LogExistsError, CorruptError)):
        migrate(store, "a", "b", reason="full")

    assert World(store).manifest().seal is None
    fill(store, "a", b"2")
    assert bodies(store, "a") == [b"1", b"2"]


def test_migration_to_a_name_whose_log_was_destroyed_begins_there(store: ObjectStore) -> None:
    fill(store, "a", b"1")
    fill(store, "b", b"another's")
    destroy(store, "b")

    migrate(store, "a", "b", reason="full")
    fill(store, "b", b"2")

    assert bodies(store, "a") == [b"1", b"2"]
    assert World(store, "b").manifest().follows == World(store).manifest().log_id


def test_migration_to_another_successor_is_refused(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    migrate(memory_store, "a", "b", reason="full")

    with pytest.raises(SealedError, match="it goes on in b"):
        migrate(memory_store, "a", "c", reason="full")

    assert LogReader.open(memory_store, "b").manifest().num_records == 0
    with pytest.raises(LogNotFoundError):
        LogReader.open(memory_store, "c")


@pytest.mark.parametrize("reason", ["", "  "])
def test_seal_without_a_reason_is_refused(memory_store: MemoryStore, reason: str) -> None:
    LogWriter.create(memory_store, "a")

    with pytest.raises(InvalidRequestError, match="expected a reason"):
        seal(memory_store, "a", reason=reason)

    assert LogReader.open(memory_store, "a").manifest().seal is None
