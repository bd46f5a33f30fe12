"""Random appends, passes, collections, cursors, policies and crashes: a compacted log stays what its appends say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.effort import some
from tests.spec.compacting import OPTIONS, TINY
from tests.spec.compaction_rules import Rules, WatchedStore
from tests.stores import Fault, FaultyStore
from tests.world import DAY_S, LOG, NOW, QUICK, SMALL, Crashed, Later, World
from wal3_core import LogReader, LogWriter, MemoryStore, Message, Record, WriterOptions
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import (
    CollectionRefusedError,
    GarbageCollectedError,
    KeyCompactionRefusedError,
    UnavailableError,
)
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN, Cleanup, Policy
from wal3_core.format.position import LogPosition
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.copy.copier import LogAt, copy
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.read.reader import pinned_records
from wal3_core.options import CollectorOptions, SnapshotCompactorOptions, SnapshotOptions
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.documents.policy_store import PolicyStore

if TYPE_CHECKING:
    from wal3_core.compaction.reports import KeyCompactionReport

KEYS = st.sampled_from([b"", b"a", b"a\0", b"ab", b"b", b"k" * 1024])
BODIES = st.sampled_from([b"", b"x", b"y" * 100, None])
BATCHES = st.lists(st.lists(st.tuples(KEYS, BODIES), min_size=1, max_size=4), min_size=1, max_size=4)
NAMES = st.sampled_from(["one", "two"])
CALLS = st.integers(1, 60)
WAITS_S = st.sampled_from([0, 1, 100, DAY_S])
FAULTS: st.SearchStrategy[Fault] = st.sampled_from(["applied-unknown", "unknown", "conflict", "late", "unavailable"])
WIDER = SnapshotCompactorOptions(
    snapshots=SnapshotOptions(
        fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4, gc_interval_s=1
    ),
    retry=QUICK,
)


class StoreTimed(ThreadRuntime):
    """A process whose clock is the store's."""

    def __init__(self) -> None:
        super().__init__(workers_max=4)
        self.store: WatchedStore | None = None

    def now_us(self) -> int:
        return super().now_us() if self.store is None else self.store.now_us


