"""A writing process of an exercise: a fleet whose appends follow the load, each noted before and after."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import ConditionNotMetError, LogError, NotDurableError, UnmarkedError
from wal3_core.fleet.exercise.ledger import Append, Ledger, Outcome
from wal3_core.fleet.exercise.load import Choice, body_of, checksum_of
from wal3_core.fleet.exercise.place import log_name, server_name
from wal3_core.fleet.fleet import Fleet
from wal3_core.fleet.fleet_options import FleetOptions
from wal3_core.options import MIB, SnapshotOptions, WriterOptions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from wal3_core.fleet.exercise.process import Work
    from wal3_core.model.position import LogPosition

# A process that falls behind leaves appends out: it has so many without an outcome, and catches up this many seconds.
_WAITING_MAX = 256
_BEHIND_S_MAX = 1.0
_TICK_S = 0.005
_BYTES_HELD_MAX = 128 * MIB
# How long an append waits for its log to be opened, and for room.
_SUBMIT_S_MAX = 10.0
# Smaller than what the maintaining process keeps: so that there is something to compact within seconds.
_SMALL = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=4, snapshot_pointers_max=64)


def write(work: Work) -> None:
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

    def __init__(self, work: Work, fleet: Fleet) -> None:
        self._work = work
        self._fleet = fleet
        self._ledger = Ledger(work.folder, work.task.name)
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
        self._ledger.submit(log, append)
        key = append.key(task.run).encode()
        try:
            future = self._fleet.submit(log, body, key=key, expect_next=append.expect_next, timeout_s=_SUBMIT_S_MAX)
        except LogError as error:
            # Nothing was begun.
            self._answer(log, append, Outcome.NOT_DURABLE, error)
        else:
            future.add_done_callback(partial(self._answered, log, append))

    def _expected(self, choice: Choice, log: str) -> int | None:
        end = self._ends.get(log)
        if not choice.conditional or end is None:
            return None
        return max(1, end - 1) if choice.wrong else end

    def _answered(self, log: str, append: Append, future: Future[LogPosition]) -> None:
        match future.exception():
            case None:
                offset = future.result().offset
                self._answer(log, replace(append, offset=offset), Outcome.DURABLE)
            case UnmarkedError() as error:
                self._work.counts.count("unmarked")
                self._answer(log, replace(append, offset=error.offset), Outcome.DURABLE)
            case NotDurableError() as error:
                self._answer(log, append, Outcome.NOT_DURABLE, error)
            case error:
                self._answer(log, append, Outcome.UNKNOWN, error)

    def _answer(self, log: str, append: Append, outcome: Outcome, error: BaseException | None = None) -> None:
        append = replace(append, outcome=outcome, answered_us=self._work.now_us)
        try:
            self._ledger.answer(log, append)
        except OSError as failure:
            self._failure = failure
        if isinstance(error, ConditionNotMetError):
            self._ends[log] = error.next_offset
        elif outcome is Outcome.DURABLE:
            self._ends[log] = append.offset + 1
        if error is not None:
            self._work.counts.count(f"error {type(error).__name__}")
        self._work.counts.count(outcome.value)
        self._work.counts.count("bytes", append.num_bytes if outcome is Outcome.DURABLE else 0)
        with self._lock:
            self._waiting -= 1
