"""Named appends: two drivers of one query, in every order; other rows under a name; what copies and restores know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import pytest

from tests.spec.staged.test_staged import ONCE, OPTIONS, fragments, stage
from tests.stores import FaultyStore
from tests.world import LATER, NOW, World
from wal3_core import (
    LogAt,
    LogError,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    NotDurableError,
    SealedError,
    UnknownDurabilityError,
    copy,
    destroy,
    migrate,
    update_copy,
)
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.cursor import Owner
from wal3_core.format.named_append import NAMED_APPENDS_MAX
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.format.position import LogPosition
from wal3_core.log.collect.collector import collect
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore


@pytest.fixture
def log(memory_store: MemoryStore) -> MemoryStore:
    LogWriter.create(memory_store, "a")
    return memory_store


def batch(number: int, query: str = "q") -> Once:
    return Once("writer-copier", f"batch {number} {query}", query, number)


def append(store: ObjectStore, number: int, query: str = "q") -> bool:
    """Stage and install a batch; return whether the log had it."""
    staged = stage(store, *rows_of(number, query))
    return install_staged(store, "a", staged, once=batch(number, query), options=OPTIONS).repeated


def rows_of(number: int, query: str = "q") -> list[bytes]:
    return [b"%s %d" % (query.encode(), number)] * 2


class Driver:
    """A query's driver, one step at a time: it stages a batch, installs it, and goes on to the next one."""

    def __init__(self, store: ObjectStore, numbers: tuple[int, ...]) -> None:
        self._steps = self._run(store, numbers)
        self.is_alive = True

    def _run(self, store: ObjectStore, numbers: tuple[int, ...]) -> Iterator[None]:
        for number in numbers:
            staged = stage(store, *rows_of(number))
            yield
            install_staged(store, "a", staged, once=batch(number), options=OPTIONS)
            yield

    def step(self) -> None:
        """Take a step; an error ends the driver, as it ends a query."""
        if self.is_alive:
            try:
                next(self._steps)
            except LogError:
                self.is_alive = False


def orders(first: int, second: int) -> Iterator[list[int]]:
    """Which of two drivers steps next: every order of so many steps of each."""
    for chosen in combinations(range(first + second), first):
        yield [0 if place in chosen else 1 for place in range(first + second)]


def collect_all(store: MemoryStore) -> None:
    """Take what no cursor keeps, as days later; a consumer has read everything."""
    world = World(store)
    world.move_cursor(world.manifest().next.position.offset)
    for _ in range(2):
        collect(store, "a", options=LATER)


def restore(store: MemoryStore) -> None:
    """Copy the log away, destroy it, and copy it back."""
    copy(LogAt(store, "a"), LogAt(store, "backup"), with_cursors=True)
    destroy(store, "a")
    copy(LogAt(store, "backup"), LogAt(store, "a"), with_cursors=True)
    destroy(store, "backup")


BETWEEN = pytest.mark.parametrize("between", [None, collect_all, restore])


@pytest.mark.slow
@BETWEEN
def test_batch_of_a_driver_that_was_thought_dead_is_in_the_log_once_in_every_order(
    between: Callable[[MemoryStore], None] | None,
) -> None:
    for order in orders(2, 6):
        play((1,), (1, 2, 3), order, between)


@pytest.mark.repeat
@BETWEEN
@pytest.mark.parametrize("second", [(1, 2), (2, 3), (3, 4)])
def test_batches_of_two_drivers_of_a_query_are_in_the_log_once_in_every_order(
    second: tuple[int, ...], between: Callable[[MemoryStore], None] | None
) -> None:
    for order in orders(4, 4):
        play((1, 2), second, order, between)


def play(
    first: tuple[int, ...], second: tuple[int, ...], order: list[int], between: Callable[[MemoryStore], None] | None
) -> None:
    store = MemoryStore(shared_runtime())
    LogWriter.create(store, "a")
    # The second driver was started when these had been made.
    for number in range(second[0]):
        append(store, number)
    drivers = [Driver(store, first), Driver(store, second)]
    for chosen in order:
        if between is not None and chosen == 0:
            between(store)
        drivers[chosen].step()
    # The query is started again.
    for number in second:
        with suppress(UnknownDurabilityError):
            append(store, number)
    held = World(store).bodies()
    every = [row for number in range(second[-1] + 1) for row in rows_of(number)]
    assert held == every[-len(held) :], order
    assert held == every or between is collect_all, order


