"""Windows of one request, which a world takes hundreds of seeds to open: each opened on purpose, with its defect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Event

import pytest

from tests.faults.destroying_windows import (
    destroy_while_it_is_taken_back_and_a_pin_is_made,
    follow_a_log_that_is_sealed_to_be_destroyed,
    install_staged_while_a_roll_is_denied,
)
from tests.faults.marking_windows import (
    commit_while_a_roll_up_moves_the_fence,
    hand_out_a_log_while_a_fragment_is_under_way,
    resume_after_a_commit_that_was_not_marked,
)
from tests.faults.narrow_mutants import NARROW_MUTANTS
from tests.faults.test_symptoms import collector, grow
from tests.mutations import Mutation, applied
from tests.spec.policies.test_views import append_while_the_log_is_given_to_a_view
from tests.spec.staged.test_named_lists import forget_an_append_whose_commit_is_under_way
from tests.stores import Fault, FaultyStore, OvertakenStore
from wal3_core import (
    CollectionRefusedError,
    CursorStore,
    GarbageCollectedError,
    LogAt,
    LogError,
    LogExistsError,
    LogPosition,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    PinStore,
    Policy,
    PolicyStore,
    ReaderOptions,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
    collect,
    copy,
    destroy,
    migrate,
    records_across,
    seal,
)
from wal3_core.format.cursor import Owner
from wal3_core.format.paths import FRAGMENT_FOLDER, MANIFEST, POLICY, SNAPSHOT_FOLDER, cursor_path
from wal3_core.format.position import AtTime
from wal3_core.format.vacancy import Vacancy, manifest_or_vacancy
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions, RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import PutOutcome


def destroy_while_another_begins() -> None:
    """Another writer begins a log as soon as the name is vacant; the call that ended the old log continues."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow = FaultyStore(store)

    def begin(_kind: str, _path: str) -> None:
        if isinstance(_standing(store, "a"), Vacancy):
            with LogWriter.open_or_create(store, "a") as writer:
                writer.append(b"new")

    slow.before = begin
    with suppress(LogReplacedError):
        destroy(slow, "a")
    assert [record.body for record in LogReader.open(store, "a").records()] == [b"new"]


def copy_while_another_takes_the_name() -> None:
    """Another call destroys the unfinished copy and begins a log; the copying call detects it and ends."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow = FaultyStore(store)

    def begin(_kind: str, path: str) -> None:
        if path.startswith("b/") and isinstance(_standing(store, "b"), Vacancy):
            slow.before = lambda _kind, _path: None
            destroy(store, "b")
            with LogWriter.open_or_create(store, "b") as writer:
                writer.append(b"new")

    slow.before = begin
    with pytest.raises((LogReplacedError, LogExistsError)):
        copy(LogAt(store, "a"), LogAt(slow, "b"))
    assert [record.body for record in LogReader.open(store, "b").records()] == [b"new"]


def copy_while_another_finishes_it() -> None:
    """The same copy, started again, is quicker, and its cursor is moved; the slower call does not move it back."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    CursorStore(store, "a").create("c", LogPosition(2, 0))
    slow, moved = FaultyStore(store), []

    def finish(kind: str, path: str) -> None:
        if kind == "create" and path.startswith("b/") and FRAGMENT_FOLDER in path:
            slow.before = lambda _kind, _path: None
            copy(LogAt(store, "a"), LogAt(store, "b"), with_cursors=True)
            cursors = CursorStore(store, "b")
            found = cursors.load("c")
            assert found is not None
            moved.append(cursors.save("c", LogPosition(3, 0), found))

    slow.before = finish
    with pytest.raises(LogExistsError):
        copy(LogAt(store, "a"), LogAt(slow, "b"), with_cursors=True)
    assert moved == [CursorStore(store, "b").load("c")]


