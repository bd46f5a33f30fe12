"""What is staged and installed twice, with other names or other parts: nothing of the log is deleted or left out."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import LogWriter, MemoryStore, NotDurableError, UnknownDurabilityError, WriterOptions
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.cursor import Cursor, Owner
from wal3_core.format.named_append import NAMED_APPENDS_MAX
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.format.position import LogPosition
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import log_store

ONCE = Once("writer-nightly", "batch 7")


@pytest.fixture
def log(memory_store: MemoryStore) -> MemoryStore:
    LogWriter.create(memory_store, "a")
    return memory_store


def table(*rows: bytes) -> pa.Table:
    return pa.table([[None] * len(rows), rows], schema=MESSAGE_SCHEMA)


def test_append_that_was_installed_without_a_name_is_not_made_again_under_one(log: MemoryStore) -> None:
    staged = Stager(log, "a").stage(table(b"1", b"2"))
    install_staged(log, "a", staged)

    with pytest.raises(UnknownDurabilityError, match="installed before without its name"):
        install_staged(log, "a", staged, once=ONCE)

    assert World(log).bodies() == [b"1", b"2"]


def test_repeated_append_deletes_nothing_that_was_installed_without_its_name(log: MemoryStore) -> None:
    install_staged(log, "a", Stager(log, "a").stage(table(b"1")), once=ONCE)
    staged = Stager(log, "a").stage(table(b"1"))
    install_staged(log, "a", staged)

    assert install_staged(log, "a", staged, once=ONCE).repeated
    assert World(log).bodies() == [b"1", b"1"]


@pytest.mark.parametrize("others", [[], [b"other"]])
def test_append_of_which_a_part_was_installed_by_itself_is_refused(log: MemoryStore, others: list[bytes]) -> None:
    stager = Stager(log, "a")
    first, second = stager.stage(table(b"1")), stager.stage(table(b"2"))
    install_staged(log, "a", first)
    with LogWriter.open(log, "a") as writer:
        for body in others:
            writer.append(body)

    with pytest.raises(UnknownDurabilityError, match="found 1 of them"):
        install_staged(log, "a", first + second)
    install_staged(log, "a", second)

    assert World(log).bodies() == [b"1", *others, b"2"]


def test_writer_does_not_take_the_cursor_of_a_subscription(log: MemoryStore) -> None:
    """An earlier version's subscription may have such a name."""
    store = CursorStore(log, "a")
    cursor = Cursor(position=LogPosition(1, 0), epoch_us=0, generation=0, owner=Owner.SUBSCRIPTION)
    store.carry(ONCE.cursor, cursor, None)
    before = store.list()

    with pytest.raises(NotDurableError, match="found that of a subscription to a feed"):
        install_staged(log, "a", Stager(log, "a").stage(table(b"1")), once=ONCE)

    assert CursorStore(log, "a").list() == before
    assert World(log).bodies() == []


@pytest.mark.parametrize("others", [[], [b"2"], [b"other", b"other"]])
def test_part_collected_before_it_was_installed_is_not_said_to_be_in_the_log(
    log: MemoryStore, others: list[bytes]
) -> None:
    first, second = (Stager(log, "a").stage(table(body)) for body in (b"1", b"2"))
    install_staged(log, "a", first)
    objects = ManifestStore(log_store(log, "a"), shared_runtime())
    objects.load()
    objects.objects.delete(second[0].pointer.path)
    with LogWriter.open(log, "a") as writer:
        for body in others:
            writer.append(body)

    with pytest.raises(UnknownDurabilityError):
        install_staged(log, "a", first + second)

    assert World(log).bodies() == [b"1", *others]


def test_part_whose_rows_another_writer_appended_is_not_said_to_be_in_the_log(log: MemoryStore) -> None:
    first, second = (Stager(log, "a").stage(table(body)) for body in (b"1", b"2"))
    install_staged(log, "a", first)
    with LogWriter.open(log, "a") as writer:
        writer.append(b"2")

    with pytest.raises(UnknownDurabilityError, match="found 1 of them"):
        install_staged(log, "a", first + second)
    install_staged(log, "a", second)

    assert World(log).bodies() == [b"1", b"2", b"2"]


