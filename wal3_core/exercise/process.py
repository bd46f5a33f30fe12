"""What a process of an exercise runs, started as ``python -m wal3_core.exercise.process``.

It gets its task as one line of JSON on standard input, and ends its work when standard input ends: so it also ends with
the process that started it. Its figures are in a file that it replaces twice a second.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections import Counter
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from wal3_core.errors import (
    CollectionRefusedError,
    ConditionNotMetError,
    CorruptError,
    LogError,
    LogNotFoundError,
    NotDurableError,
    UnavailableError,
    UnmarkedError,
)
from wal3_core.exercise.ledger import Append, AppendOutcome, EndSeen, Ledger, Problem, ReadRecord
from wal3_core.exercise.load import AppendChoice, LoadShape, body_of, checksum_of
from wal3_core.exercise.place import log_name, run_store, server_name
from wal3_core.exercise.report import Figures
from wal3_core.fleet.fleet import Fleet
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Record, position_after
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.read.reader import LogReader
from wal3_core.options import MIB, CollectorOptions, FleetOptions, SnapshotOptions, WriterOptions
from wal3_core.runtime import Observer, RequestEnd, Runtime, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore, Witness
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

_REPORTS_S = 0.5
_UNANSWERED = {RequestEnd.UNAVAILABLE, RequestEnd.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of one process: its ``role``, its number and life, and of which exercise."""

    role: str
    url: str
    run: str
    folder: str
    load: LoadShape
    began_s: float
    process: int = 0
    life: int = 0
    # The logs that are read while they are written.
    followed: tuple[int, ...] = ()
    maintained: bool = False

    @property
    def name(self) -> str:
        """The name of this life of the process."""
        return f"{self.role}{self.process:02d}.{self.life}"

    def to_line(self) -> str:
        """Return as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Task:
        """Read what ``to_line`` returned."""
        fields = json.loads(line)
        return cls(**{**fields, "load": LoadShape(**fields["load"]), "followed": tuple(fields["followed"])})


class ProcessCounts(Observer):
    """Counts what the library reports, but for appends, and what the process does; written to the process's file."""

    def __init__(self, runtime: Runtime, path: Path) -> None:
        self._lock = runtime.lock()
        self._runtime = runtime
        self._path = path
        self._figures = Figures()
        self._written_s = 0.0

    def count(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._figures.counts[name] += count

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        del store, seconds
        with self._lock:
            self._figures.requests[kind] += 1
            self._figures.counts["unanswered"] += end in _UNANSWERED

    def throttled(self, store: str, kind: str, seconds: float) -> None:
        del store, kind
        with self._lock:
            self._figures.counts["throttled"] += 1
            self._figures.counts["throttled_ms"] += round(seconds * 1000)

    def slowed(self, store: str, kind: str) -> None:
        del store, kind
        self.count("slow_downs")

    def retried(self, log: str) -> None:
        del log
        self.count("retries")

    def report(self, *, at_once: bool = False) -> None:
        """Write the figures if it is time."""
        now_s = self._runtime.monotonic_s()
        if not at_once and now_s < self._written_s + _REPORTS_S:
            return
        self._written_s = now_s
        with self._lock:
            text = json.dumps([self._figures.counts, self._figures.requests])
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._path)