def copy_while_another_destroys_it_and_begins_again() -> None:
    """The last backup is still under way when the next one destroys it and copies the current records."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow = FaultyStore(store)

    def begin_again(kind: str, path: str) -> None:
        if kind == "create" and path.startswith("b/") and FRAGMENT_FOLDER in path:
            slow.before = lambda _kind, _path: None
            destroy(store, "b")
            grow(store, 3)
            copy(LogAt(store, "a"), LogAt(store, "b"))

    slow.before = begin_again
    with pytest.raises(LogExistsError):
        copy(LogAt(store, "a"), LogAt(slow, "b"))
    assert len(list(LogReader.open(store, "b").records())) == 6
    assert PinStore(store, "a").list() == {}


class _GoneError(BaseException):
    """The process is gone."""


def copy_while_another_takes_it_over() -> None:
    """The same copy, started again, continues from the pin; the slower call ends, and leaves the pin alone."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow, quick = FaultyStore(store), FaultyStore(store)

    def take_over(kind: str, path: str) -> None:
        if kind == "create" and path.startswith("b/") and FRAGMENT_FOLDER in path:
            slow.before = lambda _kind, _path: None
            with pytest.raises(_GoneError):
                copy(LogAt(store, "a"), LogAt(quick, "b"))

    def end(kind: str, path: str) -> None:
        if kind == "create" and FRAGMENT_FOLDER in path:
            raise _GoneError

    slow.before, quick.before = take_over, end
    with pytest.raises(LogReplacedError):
        copy(LogAt(store, "a"), LogAt(slow, "b"))
    assert len(PinStore(store, "a").list()) == 1
    assert copy(LogAt(store, "a"), LogAt(store, "b")).resumed
    assert PinStore(store, "a").list() == {}


def _standing(store: MemoryStore, log: str) -> object:
    data = store.read(f"{log}/{MANIFEST}")
    return None if data is None else manifest_or_vacancy(data, what=MANIFEST)


def resume_while_a_commit_is_under_way() -> None:
    """An append that an ordered writer reported as not in the log does not arrive later."""
    store = MemoryStore(shared_runtime())
    grow(store, 1)
    slow = FaultyStore(store)
    retry = RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01)
    options = WriterOptions(retry=retry, delivery_timeout_s=0.05, batch_age_s_max=0.001)
    with LogWriter.open(slow, "a", options=options, ordered=True) as writer:
        slow.fail("replace", MANIFEST, "late", times=10_000)
        slow.fail("get", MANIFEST, "unavailable", times=10_000)
        outcome = writer.submit(b"late").exception(30)
        slow.heal()
        writer.resume()
        slow.arrive()
        writer.append(b"last")

    assert isinstance(outcome, UnknownDurabilityError)
    assert [record.body for record in LogReader.open(store, "a").records()] == [b"0", b"last"]


def _delete_orphans(store: MemoryStore, folder: str) -> None:
    """Mark all orphans below a folder, and delete them."""
    deleter = Deleter(store, "a", options=CollectorOptions(interval_s=0, orphans_max=100))
    found = [meta.path for meta in deleter.orphans_below((folder,), [])]
    assert found
    marked = collector(store).prune_orphans(found, "nothing refers to them")
    assert isinstance(marked, PrunedGarbage)
    assert deleter.delete(marked.path).num_deleted == len(found)


