"""A log whose policy compacts it is keyed: it takes no append without a key."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.spec.keyed import clean_up, keyed_log, once
from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import World
from wal3_core import (
    Cleanup,
    Fleet,
    InvalidRequestError,
    KeyRequiredError,
    LogAt,
    LogWriter,
    MemoryStore,
    Message,
    PolicyStore,
    Record,
    UnavailableError,
    bootstrap,
    copy,
    destroy,
    migrate,
    update_copy,
)
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

# ------------------------------------------------------------------ the policy decides


@pytest.mark.parametrize("cleanup", [Cleanup.COMPACT, Cleanup.BOTH])
def test_manifest_is_keyed_while_the_policy_compacts(store: ObjectStore, cleanup: Cleanup) -> None:
    world = World(store)
    LogWriter.create(store, "a")
    before = world.manifest()

    clean_up(store, cleanup)
    keyed = world.manifest()
    clean_up(store, Cleanup.COLLECT)
    after = world.manifest()

    assert (before.keyed, keyed.keyed, after.keyed) == (False, True, False)
    assert b"keyed" not in before.to_bytes() + after.to_bytes()
    assert keyed.generation == before.generation + 1


def test_policy_that_does_not_change_it_leaves_the_manifest_alone(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    keyed_log(memory_store)
    before = world.manifest()

    PolicyStore(memory_store, "a").change(lambda policy: replace(policy, min_dirty_percent=10))
    clean_up(memory_store, Cleanup.BOTH)

    assert world.manifest() == before


def test_contradiction_is_refused_and_changes_nothing(store: ObjectStore) -> None:
    LogWriter.create(store, "a")
    PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=60))

    with pytest.raises(InvalidRequestError, match="retention_s: expected none with cleanup compact"):
        clean_up(store, Cleanup.COMPACT)

    assert not World(store).manifest().keyed
    assert PolicyStore(store, "a").load().generation == 1


def test_change_that_died_before_the_manifest_is_completed_by_the_next_change(store: ObjectStore) -> None:
    world = World(store)
    LogWriter.create(store, "a")
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "denied")

    with pytest.raises(UnavailableError):
        clean_up(faulty, Cleanup.COMPACT)
    left = world.manifest().keyed
    PolicyStore(store, "a").change(lambda policy: replace(policy, min_dirty_percent=10))

    assert (left, world.manifest().keyed) == (False, True)


def test_change_that_died_before_the_manifest_is_completed_without_a_change(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)
    faulty.fail("replace", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        clean_up(faulty, Cleanup.COMPACT)

    policies = PolicyStore(memory_store, "a")
    policies.align_keyed()
    aligned = world.manifest()
    policies.align_keyed()

    assert aligned.keyed
    assert world.manifest() == aligned
    assert policies.load().generation == 1


@pytest.mark.parametrize("fault", ["applied-unknown", "conflict", "applied-refused"])
def test_manifest_is_keyed_whatever_the_answer_to_its_change(memory_store: MemoryStore, fault: str) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)
    faulty.fail("replace", "MANIFEST", fault)

    clean_up(faulty, Cleanup.COMPACT)

    assert faulty.fired
    assert World(memory_store).manifest().keyed


def test_slower_one_of_two_changes_leaves_the_manifest_as_the_newer_policy_says(store: ObjectStore) -> None:
    """The newer change finds the manifest as it wants it, and the slower one then sets ``keyed``."""
    LogWriter.create(store, "a")
    faulty = FaultyStore(store)
    once(faulty, "replace", "MANIFEST", lambda: clean_up(store, Cleanup.COLLECT))

    clean_up(faulty, Cleanup.COMPACT)

    assert PolicyStore(store, "a").load().cleanup is Cleanup.COLLECT
    assert not World(store).manifest().keyed


# ------------------------------------------------------------------ appends that begin later


def test_record_without_a_key_is_refused_by_its_index_and_records_with_keys_are_not(store: ObjectStore) -> None:
    keyed_log(store)

    with LogWriter.open(store, "a") as writer:
        for append in (lambda: writer.append(b"no"), lambda: writer.submit(b"no").result(30)):
            with pytest.raises(InvalidRequestError, match=r"record 0 of 1: expected a key, found none"):
                append()
        many = [Message(b"1", b"k"), Message(None, b"k"), Message(b"no"), Message(b"no")]
        for append in (lambda: writer.append_many(many), lambda: writer.submit_many(many).result(30)):
            with pytest.raises(KeyRequiredError, match=r"record 2 of 4: expected a key, found none"):
                append()
        # An empty key is a key.
        assert writer.append(b"1", key=b"").offset == 1
        assert writer.append(None, key=b"").offset == 2

    assert World(store).bodies() == [b"1", None]


def test_refused_record_does_not_halt_an_ordered_writer(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)

    with LogWriter.open(memory_store, "a", ordered=True) as writer:
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")
        assert writer.append(b"1", key=b"k").offset == 1


def test_fleet_refuses_a_record_without_a_key(store: ObjectStore) -> None:
    keyed_log(store)

    with Fleet.open(store) as fleet:
        with pytest.raises(KeyRequiredError, match="record 1 of 2"):
            fleet.append_many("a", [Message(b"1", b"k"), Message(b"no")])
        assert fleet.append("a", b"1", key=b"k").offset == 1
        assert (fleet.stats().appends, fleet.stats().appends_failed) == (1, 1)


def test_log_that_is_no_longer_compacted_takes_records_without_keys(store: ObjectStore) -> None:
    keyed_log(store)

    with LogWriter.open(store, "a") as writer:
        clean_up(store, Cleanup.COLLECT)
        # It learns of the change by its own commit.
        writer.append(b"1", key=b"k")
        writer.append(b"2")
    with LogWriter.open(store, "a") as writer:
        writer.append(b"3")

    assert World(store).bodies() == [b"1", b"2", b"3"]


def test_writer_learns_of_it_by_the_manifest_of_its_own_commit(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")

    with LogWriter.open(memory_store, "a") as writer:
        clean_up(memory_store, Cleanup.COMPACT)
        writer.append(b"1", key=b"k")
        with pytest.raises(KeyRequiredError):
            writer.submit(b"no").result(30)


class Hurried(ThreadRuntime):
    """A process whose monotonic clock can be set ahead."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.mark.parametrize("ordered", [False, True])