class KeyedLog(RuleBasedStateMachine):
    """One log, and all that is done to it beside passes of key compaction."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = StoreTimed()
        self.store = WatchedStore(MemoryStore(self.runtime))
        self.runtime.store = self.store
        self.rules = Rules(self.store)
        self.cursors = CursorStore(self.store, LOG, runtime=self.runtime, retry=QUICK)
        self.pinned: dict[str, list[Record]] = {}
        self.copies = 0
        self.writer = LogWriter.open_or_create(self.store, LOG, options=TINY, runtime=self.runtime)

    # ------------------------------------------------------------------ what may be done

    @initialize(plain=st.integers(0, 2), cleanup=st.sampled_from(list(Cleanup)))
    def begin(self, plain: int, cleanup: Cleanup) -> None:
        """Some logs hold records without keys when they begin to be compacted."""
        for number in range(plain):
            self.writer.append_many([Message(b"plain %d" % number)] * (number + 1))
        self._set_policy(Policy(cleanup=cleanup))

    @rule(batches=BATCHES)
    def append(self, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
        for batch in batches:
            self.writer.append_many([Message(body, key) for key, body in batch])

    @precondition(lambda self: not self.rules.policy.compacts)
    @rule(body=st.binary(max_size=4))
    def append_without_a_key(self, body: bytes) -> None:
        # An open writer learns that the log is not keyed any more with its next commit.
        self.reopen(1)
        self.writer.append(body)

    @rule(bytes_max=st.sampled_from([1, 2**20]))
    def reopen(self, bytes_max: int) -> None:
        self.writer.close()
        options = WriterOptions(batch_bytes_max=bytes_max, snapshots=SMALL)
        self.writer = LogWriter.open(self.store, LOG, options=options, runtime=self.runtime)

    @rule(seconds=st.sampled_from([1.0, 50.0, 100.0, DAY_S]))
    def wait(self, seconds: float) -> None:
        self.store.pass_s(seconds)

    @rule(
        cleanup=st.sampled_from([Cleanup.COMPACT, Cleanup.COMPACT, Cleanup.BOTH, Cleanup.COLLECT]),
        lag_s=st.sampled_from([None, 0, 60]),
        lag_s_max=st.sampled_from([None, 60, 600]),
        delete_retention_s=WAITS_S,
        dirty=st.sampled_from([0, 50, 100]),
        fragment_bytes=st.sampled_from([COMPACTED_FRAGMENT_BYTES_MIN, 2**20]),
    )
    def change_policy(
        self,
        cleanup: Cleanup,
        lag_s: int | None,
        lag_s_max: int | None,
        delete_retention_s: float,
        dirty: int,
        fragment_bytes: int,
    ) -> None:
        terms = {
            "min_compaction_lag_s": lag_s,
            "max_compaction_lag_s": lag_s_max,
            "delete_retention_s": int(delete_retention_s),
            "min_dirty_percent": dirty,
            "compacted_fragment_bytes": fragment_bytes,
        }
        self._set_policy(Policy(cleanup=cleanup, **({} if cleanup is Cleanup.COLLECT else terms)))

    def _set_policy(self, policy: Policy) -> None:
        self.rules.policy = PolicyStore(self.store, LOG, runtime=self.runtime, retry=QUICK).change(lambda _: policy)

    @rule(name=NAMES, where=st.floats(0, 1))
    def put_cursor(self, name: str, where: float) -> None:
        """Create a cursor, or move it on or back."""
        assert self.rules.manifest is not None
        first, limit = self.rules.manifest.first_kept.position.offset, self.rules.manifest.next.position.offset
        position = LogPosition(first + int(where * (limit - first)), 0)
        witness = self.cursors.load(name)
        try:
            if witness is None:
                self.cursors.create(name, position)
            else:
                self.cursors.save(name, position, witness)
        except GarbageCollectedError:
            self.rules.promised.pop(name, None)
        else:
            self.rules.promise(name, position)

    @rule(name=NAMES)
    def delete_cursor(self, name: str) -> None:
        self.rules.promised.pop(name, None)
        self.cursors.delete(name)

    @precondition(lambda self: not self.pinned)
    @rule()
    def pin(self) -> None:
        PinStore(self.store, LOG, runtime=self.runtime, retry=QUICK).create("pin", reason="a long read")
        self.pinned["pin"] = [self.rules.held[offset] for offset in sorted(self.rules.held)]

    @precondition(lambda self: self.pinned)
    @rule()
    def read_pinned(self) -> None:
        found = list(pinned_records(self.store, LOG, "pin", runtime=self.runtime))
        assert found == self.pinned.pop("pin")
        PinStore(self.store, LOG, runtime=self.runtime, retry=QUICK).delete("pin")

    @rule(interval_s=st.sampled_from([0.0, 100.0]))
    def collect(self, interval_s: float) -> None:
        options = CollectorOptions(interval_s=interval_s, fraction_max=1, deletes_per_s=1e9, retry=QUICK)
        with contextlib.suppress(CollectionRefusedError):
            collect(self.store, LOG, options=options, runtime=self.runtime)

    @rule()
    def compact_snapshots(self) -> None:
        SnapshotCompactor(self.store, LOG, options=WIDER, runtime=self.runtime).compact()

    @rule(times=st.integers(1, 3))
    def copy(self, times: int) -> None:
        """A copy reads alike, and is compacted like its source."""
        self.copies += 1
        name = f"copy{self.copies}"
        copy(LogAt(self.store, LOG), LogAt(self.store, name), runtime=self.runtime)
        reader = LogReader.open(self.store, name, runtime=self.runtime)
        assert list(reader.records()) == self._held()
        if not self.rules.policy.compacts:
            return
        before = {record.key: record for record in self._held() if record.body is not None}
        for _ in range(times):
            KeyCompactor(self.store, name, options=OPTIONS, runtime=self.runtime).compact(force=True)
        after = {record.key: record for record in reader.records() if record.body is not None}
        newest = {record.key: record for record in self._held()}
        assert all(after.get(key) == record for key, record in before.items() if newest[key] == record)
        assert after.items() <= before.items()

    def _held(self) -> list[Record]:
        return [self.rules.held[offset] for offset in sorted(self.rules.held)]


class CompactedLog(KeyedLog):
    """Passes over the log, with all that may come in between, and what must hold of its records."""

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            self.writer.close()
            self.runtime.close()

    @rule(force=st.booleans(), where=st.one_of(st.none(), st.floats(0, 1)))
    def compact(self, *, force: bool, where: float | None) -> None:
        self._compact(self.store, force=force, where=where)

    @rule(number=CALLS)
    def compact_until_killed(self, number: int) -> None:
        def kill() -> None:
            raise Crashed

        with contextlib.suppress(Crashed):
            self._beside(number, kill)

    @rule(number=CALLS, fault=FAULTS)
    def compact_with_a_fault(self, number: int, fault: Fault) -> None:
        faulty = FaultyStore(self.store)
        Later(faulty, number, lambda: faulty.fail("replace", "", fault))
        self._compact(faulty)
        faulty.arrive()

    @rule(number=CALLS, batches=BATCHES)
    def compact_while_appending(self, number: int, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
        self._beside(number, lambda: self.append(batches))

    @rule(number=CALLS, name=NAMES, where=st.floats(0, 1))
    def compact_beside_a_cursor(self, number: int, name: str, where: float) -> None:
        self._beside(number, lambda: self.put_cursor(name, where))

    @rule(number=CALLS, interval_s=st.sampled_from([0.0, 100.0]))
    def compact_beside_a_collection(self, number: int, interval_s: float) -> None:
        self._beside(number, lambda: self.collect(interval_s))

    @rule(number=CALLS)
    def compact_beside_another_pass(self, number: int) -> None:
        self._beside(number, lambda: self._compact(self.store))

    @rule(number=CALLS)
    def compact_beside_a_pass_and_its_deletion(self, number: int) -> None:
        def other() -> None:
            self._compact(self.store)
            self.collect(0.0)
            self.collect(0.0)

        self._beside(number, other)

    @rule(number=CALLS)
    def compact_beside_snapshot_compaction(self, number: int) -> None:
        self._beside(number, self.compact_snapshots)

    @rule(number=CALLS, lag_s=st.sampled_from([0, 60]), delete_retention_s=WAITS_S)
    def compact_beside_another_policy(self, number: int, lag_s: int, delete_retention_s: float) -> None:
        terms = {"min_compaction_lag_s": lag_s, "delete_retention_s": int(delete_retention_s)}
        self._beside(number, lambda: self._set_policy(Policy(cleanup=Cleanup.COMPACT, **terms)))

    @rule(number=CALLS)
    def compact_beside_a_copy(self, number: int) -> None:
        self._beside(number, lambda: self.copy(1))

    @rule(batches=BATCHES, name=NAMES, where=st.floats(0, 1), seconds=WAITS_S)
    def compact_in_steps(
        self, batches: list[list[tuple[bytes, bytes | None]]], name: str, where: float, seconds: float
    ) -> None:
        """Merge now, and install later, twice."""
        compactor = KeyCompactor(self.store, LOG, options=OPTIONS, runtime=self.runtime)
        try:
            token = compactor.merge(force=True).token
        except KeyCompactionRefusedError:
            return
        self.append(batches)
        self.wait(seconds)
        if where > 0.5:
            self.put_cursor(name, where - 0.5)
        if token is not None:
            done = compactor.install(token)
            assert compactor.install(token).repeated == (done.overtaken is None)

    def _beside(self, number: int, act: Callable[[], object]) -> None:
        faulty = FaultyStore(self.store)
        Later(faulty, number, act)
        self._compact(faulty)

    def _compact(
        self, store: FaultyStore, *, force: bool = True, where: float | None = None
    ) -> KeyCompactionReport | None:
        manifest, policy = self.rules.manifest, self.rules.policy
        assert manifest is not None
        limit = None if where is None else 1 + int(where * manifest.next.position.offset)
        compactor = KeyCompactor(store, LOG, options=OPTIONS, runtime=self.runtime)
        before, passes = len(self.rules.held), self.rules.passes
        try:
            report = compactor.compact(force=force, limit_offset=limit)
        except KeyCompactionRefusedError:
            # The policy may have been changed meanwhile.
            assert not (policy.compacts and self.rules.policy.compacts)
        except UnavailableError:
            assert store is not self.store, "nothing was in the way"
        else:
            assert report.proof.holds
            dropped = report.num_superseded + report.num_expired
            if store is self.store and report.installed:
                assert (before - len(self.rules.held), self.rules.passes) == (dropped, passes + 1)
            return report
        return None

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def log_reads_as_its_manifest_says(self) -> None:
        assert not self.store.broken, self.store.broken
        assert list(LogReader.open(self.store, LOG, runtime=self.runtime).records()) == self._held()

    def _end(self) -> None:
        """Without cursors and pins, a last pass leaves one record of each key, and collections nothing else."""
        if self.pinned:
            self.read_pinned()
        for name in self.cursors.list():
            self.delete_cursor(name)
        self._set_policy(Policy(cleanup=Cleanup.COMPACT, delete_retention_s=0, compacted_fragment_bytes=4096))
        for _ in range(2):
            self._compact(self.store)
            self.store.pass_s(1)
        self.writer.close()
        for _ in range(4):
            collect(self.store, LOG, options=NOW, runtime=self.runtime)
        self.log_reads_as_its_manifest_says()
        assert World(self.store).stored() == World(self.store).reachable()
        manifest = self.rules.manifest
        assert manifest is not None
        assert manifest.compacting is None
        assert manifest.announced is None


@pytest.mark.slow
def test_compacted_log_stays_what_its_appends_say() -> None:
    machine = settings(
        max_examples=some(40),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(CompactedLog, settings=machine)