def test_append_of_parts_staged_and_written_again_is_known_in_every_order(log: MemoryStore) -> None:
    singly = WriterOptions(batch_records_max=1)
    parts = [part for body in (b"1", b"2", b"3") for part in Stager(log, "a").stage(table(body))]
    with LogWriter.open(log, "a") as writer:
        install_staged(log, "a", parts, options=singly)
        writer.append(b"other")

    assert all(install_staged(log, "a", order, options=singly).repeated for order in permutations(parts))
    assert World(log).bodies() == [b"1", b"2", b"3", b"other"]


def named(log: MemoryStore, body: bytes, once: Once) -> bool:
    return install_staged(log, "a", Stager(log, "a").stage(table(body)), once=once).repeated


def test_number_of_a_series_is_known_however_many_appends_without_one_came_between(log: MemoryStore) -> None:
    seventh = Once("writer-nightly", "number 7", "s", 7)
    named(log, b"7", seventh)
    for number in range(NAMED_APPENDS_MAX + 1):
        named(log, b"other", Once("writer-nightly", f"other {number}"))

    assert named(log, b"7", seventh)
    with pytest.raises(UnknownDurabilityError, match="expected number 7 of s"):
        named(log, b"6", Once("writer-nightly", "number 6", "s", 6))
    assert named(log, b"other", Once("writer-nightly", f"other {NAMED_APPENDS_MAX}"))
    assert World(log).bodies().count(b"7") == 1


def test_append_with_the_name_of_another_number_is_refused(log: MemoryStore) -> None:
    named(log, b"same", Once("writer-nightly", "rows", "s", 0))

    with pytest.raises(NotDurableError, match="expected number 0 of s, which has this name, found number 1 of s"):
        named(log, b"same", Once("writer-nightly", "rows", "s", 1))
    # What had no number before is known under one.
    named(log, b"old", Once("writer-nightly", "old"))
    assert named(log, b"old", Once("writer-nightly", "old", "s", 2))


def test_second_append_of_a_stager_was_staged_where_the_log_ended(log: MemoryStore) -> None:
    stager = Stager(log, "a")
    stager.stage(table(*[b"1"] * 100))
    late = stager.stage(table(b"2"))
    named(log, b"2", ONCE)
    for number in range(NAMED_APPENDS_MAX + 1):
        named(log, b"other", Once(ONCE.cursor, f"other {number}"))

    with pytest.raises(UnknownDurabilityError, match="expected it at 1 or before"):
        install_staged(log, "a", late, once=ONCE)
    assert World(log).bodies().count(b"2") == 1


@pytest.mark.parametrize("once", [None, ONCE])
@pytest.mark.parametrize("policy", [{"cleanup": Cleanup.COMPACT}, {"arrange_by_key": True}])
def test_append_installed_without_a_name_and_compacted_since_is_not_made_again(
    log: MemoryStore, once: Once | None, policy: dict[str, Any]
) -> None:
    PolicyStore(log, "a").change(lambda _: Policy(min_dirty_percent=0, **policy))
    early, staged = (Stager(log, "a").stage(keyed(b"k", body)) for body in (b"1", b"2"))
    install_staged(log, "a", staged)
    with LogWriter.open(log, "a") as writer:
        for key in (b"x", b"y"):
            writer.append(b"other", key=key)
    assert KeyCompactor(log, "a").compact().installed

    with pytest.raises(UnknownDurabilityError, match="installed before without a name, and compacted since"):
        install_staged(log, "a", staged, once=once)
    # What lies in the place of another is not taken for it.
    assert not install_staged(log, "a", early, once=once).repeated
    assert World(log).bodies() == [b"2", b"other", b"other", b"1"]


def keyed(key: bytes, body: bytes) -> pa.Table:
    return pa.table([[key], [body]], schema=MESSAGE_SCHEMA)


def test_repeated_append_deletes_nothing_installed_without_its_name_meanwhile(log: MemoryStore) -> None:
    named(log, b"1", ONCE)
    staged, faulty = Stager(log, "a").stage(table(b"1")), FaultyStore(log)

    def install_meanwhile(_kind: str, path: str) -> None:
        if path.endswith(staged[0].pointer.path):
            faulty.before = lambda _kind, _path: None
            install_staged(log, "a", staged)

    faulty.before = install_meanwhile

    assert install_staged(faulty, "a", staged, once=ONCE).repeated
    assert World(log).bodies() == [b"1", b"1"]
