"""What became of a commit whose epoch has left the manifest's table: the log itself decides, or nothing does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.stores import Fault, FaultyStore
from tests.world import World
from wal3_core import ContentionError, LogWriter, MemoryStore, UnknownDurabilityError, WriterOptions, collect
from wal3_core.options import CollectorOptions, RetryOptions

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
OPTIONS = WriterOptions(retry=QUICK, batch_age_s_max=0.001)


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    LogWriter.create(memory_store, "a")
    return FaultyStore(memory_store)


def test_idle_writer_whose_epoch_left_the_table_is_displaced_and_not_in_doubt(memory_store: MemoryStore) -> None:
    """Regression: its plainly refused record was reported as unknown."""
    LogWriter.create(memory_store, "a")
    with LogWriter.open(memory_store, "a") as idle:
        idle.append(b"first")
        for index in range(20):
            with LogWriter.open(memory_store, "a") as other:
                other.append(b"%d" % index)
        assert idle.append(b"last").offset == 22
    with (
        LogWriter.open(memory_store, "a", options=WriterOptions(contentions_max=0)) as fenced,
        LogWriter.open(memory_store, "a") as other,
    ):
        fenced.append(b"x")
        other.append(b"y")
        with pytest.raises(ContentionError):
            fenced.append(b"z")


def many_others(faulty: FaultyStore, fault: Fault, then: Callable[[], object] = lambda: None) -> None:
    """Let 17 others append to the log, between the next CAS with this fault and the look at the manifest after it."""

    def before(kind: str, path: str) -> None:
        if kind == "get" and "MANIFEST" in path and faulty.fired[fault]:
            faulty.before = lambda _kind, _path: None
            for index in range(17):
                with LogWriter.open(faulty.inner, "a") as other:
                    other.append(b"%d" % index)
            then()

    faulty.fail("replace", "MANIFEST", fault)
    faulty.before = before


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "applied-refused", "conflict"])
def test_commit_is_determined_by_the_log_itself_once_its_epoch_has_left_the_table(
    faulty: FaultyStore, fault: Fault
) -> None:
    """A refusal may be the answer to a repeated request, of which the first was done."""
    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        many_others(faulty, fault)
        position = writer.append(b"once")

    assert position.offset == (1 if fault.startswith("applied") else 18)
    assert World(faulty.inner).bodies().count(b"once") == 1


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "applied-refused", "conflict"])
def test_commit_is_in_doubt_once_its_epoch_has_left_the_table_and_its_place_the_log(
    faulty: FaultyStore, fault: Fault
) -> None:
    """INV-4: nothing shows any more whether it was applied, so no other outcome may be reported."""
    keeps_none = CollectorOptions(interval_s=0, fraction_max=1, without_cursors=True)

    with LogWriter.open(faulty, "a", options=OPTIONS) as writer:
        many_others(faulty, fault, lambda: collect(faulty.inner, "a", options=keeps_none, limit_offset=10))
        with pytest.raises(UnknownDurabilityError, match="left the manifest's table"):
            writer.append(b"doubtful")