def read_figures(folder: Path) -> Figures:
    """Add up the figures of all processes so far."""
    total = Figures()
    for path in folder.glob("*.json"):
        total += Figures(*map(Counter, json.loads(path.read_text())))
    return total


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a role needs."""

    task: Task
    store: ObjectStore
    runtime: Runtime
    counts: ProcessCounts
    ledger: Ledger

    @property
    def now_us(self) -> int:
        """The clock that all processes of the machine share, in microseconds."""
        return int(self.runtime.monotonic_s() * 1_000_000)

    def pause(self, seconds: float) -> bool:
        """Wait; return whether the process has to end, at once when it has to."""
        self.counts.report()
        return bool(select.select([sys.stdin], [], [], seconds)[0])


# An interval far too short for production, where readers must end within it: it makes the races more frequent.
_COLLECTOR = CollectorOptions(interval_s=1.0, fraction_max=1.0)
_MAINTAINING_PAUSE_S = 0.2


def maintain(work: RoleContext) -> None:
    """Maintain one log after another until the process has to end."""
    while True:
        for number in work.task.followed:
            if work.pause(_MAINTAINING_PAUSE_S):
                return
            log = log_name(number)
            try:
                report = collect(work.store, log, options=_COLLECTOR)
                work.counts.count("collections")
                work.counts.count("records_collected", report.plan.num_records)
                work.counts.count("objects_deleted", sum(each.num_deleted for each in report.deleted))
                work.counts.count("snapshot_steps", SnapshotCompactor(work.store, log).compact().num_steps)
            except (UnavailableError, LogNotFoundError, CollectionRefusedError) as error:
                work.counts.count(f"maintenance {type(error).__name__}")
            except LogError as error:
                work.ledger.note(log, Problem(f"{type(error).__name__}: {error}"))


CURSOR = "exercise"
_POLLS_S = 0.25
_SAVES_S = 1.0


def follow(work: RoleContext) -> None:
    """Read until the process has to end, then once more to the ends of the logs."""
    followed = [_Followed(work, log_name(number)) for number in work.task.followed]
    more = True
    while more:
        # The last round begins after the writers have ended.
        more = not work.pause(_POLLS_S)
        for each in followed:
            each.poll()


class _Followed:
    """One log."""

    def __init__(self, work: RoleContext, log: str) -> None:
        self._work = work
        self._log = log
        self._reader: LogReader | None = None
        self._next = 1
        self._cursors = CursorStore(work.store, log)
        self._witness: Witness | None = None
        self._saved_s = 0.0

    def poll(self) -> None:
        """Read what is new; a store that does not answer, or a log that is not there yet, is for the next time."""
        try:
            self._read()
        except (UnavailableError, LogNotFoundError):
            self._work.counts.count("polls_failed")
        except LogError as error:
            kind = "" if isinstance(error, CorruptError) else f"{type(error).__name__}: "
            self._work.ledger.note(self._log, Problem(f"{kind}{error}"))

    def _read(self) -> None:
        began_us, ledger = self._work.now_us, self._work.ledger
        self._reader = self._reader or LogReader.open(self._work.store, self._log)
        manifest = self._reader.manifest()
        end = manifest.next.position.offset
        ledger.note(self._log, EndSeen(began_us, end))
        if end <= self._next:
            return
        last: Record | None = None
        for record in self._reader.records(self._next, manifest=manifest):
            ledger.note(self._log, ReadRecord.of(record, self._work.now_us))
            self._next, last = record.offset + 1, record
        if self._work.task.maintained and last is not None:
            self._save(last)

    def _save(self, last: Record) -> None:
        """Move the cursor behind what was noted: from then on it can be collected."""
        now_s = self._work.runtime.monotonic_s()
        if now_s < self._saved_s + _SAVES_S:
            return
        self._saved_s = now_s
        witness = self._witness or self._cursors.load(CURSOR)
        self._witness = None
        if witness is None:
            self._witness = self._cursors.create(CURSOR, position_after(last))
        else:
            self._witness = self._cursors.save(CURSOR, last, witness)


# Appends without an outcome, and seconds to catch up: a process that falls further behind leaves appends out.
_WAITING_MAX = 256
_BEHIND_S_MAX = 1.0
_TICK_S = 0.005
_BYTES_HELD_MAX = 128 * MIB
# Time that an append waits for its log to be opened, and for room.
_SUBMIT_S_MAX = 10.0
# Snapshots smaller than what the maintaining process keeps, so that it can compact something within seconds.
_SMALL = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=4, snapshot_pointers_max=64)


def write(work: RoleContext) -> None:
    """Append until the process has to end, then wait for the outcomes."""
    logs = work.task.load.logs
    options = FleetOptions(
        creates=True,
        # Fewer than there are, so that logs are closed for others.
        logs_open_max=max(2, logs * 3 // 4),
        bytes_held_max=_BYTES_HELD_MAX,
        writer=WriterOptions(snapshots=_SMALL if work.task.maintained else SnapshotOptions()),
    )
    with Fleet.open(work.store, server=server_name(work.task.process), options=options) as fleet:
        writing = _Writing(work, fleet)
        while not work.pause(_TICK_S):
            writing.catch_up()
        fleet.flush()


class _Writing:
    """Submits what is due. Outcomes are noted by the library's workers."""

    def __init__(self, work: RoleContext, fleet: Fleet) -> None:
        self._work = work
        self._fleet = fleet
        self._number = 0
        self._due = 0.0
        self._at_s = self._now_s()
        self._began_s = self._at_s
        self._lock = work.runtime.lock()
        self._waiting = self._num_bytes = 0
        # By log, where it ended when this process last learned of it.
        self._ends: dict[str, int] = {}
        # A ledger that cannot be written ends the process.
        self._failure: OSError | None = None

    def _now_s(self) -> float:
        return self._work.runtime.monotonic_s() - self._work.task.began_s

    def catch_up(self) -> None:
        """Submit what is due by now."""
        now_s = self._now_s()
        rate = self._work.task.load.rate_at(now_s)
        self._due = min(self._due + rate * (now_s - self._at_s), max(1.0, rate * _BEHIND_S_MAX))
        self._at_s = now_s
        while self._due >= 1 and self._waiting < _WAITING_MAX:
            self._due -= 1
            self._submit()
        if self._failure is not None:
            raise self._failure

    def _submit(self) -> None:
        task = self._work.task
        self._number += 1
        share_per_s = task.load.bytes_per_s / task.load.processes
        left = share_per_s * (self._now_s() - self._began_s) - self._num_bytes
        choice = task.load.choice(task.process, task.life, self._number, bytes_left=left)
        log = log_name(choice.log)
        body = body_of(task.load.seed, task.name, self._number, choice.num_bytes)
        self._num_bytes += len(body)
        append = Append(
            process=task.name,
            number=self._number,
            num_bytes=len(body),
            checksum=checksum_of(body),
            submitted_us=self._work.now_us,
            expect_next=self._expected(choice, log),
        )
        with self._lock:
            self._waiting += 1
        self._work.ledger.note(log, append)
        key = append.key(task.run).encode()
        try:
            future = self._fleet.submit(log, body, key=key, expect_next=append.expect_next, timeout_s=_SUBMIT_S_MAX)
        except LogError as error:
            # Nothing was begun.
            self._note(log, append, AppendOutcome.NOT_DURABLE, error)
        else:
            future.add_done_callback(partial(self._ended, log, append))

    def _expected(self, choice: AppendChoice, log: str) -> int | None:
        end = self._ends.get(log)
        if not choice.conditional or end is None:
            return None
        return max(1, end - 1) if choice.wrong else end

    def _ended(self, log: str, append: Append, future: Future[LogPosition]) -> None:
        match future.exception():
            case None:
                offset = future.result().offset
                self._note(log, replace(append, offset=offset), AppendOutcome.DURABLE)
            case UnmarkedError() as error:
                self._work.counts.count("unmarked")
                self._note(log, replace(append, offset=error.offset), AppendOutcome.DURABLE)
            case NotDurableError() as error:
                self._note(log, append, AppendOutcome.NOT_DURABLE, error)
            case error:
                self._note(log, append, AppendOutcome.UNKNOWN, error)

    def _note(self, log: str, append: Append, outcome: AppendOutcome, error: BaseException | None = None) -> None:
        append = replace(append, outcome=outcome, answered_us=self._work.now_us)
        try:
            self._work.ledger.note(log, append)
        except OSError as failure:
            self._failure = failure
        if isinstance(error, ConditionNotMetError):
            self._ends[log] = error.next_offset
        elif outcome is AppendOutcome.DURABLE:
            self._ends[log] = append.offset + 1
        if error is not None:
            self._work.counts.count(f"error {type(error).__name__}")
        self._work.counts.count(outcome.value)
        self._work.counts.count("bytes", append.num_bytes if outcome is AppendOutcome.DURABLE else 0)
        with self._lock:
            self._waiting -= 1


def main() -> None:
    """Do the work; exit code 1 and one line on stderr when the store does not allow it."""
    task = Task.from_line(sys.stdin.readline())
    runtime = shared_runtime()
    folder = Path(task.folder)
    counts = ProcessCounts(runtime, folder / f"{task.name}.json")
    runtime.observer = counts
    store, ledger = run_store(open_store(task.url), task.run), Ledger(folder, task.name)
    work = RoleContext(task, store, runtime, counts, ledger)
    try:
        {"p": write, "reader": follow, "maintainer": maintain}[task.role](work)
    except LogError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        # At once: the end of the interpreter would wait for requests under way.
        sys.stderr.flush()
        os._exit(1)
    finally:
        counts.report(at_once=True)


if __name__ == "__main__":
    main()
