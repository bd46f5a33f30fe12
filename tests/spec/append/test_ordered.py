"""An ordered writer: the log contains a prefix of the submitted records, whatever fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    ContentionError,
    HaltedError,
    InvalidRequestError,
    LogWriter,
    MemoryStore,
    NotDurableError,
    OverloadedError,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
)
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

QUICK = RetryOptions(timeout_s=0.2, pause_s_min=0.001, pause_s_max=0.01)
# One fragment per append, several in flight at a time.
OPTIONS = WriterOptions(
    retry=QUICK, delivery_timeout_s=0.05, batch_bytes_max=1, uploads_max=4, batch_age_s_max=0.001, contentions_max=0
)


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.create(memory_store, "a")
    return FaultyStore(memory_store)


def ordered(store: ObjectStore, options: WriterOptions = OPTIONS) -> LogWriter:
    return LogWriter.open(store, "a", options=options, ordered=True)


def outcomes_of(writer: LogWriter, count: int) -> list[type[BaseException]]:
    """Submit ``count`` appends at once; return each outcome."""
    outcomes: list[type[BaseException]] = []
    futures = []
    for number in range(count):
        try:
            futures.append(writer.submit(b"%d" % number))
        except HaltedError as error:
            outcomes.append(type(error))
    return [type(future.exception(30)) for future in futures] + outcomes


@pytest.mark.parametrize("fault", ["denied", "unknown"])
def test_upload_that_fails_leaves_no_hole_in_an_ordered_stream(faulty: FaultyStore, fault: str) -> None:
    """Regression: records behind a failed one were appended, so it could not be appended again in its place."""
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(10) and None if kind == "create" and "/log/" in path else None
    with ordered(faulty) as writer:
        faulty.fail("create", "FragmentSeqNo=0000000000000003", fault, times=10_000)
        futures = [writer.submit(b"%d" % number) for number in range(6)]
        gate.set()
        outcomes = [type(future.exception(30)) for future in futures]

        with pytest.raises(HaltedError, match=r"resume\(\) lets it continue\): .*not uploaded"):
            writer.append(b"never")
        faulty.heal()
        resumed = writer.resume()
        again = writer.append(b"2")

    assert outcomes == [type(None), type(None), NotDurableError, HaltedError, HaltedError, HaltedError]
    assert (resumed.appends, resumed.records, resumed.determined) == (2, 2, False)
    assert isinstance(resumed.failure, NotDurableError)
    assert again.offset == 3
    assert World(faulty.inner).bodies() == [b"0", b"1", b"2"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["unknown", "applied-unknown", "late", "applied-refused", "late-refused"])
def test_unknown_outcome_is_determined_when_the_writer_is_resumed(faulty: FaultyStore, fault: str) -> None:
    with ordered(faulty) as writer:
        writer.append(b"first")
        # Neither the CAS nor the read that would resolve it is answered.
        faulty.fail("replace", "MANIFEST", fault, times=10_000)
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)
        outcomes = outcomes_of(writer, 4)
        with pytest.raises(UnavailableError):
            writer.resume()
        assert outcomes_of(writer, 1) == [HaltedError]
        faulty.heal()

        resumed = writer.resume()
        faulty.arrive()
        last = writer.append(b"last")

    lost = outcomes.count(UnknownDurabilityError)
    applied = lost if fault.startswith("applied") else 0
    assert outcomes[:lost] == [UnknownDurabilityError] * lost
    assert set(outcomes[lost:]) <= {HaltedError}
    assert lost > 0
    assert (resumed.appends, resumed.determined) == (1 + applied, True)
    assert last.offset == 2 + applied
    assert World(faulty.inner).bodies() == [b"first", *(b"%d" % number for number in range(applied)), b"last"]


def test_unknown_outcome_is_determined_though_many_others_wrote_since(faulty: FaultyStore) -> None:
    """The table of epochs no longer shows it; the fragments themselves do."""
    with ordered(faulty) as writer:
        faulty.fail("replace", "MANIFEST", "applied-unknown", times=1)
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)
        assert outcomes_of(writer, 1) == [UnknownDurabilityError]
        faulty.heal()
        for number in range(17):
            with LogWriter.open(faulty.inner, "a") as other:
                other.append(b"other %d" % number)

        resumed = writer.resume()

    assert (resumed.appends, resumed.determined) == (1, True)


def test_writer_that_lost_its_place_to_another_halts_too(faulty: FaultyStore) -> None:
    with ordered(faulty) as writer, LogWriter.open(faulty, "a") as other:
        writer.append(b"mine")
        other.append(b"other")
        outcomes = outcomes_of(writer, 3)
        resumed = writer.resume()
        assert writer.append(b"again").offset == 3

    assert outcomes == [ContentionError, HaltedError, HaltedError]
    assert resumed.appends == 1
    assert World(faulty.inner).bodies() == [b"mine", b"other", b"again"]


def test_refused_submit_was_never_submitted_and_halts_nothing(faulty: FaultyStore) -> None:
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(10) and None if kind == "create" and "/log/" in path else None
    with ordered(faulty, WriterOptions(bytes_held_max=1)) as writer:
        first = writer.submit(b"first")
        with pytest.raises(OverloadedError):
            writer.submit(b"refused", timeout_s=0)
        gate.set()
        first.result(30)
        writer.append(b"second")

    assert World(faulty.inner).bodies() == [b"first", b"second"]


def test_writer_that_is_not_ordered_cannot_be_resumed(faulty: FaultyStore) -> None:
    with LogWriter.open(faulty, "a") as writer, pytest.raises(InvalidRequestError, match="ordered"):
        writer.resume()


def test_resume_of_a_writer_that_is_not_halted_counts_appends_in_flight(faulty: FaultyStore) -> None:
    """Regression: it reported no appends, and that none would be in the log, before three of them were."""
    gate = threading.Event()
    faulty.before = lambda kind, path: gate.wait(30) and None if kind == "create" and "/log/" in path else None
    with ordered(faulty, WriterOptions()) as writer:
        futures = [writer.submit(b"%d" % number) for number in range(3)]
        with ThreadPoolExecutor() as threads:
            resuming = threads.submit(writer.resume)
            with pytest.raises(TimeoutError):
                resuming.result(0.2)
            gate.set()
            resumed = resuming.result(30)

        assert (resumed.appends, resumed.next_offset, resumed.failure) == (3, 4, None)
        assert [future.result(0).offset for future in futures] == [1, 2, 3]
        assert writer.resume().appends == 0
