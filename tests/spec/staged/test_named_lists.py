"""What a writer's cursor names: in copies of other names, beside appends of series, and while appends are under way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.spec.staged.test_named_copies import cloned
from tests.stores import FaultyStore
from tests.world import Crashed, World, crash
from wal3_core import (
    CursorConflictError,
    InvalidRequestError,
    LogAt,
    LogWriter,
    MemoryStore,
    NotDurableError,
    UnknownDurabilityError,
    WriterOptions,
    copy,
    update_copy,
)
from wal3_core.format.named_append import NAMED_APPENDS_MAX
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

MONDAY = Once("writer-nightly", "monday")
OPTIONS = WriterOptions(delivery_timeout_s=0.2)


@pytest.fixture
def log(memory_store: MemoryStore) -> MemoryStore:
    LogWriter.create(memory_store, "a")
    return memory_store


def append(store: ObjectStore, once: Once, *, log: str = "a") -> bool:
    """Make or repeat an append of one record, its name; return whether the log had it."""
    rows = pa.table([[None], [once.append.encode()]], schema=MESSAGE_SCHEMA)
    return install_staged(store, log, Stager(store, log).stage(rows), once=once, options=OPTIONS).repeated


def of_series(number: int) -> Once:
    return replace(MONDAY, append=f"of series {number}", series=f"s{number}", number=7)


def dies_before_its_commit(store: ObjectStore, once: Once) -> None:
    uploaded: list[str] = []

    def before(kind: str, path: str) -> None:
        if uploaded and commits(kind, path):
            crash()
        # What it stages comes first.
        uploaded.extend([path] if kind == "create" and "/log/" in path and "cursor" in seen else [])
        seen.update({"cursor"} if "/cursor/" in path else ())

    seen: set[str] = set()
    with pytest.raises(Crashed):
        append(FaultyStore(store, before=before), once)


def sends_its_commit_and_dies(store: ObjectStore, once: Once, *, log: str = "a") -> FaultyStore:
    """Return a store from which the commit arrives later."""
    sending = FaultyStore(store)
    sending.fail("replace", "MANIFEST", "late")
    sending.before = lambda _kind, _path: crash() if sending.late else None
    with pytest.raises(Crashed):
        append(sending, once, log=log)
    return sending


def commits(kind: str, path: str) -> bool:
    return kind == "replace" and "MANIFEST" in path


@pytest.mark.parametrize("series", ["", "q"])
@pytest.mark.parametrize("updated", [False, True])
def test_append_that_is_repeated_on_a_copy_of_another_name_is_in_it_once(
    log: MemoryStore, series: str, *, updated: bool
) -> None:
    """Regression: the log's name was part of what the paths of an append without a series begin with."""
    once = replace(MONDAY, series=series)
    for makes in ((append, copy), (copy, append))[updated]:
        if makes is append:
            append(log, once)
        else:
            copy(LogAt(log, "a"), LogAt(log, "other"), with_cursors=True)
    if updated:
        update_copy(LogAt(log, "a"), LogAt(log, "other"), with_cursors=True)

    assert append(log, once, log="other")
    assert World(log, "other").bodies() == [b"monday"]


