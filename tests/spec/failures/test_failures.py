"""Whatever the store answers, an append's outcome is true: durable once, not durable, or unknown."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.stores import Fault, FaultyStore, life_store
from tests.world import World
from wal3_core import (
    ContentionError,
    InvalidRequestError,
    LogError,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    OverloadedError,
    UnknownDurabilityError,
    WriterOptions,
    scrub,
)
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import log_store

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
OPTIONS = WriterOptions(retry=QUICK, batch_age_s_max=0.001)


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.create(memory_store, "a")
    return FaultyStore(memory_store)


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict", "unavailable"])
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
@pytest.mark.parametrize("times", [1, 2])
def test_append_survives_a_fault_and_the_record_exists_once(
    faulty: FaultyStore, fault: Fault, target: str, times: int
) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        writer.append(b"1")
        faulty.fail("create", target, fault, times=times)
        faulty.fail("replace", target, fault, times=times)
        position = _append_or_not_durable(writer, b"2")
        faulty.heal()
        last = writer.append(b"3")

    assert faulty.fired[fault] >= 1
    expected = [b"1", b"2", b"3"] if position else [b"1", b"3"]
    assert World(faulty.inner).bodies() == expected
    assert last.offset == len(expected)
    assert scrub(faulty.inner, "a").sound


def _append_or_not_durable(writer: LogWriter, body: bytes) -> bool:
    try:
        writer.append(body)
    except NotDurableError:
        return False
    return True


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict"])
def test_transient_commit_faults_are_not_even_noticed(faulty: FaultyStore, fault: Fault) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        for index in range(10):
            faulty.fail("replace", "MANIFEST", fault)
            assert writer.append(b"%d" % index).offset == index + 1

    assert faulty.fired[fault] == 10
    assert World(faulty.inner).bodies() == [b"%d" % index for index in range(10)]


def test_upload_retried_after_a_lost_reply_is_not_doubled(faulty: FaultyStore) -> None:
    """Regression: writers took an ambiguous upload for a failed one and wrote the records twice."""
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("create", "/log/", "applied-unknown", times=2)
        writer.append(b"once")

    assert World(faulty.inner).bodies() == [b"once"]
    assert len(list(life_store(faulty.inner, "a").list_objects("log/"))) == 1


def test_commit_that_never_gets_an_answer_is_unknown_and_later_outcomes_are_true(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        writer.append(b"1")
        faulty.fail("replace", "MANIFEST", "unknown", times=100)
        with pytest.raises(UnknownDurabilityError, match="unknown whether it was committed"):
            writer.append(b"lost")
        faulty.heal()

        assert writer.append(b"2").offset == 2

    assert World(faulty.inner).bodies() == [b"1", b"2"]


def test_moment_without_an_answer_after_a_lost_commit_costs_no_append(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("replace", "MANIFEST", "unknown", times=3)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"lost")
        faulty.fail("get", "MANIFEST", "unavailable", times=2)
        assert writer.append(b"1").offset == 1

    assert faulty.fired["unavailable"] == 2
    assert World(faulty.inner).bodies() == [b"1"]


@pytest.mark.parametrize("fault", ["late", "late-refused"])
def test_commit_applied_minutes_later_is_at_most_once_and_does_no_harm(faulty: FaultyStore, fault: Fault) -> None:
    """A refusal while the manifest stays the same may be that of a repeated request: the first one lands later."""
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        writer.append(b"1")
        faulty.fail("replace", "MANIFEST", fault, times=3)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"late")
        faulty.heal()
        applied = faulty.arrive()
        assert len(applied) == 3

        position = writer.append(b"2")

    assert World(faulty.inner).bodies() == [b"1", b"late", b"2"]
    assert position.offset == 3
    assert scrub(faulty.inner, "a").sound


def test_late_commit_that_lost_its_place_never_appears(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("replace", "MANIFEST", "late", times=3)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"late")
        faulty.heal()
        writer.append(b"2")
        faulty.arrive()

        writer.append(b"3")

    assert World(faulty.inner).bodies() == [b"2", b"3"]


def test_late_upload_of_a_refused_append_is_never_linked(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.fail("create", "/log/", "late", times=3)
        with pytest.raises(NotDurableError, match="not uploaded"):
            writer.append(b"never")
        assert writer.append(b"1").offset == 1
        faulty.arrive()
        assert writer.append(b"2").offset == 2

    assert World(faulty.inner).bodies() == [b"1", b"2"]
    assert scrub(faulty.inner, "a").sound


def test_failed_upload_fails_its_own_callers_and_those_behind_get_new_places(faulty: FaultyStore) -> None:
    gate = threading.Event()
    options = WriterOptions(retry=QUICK, batch_bytes_max=10, uploads_max=4)
    faulty.before = lambda kind, path: gate.wait(10) and None if kind == "create" and "/log/" in path else None
    with LogWriter.open(faulty, "a", options=options) as writer:
        faulty.fail("create", "FragmentSeqNo=0000000000000002", "denied")
        futures = [writer.submit(b"%d" % index * 10) for index in range(6)]
        gate.set()
        outcomes = [future.exception(20) for future in futures]

    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        NotDurableError,
        type(None),
        type(None),
        type(None),
        type(None),
    ]
    assert "403" in str(outcomes[1])
    assert World(faulty.inner).bodies() == [b"%d" % index * 10 for index in (0, 2, 3, 4, 5)]
    assert scrub(faulty.inner, "a").sound


@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
def test_store_that_denies_fails_fast_says_so_and_recovers_when_healed(faulty: FaultyStore, target: str) -> None:
    patient = WriterOptions(retry=RetryOptions(attempts_max=50, pause_s_min=10, pause_s_max=10))
    with LogWriter.open(faulty, "a", options=patient) as writer:
        writer.append(b"1")
        for kind in ("create", "replace"):
            faulty.fail(kind, target, "denied", times=1000)
        with pytest.raises(NotDurableError, match="403"):
            writer.append(b"refused")
        faulty.heal()
        writer.append(b"2")

    assert World(faulty.inner).bodies() == [b"1", b"2"]


def test_log_that_vanished_fails_appends_without_a_hang(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        faulty.inner.delete("a/manifest/MANIFEST.json")
        for _ in range(2):
            with pytest.raises(NotDurableError, match="create"):
                writer.append(b"x")


@pytest.mark.slow
def test_maintenance_commits_never_fail_an_append(faulty: FaultyStore) -> None:
    manifests = ManifestStore(log_store(faulty.inner, "a"), shared_runtime())
    stop = threading.Event()
    done = []

    def maintain() -> None:
        while not stop.is_set():
            base = manifests.load()
            if isinstance(manifests.install(base.manifest, base), Installed):
                done.append(base.manifest.generation)

    with ThreadPoolExecutor(1) as pool, LogWriter.open(faulty, "a") as writer:
        task = pool.submit(maintain)
        try:
            offsets = [writer.append(b"%d" % index).offset for index in range(50)]
        finally:
            stop.set()
        task.result()

    assert offsets == list(range(1, 51))
    assert len(done) > 10


def test_upload_begun_before_the_fence_moved_is_written_again_under_a_new_name(faulty: FaultyStore) -> None:
    """INV-7: a writer that sleeps between upload and commit loses time, never data."""
    manifests = ManifestStore(log_store(faulty.inner, "a"), shared_runtime())

    def raise_fence(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            faulty.before = lambda _kind, _path: None
            base = manifests.load()
            manifests.install(replace(base.manifest, fence=base.manifest.fence + 1), base)

    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        writer.append(b"1")
        faulty.before = raise_fence
        assert writer.append(b"2").offset == 2

    assert World(faulty.inner).bodies() == [b"1", b"2"]
    tokens = [meta.path.split("Writer=")[1][:16] for meta in life_store(faulty.inner, "a").list_objects("log/")]
    assert len(set(tokens)) == 2
    assert len(tokens) == 3


def test_snapshot_uploaded_before_the_fence_moved_is_written_again_before_it_is_used(faulty: FaultyStore) -> None:
    """INV-7, for snapshots."""
    manifests = ManifestStore(log_store(faulty.inner, "a"), shared_runtime())
    created: list[str] = []

    def raise_fence_at_first(kind: str, path: str) -> None:
        if kind == "create" and "snapshot/" in path:
            created.append(path)
            if len(created) == 1:
                while True:
                    base = manifests.load()
                    moved = replace(base.manifest, fence=base.manifest.fence + 1)
                    if isinstance(manifests.install(moved, base), Installed):
                        return

    faulty.before = raise_fence_at_first
    tree = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=100)
    with LogWriter.open(faulty, "a", options=WriterOptions(retry=QUICK, snapshots=tree)) as writer:
        for index in range(30):
            writer.append(b"%d" % index)

    used = {snapshot.path for snapshot in LogReader.open(faulty.inner, "a").manifest().snapshots}
    assert used
    assert created[0].removeprefix("a/") not in used
    assert World(faulty.inner).bodies() == [b"%d" % index for index in range(30)]


def test_failing_snapshots_never_fail_an_append(faulty: FaultyStore) -> None:
    tree = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2)
    options = WriterOptions(retry=QUICK, snapshots=tree)
    with LogWriter.open(faulty, "a", options=options) as writer:
        faulty.fail("create", "snapshot/", "denied", times=1000)
        for index in range(20):
            writer.append(b"%d" % index)
        held = len(LogReader.open(faulty.inner, "a").manifest().fragments)
        faulty.heal()
        for index in range(20, 40):
            writer.append(b"%d" % index)

    manifest = LogReader.open(faulty.inner, "a").manifest()
    assert held == 20
    assert len(manifest.fragments) < 20
    assert World(faulty.inner).bodies() == [b"%d" % index for index in range(40)]


def test_appends_behind_a_lost_commit_are_appended_nevertheless(faulty: FaultyStore) -> None:
    options = WriterOptions(retry=QUICK, batch_bytes_max=1, uploads_max=4)
    uploads: list[str] = []

    committing = threading.Event()

    def hold_first_commit(kind: str, path: str) -> None:
        """The first commit contains the first fragment, and waits until more are uploaded behind it."""
        if kind == "create" and "/log/" in path:
            if "FragmentSeqNo=0000000000000001" not in path:
                committing.wait(10)
            uploads.append(path)
        until = time.monotonic() + 10
        while kind == "replace" and len(uploads) < 4 and time.monotonic() < until:
            committing.set()
            time.sleep(0.001)

    faulty.before = hold_first_commit
    with LogWriter.open(faulty, "a", options=options) as writer:
        faulty.fail("replace", "MANIFEST", "unknown", times=3)
        futures = [writer.submit(b"%d" % index) for index in range(8)]
        outcomes = [future.exception(20) for future in futures]

    errors = [type(outcome) for outcome in outcomes]
    assert errors[0] is UnknownDurabilityError
    assert set(errors[errors.count(UnknownDurabilityError) :]) == {type(None)}
    assert World(faulty.inner).bodies() == [b"%d" % index for index, outcome in enumerate(outcomes) if outcome is None]


def test_commit_whose_reply_was_lost_in_the_last_round_is_still_acknowledged(faulty: FaultyStore) -> None:
    manifests = ManifestStore(log_store(faulty.inner, "a"), shared_runtime())

    def touch(kind: str, path: str) -> None:
        if kind == "get" and "MANIFEST" in path and faulty.fired["applied-unknown"]:
            faulty.before = lambda _kind, _path: None
            base = manifests.load()
            manifests.install(base.manifest, base)

    with LogWriter.open(faulty, "a", options=WriterOptions(retry=QUICK, rebases_max=1)) as writer:
        faulty.fail("replace", "MANIFEST", "applied-unknown")
        faulty.before = touch
        assert writer.append(b"x").offset == 1

    assert World(faulty.inner).bodies() == [b"x"]


@pytest.mark.slow
def test_append_that_became_due_between_two_readings_of_the_clock_is_not_forgotten(memory_store: MemoryStore) -> None:
    class JumpyRuntime(ThreadRuntime):
        """Time passes between two readings: an append not due at the first may be due at the second."""

        now_s = 0.0

        def monotonic_s(self) -> float:
            JumpyRuntime.now_s += 0.004
            return JumpyRuntime.now_s

    LogWriter.create(memory_store, "a")
    with JumpyRuntime() as runtime, LogWriter.open(memory_store, "a", runtime=runtime) as writer:
        for index in range(60):
            with LogWriter.open(memory_store, "a") as other:
                other.append(b"other")
            assert writer.submit(b"%d" % index).result(20).offset > 0


def test_displaced_writer_gets_an_error_when_new_places_are_not_wanted(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    fenced = WriterOptions(contentions_max=0)
    with LogWriter.open(memory_store, "a", options=fenced) as old, LogWriter.open(memory_store, "a") as new:
        old.append(b"old 1")
        new.append(b"new 1")
        with pytest.raises(ContentionError, match="another writer"):
            old.append(b"old 2")
        assert old.append(b"old 3").offset == 3

    assert World(memory_store).bodies() == [b"old 1", b"new 1", b"old 3"]


@pytest.mark.parametrize("call", ["flush", "close", "resume"])
def test_waiting_call_in_a_callback_does_not_wait_for_its_own_thread(faulty: FaultyStore, call: str) -> None:
    """Regression: it waited forever, and so did every caller waiting for the other appends of the batch."""
    gate, ended = threading.Event(), threading.Event()
    faulty.before = lambda kind, path: gate.wait(30) and None if kind == "create" and "/log/" in path else None
    with LogWriter.open(faulty, "a", ordered=True) as writer:
        writer.submit(b"first")
        futures = [writer.submit(b"%d" % number) for number in range(2)]

        def wait(_: object) -> None:
            getattr(writer, call)()
            ended.set()

        futures[0].add_done_callback(wait)
        gate.set()
        assert [future.result(30).offset for future in futures] == [2, 3]

        assert ended.wait(30)


def test_call_inside_a_step_of_the_writer_is_refused_if_it_would_wait_for_it(
    faulty: FaultyStore,
) -> None:
    """As from a ``__del__``, which runs whenever memory is collected."""
    refused: list[BaseException] = []

    def before(kind: str, path: str) -> None:
        if kind == "create" and "/log/" in path:
            faulty.before = lambda _kind, _path: None
            for call in (writer.flush, writer.close, lambda: writer.append(b"1"), lambda: writer.submit(b"1")):
                try:
                    call()
                except LogError as error:
                    refused.append(error)

    faulty.before = before
    with LogWriter.open(faulty, "a", options=WriterOptions(bytes_held_max=1)) as writer:
        assert writer.submit(b"x").result(30).offset == 1

    assert [type(error) for error in refused] == [InvalidRequestError] * 3 + [OverloadedError]
    assert World(faulty.inner).bodies() == [b"x"]


class Unencodable(ThreadRuntime):
    """A process on a host whose name no document can hold."""

    def process_name(self) -> str:
        return "h\udcff"


def test_append_that_fails_before_anything_was_sent_is_not_durable(faulty: FaultyStore) -> None:
    with (
        Unencodable() as runtime,
        LogWriter.open(faulty, "a", options=OPTIONS, runtime=runtime) as writer,
        pytest.raises(NotDurableError, match="half of a surrogate pair"),
    ):
        writer.append(b"never")

    assert World(faulty.inner).bodies() == []


@pytest.mark.parametrize(("kind", "error"), [("head", NotDurableError), ("replace", UnknownDurabilityError)])
def test_append_is_of_unknown_outcome_only_once_its_commit_was_sent(
    faulty: FaultyStore, kind: str, error: type[Exception]
) -> None:
    """An exception that no store should raise is a defect, and how far the request came is unknown."""

    def before(asked: str, _path: str) -> None:
        if asked == kind:
            raise ZeroDivisionError

    faulty.before = before
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer, pytest.raises(error, match="ZeroDivisionError"):
        writer.append(b"x")
