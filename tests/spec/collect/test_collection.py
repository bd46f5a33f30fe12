"""A collection deletes the records below every cursor, announces them first, and deletes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.stores import FaultyStore, content, damage, life_path, life_store
from tests.world import (
    LOG,
    NOW,
    QUICK,
    World,
    beside_the_clock,
)
from wal3_core import LogWriter, MemoryStore, Message, UnavailableError, scrub
from wal3_core.errors import CollectionRefusedError, CorruptError, LogNotFoundError, OutdatedPlanError
from wal3_core.format import strict_json
from wal3_core.format.cursor import Owner
from wal3_core.format.paths import CLOCK
from wal3_core.format.position import LogPosition
from wal3_core.format.setsum import EMPTY
from wal3_core.log.collect.collector import Collector, Plan
from wal3_core.options import CollectorOptions, SnapshotOptions
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectMeta, ObjectStore

# ---------------------------------------------------------------------- plan


def test_plan_takes_records_below_every_cursor_and_names_the_one_that_holds(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    world.move_cursor(19, "fast")
    manifest = world.manifest()

    found = world.plan()

    sizes = [
        len(life_store(store, "a").read(path) or b"") for path in sorted(world.stored()) if path.startswith("log/")
    ]
    by_seq_no = sorted(path[-24:] for path in world.stored() if path.startswith("log/"))
    assert len(sizes) == len(by_seq_no) == 20
    assert (found.log, found.reason) == (LOG, "cursor reader is at offset 12")
    assert (found.first.seq_no, found.first.position.offset) == (12, 12)
    assert (found.num_fragments, found.num_records) == (11, 11)
    assert (found.held_records, found.held_bytes) == (20, manifest.num_bytes)
    assert found.held_bytes == sum(sizes)
    assert found.fraction == found.num_bytes / found.held_bytes
    assert not found.empty


def test_plan_counts_the_bytes_that_the_collection_frees(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    found = world.plan()
    before = world.manifest().num_bytes

    world.collect()

    assert world.manifest().num_bytes == before - found.num_bytes


def test_fragment_with_a_record_that_a_cursor_needs_stays_whole(store: ObjectStore) -> None:
    world = World(store)
    with LogWriter.open_or_create(store, LOG) as writer:
        for _ in range(3):
            writer.append_many([Message(b"x")] * 4)
    world.move_cursor(8)

    found = world.plan()
    world.collect()

    assert (found.first.seq_no, found.first.position.offset, found.num_records) == (2, 5, 4)
    assert world.offsets() == list(range(5, 13))


def test_plan_changes_nothing(store: ObjectStore) -> None:
    World(store).plant(cursor=12)
    before = content(store)
    collector = Collector(store, LOG, options=NOW)

    found = collector.plan()
    list(collector.objects(found))
    collector.verify(found)

    assert content(store) == before


def test_given_limit_keeps_the_records_after_it_whatever_the_cursors_say(store: ObjectStore) -> None:
    World(store).plant(cursor=12)

    below, above = World(store).plan(5), World(store).plan(15)

    assert (below.first.seq_no, below.reason) == (5, "the limit given is at offset 5")
    assert (above.first.seq_no, above.reason) == (12, "cursor reader is at offset 12")


def test_plan_is_empty_where_the_first_record_is_needed(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=1)
    before = content(store)

    found = world.plan()
    done = world.collect()

    assert found.empty
    assert (found.num_fragments, found.num_bytes, found.setsum, found.fraction) == (0, 0, EMPTY, 0)
    assert (done.num_orphans, done.deleted, done.wait_s) == (0, (), 0)
    # The store was asked for its time; nothing else was written.
    assert {path for path, data in content(store).items() if before.get(path) != data} == {life_path(store, "a", CLOCK)}


def test_plan_survives_a_round_trip_through_json(memory_store: MemoryStore) -> None:
    World(memory_store).plant(cursor=12)
    found = World(memory_store).plan()

    again = Plan.from_json(strict_json.load(strict_json.dump(found.to_json()), what="plan", bytes_max=10_000))

    assert again == found


# ---------------------------------------------------------------------- what allows a collection


def test_log_without_cursors_is_not_collected(store: ObjectStore) -> None:
    world = World(store)
    world.plant()
    before = beside_the_clock(store)

    for options in (NOW, replace(NOW, without_cursors=True)):
        with pytest.raises(CollectionRefusedError, match="expected a cursor to say what is no longer needed"):
            world.plan(options=options)
    with pytest.raises(CollectionRefusedError, match="found none of a consumer: create one, or"):
        world.plan(12)
    with pytest.raises(CollectionRefusedError):
        world.collect()

    assert beside_the_clock(store) == before


def test_log_without_cursors_is_collected_up_to_an_offset_where_that_is_allowed(store: ObjectStore) -> None:
    world = World(store)
    world.plant()

    world.collect(replace(NOW, without_cursors=True), limit_offset=12)

    assert world.offsets() == list(range(12, 21))


def test_cursors_count_even_where_a_log_without_them_may_be_collected(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=6)

    world.collect(replace(NOW, without_cursors=True), limit_offset=12)

    assert world.offsets() == list(range(6, 21))


def test_missing_log_is_not_collected(store: ObjectStore) -> None:
    with pytest.raises(LogNotFoundError, match="create the log first"):
        World(store).collect()


def test_nothing_is_collected_while_a_cursor_cannot_be_read(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    world.move_cursor(18, "fast")
    damage(life_store(store, "a"), "cursor/reader.json")
    before = beside_the_clock(store)

    with pytest.raises(CollectionRefusedError, match=r"while a cursor cannot be read: .*cursor/reader\.json"):
        world.plan()
    with pytest.raises((CollectionRefusedError, CorruptError), match="cursor/reader.json"):
        world.collect()

    assert beside_the_clock(store) == before


def test_nothing_is_collected_while_a_foreign_file_lies_among_the_cursors(store: ObjectStore) -> None:
    World(store).plant(cursor=12)
    life_store(store, "a").create("cursor/readme.txt", b"not ours")

    with pytest.raises(CollectionRefusedError, match=r"cursor/readme\.txt"):
        World(store).plan()


class TornStore(FaultyStore):
    """Lists a page of one object, and never answers a request for the next."""

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        for count, meta in enumerate(super().list_objects(folder, start_after=start_after)):
            if count == 1 or start_after:
                raise UnavailableError(f"{folder}: expected the next page, found none")
            yield meta


def test_nothing_is_collected_when_a_page_of_cursors_is_missing(store: ObjectStore) -> None:
    """By the page that was listed, far more could be deleted."""
    world = World(store)
    world.plant()
    world.move_cursor(18, "a-fast")
    world.move_cursor(3, "b-slow")

    for collecting in (World.plan, World.collect):
        with pytest.raises(UnavailableError, match="expected the next page"):
            collecting(World(TornStore(store)))

    assert world.offsets() == list(range(1, 21))
    assert world.reachable() == world.stored()


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_nothing_is_pruned_whichever_listing_of_cursors_fails(memory_store: MemoryStore, number: int) -> None:
    store = memory_store
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    seen = [0]

    def before(kind: str, path: str) -> None:
        seen[0] += kind == "list" and path.endswith("/cursor/")
        # Permanently, because an unanswered listing is retried.
        if kind == "list" and path.endswith("/cursor/") and seen[0] >= number:
            raise UnavailableError("expected an answer, found none")

    faulty.before = before
    with pytest.raises(UnavailableError, match="expected an answer"):
        World(faulty).collect()

    assert world.stored() >= world.reachable()
    if number < 5:
        # For the orphans, the plan, its verification, and the announced collection.
        assert world.offsets() == list(range(1, 21))
    world.collect()
    assert world.stored() == world.reachable()
    assert world.offsets() == list(range(12, 21))


def test_cursor_that_moves_back_below_the_plan_is_found_before_anything_is_announced(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    listed: list[str] = []

    def before(kind: str, path: str) -> None:
        if kind == "list" and path.endswith("/cursor/"):
            listed.append(path)
        elif kind == "get" and path.endswith("MANIFEST.json") and len(listed) == 1:
            listed.append("the cursors were read")
            world.move_cursor(3)

    faulty.before = before
    collector = Collector(faulty, LOG, options=NOW)
    planned = collector.plan()

    assert planned.first.seq_no == 12
    with pytest.raises(OutdatedPlanError, match="planned to begin at offset 12, found cursor reader at 3"):
        collector.verify(planned)
    assert world.collect().plan.first.seq_no == 3


def test_cursor_deleted_between_listing_and_reading_counts_as_none(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    world.move_cursor(3, "gone")
    faulty = FaultyStore(store)

    def before(kind: str, path: str) -> None:
        if kind == "get" and path.endswith("gone.json"):
            CursorStore(store, LOG).delete("gone")

    faulty.before = before

    assert World(faulty).plan().first.seq_no == 12


# ---------------------------------------------------------------------- verify


def test_plan_that_deletes_nearly_all_without_a_consumer_is_refused_unless_allowed(store: ObjectStore) -> None:
    world = World(store)
    world.plant()
    before, limited = world.reachable(), CollectorOptions(interval_s=0, without_cursors=True, retry=QUICK)

    for writers in ((), ("writer-w",)):
        for name in writers:
            CursorStore(store, LOG).create(name, LogPosition(20, 0), owner=Owner.WRITER)
        with pytest.raises(CollectionRefusedError, match=r"at most 90% .* no consumer's cursor .* found 95\.0%"):
            world.collect(limited, limit_offset=20)
        assert (world.reachable(), world.documents()) == (before, [])

    world.collect(replace(limited, fraction_max=0.96), limit_offset=20)
    assert world.offsets() == [20]


def test_log_whose_consumer_has_read_everything_is_collected_whole(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=21)

    world.collect(CollectorOptions(interval_s=0, retry=QUICK))

    assert world.offsets() == []


def test_log_of_which_only_a_writer_has_a_cursor_is_not_collected(store: ObjectStore) -> None:
    world = World(store)
    world.plant()
    CursorStore(store, LOG).create("writer-w", LogPosition(12, 0), owner=Owner.WRITER)
    before = world.reachable()

    with pytest.raises(CollectionRefusedError, match="found none of a consumer") as refused:
        world.collect()

    assert refused.value.unclaimed
    assert world.reachable() == before


def test_plan_with_a_wrong_setsum_is_refused(store: ObjectStore) -> None:
    World(store).plant(cursor=12)
    collector = Collector(store, LOG, options=NOW)
    found = collector.plan()

    with pytest.raises(OutdatedPlanError, match="planned to drop 0{64}, found .*: collected meanwhile"):
        collector.verify(replace(found, setsum=EMPTY))
    with pytest.raises(OutdatedPlanError, match="planned to begin at fragment 13, found 12"):
        collector.verify(replace(found, first=replace(found.first, seq_no=13)))

    collector.verify(found)


def test_plan_that_a_cursor_now_holds_is_refused_with_the_cursor_s_name(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    collector = Collector(store, LOG, options=NOW)
    found = collector.plan()

    world.move_cursor(6, "late")

    with pytest.raises(CollectionRefusedError, match="planned to begin at offset 12, found cursor late at 6"):
        collector.verify(found)


def test_plan_holds_when_the_tree_was_repacked_and_grew_meanwhile(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    collector = Collector(store, LOG, options=NOW)
    found = collector.plan()

    world.append(4)
    world.roll(SnapshotOptions(fragments_per_snapshot=3, fragments_kept=0, snapshots_per_roll=2))
    collector.verify(found)
    collector.prune(collector.announce(found))

    assert world.offsets() == list(range(12, 25))
    assert scrub(store, LOG).sound