def test_append_that_an_earlier_version_began_is_known_in_a_log_of_the_same_name(
    log: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Once.begin
    tuesday = replace(MONDAY, append="tuesday")
    with monkeypatch.context() as earlier:
        earlier.setattr(Once, "begin", lambda once: replace(begin(once), naming=once.naming_in("a")))
        append(log, MONDAY)
        dies_before_its_commit(log, tuesday)
    restored = MemoryStore(shared_runtime())
    copy(LogAt(log, "a"), LogAt(restored, "a"), with_cursors=True)

    for store in (log, restored):
        assert append(store, MONDAY)
        assert [append(store, tuesday) for _ in range(2)] == [False, True]
        assert World(store).bodies() == [b"monday", b"tuesday"]


def test_append_without_a_series_is_refused_where_a_series_would_be_forgotten(log: MemoryStore) -> None:
    for number in range(NAMED_APPENDS_MAX):
        append(log, of_series(number))

    with pytest.raises(NotDurableError, match=f"the cursor names appends of {NAMED_APPENDS_MAX} series, found one wit"):
        append(log, MONDAY)
    with pytest.raises(UnknownDurabilityError, match="expected number 7 of s0"):
        append(log, replace(of_series(0), append="an earlier one", number=6))
    # A new number of a series takes the place of the one before, and a new series that of the oldest one.
    assert not append(log, replace(of_series(0), append="a later one", number=8))
    assert not append(log, of_series(NAMED_APPENDS_MAX))
    assert append(log, replace(of_series(0), append="a later one", number=8))
    assert len(World(log).bodies()) == NAMED_APPENDS_MAX + 2


@pytest.mark.parametrize("arrives", [0, 1, 14, None])
def test_append_under_way_is_not_forgotten_however_many_begin_meanwhile(log: MemoryStore, arrives: int | None) -> None:
    sent = sends_its_commit_and_dies(log, MONDAY)
    nights = [replace(MONDAY, append=f"night {number}") for number in range(NAMED_APPENDS_MAX - 1)]
    for number, once in enumerate(nights):
        if number == arrives:
            sent.arrive()
        dies_before_its_commit(log, once)
    for once in [*nights, *nights] if arrives is None else ():
        dies_before_its_commit(log, replace(once, append=f"another {once.append}"))
    sent.arrive()
    assert not append(log, of_series(0))

    for _ in range(2):
        append(log, MONDAY)
    assert World(log).bodies().count(b"monday") == 1


def forget_an_append_whose_commit_is_under_way() -> None:
    """Its writer begins more series than the cursor has places."""
    log = MemoryStore(shared_runtime())
    LogWriter.create(log, "a")
    sent = sends_its_commit_and_dies(log, MONDAY)
    for number in range(NAMED_APPENDS_MAX):
        dies_before_its_commit(log, of_series(number))
    sent.arrive()
    assert World(log).bodies() == []

    # It is known not to have been made, and has no place beside so many series.
    with pytest.raises(NotDurableError, match="found one without"):
        append(log, MONDAY)


def test_append_under_way_is_not_forgotten_for_a_new_series() -> None:
    forget_an_append_whose_commit_is_under_way()


def test_appends_that_never_came_leave_their_places_to_others(log: MemoryStore) -> None:
    for number in range(3 * NAMED_APPENDS_MAX):
        dies_before_its_commit(log, replace(MONDAY, append=f"lost {number}"))

    assert [append(log, MONDAY) for _ in range(2)] == [False, True]
    assert World(log).bodies() == [b"monday"]


@pytest.mark.slow
@pytest.mark.parametrize("series", [0, NAMED_APPENDS_MAX])
def test_update_of_a_copy_takes_all_names_of_its_source_beside_a_dead_update_s(log: MemoryStore, series: int) -> None:
    """Regression: what the copy's cursor named before took the places of the source's newest."""
    copy(LogAt(log, "a"), LogAt(log, "other"), with_cursors=True)
    for number in range(NAMED_APPENDS_MAX):
        append(log, replace(MONDAY, append=f"earlier {number}"))
    dying = FaultyStore(log, before=lambda kind, path: crash() if commits(kind, path) and "other" in path else None)
    with pytest.raises(Crashed):
        update_copy(LogAt(log, "a"), LogAt(dying, "other"), with_cursors=True)
    newest = [of_series(number) for number in range(series)]
    newest += [replace(MONDAY, append=f"later {number}") for number in range(NAMED_APPENDS_MAX - series)]
    for once in newest:
        append(log, once)

    update_copy(LogAt(log, "a"), LogAt(log, "other"), with_cursors=True)

    assert all(append(log, once, log="other") for once in newest)
    assert World(log, "other").bodies() == World(log).bodies()


@pytest.mark.slow
def test_append_to_a_copy_under_way_is_not_forgotten_for_the_names_of_its_source(log: MemoryStore) -> None:
    """Its request is done before any one of an update's calls, or never."""
    source = log
    copy(LogAt(source, "a"), LogAt(source, "other"), with_cursors=True)
    for number in range(NAMED_APPENDS_MAX):
        append(source, replace(MONDAY, append=f"night {number}"))
    for calls in range(2000):
        log = cloned(source)
        sent, left = sends_its_commit_and_dies(log, MONDAY, log="other"), [calls]

        def count(_kind: str, _path: str, sent: FaultyStore = sent, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                sent.arrive()

        with suppress(InvalidRequestError, CursorConflictError):
            update_copy(LogAt(log, "a"), LogAt(FaultyStore(log, before=count), "other"), with_cursors=True)
        sent.arrive()
        for _ in range(2):
            append(log, MONDAY, log="other")
        assert World(log, "other").bodies().count(b"monday") == 1, f"after {calls} calls"
        if left[0] >= 0:
            return
    pytest.fail("it never ended")