def test_batch_is_refused_once_a_later_one_began_also_if_that_was_not_made(log: MemoryStore) -> None:
    append(log, 1)
    staged = stage(log, b"of a driver that died")
    CursorStore(log, "a").delete("writer-copier")
    append(log, 2)
    refused = "cursor writer-copier: expected number 2 of q, which began, or a later one, found number 1"
    for parts in (staged, stage(log, b"later")):
        with pytest.raises(UnknownDurabilityError, match=refused):
            install_staged(log, "a", parts, once=batch(1), options=OPTIONS)

    assert World(log).bodies() == [*rows_of(1), *rows_of(2)]


def test_queries_that_take_turns_under_one_name_know_their_batches(log: MemoryStore) -> None:
    """A mistake, or a query with a new checkpoint beside the one before, which still runs."""
    for number in (1, 2):
        assert [append(log, number, query) for query in ("q", "r")] == [False, False]
    collect_all(log)

    assert [append(log, 2, query) for query in ("q", "r", "q")] == [True, True, True]
    with pytest.raises(UnknownDurabilityError):
        append(log, 1, "q")
    assert World(log).bodies() == rows_of(2, "r")


def test_append_before_the_last_one_is_known_until_others_took_its_place(log: MemoryStore) -> None:
    names = [replace(ONCE, append=f"night {number}") for number in range(NAMED_APPENDS_MAX + 1)]
    late = stage(log, b"0")
    for number, once in enumerate(names):
        install_staged(log, "a", stage(log, b"%d" % number), once=once, options=OPTIONS)
    collect_all(log)

    assert all(
        install_staged(log, "a", stage(log, b"%d" % number), once=once, options=OPTIONS).repeated
        for number, once in enumerate(names)
        if number
    )
    with pytest.raises(UnknownDurabilityError, match="stage it again"):
        install_staged(log, "a", late, once=names[0], options=OPTIONS)


def test_append_that_failed_before_the_next_one_began_is_made_when_it_is_repeated(log: MemoryStore) -> None:
    staged = stage(log, b"monday")
    faulty = FaultyStore(log)
    faulty.fail("create", "log/", "unavailable", times=1000)
    with pytest.raises(LogError):
        install_staged(faulty, "a", staged, once=ONCE, options=OPTIONS)
    install_staged(log, "a", stage(log, b"tuesday"), once=replace(ONCE, append="tuesday"), options=OPTIONS)

    assert [install_staged(log, "a", staged, once=ONCE, options=OPTIONS).repeated for _ in range(2)] == [False, True]
    assert World(log).bodies() == [b"tuesday", b"monday"]


def test_commit_that_arrives_when_the_next_append_began_is_known_to_be_made(log: MemoryStore) -> None:
    late = FaultyStore(log)
    tuesday, wednesday = (replace(ONCE, append=name) for name in ("tuesday", "wednesday"))

    def begin_next(kind: str, path: str) -> None:
        # Between the last look at the cursor and the commit.
        if kind == "replace" and "MANIFEST" in path:
            late.before = lambda _kind, _path: None
            broken = FaultyStore(log)
            broken.fail("create", "log/", "unavailable", times=1000)
            with pytest.raises(LogError):
                install_staged(broken, "a", stage(log, b"2"), once=tuesday, options=OPTIONS)

    late.before = begin_next
    install_staged(late, "a", stage(log, b"1"), once=ONCE, options=OPTIONS)
    install_staged(log, "a", stage(log, b"3"), once=wednesday, options=OPTIONS)
    collect_all(log)

    assert install_staged(log, "a", stage(log, b"1"), once=ONCE, options=OPTIONS).repeated
    assert not install_staged(log, "a", stage(log, b"2"), once=tuesday, options=OPTIONS).repeated
    assert World(log).bodies() == [b"3", b"2"]


