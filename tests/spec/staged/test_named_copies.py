"""Named appends in a copy whose update died: the copy takes its source's place, and the writer repeats its appends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spec.staged.test_staged import ONCE, OPTIONS, stage
from tests.stores import FaultyStore
from tests.world import Crashed, World, crash
from wal3_core import LogAt, LogWriter, MemoryStore, Policy, UnknownDurabilityError, copy, destroy, update_copy
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.log.maintain.copy import update as updating
from wal3_core.log.write.staged_appends import install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from wal3_core.log.write.once import Once

# Of the appends by name, their rows. An update's commit of five fragments would end within tuesday's, which are four.
ROWS = {
    "monday": [b"monday"],
    "tuesday": [b"tuesday %d" % number for number in range(12)],
    "wednesday": [b"wednesday %d" % number for number in range(4)],
}


@pytest.fixture(autouse=True)
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "_FRAGMENTS_PER_COMMIT", 5)
    # Not by their times.
    monkeypatch.setattr(updating, "_FRAGMENTS_OF_ONE_TIME_MAX", 5)


def alone(name: str) -> Once:
    return replace(ONCE, append=name)


def in_series(name: str) -> Once:
    return replace(ONCE, append=name, series="q", number=list(ROWS).index(name))


def append(store: ObjectStore, once: Once) -> bool:
    """Make or repeat an append; return whether the log had it."""
    staged = stage(store, *((b"k", row) for row in ROWS[once.append]))
    return install_staged(store, "a", staged, once=once, options=OPTIONS).repeated


def append_others(store: ObjectStore, count: int) -> None:
    with LogWriter.open(store, "a") as writer:
        for number in range(count):
            writer.append(b"of another writer", key=b"%d" % number)


def arrange(store: ObjectStore) -> None:
    """Join what no cursor of a writer keeps, arranged by key."""
    PolicyStore(store, "a").change(lambda _: Policy(arrange_by_key=True, min_dirty_percent=0))
    KeyCompactor(store, "a").compact()


def cloned(store: MemoryStore) -> MemoryStore:
    clone = MemoryStore(shared_runtime(), name="backup")
    for meta in store.list_objects(""):
        clone.create(meta.path, store.read(meta.path) or b"")
    return clone


def outdated(naming: Callable[[str], Once], *, copied: bool) -> tuple[MemoryStore, MemoryStore]:
    """Return a log, and a copy of it that lacks its last appends, or all of them and the cursor."""
    source, backup = (MemoryStore(shared_runtime(), name=name) for name in ("source", "backup"))
    LogWriter.create(source, "a")
    for name in ROWS:
        if name == ("tuesday" if copied else "monday"):
            copy(LogAt(source, "a"), LogAt(backup, "a"), with_cursors=True)
        append_others(source, 3)
        append(source, naming(name))
    append_others(source, 1)
    return source, backup


def update(source: ObjectStore, backup: ObjectStore) -> int:
    return update_copy(LogAt(source, "a"), LogAt(backup, "a"), with_cursors=True).num_cursors


def dies(source: ObjectStore, backup: ObjectStore, calls: int, counts: Callable[[str, str], bool]) -> bool:
    """Update, and die after so many of the calls that count; return whether it was that many."""
    left = [calls]

    def before(kind: str, path: str) -> None:
        left[0] -= counts(kind, path)
        if left[0] < 0:
            raise Crashed

    dying = [FaultyStore(store, before=before) for store in (source, backup)]
    try:
        update(*dying)
    except Crashed:
        return True
    return left[0] < 0


def writes_document(kind: str, path: str) -> bool:
    """Tell whether a call changes what a log's processes see: fragments do not count until a manifest names them."""
    return kind in {"create", "replace", "delete"} and "/log/" not in path


def check_whole(backup: ObjectStore, when: str) -> None:
    """Check that the copy has all rows of an append or none, whether a cursor names it or no longer."""
    held = set(World(backup).bodies())
    torn = {name for name, rows in ROWS.items() if held.intersection(rows) and not held.issuperset(rows)}
    assert not torn, when


def check_deaths(
    naming: Callable[[str], Once],
    counts: Callable[[str, str], bool],
    *,
    copied: bool = True,
    before: Callable[[ObjectStore], object] = lambda _: None,
    between: Callable[[ObjectStore], object] = lambda _: None,
) -> None:
    """Let an update die after each call; what is repeated on the copy then is in it once."""
    source, outdated_backup = outdated(naming, copied=copied)
    before(source)
    for calls in range(2000):
        backup = cloned(outdated_backup)
        died = dies(source, backup, calls, counts)
        check_whole(backup, f"after {calls} calls")
        between(backup)
        # A later one of its series began, whether the copy has that or not; the last one is not refused.
        for name in ROWS:
            with suppress(*(() if name == "wednesday" else (UnknownDurabilityError,))):
                append(backup, naming(name))
        held = World(backup).bodies()
        doubled = {name for name, rows in ROWS.items() if any(held.count(row) > 1 for row in rows)}
        lacks = {name for name, rows in ROWS.items() if any(row not in held for row in rows)}
        refuses = naming is in_series
        assert not doubled, f"after {calls} calls"
        assert not lacks or (refuses and "wednesday" not in lacks), f"after {calls} calls: {lacks}"
        if not died:
            assert calls >= 3
            return
    pytest.fail("it never ended")


NAMINGS = pytest.mark.parametrize("naming", [alone, in_series])


