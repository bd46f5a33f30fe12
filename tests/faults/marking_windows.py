"""Windows of one request between a server that marks its appends and a roll-up, each opened on purpose."""

from __future__ import annotations

from contextlib import suppress

from tests.spec import rolling
from tests.stores import FaultyStore
from wal3_core import LogReader, LogWriter, MemoryStore, RetryOptions, UnknownDurabilityError, WriterOptions
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.fleet.dirty.rollup import RollUp
from wal3_core.format.marker import Marker
from wal3_core.format.paths import MANIFEST
from wal3_core.runtime import shared_runtime


def resume_after_a_commit_that_was_not_marked() -> None:
    """A commit goes unanswered while no marker can be written; the writer resumes once both logs answer."""
    faulty = FaultyStore(MemoryStore(shared_runtime()))
    hasty = WriterOptions(retry=RetryOptions(timeout_s=0.2, pause_s_max=0.01), delivery_timeout_s=0.05)
    LogWriter.create(faulty.inner, "a")
    with DirtyLog.open_or_create(faulty, "s", options=hasty) as dirty:
        writer = LogWriter.open(faulty, "a", options=hasty, ordered=True, marks=dirty)
        faulty.fail("replace", "dirty/", "unavailable", times=1000)
        faulty.fail("replace", f"a/{MANIFEST}", "applied-unknown", times=1)
        faulty.fail("get", f"a/{MANIFEST}", "unavailable", times=1000)
        with suppress(UnknownDurabilityError):
            writer.append(b"x")
        # Until then the marker fails for certain, and is not just late.
        dirty.flush()
        faulty.heal()
        assert writer.resume().appends == 1
        writer.close()
    found = [Marker.of_record(record, what="s") for record in LogReader.open(faulty.inner, "dirty/s").records()]
    assert [marker.start for marker in found] == [1]


def hand_out_a_log_while_a_fragment_is_under_way() -> None:
    """A fragment is marked and its commit still under way when its log is handed out."""
    store = MemoryStore(shared_runtime())
    rolling.mark(store, rolling.grow(store, "a", 10, dirty_log=None), rolling.begun(store, "a", 3))
    plan = rolling.read(store, rolling.ALL)

    RollUp(store, rolling.DIRTY, options=rolling.ALL).finish(plan, plan.selected)

    assert rolling.marked(store) == {"a": (11, 14)}


def commit_while_a_roll_up_moves_the_fence() -> None:
    """A fragment whose marker waited too long is committed after the look at its log, before the fence moves."""
    store = FaultyStore(MemoryStore(shared_runtime()))
    rolling.grow(store, "a", dirty_log=None)
    rolling.mark(store, rolling.begun(store, "a", 3))
    plan = rolling.read(store, rolling.AT_ONCE)

    def commit(kind: str, path: str) -> None:
        if (kind, path) == ("replace", f"a/{MANIFEST}"):
            store.before = lambda _kind, _path: None
            rolling.grow(store, "a", 3, dirty_log=None)

    store.before = commit
    RollUp(store, rolling.DIRTY, options=rolling.AT_ONCE).finish(plan)

    assert rolling.marked(store) == {"a": (2, 5)}
