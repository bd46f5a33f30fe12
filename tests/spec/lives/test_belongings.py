"""What a log owns, and what each operation does with it: one test for each cell of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import TypeVar

import pyarrow as pa
import pytest

from tests.belongings import CURSORS, POLICY_FIELDS, TABLE, Fate, Operation, Thing
from tests.stores import content, damage, life_path, life_store
from tests.world import NOW, World
from wal3_core import (
    Cleanup,
    Collector,
    CursorStore,
    KeyCompactor,
    LogAt,
    LogError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Origin,
    Owner,
    PinStore,
    Policy,
    PolicyStore,
    bootstrap,
    collect,
    copy,
    destroy,
    migrate,
    open_store,
    repair_log,
    seal,
    update_copy,
)
from wal3_core.errors import CorruptError
from wal3_core.format.cursor import Cursor, Extension
from wal3_core.format.manifest import NOT_COMPACTED
from wal3_core.format.paths import COMPACTION_FOLDER, MANIFEST, is_dropped_path
from wal3_core.format.strict_json import with_checksum
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.options import View, WriterOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store
from wal3_core.views.feed.subscribed import Subscribed
from wal3_core.views.keyed.keyed_consumer import extension_of

PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "copies.md"
Each = TypeVar("Each")
OPTIONS = WriterOptions(batch_records_max=2, view=View.KEYED)
# Each field with a value that it has not by default.
POLICY = Policy(
    retention_s=0,
    without_cursors=True,
    percent_max=95,
    unprocessed_max=5000,
    cleanup=Cleanup.BOTH,
    min_compaction_lag_s=0,
    max_compaction_lag_s=10**6,
    delete_retention_s=10**6,
    min_dirty_percent=40,
    compacted_fragment_bytes=2**20,
    receipt_retention_s=10**6,
    arrange_by_key=True,
    view=View.KEYED,
)
NAMES = {Owner.WRITER: "writer-w", Owner.ROLLUP: "rollup", Owner.QUEUE: "queue"}
# The records of keys from this offset on are the only ones of theirs.
FIRST_AFTER = 21
LAST = 30


def put(store: ObjectStore, log: str, name: str) -> None:
    staged = Stager(store, log, options=OPTIONS).stage(pa.table([[b"named"], [name.encode()]], schema=MESSAGE_SCHEMA))
    install_staged(store, log, staged, once=Once(NAMES[Owner.WRITER], name), options=OPTIONS)


def extension(owner: Owner, offset: int) -> Extension:
    if owner is Owner.SUBSCRIPTION:
        return Subscribed(token="0" * 16, topics=("*",)).extension(offset)
    return extension_of(b"", ((b"k1", offset + 3),))


def own_cursor(store: ObjectStore, log: str, owner: Owner) -> None:
    if owner is Owner.WRITER:
        put(store, log, "monday")
        return
    kept = extension(owner, 25) if owner in {Owner.SUBSCRIPTION, Owner.KEYED_CONSUMER} else None
    given = {} if kept is None else {"extension": kept}
    CursorStore(store, log).create(NAMES.get(owner, owner.value), LogPosition(25, 0), owner=owner, **given)


def own(store: ObjectStore, log: str, thing: Thing) -> None:
    """Let a log own a thing, if it does not yet."""
    if thing in CURSORS.values():
        own_cursor(store, log, next(owner for owner, each in CURSORS.items() if each is thing))
    elif thing is Thing.PINS:
        PinStore(store, log).create("p", reason="a reader relies on it")
    elif thing is Thing.FENCE:
        manifests = ManifestStore(log_store(store, log), shared_runtime())
        manifests.change(manifests.load(), lambda found: None if found.fence else found.move_fence())
    elif thing is Thing.ANNOUNCEMENTS:
        collector = Collector(store, log, options=NOW)
        collector.announce(collector.plan(limit_offset=FIRST_AFTER))
    elif thing is Thing.SEAL:
        seal(store, log, reason="full", successor="next" if log == "a" else None)


def world(thing: Thing) -> MemoryStore:
    """A log ``a`` that was compacted, with a policy that sets every field, and with this thing."""
    store = MemoryStore(shared_runtime())
    with LogWriter.open_or_create(store, "a", options=OPTIONS) as writer:
        for number in range(1, FIRST_AFTER):
            writer.append(b"%d" % number, key=b"k%d" % (number % 4))
    PolicyStore(store, "a").change(lambda _: POLICY)
    KeyCompactor(store, "a").compact(force=True)
    with LogWriter.open(store, "a", options=OPTIONS) as writer:
        for number in range(FIRST_AFTER, LAST + 1):
            writer.append(b"%d" % number, key=b"n%d" % number)
    own(store, "a", thing)
    return store


# ---------------------------------------------------------------------- what is there


def cursors_of(store: ObjectStore, log: str) -> dict[Owner | None, Cursor]:
    return {witness.cursor.owner: witness.cursor for witness in CursorStore(store, log).list().values()}


def state(store: ObjectStore, log: str, thing: Thing) -> object:
    """Return what there is of a thing in a log; something false if nothing."""
    manifest = World(store, log).manifest()
    for owner, each in CURSORS.items():
        if each is thing:
            found = cursors_of(store, log).get(owner)
            return found and (found.extension.terms, tuple(named.naming for named in found.appends))
    lists = (meta.path for meta in life_store(store, log).list_objects(COMPACTION_FOLDER))
    found: dict[Thing, Callable[[], object]] = {
        Thing.RECORDS: lambda: [(each.offset, each.body) for each in LogReader.open(store, log).records()],
        Thing.POLICY: lambda: terms(PolicyStore(store, log).load()) != terms(Policy()) and manifest.keyed,
        Thing.PINS: lambda: sorted(PinStore(store, log).list()),
        Thing.CLEAN_MARKS: lambda: manifest.compaction != NOT_COMPACTED,
        Thing.DROPPED: lambda: [path for path in lists if is_dropped_path(path)],
        Thing.FENCE: lambda: manifest.fence > 0,
        Thing.ANNOUNCEMENTS: lambda: manifest.announced is not None or manifest.compacting is not None,
        Thing.SEAL: lambda: manifest.seal is not None,
    }
    return found[thing]()


def terms(policy: Policy) -> dict[str, object]:
    return {name: getattr(policy, name) for name in POLICY_FIELDS}


# ---------------------------------------------------------------------- what is done


def opened_by_older(store: MemoryStore) -> str:
    """A version that does not know a field of the manifest."""
    path = f"a/{MANIFEST}"
    data = store.read(path)
    assert data is not None
    document = {**json.loads(data), "of_a_later_version": 1}
    del document["checksum"]
    store.delete(path)
    store.create(path, with_checksum(json.dumps(document, separators=(",", ":")).encode()[:-1]))
    before = content(store)
    with pytest.raises(CorruptError, match="expected no further fields"):
        LogWriter.open(store, "a").append(b"x", key=b"x")
    assert content(store) == before
    store.delete(path)
    store.create(path, data)
    return "a"


def copied(store: ObjectStore, into: ObjectStore, log: str, name: str, from_offset: int | None = None) -> str:
    copy(LogAt(store, log), LogAt(into, name), from_offset=from_offset, with_cursors=True)
    return name


def backup_of(store: MemoryStore) -> ObjectStore:
    backup = open_store(f"memory:backup-{shared_runtime().token()}")
    copied(store, backup, "a", "a")
    return backup


def restored(store: MemoryStore, name: str) -> str:
    backup = backup_of(store)
    if name == "a":
        destroy(store, "a", also_pinned=True)
    return copied(backup, store, "a", name)


def updated(store: ObjectStore, thing: Thing) -> str:
    copied(store, store, "a", "copy")
    if thing is Thing.DROPPED:
        append_more(store, b"n25")
        update_copy(LogAt(store, "a"), LogAt(store, "copy"))
        KeyCompactor(store, "copy").compact(force=True)
    if thing not in {Thing.RECORDS, Thing.POLICY, Thing.CLEAN_MARKS, Thing.DROPPED, *CURSORS.values()}:
        own(store, "copy", thing)
    append_more(store, b"more")
    update_copy(LogAt(store, "a"), LogAt(store, "copy"), with_cursors=True)
    return "copy"


def append_more(store: ObjectStore, key: bytes) -> None:
    if World(store).manifest().seal is None:
        with LogWriter.open(store, "a", options=OPTIONS) as writer:
            writer.append(b"more", key=key)


def bootstrapped(store: ObjectStore) -> str:
    records = list(LogReader.open(store, "a").records(FIRST_AFTER))
    bootstrap(store, "begun", records, Origin(first_offset=FIRST_AFTER))
    return "begun"


def repaired(store: MemoryStore) -> str:
    backup = backup_of(store)
    damage(store, life_path(store, "a", LogReader.open(store, "a").scan(FIRST_AFTER)[0].path))
    repair_log(LogAt(store, "a"), LogAt(backup, "a"))
    return "a"


def reverted(store: MemoryStore) -> str:
    path = f"a/{MANIFEST}"
    older = store.read(path)
    assert older is not None
    append_more(store, b"lost")
    store.delete(path)
    store.create(path, older)
    return "a"


def created(store: ObjectStore, log: str) -> str:
    LogWriter.create(store, log)
    return log


def ended(store: ObjectStore) -> str:
    destroy(store, "a")
    return created(store, "a")


def in_place(_: object) -> str:
    return "a"


def migrated(store: ObjectStore) -> str:
    migrate(store, "a", "next", reason="full")
    return "next"


def sealed(store: ObjectStore) -> str:
    if World(store).manifest().seal is None:
        seal(store, "a", reason="full")
    return "a"


DONE: dict[Operation, Callable[[MemoryStore, Thing], str]] = {
    Operation.CREATE: lambda store, _: created(store, "new"),
    Operation.OPEN_BY_OLDER: lambda store, _: opened_by_older(store),
    Operation.MIGRATE: lambda store, _: migrated(store),
    Operation.COPY: lambda store, _: copied(store, store, "a", "copy"),
    Operation.UPDATE: updated,
    Operation.COPY_FROM: lambda store, _: copied(store, store, "a", "copy", from_offset=24),
    Operation.RESTORE: lambda store, _: restored(store, "a"),
    Operation.RESTORE_ELSEWHERE: lambda store, _: restored(store, "b"),
    Operation.BOOTSTRAP: lambda store, _: bootstrapped(store),
    Operation.REPAIR: lambda store, _: repaired(store),
    Operation.SEAL: lambda store, _: sealed(store),
    Operation.DESTROY: lambda store, _: ended(store),
    Operation.COMPACT: lambda store, _: KeyCompactor(store, "a").compact(force=True) and "a",
    Operation.COLLECT: lambda store, _: collect(store, "a", options=NOW, limit_offset=FIRST_AFTER) and "a",
    Operation.OLDER_MANIFEST: lambda store, _: reverted(store),
}


@pytest.mark.slow
@pytest.mark.parametrize("thing", Thing)
@pytest.mark.parametrize("operation", Operation)
def test_operation_does_with_what_a_log_owns_what_the_table_says(operation: Operation, thing: Thing) -> None:
    store, cell = world(thing), TABLE[operation][thing]
    before = state(store, "a", thing)
    assert before, "the test's log does not own it"

    if cell.fate is Fate.REFUSED:
        with pytest.raises(LogError):
            DONE[operation](store, thing)
        assert state(store, "a", thing) == before
        return
    after = state(store, DONE[operation](store, thing), thing)

    assert bool(after) is (cell.fate is Fate.KEPT)
    if thing in CURSORS.values() and cell.fate is Fate.KEPT:
        assert after == before


def test_every_thing_has_a_cell_for_every_operation_and_no_owner_is_left_out() -> None:
    assert set(TABLE) == set(Operation)
    assert all(set(column) == set(Thing) for column in TABLE.values())
    assert set(CURSORS) == set(Owner)
    assert {each.name for each in fields(Policy)} == {*POLICY_FIELDS, "log_id", "generation", "writer"}
    assert all(getattr(POLICY, name) != getattr(Policy(), name) for name in POLICY_FIELDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICY_FIELDS)
@pytest.mark.parametrize(
    "operation", [each for each in Operation if TABLE[each][Thing.POLICY].fate in {Fate.KEPT, Fate.WITHOUT}]
)
def test_each_field_of_the_policy_goes_where_the_policy_goes(operation: Operation, name: str) -> None:
    store = world(Thing.POLICY)

    log = DONE[operation](store, Thing.POLICY)

    expected = POLICY if TABLE[operation][Thing.POLICY].fate is Fate.KEPT else Policy()
    assert getattr(PolicyStore(store, log).load(), name) == getattr(expected, name)


def rendered() -> str:
    """The table as the page has it: rows, columns and reasons that are the same are one."""
    columns = grouped({each: tuple(TABLE[each][thing].fate for thing in Thing) for each in Operation})
    rows = grouped({thing: tuple(TABLE[column[0]][thing].fate for column in columns) for thing in Thing})
    head = f"| | {' | '.join(map(', '.join, columns))} |\n|---|{'---|' * len(columns)}\n"
    body = "".join(
        f"| {'; '.join(row)} | {' | '.join(TABLE[column[0]][row[0]].fate for column in columns)} |\n" for row in rows
    )
    reasons = grouped({each: why(each) for each in Operation})
    bullets = (f"- **{', '.join(operations)}**: {why(operations[0])}" for operations in reasons)
    return f"{head}{body}\n" + "".join(f"{filled(line)}\n" for each in bullets for line in each.splitlines())


def grouped(values: Mapping[Each, object]) -> list[list[Each]]:
    """Put together what has the same value."""
    found: dict[object, list[Each]] = {}
    for each, value in values.items():
        found.setdefault(value, []).append(each)
    return list(found.values())


def filled(line: str) -> str:
    return fill(line, 120, subsequent_indent=" " * (line.index("-") + 2), break_on_hyphens=False)


def why(operation: Operation) -> str:
    by_reason: dict[str, list[str]] = {}
    for thing, cell in TABLE[operation].items():
        by_reason.setdefault(f"{cell.fate}: {cell.why}", []).append(thing)
    most = max(by_reason, key=lambda reason: len(by_reason[reason]))
    others = [f"\n    - {', '.join(things)}: {reason}" for reason, things in by_reason.items() if reason != most]
    return f"all{' others' if others else ''}: {most}{''.join(others)}"


def test_page_shows_the_table_as_the_code_has_it() -> None:
    assert rendered() in PAGE.read_text(), f"expected this in {PAGE.name}:\n{rendered()}"
