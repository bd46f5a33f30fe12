"""One seed's story: writers, readers and crashes under faults, then what must hold of it."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.faults.simulator import SimProcess, Simulation
from tests.faults.store import SimStore, World
from wal3_core import (
    CorruptError,
    LogError,
    LogReader,
    LogWriter,
    NotDurableError,
    ReaderOptions,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
    scrub,
)
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.storage.manifest_store import Installed, ManifestStore
from wal3_core.storage.memory import MemoryStore
from wal3_core.storage.object_store import log_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer

PROGRESS_S_MAX = 120.0


@dataclass
class Append:
    """What a caller was told, and when (virtual seconds)."""

    body: bytes
    began_s: float
    ended_s: float = float("inf")
    offset: int | None = None
    outcome: str = "pending"


@dataclass
class Story:
    """One seed, from setting up to the checks."""

    seed: int
    simulation: Simulation = field(init=False)
    world: World = field(init=False)
    appends: list[Append] = field(default_factory=list)
    reads: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.seed)
        self.world = World.swarm(self.simulation, MemoryStore(shared_runtime(), name=str(self.seed)))

    def tell(self) -> None:
        """Run it and check it; raises AssertionError where a promise was broken."""
        LogWriter.initialize(self.world.objects, "a", runtime=SimProcess(self.simulation, "setup"))
        operator = SimProcess(self.simulation, "operator")
        self.simulation.run(self.simulation.spawn(operator, "main", lambda: self._main(operator)))

    def _process(self, name: str) -> SimProcess:
        chosen = self.simulation.random
        return SimProcess(
            self.simulation, name, offset_us=chosen.randrange(-(10**9), 10**9), drift=chosen.uniform(-0.01, 0.01)
        )

    def _options(self) -> WriterOptions:
        chosen = self.simulation.random
        return WriterOptions(
            batch_bytes_max=chosen.choice((1, 30, 300)),
            batch_age_s_max=chosen.choice((0.0, 0.01, 0.1)),
            uploads_max=chosen.choice((1, 3)),
            fragments_in_flight_max=chosen.choice((1, 4)),
            bytes_held_max=chosen.choice((20, 1000)),
            reseals_max=chosen.choice((0, 2, 8)),
            retry=RetryOptions(attempts_max=chosen.choice((2, 5)), pause_s_min=0.01, pause_s_max=0.5),
            snapshots=SnapshotOptions(
                fragments_per_snapshot=chosen.choice((2, 4)),
                fragments_kept=chosen.choice((0, 2)),
                snapshots_per_roll=2,
                snapshot_pointers_max=4,
                gc_interval_s=1,
            ),
        )

    def _main(self, operator: SimProcess) -> None:
        chosen = self.simulation.random
        live = []
        for number in range(chosen.choice((1, 2, 3))):
            process = self._process(f"writer{number}")
            live.append(self.simulation.spawn(process, process.name, lambda p=process: self._write(p)))
        reader = self._process("reader")
        live.append(self.simulation.spawn(reader, "reader", lambda: self._read(reader)))
        if chosen.random() < 0.5:
            sweeper = self._process("sweeper")
            live.append(self.simulation.spawn(sweeper, "sweeper", lambda: self._sweep(sweeper)))
        if chosen.random() < 0.5:
            victim = live[0].process
            self.simulation.spawn(operator, "killer", lambda: self._kill_later(victim))
        self.simulation.block(lambda: all(task.body.dead or task.process.dead for task in live), 600.0)
        stuck = [task.name for task in live if not task.body.dead and not task.process.dead]
        assert not stuck, f"hung: {stuck}"
        self._heal_and_check(operator)

    def _kill_later(self, victim: SimProcess) -> None:
        self.simulation.pause(self.simulation.random.random())
        self.simulation.kill(victim)

    def _write(self, process: SimProcess) -> None:
        store, chosen = SimStore(self.world, process), self.simulation.random
        try:
            writer = LogWriter.open(store, "a", options=self._options(), runtime=process)
        except (UnavailableError, CorruptError):
            return
        callers = [
            self.simulation.spawn(process, f"{process.name}:caller", lambda n=n: self._call(process, writer, n))
            for n in range(chosen.choice((1, 3)))
        ]
        self.simulation.block(lambda: all(caller.body.dead for caller in callers), None)
        writer.close()

    def _call(self, process: SimProcess, writer: LogWriter, caller: int) -> None:
        chosen = self.simulation.random
        for index in range(chosen.randrange(1, 8)):
            if chosen.random() < 0.3:
                self.simulation.pause(chosen.choice((0.01, 1.0, 20.0)))
            append = Append(f"{process.name}/{caller}/{index}".encode(), self.simulation.now_s)
            self.appends.append(append)
            try:
                append.offset = writer.append(append.body).offset
                append.outcome = "acked"
            except NotDurableError:
                append.outcome = "refused"
            except UnknownDurabilityError:
                append.outcome = "unknown"
            append.ended_s = self.simulation.now_s
            self.simulation.note(f"{append.body!r} {append.outcome} {append.offset}")

    def _read(self, process: SimProcess) -> None:
        store, start = SimStore(self.world, process), 1
        for _ in range(6):
            try:
                for record in LogReader.open(store, "a", runtime=process).records(start):
                    assert record.offset == start, "the reader saw a gap"
                    self.reads.append((record.offset, record.body or b""))
                    start += 1
            except LogError:
                pass
            self.simulation.pause(1.0)

    def _sweep(self, process: SimProcess) -> None:
        """Delete what nothing refers to, behind a moved fence: the order the protocol asks of a collector."""
        for _ in range(3):
            self.simulation.pause(self.simulation.random.random() * 10)
            try:
                self._sweep_once(SimStore(self.world, process), process)
            except LogError:
                continue

    def _sweep_once(self, store: SimStore, process: SimProcess) -> None:
        inside = log_store(store, "a")
        manifests = ManifestStore(inside, process)
        base = manifests.load()
        listed = {meta.path for folder in ("log/", "snapshot/") for meta in inside.list_objects(folder)}
        condemned = listed - self._referenced(store, base.manifest, process)
        fenced = manifests.install(replace(base.manifest, fence=base.manifest.fence + 1), base)
        if not isinstance(fenced, Installed):
            return
        for path in sorted(condemned - self._referenced(store, manifests.load().manifest, process)):
            inside.delete(path)
            self.world.fired["swept"] += 1

    def _referenced(self, store: SimStore, manifest: Manifest, process: SimProcess) -> set[str]:
        reader = LogReader(store, "a", options=ReaderOptions(), runtime=process)

        def below(pointers: Sequence[Pointer]) -> Iterator[str]:
            for pointer in pointers:
                yield pointer.path
                if isinstance(pointer, SnapshotPointer):
                    yield from below(reader.load_snapshot(pointer).pointers)

        return set(below(manifest.pointers))

    def _heal_and_check(self, operator: SimProcess) -> None:
        self.world.heal()
        self.simulation.pause(60.0)  # whatever is late has arrived by now
        began_s = self.simulation.now_s
        store = SimStore(self.world, operator)
        with LogWriter.open(store, "a", runtime=operator) as writer:
            last = Append(b"last", began_s)
            last.offset = writer.append(last.body).offset
        assert self.simulation.now_s - began_s < PROGRESS_S_MAX, "no progress after healing"
        report = scrub(store, "a", runtime=operator)
        assert report.sound, report.problems
        found = [record.body or b"" for record in LogReader.open(store, "a", runtime=operator).records()]
        self._check_history(found)

    def _check_history(self, found: list[bytes]) -> None:
        counts = Counter(found)
        assert max(counts.values()) == 1, f"doubled: {counts.most_common(1)}"
        for append in self.appends:
            if append.outcome == "acked":
                assert append.offset is not None
                assert found[append.offset - 1] == append.body, f"{append} is not where it was said to be"
            if append.outcome == "refused":
                assert counts[append.body] == 0, f"{append} is in the log"
        for offset, body in self.reads:
            assert found[offset - 1] == body, f"a reader saw {body!r} at {offset}"
        acked = [append for append in self.appends if append.outcome == "acked"]
        for early in acked:
            for late in acked:
                if early.ended_s < late.began_s:
                    assert (early.offset or 0) < (late.offset or 0), f"{early} ended before {late} began"


def run(seeds: range) -> int:
    """Tell many stories; print what happened in them, and how to replay one that broke a promise."""
    began, totals, outcomes, virtual_s, steps = time.perf_counter(), Counter[str](), Counter[str](), 0.0, 0
    for seed in seeds:
        story = Story(seed)
        try:
            story.tell()
        except Exception:  # noqa: BLE001 - whatever it was, the seed is to be printed
            traceback.print_exc()
            print(f"seed {seed} failed; replay it with: python -m tests.faults.campaign --first {seed} --seeds 1")
            return 1
        totals.update(story.world.fired)
        outcomes.update(append.outcome for append in story.appends)
        virtual_s += story.simulation.now_s
        steps += story.simulation.steps
    print(
        f"{len(seeds)} seeds, 0 violations, {time.perf_counter() - began:.0f} s, {virtual_s / 3600:.1f} virtual hours"
    )
    print(f"{steps:,} steps; appends: {dict(outcomes)}; faults: {dict(totals)}")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    sys.exit(run(range(given.first, given.first + given.seeds)))


if __name__ == "__main__":
    main()