def test_writer_takes_records_without_keys_a_second_after_the_log_stops_being_keyed(
    store: ObjectStore, *, ordered: bool
) -> None:
    keyed_log(store)
    runtime = Hurried()

    with LogWriter.open(store, "a", runtime=runtime, ordered=ordered) as writer:
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")
        clean_up(store, Cleanup.COLLECT)
        runtime.ahead_s = 1.0
        writer.append(b"1")
        clean_up(store, Cleanup.COMPACT)
        # It knew of no reason to refuse this one.
        with pytest.raises(KeyRequiredError):
            writer.append(b"no")
        if ordered:
            writer.resume()
        clean_up(store, Cleanup.COLLECT)
        runtime.ahead_s = 2.0
        futures = [writer.submit(b"2"), writer.submit(b"3", key=b"k"), writer.submit(b"4")]
        assert [future.result(30).offset for future in futures] == [2, 3, 4]

    assert World(store).bodies() == [b"1", b"2", b"3", b"4"]
    runtime.close()


def test_writer_that_refuses_records_looks_at_the_manifest_once_a_second(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    counting, runtime = CountingStore(memory_store), Hurried()

    with LogWriter.open(counting, "a", runtime=runtime) as writer:
        began_s = runtime.monotonic_s()
        for _ in range(5):
            for _ in range(100):
                with pytest.raises(KeyRequiredError):
                    writer.append(b"no")
            runtime.ahead_s += 1.0
        # To open it is one, and the first refusal another one.
        assert counting.requests == {"get": counting.requests["get"]}
        assert 6 <= counting.requests["get"] <= 3 + runtime.monotonic_s() - began_s
    runtime.close()


def test_ordered_writer_goes_on_behind_a_record_that_it_looked_at_the_manifest_for(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)

    with LogWriter.open(memory_store, "a", ordered=True) as writer:
        first = writer.submit(b"1", key=b"k")
        # Refused at once if the writer has seen by now that the log is keyed.
        with pytest.raises(KeyRequiredError):
            writer.submit(b"no").result(30)
        writer.submit(b"2", key=b"k").result(30)
        assert first.done()
        resumed = writer.resume()

    assert (resumed.appends, resumed.failure) == (2, None)
    assert World(memory_store).bodies() == [b"1", b"2"]


def test_stager_stages_records_without_keys_once_the_log_is_no_longer_keyed(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    rows = pa.table([[None], [b"1"]], schema=MESSAGE_SCHEMA)
    stager = Stager(memory_store, "a")
    with pytest.raises(KeyRequiredError):
        stager.stage(rows)

    clean_up(memory_store, Cleanup.COLLECT)
    install_staged(memory_store, "a", stager.stage(rows))

    assert World(memory_store).bodies() == [b"1"]


# ------------------------------------------------------------------ other logs


def test_copy_and_successor_are_keyed_with_the_policy_that_they_take_along(store: ObjectStore) -> None:
    keyed_log(store)
    with LogWriter.open(store, "a") as writer:
        writer.append(b"1", key=b"k")

    copy(LogAt(store, "a"), LogAt(store, "b"))
    migrate(store, "a", "c", reason="full")

    for name in ("b", "c"):
        assert (World(store, name).manifest().keyed, PolicyStore(store, name).load().cleanup) == (True, Cleanup.COMPACT)


def test_copy_is_keyed_as_the_policy_says_that_it_took_over(memory_store: MemoryStore) -> None:
    """The policy is changed after the source was pinned."""
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)
    once(faulty, "replace", "b/manifest/MANIFEST", lambda: None)
    once(faulty, "create", "b/manifest/MANIFEST", lambda: clean_up(memory_store, Cleanup.COMPACT))

    copy(LogAt(memory_store, "a"), LogAt(faulty, "b"))

    assert World(memory_store, "b").manifest().keyed
    assert PolicyStore(memory_store, "b").load().compacts


def test_update_of_a_keyed_copy_brings_records_without_keys(memory_store: MemoryStore) -> None:
    world = World(memory_store, "b")
    LogWriter.create(memory_store, "a")
    copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"))
    clean_up(memory_store, Cleanup.COMPACT, "b")
    with LogWriter.open(memory_store, "a") as writer:
        writer.append(b"1")

    update_copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"))

    assert world.bodies() == [b"1"]
    assert world.manifest().keyed


def test_name_of_a_keyed_log_that_is_used_again_is_not_keyed(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    assert life_store(memory_store, "a").head("policy.json") is not None

    destroy(memory_store, "a")
    bootstrap(memory_store, "a", [Record(1, 0, None, b"1")])

    assert not World(memory_store).manifest().keyed
    with LogWriter.open(memory_store, "a") as writer:
        writer.append(b"2")