@pytest.mark.parametrize("before", [0, 1])
def test_other_rows_under_a_name_are_refused_and_both_are_named(log: MemoryStore, before: int) -> None:
    once = [replace(ONCE, append=name) for name in ("monday", "tuesday")]
    for each in once:
        install_staged(log, "a", stage(log, b"1", (b"k", b"2")), once=each, options=OPTIONS)
    monday = once[before]

    for rows, complaint in (
        ([b"1"], "expected what the log has of it at the offsets . to ., 2 records, found 1, which are not appended"),
        ([b"1", (b"k", b"3")], "2 records, setsum [0-9a-f]{64}, found 2 records, setsum [0-9a-f]{64}, which are not"),
        ([b"1", (b"j", b"2")], "give other records another name"),
        ([b"1", b"2"], "append 'monday'|append 'tuesday'"),
    ):
        with pytest.raises(NotDurableError, match=complaint):
            install_staged(log, "a", stage(log, *rows), once=monday, options=OPTIONS)
    # In another order, and cut otherwise.
    again = [*stage(log, (b"k", b"2")), *stage(log, b"1")]
    assert install_staged(log, "a", again, once=monday, options=OPTIONS).repeated
    assert len(World(log).bodies()) == 4


def test_other_rows_are_left_out_with_a_warning_where_that_is_allowed(
    log: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    install_staged(log, "a", stage(log, b"1"), once=ONCE, options=OPTIONS)
    with caplog.at_level(logging.WARNING, "wal3.writer"):
        any_rows = replace(ONCE, same_rows=False)
        assert install_staged(log, "a", stage(log, b"2"), once=any_rows, options=OPTIONS).repeated

    assert World(log).bodies() == [b"1"]
    assert "which are not appended" in caplog.text


def test_rows_that_cannot_be_compared_any_more_are_a_warning(
    log: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    staged = stage(log, b"1")
    for parts, once in ((staged, ONCE), (stage(log, b"2"), replace(ONCE, append="next"))):
        install_staged(log, "a", parts, once=once, options=OPTIONS)
    with caplog.at_level(logging.WARNING, "wal3.writer"):
        assert install_staged(log, "a", staged, once=ONCE, options=OPTIONS).repeated
    assert "1 records, setsum None" in caplog.text
    collect_all(log)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "wal3.writer"):
        assert install_staged(log, "a", stage(log, b"1"), once=ONCE, options=OPTIONS).repeated
    assert "not compared with what the log has of it: 1 records, setsum None there" in caplog.text
    with pytest.raises(NotDurableError, match="1 records, found 2"):
        install_staged(log, "a", stage(log, b"1", b"1"), once=ONCE, options=OPTIONS)


def test_append_that_was_compacted_by_key_since_is_not_made_again(log: MemoryStore) -> None:
    PolicyStore(log, "a").change(lambda _: Policy(cleanup=Cleanup.COMPACT, min_dirty_percent=0))
    for number in range(3):
        rows = (b"k", b"%d" % number), (b"j", b"%d" % number)
        install_staged(log, "a", stage(log, *rows), once=batch(number), options=OPTIONS)
    other = Once("writer-other", "x")
    install_staged(log, "a", stage(log, (b"k", b"last")), once=other, options=OPTIONS)
    assert KeyCompactor(log, "a").compact().installed

    repeated = [
        install_staged(log, "a", stage(log, *rows), once=once, options=OPTIONS).repeated
        for rows, once in ((((b"k", b"2"), (b"j", b"2")), batch(2)), (((b"k", b"last"),), other))
    ]
    assert repeated == [True, True]
    assert World(log).bodies()[-3:] == [b"2", b"2", b"last"]


def test_copy_that_was_updated_knows_its_source_s_last_append(log: MemoryStore) -> None:
    backup = MemoryStore(shared_runtime())
    copy(LogAt(log, "a"), LogAt(backup, "a"), with_cursors=True)
    for number in (1, 2):
        append(log, number)
        update_copy(LogAt(log, "a"), LogAt(backup, "a"), with_cursors=True)
        assert update_copy(LogAt(log, "a"), LogAt(backup, "a"), with_cursors=True).num_cursors == 0
    append(log, 3)
    destroy(log, "a")
    copy(LogAt(backup, "a"), LogAt(log, "a"), with_cursors=True)

    assert [append(log, number) for number in (2, 3)] == [True, False]
    assert World(log).bodies() == [row for number in (1, 2, 3) for row in rows_of(number)]


def test_older_copy_that_is_restored_gets_what_it_lacks_again(log: MemoryStore) -> None:
    """The cursor of the copy may be newer than its records: what it says of later appends does not hold there."""
    world = World(log)
    backup = MemoryStore(shared_runtime())
    append(log, 1)
    pinned = FaultyStore(log)

    def append_more(kind: str, path: str) -> None:
        if kind == "list" and "cursor" in path:
            pinned.before = lambda _kind, _path: None
            for number in (2, 3):
                append(log, number, "r")
            append(log, 2)

    pinned.before = append_more
    copy(LogAt(pinned, "a"), LogAt(backup, "a"), with_cursors=True)
    destroy(log, "a")
    copy(LogAt(backup, "a"), LogAt(log, "a"), with_cursors=True)

    assert world.bodies() == rows_of(1)
    assert [append(log, 3, "r"), append(log, 2)] == [False, False]
    assert world.bodies() == [*rows_of(1), *rows_of(3, "r"), *rows_of(2)]


def test_log_that_is_restored_under_another_name_knows_the_batches_of_a_series(log: MemoryStore) -> None:
    append(log, 1)
    append(log, 2)
    copy(LogAt(log, "a"), LogAt(log, "b"), with_cursors=True)
    destroy(log, "a")
    copy(LogAt(log, "b"), LogAt(log, "a"), with_cursors=True)

    assert append(log, 2)


def test_refused_rows_stay_orphans_and_cursor_that_names_no_append_yet_is_read(log: MemoryStore) -> None:
    store = CursorStore(log, "a")
    store.create("writer-copier", World(log).manifest().next.position, owner=Owner.WRITER)
    assert [append(log, number) for number in (1, 1)] == [False, True]
    before = fragments(log)
    with pytest.raises(NotDurableError):
        install_staged(log, "a", stage(log, b"other"), once=batch(1), options=OPTIONS)
    assert before < fragments(log)
    witness = store.load("writer-copier")
    assert witness is not None
    assert [(each.series, each.number) for each in witness.cursor.appends] == [("q", 1)]


def move(cursors: CursorStore, position: LogPosition) -> None:
    witness = cursors.load("writer-copier")
    assert witness is not None
    cursors.save("writer-copier", position, witness)


def test_cursor_that_an_operator_moved_knows_the_appends_still(log: MemoryStore) -> None:
    world = World(log)
    store, backup = CursorStore(log, "a"), MemoryStore(shared_runtime())
    for number in (1, 2):
        append(log, number)
    manifest = world.manifest()
    move(store, manifest.next.position)
    with pytest.raises(UnknownDurabilityError, match="number 2 of q, which began"):
        append(log, 1)
    move(store, manifest.first.position)
    assert [append(log, 1), append(log, 2)] == [True, True]

    # Another cursor of the name, in a copy, keeps nothing of this one.
    copy(LogAt(log, "a"), LogAt(backup, "a"), with_cursors=True)
    store.delete("writer-copier")
    store.create("writer-copier", world.manifest().next.position, owner=Owner.WRITER)
    update_copy(LogAt(log, "a"), LogAt(backup, "a"), with_cursors=True)
    copied = CursorStore(backup, "a").load("writer-copier")
    assert copied is not None
    assert copied.cursor.appends == ()


def test_batch_that_the_log_had_before_it_was_sealed_is_done(log: MemoryStore) -> None:
    append(log, 1)
    migrate(log, "a", "b", reason="test")

    assert append(log, 1)
    with pytest.raises(SealedError, match="sealed by"):
        append(log, 2)


def test_batch_staged_for_a_log_created_again_is_refused_then_made_once(log: MemoryStore) -> None:
    append(log, 1)
    staged = stage(log, *rows_of(2))
    destroy(log, "a")
    LogWriter.create(log, "a")
    with pytest.raises(LogReplacedError):
        install_staged(log, "a", staged, once=batch(2), options=OPTIONS)

    assert [append(log, 2), append(log, 2)] == [False, True]
    assert World(log).bodies() == rows_of(2)


def test_batch_that_a_driver_staged_and_orphans_were_collected_since_is_made_once(log: MemoryStore) -> None:
    world = World(log)
    append(log, 1)
    left = stage(log, *rows_of(2))
    append(log, 2)
    # Marked by the first, deleted by the second.
    world.move_cursor(1)
    for _ in range(2):
        collect(log, "a", options=NOW)

    with pytest.raises(NotDurableError, match="a collection of orphans took it"):
        install_staged(log, "a", left, once=batch(3), options=OPTIONS)
    assert not append(log, 3)
    assert world.bodies()[-2:] == rows_of(3)