def append_while_its_upload_is_taken_for_an_orphan() -> None:
    """The writer sleeps between upload and commit, for longer than the interval."""
    store = MemoryStore(shared_runtime())
    grow(store, 1)
    slow = FaultyStore(store)

    def sleep(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith(MANIFEST):
            slow.before = lambda _kind, _path: None
            _delete_orphans(store, FRAGMENT_FOLDER)

    with LogWriter.open(slow, "a") as writer:
        slow.before = sleep
        writer.append(b"late")
    assert [record.body for record in LogReader.open(store, "a").records()] == [b"0", b"late"]


class SleepyStore(MemoryStore):
    """The first snapshot is taken for an orphan while its writer sleeps, before the answer to its upload."""

    def __init__(self) -> None:
        super().__init__(shared_runtime())
        self.deleted, self.awake = Event(), Event()

    def create(self, path: str, data: bytes) -> PutOutcome:
        outcome = super().create(path, data)
        if SNAPSHOT_FOLDER in path and not self.deleted.is_set():
            _delete_orphans(self, SNAPSHOT_FOLDER)
            self.deleted.set()
            assert self.awake.wait(30)
        return outcome


def append_while_its_snapshot_is_taken_for_an_orphan() -> None:
    """The commit that finds the fence moved comes while the snapshot is under way, so it begins no other."""
    store, bodies = SleepyStore(), list[bytes]()
    with LogWriter.open_or_create(store, "a") as writer:

        def append() -> None:
            bodies.append(b"%d" % len(bodies))
            writer.append(bodies[-1])

        while not store.deleted.is_set():
            assert len(bodies) < 1000
            append()
        append()
        store.awake.set()
        # Until a commit uses a snapshot: how many appends that takes depends on the threads.
        while not LogReader.open(store, "a").manifest().snapshots:
            assert len(bodies) < 2000
            append()
    assert [record.body for record in LogReader.open(store, "a").records()] == bodies


def collect_what_another_announced() -> None:
    """A collector died after announcing; its document has no mark yet, so it is read and finished."""
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    CursorStore(store, "a").create("c", LogPosition(6, 0))
    dead = collector(store)
    dead.announce(dead.plan())

    done = collect(store, "a", options=CollectorOptions(interval_s=0, orphans_max=0, fraction_max=1.0))

    assert [problem for each in done.deleted for problem in each.problems] == []


def _collect_below(store: MemoryStore, offset: int) -> None:
    options = CollectorOptions(interval_s=0, orphans_max=0, fraction_max=1.0, without_cursors=True)
    collect(store, "a", limit_offset=offset, options=options)


def read_while_the_beginning_is_collected() -> None:
    """The reader sleeps between the manifest and the first fragment, for longer than the interval."""
    store = MemoryStore(shared_runtime())
    grow(store, 40)
    slow = FaultyStore(store)

    def sleep(kind: str, _path: str) -> None:
        if kind == "read":
            slow.before = lambda _kind, _path: None
            _collect_below(store, 31)

    slow.before = sleep
    with suppress(GarbageCollectedError):
        assert next(LogReader.open(slow, "a").records()).offset == 1


def follow_while_all_is_appended_and_collected_between_two_looks() -> None:
    """The follower has seen the log empty, and sleeps for longer than the interval."""
    store = MemoryStore(shared_runtime())
    LogWriter.create(store, "a")
    slow, looks = FaultyStore(store), list[str]()

    def sleep(kind: str, _path: str) -> None:
        looks.append(kind)
        # After opening the log and the first poll.
        if len(looks) == 3:
            grow(store, 40)
            _collect_below(store, 31)

    slow.before = sleep
    options = ReaderOptions(poll_s_min=0, poll_s_max=0)
    with suppress(GarbageCollectedError):
        assert next(LogReader.open(slow, "a", options=options).follow(AtTime(0), idle_s=30)).offset == 1
    assert len(looks) >= 3


def change_the_policy_while_a_collection_is_announced() -> None:
    """The collector has read the old policy, and sleeps before it prunes."""
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    CursorStore(store, "a").create("c", LogPosition(6, 0))
    slow = collector(store)
    announced = slow.announce(slow.plan())

    def keep(policy: Policy) -> Policy:
        return replace(policy, retention_s=10**6)

    def wake(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith(MANIFEST):
            woken.before = lambda _kind, _path: None
            PolicyStore(store, "a").change(keep)

    woken = FaultyStore(store, before=wake)
    Collector(woken, "a", options=CollectorOptions(fraction_max=1.0)).prune(announced)
    assert len(list(LogReader.open(store, "a").records())) == 8


def delete_a_cursor_while_its_name_is_used_again() -> None:
    """The answer to the delete is lost; before its caller reads again, another creates a cursor of that name."""
    _delete_a_cursor("applied-unknown")


def delete_a_cursor_by_a_request_that_is_repeated() -> None:
    """The same, but the answer is that of the repeated request, which conflicts with the new cursor."""
    _delete_a_cursor("applied-refused")


def _delete_a_cursor(fault: Fault) -> None:
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    slow, others = FaultyStore(store), CursorStore(store, "a")
    others.create("c", LogPosition(6, 0))

    def use_again(kind: str, path: str) -> None:
        if kind == "get" and path.endswith(cursor_path("c")) and slow.fired:
            slow.before = lambda _kind, _path: None
            others.create("c", LogPosition(2, 0))

    slow.before = use_again
    slow.fail("replace", cursor_path("c"), fault)
    with suppress(UnavailableError):
        CursorStore(slow, "a").delete("c")
    assert others.offsets() == {"c": 2}


def migrate_while_another_begins_the_successor_s_name() -> None:
    """A migration died after its seal; a writer opens the name given by SealedError before it is finished."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    seal(store, "a", reason="it moves", successor="b")
    with suppress(LogError), LogWriter.open_or_create(store, "b") as writer:
        writer.append(b"too early")

    migrate(store, "a", "b", reason="it moves")

    with LogWriter.open(store, "b") as writer:
        writer.append(b"3")
    assert [record.body for record in records_across(store, "a")] == [b"0", b"1", b"2", b"3"]


def migrate_two_logs_to_one_successor() -> None:
    """Another log is to be sealed for the same successor, before that is begun: it stays open."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    LogWriter.create(store, "c")
    slow = FaultyStore(store)

    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and path == f"a/{MANIFEST}":
            slow.before = lambda _kind, _path: None
            with suppress(LogExistsError):
                migrate(store, "c", "b", reason="it moves, too")

    slow.before = overtake
    migrate(slow, "a", "b", reason="it moves")
    assert LogReader.open(store, "c").manifest().seal is None


def append_where_the_log_ends_behind_an_unanswered_commit() -> None:
    """Another writer appends between an unanswered commit and the read that resolves it."""
    store = MemoryStore(shared_runtime())
    LogWriter.create(store, "a")

    def append() -> None:
        with LogWriter.open(store, "a") as other:
            other.append(b"2")

    with LogWriter.open(OvertakenStore(store, path=f"a/{MANIFEST}", overtake=append), "a") as writer:
        writer.append(b"1")
        assert writer.append(b"3", expect_next=3).offset == 3


def create_while_another_appends_before_the_answer() -> None:
    """Another writer waited for the log, and appended before the log's creator got its answer."""
    store = MemoryStore(shared_runtime())

    def append() -> None:
        with LogWriter.open(store, "a") as other:
            other.append(b"1")

    LogWriter.create(OvertakenStore(store, path=f"a/{MANIFEST}", overtake=append), "a")


def change_the_policy_while_another_does_before_the_answer() -> None:
    """The next change of the policy starts from the unanswered one."""
    store = MemoryStore(shared_runtime())
    LogWriter.create(store, "a")
    other = PolicyStore(store, "a")
    other.change(lambda policy: replace(policy, retention_s=3600))
    path = next(meta.path for meta in store.list_objects("a/") if meta.path.endswith(POLICY))
    silent = OvertakenStore(
        store, path=path, overtake=lambda: other.change(lambda policy: replace(policy, percent_max=50))
    )

    with suppress(UnavailableError):
        PolicyStore(silent, "a").change(lambda policy: replace(policy, retention_s=(policy.retention_s or 0) + 3600))

    assert other.load().retention_s == 7200


def collect_a_log_of_which_only_a_writer_has_a_cursor() -> None:
    """The writer is far ahead of readers that have no cursor yet."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    CursorStore(store, "a").create("writer-w", LogPosition(4, 0), owner=Owner.WRITER)

    with suppress(CollectionRefusedError):
        collect(store, "a", options=CollectorOptions(interval_s=0, fraction_max=1.0))

    assert len(list(LogReader.open(store, "a").records())) == 3


NARROW = (
    resume_while_a_commit_is_under_way,
    destroy_while_another_begins,
    copy_while_another_takes_the_name,
    copy_while_another_finishes_it,
    copy_while_another_destroys_it_and_begins_again,
    copy_while_another_takes_it_over,
    append_while_its_upload_is_taken_for_an_orphan,
    append_while_its_snapshot_is_taken_for_an_orphan,
    collect_what_another_announced,
    read_while_the_beginning_is_collected,
    follow_while_all_is_appended_and_collected_between_two_looks,
    change_the_policy_while_a_collection_is_announced,
    delete_a_cursor_while_its_name_is_used_again,
    delete_a_cursor_by_a_request_that_is_repeated,
    migrate_while_another_begins_the_successor_s_name,
    migrate_two_logs_to_one_successor,
    append_where_the_log_ends_behind_an_unanswered_commit,
    create_while_another_appends_before_the_answer,
    change_the_policy_while_another_does_before_the_answer,
    resume_after_a_commit_that_was_not_marked,
    hand_out_a_log_while_a_fragment_is_under_way,
    commit_while_a_roll_up_moves_the_fence,
    follow_a_log_that_is_sealed_to_be_destroyed,
    destroy_while_it_is_taken_back_and_a_pin_is_made,
    install_staged_while_a_roll_is_denied,
    forget_an_append_whose_commit_is_under_way,
    collect_a_log_of_which_only_a_writer_has_a_cursor,
    append_while_the_log_is_given_to_a_view,
)


@pytest.mark.parametrize("symptom", NARROW, ids=lambda symptom: symptom.__name__)
def test_no_promise_is_broken_in_a_narrow_window(symptom: Callable[[], None]) -> None:
    symptom()


@pytest.mark.parametrize(
    ("symptom", "mutant"),
    [pytest.param(symptom, mutant, id=mutant.name) for symptom, mutant in zip(NARROW, NARROW_MUTANTS, strict=True)],
)
def test_a_defect_of_a_narrow_window_is_found(symptom: Callable[[], None], mutant: Mutation) -> None:
    with applied(mutant), pytest.raises((AssertionError, LogError, pytest.fail.Exception)):
        symptom()