@pytest.mark.slow
@NAMINGS
@pytest.mark.parametrize("copied", [True, False])
def test_append_that_is_repeated_on_a_copy_whose_update_died_anywhere_is_in_it_once(
    naming: Callable[[str], Once], *, copied: bool
) -> None:
    check_deaths(naming, writes_document, copied=copied, between=lambda store: append_others(store, 2))


@pytest.mark.slow
@NAMINGS
def test_append_that_a_pass_of_the_source_joined_with_others_is_repeated_once(naming: Callable[[str], Once]) -> None:
    def join(store: ObjectStore) -> None:
        world = World(store)
        before = len(world.manifest().fragments)
        arrange(store)
        assert len(world.manifest().fragments) < before

    check_deaths(naming, writes_document, before=join)


@pytest.mark.slow
@NAMINGS
def test_pass_of_a_copy_whose_update_died_hides_no_append(naming: Callable[[str], Once]) -> None:
    check_deaths(naming, writes_document, between=arrange)


@pytest.mark.repeat
@NAMINGS
def test_append_is_in_the_copy_once_whichever_call_of_its_update_was_the_last(naming: Callable[[str], Once]) -> None:
    check_deaths(naming, lambda _kind, _path: True)


def test_staged_append_without_a_name_is_in_a_copy_wholly_or_not_at_all() -> None:
    """Its first fragment is used as it was staged, and the others are written again later."""
    source, outdated_backup = (MemoryStore(shared_runtime(), name=name) for name in ("source", "backup"))
    LogWriter.create(source, "a")
    copy(LogAt(source, "a"), LogAt(outdated_backup, "a"))
    append_others(source, 4)
    rows = ROWS["tuesday"]
    staged = [part for low in (0, 6) for part in stage(source, *((b"k", row) for row in rows[low : low + 6]))]
    assert install_staged(source, "a", staged, options=OPTIONS).num_fragments == 4
    written_again = {each.path for each in World(source).manifest().fragments} - {part.pointer.path for part in staged}
    assert len(written_again) == 4 + 2
    append_others(source, 1)

    for calls in range(2000):
        backup = cloned(outdated_backup)
        died = dies(source, backup, calls, writes_document)
        check_whole(backup, f"after {calls} calls")
        if not died:
            break
    assert calls >= 2
    assert World(backup).bodies() == World(source).bodies()


def test_copy_that_is_in_use_before_its_update_ends_keeps_its_writer_s_cursor() -> None:
    source, backup = outdated(alone, copied=True)
    using = FaultyStore(backup)
    later = [replace(ONCE, append=name) for name in ("thursday", "friday")]

    def use(kind: str, path: str) -> None:
        ended = (
            kind == "get"
            and "cursor/writer-" in path
            and World(backup).manifest().next == World(source).manifest().next
        )
        if ended:
            using.before = lambda _kind, _path: None
            for once in later:
                install_staged(backup, "a", stage(backup, (b"k", b"%s" % once.append.encode())), once=once)
            arrange(backup)

    using.before = use
    update(source, using)

    repeated = [
        install_staged(backup, "a", stage(backup, (b"k", once.append.encode())), once=once).repeated for once in later
    ]
    assert repeated == [True, True]
    assert World(backup).bodies()[-2:] == [b"thursday", b"friday"]


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("naming", [alone, in_series])
def test_append_to_a_copy_updated_just_before_its_commit_is_known_to_the_copy(
    naming: Callable[[str], Once], *, pending: bool
) -> None:
    """Regression: the update moved the writer's cursor back to the source's, and the append was made again."""
    source, backup = outdated(naming, copied=True)
    update(source, backup)
    last = naming("wednesday")
    thursday, friday = (
        replace(last, append=name, number=last.number + number if last.series else 0)
        for number, name in enumerate(("thursday", "friday"), start=1)
    )

    def install(store: ObjectStore, once: Once) -> bool:
        return install_staged(store, "a", stage(store, (b"k", once.append.encode())), once=once).repeated

    def commits(kind: str, path: str) -> bool:
        return kind == "replace" and "MANIFEST" in path

    if pending:
        # The source's writer has died at the same place.
        dying = FaultyStore(source, before=lambda kind, path: crash() if commits(kind, path) else None)
        with suppress(Crashed):
            install(dying, thursday)
    using = FaultyStore(backup)

    def overtake(kind: str, path: str) -> None:
        if commits(kind, path):
            using.before = lambda _kind, _path: None
            update(source, backup)

    using.before = overtake

    assert not install(using, friday)
    # What follows moves the cursor beyond it.
    assert not install(backup, replace(last, append="saturday", series="", number=0))
    assert install(backup, friday)
    assert World(backup).bodies().count(b"friday") == 1


@pytest.mark.parametrize("updated", [False, True])
def test_copy_that_begins_behind_a_writer_s_cursor_knows_its_last_append(*, updated: bool) -> None:
    source, backup = outdated(alone, copied=True)
    overtaken = FaultyStore(source)

    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            overtaken.before = lambda _kind, _path: None
            append_others(source, 3)

    overtaken.before = overtake
    last = replace(ONCE, append="monday", cursor="writer-other")
    append(overtaken, last)
    destroy(backup, "a")
    from_offset = World(source).manifest().next.position.offset - 1
    copy(LogAt(source, "a"), LogAt(backup, "a"), from_offset=from_offset, with_cursors=not updated)
    if updated:
        update(source, backup)

    assert append(backup, last)
    assert World(backup).bodies() == [b"monday"]
