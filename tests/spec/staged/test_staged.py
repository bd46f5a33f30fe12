"""Staged appends: many processes upload, one installs, all or nothing; a named append is in the log once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.stores import FaultyStore, life_store
from tests.world import LATER, NOW, Crashed, World
from wal3_core import (
    ContentionError,
    InvalidRequestError,
    LogAt,
    LogError,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    NotDurableError,
    SealedError,
    UnknownDurabilityError,
    WriterOptions,
    copy,
    destroy,
    seal,
)
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import KeyRequiredError, UnavailableError
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.log.collect.collector import collect
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, StagedFragment, Stager, install_staged
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
OPTIONS = WriterOptions(retry=QUICK, batch_records_max=3, delivery_timeout_s=0.2)
ONCE = Once("writer-nightly", "batch 7")


@pytest.fixture
def log(memory_store: MemoryStore) -> MemoryStore:
    LogWriter.create(memory_store, "a")
    return memory_store


def table(*rows: bytes | tuple[bytes | None, bytes | None]) -> pa.Table:
    pairs = [(None, row) if isinstance(row, bytes) else row for row in rows]
    return pa.table([[key for key, _ in pairs], [body for _, body in pairs]], schema=MESSAGE_SCHEMA)


def stage(store: ObjectStore, *rows: bytes | tuple[bytes | None, bytes | None]) -> list[StagedFragment]:
    return Stager(store, "a", options=OPTIONS).stage(table(*rows))


def fragments(store: ObjectStore) -> set[str]:
    return {meta.path for meta in life_store(store, "a").list_objects("log/")}


def test_what_is_staged_is_in_the_log_only_when_it_is_installed(log: MemoryStore) -> None:
    world = World(log)
    first, second = stage(log, b"1", b"2", b"3", b"4"), stage(log, b"5", (b"k", b"6"), (b"k", None))
    lost = stage(log, b"of an attempt that lost")
    assert world.bodies() == []
    before = world.manifest()

    report = install_staged(log, "a", first + second, options=OPTIONS)

    assert world.bodies() == [b"1", b"2", b"3", b"4", b"5", b"6", None]
    assert (report.num_records, report.repeated) == (7, False)
    manifest = world.manifest()
    assert manifest.generation == before.generation + 1
    # The first one lay where it was staged; what was written again is not kept twice.
    assert manifest.fragments[0].path == first[0].pointer.path
    assert fragments(log) == {each.path for each in manifest.fragments} | {each.pointer.path for each in lost}


def test_other_writers_go_on_meanwhile(log: MemoryStore) -> None:
    staged = stage(log, b"1", b"2")
    with LogWriter.open(log, "a") as writer:
        writer.append(b"other")
        overtaking = FaultyStore(log)

        def overtake(kind: str, path: str) -> None:
            if kind == "replace" and "MANIFEST" in path:
                overtaking.before = lambda _kind, _path: None
                writer.append(b"again")

        overtaking.before = overtake
        install_staged(overtaking, "a", staged, options=OPTIONS)
        writer.append(b"last")

    assert World(log).bodies() == [b"other", b"again", b"1", b"2", b"last"]


def test_small_fragments_are_joined(log: MemoryStore) -> None:
    staged = [part for number in range(7) for part in stage(log, b"%d" % number)]

    assert install_staged(log, "a", staged, options=OPTIONS).num_fragments == 3
    assert World(log).bodies() == [b"%d" % number for number in range(7)]
    LogReader.open(log, "a").scan()


def test_named_append_that_is_repeated_is_in_the_log_once(log: MemoryStore) -> None:
    install_staged(log, "a", stage(log, b"1", b"2"), once=ONCE, options=OPTIONS)
    with LogWriter.open(log, "a") as writer:
        for number in range(40):
            writer.append(b"other %d" % number)

    at_end = stage(log, b"1", b"2")
    assert install_staged(log, "a", at_end, once=ONCE, options=OPTIONS).repeated
    assert install_staged(log, "a", stage(log, b"3"), once=replace(ONCE, append="batch 8"), options=OPTIONS).num_records
    assert [body for body in World(log).bodies() if body is not None and b"other" not in body] == [b"1", b"2", b"3"]
    assert CursorStore(log, "a").offsets() == {"writer-nightly": 43}
    # Another install could have put it there as it was, just then.
    orphans = {each.pointer.path for each in at_end}
    assert fragments(log) - {each.path for each in LogReader.open(log, "a").scan()} == orphans


@pytest.mark.slow
def test_named_append_is_in_the_log_once_wherever_it_is_cut_short(memory_store: MemoryStore) -> None:
    for calls in range(200):
        if calls:
            destroy(memory_store, "a")
        LogWriter.create(memory_store, "a")
        install_staged(memory_store, "a", stage(memory_store, b"0"), once=replace(ONCE, append="6"), options=OPTIONS)
        faulty, left = FaultyStore(memory_store), [calls]

        def crash(_kind: str, _path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Crashed

        staged = stage(memory_store, b"1", b"2", b"3", b"4")
        faulty.before = crash
        try:
            install_staged(faulty, "a", staged, once=ONCE, options=replace(OPTIONS, uploads_max=1))
        except Crashed:
            done = False
        else:
            done = left[0] >= 0
        install_staged(memory_store, "a", stage(memory_store, b"1", b"2", b"3", b"4"), once=ONCE, options=OPTIONS)
        assert World(memory_store).bodies() == [b"0", b"1", b"2", b"3", b"4"], calls
        if done:
            break
    else:
        pytest.fail("it never ended")


def test_named_append_that_is_repeated_after_a_pass_arranged_the_log_is_in_it_once(log: MemoryStore) -> None:
    PolicyStore(log, "a").change(lambda _: Policy(arrange_by_key=True, min_dirty_percent=0))
    install_staged(log, "a", stage(log, (b"j", b"0")), once=replace(ONCE, append="6"), options=OPTIONS)
    install_staged(log, "a", stage(log, (b"k", b"1")), once=ONCE, options=OPTIONS)
    report = KeyCompactor(log, "a").compact()

    again = install_staged(log, "a", stage(log, (b"k", b"1")), once=ONCE, options=OPTIONS)

    assert (report.installed, report.plan.limit) == (True, 2)
    assert again.repeated
    assert World(log).bodies() == [b"0", b"1"]


def test_named_append_that_is_made_while_a_pass_arranges_the_log_is_in_it_once(log: MemoryStore) -> None:
    PolicyStore(log, "a").change(lambda _: Policy(arrange_by_key=True, min_dirty_percent=0))
    with LogWriter.open(log, "a") as writer:
        writer.append(b"0", key=b"j")
    faulty, seen = FaultyStore(log), list[str]()

    def append(kind: str, path: str) -> None:
        seen.append(kind)
        if "list" in seen and "MANIFEST" in path:
            # Between the pass's reads of the cursors and of the manifest.
            faulty.before = lambda _kind, _path: None
            install_staged(log, "a", stage(log, (b"k", b"1")), once=ONCE, options=OPTIONS)

    faulty.before = append
    report = KeyCompactor(faulty, "a").compact()

    assert (report.installed, report.num_overtaken) == (True, 1)
    assert install_staged(log, "a", stage(log, (b"k", b"1")), once=ONCE, options=OPTIONS).repeated
    assert World(log).bodies() == [b"0", b"1"]


def test_cursor_of_a_writer_has_a_name_that_passes_know() -> None:
    with pytest.raises(InvalidRequestError, match="cursor: expected a cursor's name that begins with writer-, found"):
        Once("nightly", "batch 7")


def test_two_that_repeat_a_named_append_at_once_append_it_once(log: MemoryStore) -> None:
    install_staged(log, "a", stage(log, b"0"), once=replace(ONCE, append="6"), options=OPTIONS)
    first, second = stage(log, b"1"), stage(log, b"1")
    faulty = FaultyStore(log)

    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            faulty.before = lambda _kind, _path: None
            assert not install_staged(log, "a", second, once=ONCE, options=OPTIONS).repeated

    faulty.before = overtake
    assert install_staged(faulty, "a", first, once=ONCE, options=OPTIONS).repeated
    assert World(log).bodies() == [b"0", b"1"]


@pytest.mark.parametrize("others", [[], [b"other"]])
def test_append_that_is_installed_twice_keeps_what_the_log_has_of_it(log: MemoryStore, others: list[bytes]) -> None:
    staged = [part for body in (b"1", b"2") for part in stage(log, body, body, body)]
    install_staged(log, "a", staged, options=OPTIONS)
    with LogWriter.open(log, "a") as writer:
        for body in others:
            writer.append(body)

    again = install_staged(log, "a", staged, options=OPTIONS)

    assert again.repeated
    assert World(log).bodies() == [b"1"] * 3 + [b"2"] * 3 + others


def test_append_of_which_the_log_has_a_part_as_it_was_staged_is_not_made_again(log: MemoryStore) -> None:
    staged = [*stage(log, b"1", b"1", b"1"), *stage(log, b"2")]
    install_staged(log, "a", staged, options=OPTIONS)

    assert install_staged(log, "a", staged, options=OPTIONS).repeated
    assert World(log).bodies() == [b"1", b"1", b"1", b"2"]


@pytest.mark.slow
def test_named_append_that_sleeps_anywhere_as_it_is_made_is_in_the_log_once(
    memory_store: MemoryStore,
) -> None:
    world = World(memory_store)
    for calls in range(200):
        if calls:
            destroy(memory_store, "a")
        LogWriter.create(memory_store, "a")
        install_staged(memory_store, "a", stage(memory_store, b"0"), once=replace(ONCE, append="6"), options=OPTIONS)
        staged, again = stage(memory_store, b"1"), stage(memory_store, b"1")
        faulty, left = FaultyStore(memory_store), [calls]

        def sleep(
            _kind: str,
            _path: str,
            faulty: FaultyStore = faulty,
            left: list[int] = left,
            again: list[StagedFragment] = again,
        ) -> None:
            left[0] -= 1
            if left[0] < 0:
                faulty.before = lambda _kind, _path: None
                install_staged(memory_store, "a", again, once=ONCE, options=OPTIONS)
                install_staged(memory_store, "a", stage(memory_store, b"2"), once=replace(ONCE, append="8"))
                # Of orphans, which the other one's uploads are, nothing is deleted within a day.
                CursorStore(memory_store, "a").create("reader", world.manifest().next.position)
                collect(memory_store, "a", options=LATER)

        faulty.before = sleep
        # It may be refused, but must not be made again.
        with suppress(LogError):
            install_staged(faulty, "a", staged, once=ONCE, options=replace(OPTIONS, uploads_max=1))
        if left[0] >= 0:
            assert world.bodies() == [b"0", b"1"]
            break
        assert world.bodies() == [b"2"], calls
    else:
        pytest.fail("it never ended")


@pytest.mark.parametrize("next_is_made", [True, False])
def test_named_append_that_slept_through_the_writer_s_next_one_is_there_once(
    log: MemoryStore, *, next_is_made: bool
) -> None:
    staged = stage(log, b"1", b"2")
    install_staged(log, "a", stage(log, b"1", b"2"), once=ONCE, options=OPTIONS)
    if next_is_made:
        install_staged(log, "a", stage(log, b"3"), once=replace(ONCE, append="batch 8"), options=OPTIONS)
    else:
        faulty = FaultyStore(log)
        faulty.fail("create", "log/", "unavailable", times=1000)
        with pytest.raises(UnavailableError):
            install_staged(faulty, "a", stage(log, b"3"), once=replace(ONCE, append="batch 8"), options=OPTIONS)

    assert install_staged(log, "a", staged, once=ONCE, options=OPTIONS).repeated
    assert World(log).bodies() == [b"1", b"2", b"3"][: 3 if next_is_made else 2]


def test_named_append_that_is_repeated_in_a_restored_log_is_in_it_once(
    log: MemoryStore,
) -> None:
    backup = MemoryStore(shared_runtime())
    install_staged(log, "a", stage(log, b"1", b"2"), once=ONCE, options=OPTIONS)
    copy(LogAt(log, "a"), LogAt(backup, "a"), with_cursors=True)
    destroy(log, "a")
    copy(LogAt(backup, "a"), LogAt(log, "a"), with_cursors=True)

    assert install_staged(log, "a", stage(log, b"1", b"2"), once=ONCE, options=OPTIONS).repeated
    assert World(log).bodies() == [b"1", b"2"]


def test_unanswered_commit_is_resolved_or_reported_as_unknown(log: MemoryStore) -> None:
    world = World(log)
    faulty = FaultyStore(log)
    faulty.fail("replace", "MANIFEST", "applied-unknown")
    install_staged(faulty, "a", stage(log, b"1"), once=ONCE, options=OPTIONS)
    assert world.bodies() == [b"1"]

    faulty.fail("replace", "MANIFEST", "late", times=1000)
    with pytest.raises(UnknownDurabilityError):
        install_staged(faulty, "a", stage(log, b"2"), options=OPTIONS)
    faulty.heal()
    faulty.fail("replace", "MANIFEST", "unavailable", times=1000)
    with pytest.raises(NotDurableError):
        install_staged(faulty, "a", stage(log, b"3"), options=OPTIONS)
    assert world.bodies() == [b"1"]


def test_writers_that_take_the_place_each_time_are_contention(log: MemoryStore) -> None:
    staged, faulty = stage(log, b"1"), FaultyStore(log)
    with LogWriter.open(log, "a") as writer:

        def overtake(kind: str, path: str) -> None:
            if kind == "replace" and "MANIFEST" in path:
                writer.append(b"other")

        faulty.before = overtake
        with pytest.raises(ContentionError, match="other writers took the place 3 times over"):
            install_staged(faulty, "a", staged, options=replace(OPTIONS, contentions_max=2))

    assert World(log).bodies() == [b"other"] * 3


def test_staged_orphans_are_collected_and_then_not_installed(log: MemoryStore) -> None:
    staged = stage(log, b"1", b"2")
    with LogWriter.open(log, "a") as writer:
        writer.append(b"other")
    CursorStore(log, "a").create("c", World(log).manifest().next.position)
    # Marked by the first, deleted by the second.
    for _ in range(2):
        collect(log, "a", options=NOW)

    with pytest.raises(NotDurableError, match="expected what was staged, found none: a collection of orphans took it"):
        install_staged(log, "a", staged, once=ONCE, options=OPTIONS)
    with pytest.raises(UnknownDurabilityError, match="orphans took it, .* or it was installed before: read the log"):
        install_staged(log, "a", staged, options=OPTIONS)


def test_append_without_a_name_that_is_installed_again_is_not_said_to_be_lost(log: MemoryStore) -> None:
    staged = stage(log, b"1")
    with LogWriter.open(log, "a") as writer:
        writer.append(b"other")
    # Written again at its place, and no longer staged.
    install_staged(log, "a", staged, options=OPTIONS)

    with pytest.raises(UnknownDurabilityError, match="or it was installed before: read the log before staging"):
        install_staged(log, "a", staged, options=OPTIONS)
    assert World(log).bodies() == [b"other", b"1"]


def test_log_that_does_not_take_the_records_is_an_error(log: MemoryStore) -> None:
    staged = stage(log, b"1")
    PolicyStore(log, "a").change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    for attempt in (lambda: stage(log, b"1"), lambda: install_staged(log, "a", staged, options=OPTIONS)):
        with pytest.raises(KeyRequiredError, match="expected a key in each row"):
            attempt()
    seal(log, "a", reason="test")
    with pytest.raises(SealedError, match="sealed by .*: test"):
        install_staged(log, "a", staged, options=OPTIONS)
    destroy(log, "a")
    LogWriter.create(log, "a")
    with pytest.raises(LogReplacedError):
        install_staged(log, "a", staged, options=OPTIONS)
    with pytest.raises(LogReplacedError, match="stage again"):
        install_staged(log, "a", staged + stage(log, b"2"), options=OPTIONS)


def test_rows_that_cannot_be_records_are_refused_by_number(log: MemoryStore) -> None:
    stager = Stager(log, "a", options=replace(OPTIONS, record_bytes_max=4))
    for rows, complaint in (
        (table(b"1", (None, None)), "row 1 of 2: record: expected a body, a key, or both, found neither"),
        (table(b"1", b"2", (b"123", b"45")), "row 2 of 3: record: expected at most 4 bytes of key and body, found 5"),
        (pa.table({"body": ["1"]}), "expected columns key large_binary, body large_binary, found body string"),
    ):
        with pytest.raises(InvalidRequestError, match=complaint):
            stager.stage(rows)
    assert stager.stage(table()) == []
    assert install_staged(log, "a", []).num_records == 0
    assert fragments(log) == set()
