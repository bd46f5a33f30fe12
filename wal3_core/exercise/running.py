"""An exercise from its start to its end: processes that write, read and maintain, kills among them; then the check."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from wal3_core.errors import CorruptError, GarbageCollectedError, LogNotFoundError, UnavailableError
from wal3_core.exercise.ledger import (
    PARTS,
    AppendOutcome,
    LogLedger,
    ReadRecord,
    Violation,
    ViolationKind,
    check_log,
    read_part,
)
from wal3_core.exercise.load import LoadShape
from wal3_core.exercise.place import RunStore, log_name, new_run, run_store
from wal3_core.exercise.process import Task, read_figures
from wal3_core.exercise.report import Checked, Figures, Summary
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import scrub
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.retrying import timeout_s_of

# Logs that are followed, maintained and scrubbed: a third of them, at most these.
_FOLLOWED_MAX = 16
_TICK_S = 0.1
# Roles of processes.
_WRITER, _READER, _MAINTAINER = "p", "reader", "maintainer"
# Time that a load gets in addition while nothing is durable, as when its processes start slowly.
_STARTS_S_MAX = 60.0
# Time that a process has to end its work, beyond the store's timeout.
_ENDS_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class ExercisePlan:
    """What to do: the load lasts ``duration_s`` seconds, None for until it is stopped, or ``bytes_max`` are appended.

    With ``kills``, half of the ends of writing processes are by SIGKILL; with ``maintenance``, a third of the logs
    is collected and their snapshots compacted meanwhile. A record is late when a reader that follows its log sees it
    more than ``late_s`` seconds after its acknowledgement.
    """

    load: LoadShape
    _: KW_ONLY
    duration_s: float | None
    bytes_max: int
    kills: bool = True
    maintenance: bool = False
    late_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that was started, and when it ends."""

    task: Task
    popen: subprocess.Popen[str]
    ends_s: float
    killed: bool

    def ask_to_end(self) -> None:
        """End its work: it waits for the outcomes of its appends."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()


@dataclass(slots=True, frozen=True)
class ExerciseProgress:
    """An exercise at one moment of its load."""

    at_s: float
    rate_per_s: float
    figures: Figures


class Exercise:
    """One exercise of a store. Its logs are in a folder of their own; its ledgers in ``folder``, a local directory."""

    def __init__(self, store: ObjectStore, url: str, plan: ExercisePlan, folder: Path) -> None:
        self.run = new_run()
        self._runtime = shared_runtime()
        self._store = store
        self._place = run_store(store, self.run)
        self._url = url
        self._plan = plan
        self._folder = folder
        self._began_s = 0.0
        self._load_s = 0.0
        # Ends of writing processes: ``closed`` and ``killed``.
        self._ends = Counter[str]()
        logs = plan.load.logs
        # Odd steps, so that each process's own logs are among them; the last ones, which all write, too.
        step = max(3, -(-logs // _FOLLOWED_MAX) | 1)
        self._followed = tuple(range((logs - 1) % step, logs, step))

    def load(
        self, stop: Callable[[], bool], show: Callable[[ExerciseProgress], None], hurry: Callable[[], bool]
    ) -> None:
        """Put the load on the store until its time is over, or ``stop``; processes are killed at ``hurry``.

        ``show`` gets the progress ten times a second. UnavailableError when a process cannot go on.
        """
        self._began_s = self._runtime.monotonic_s()
        running: list[_Process] = []
        beside: list[_Process] = []
        try:
            beside.append(self._start(_READER))
            if self._plan.maintenance:
                beside.append(self._start(_MAINTAINER))
            running += [self._start(_WRITER, process) for process in range(self._plan.load.processes)]
            while not (stop() or self._is_over()):
                running[:] = [self._next_life(each) for each in running]
                self._check_alive(beside)
                show(self._progress())
                self._runtime.sleep(_TICK_S)
            self._load_s = self._elapsed_s()
            self._end(running, show, hurry)
            self._end(beside, show, hurry)
        finally:
            for each in (*running, *beside):
                each.popen.kill()
                each.popen.wait()

    def check(self, progress: Callable[[int, int | None], None]) -> Summary:
        """Read every log back and compare it with the ledgers; ``progress`` gets the number of logs read, and of all.

        UnavailableError when the store does not answer.
        """
        checked = Checked()
        scrubbed = frozenset(map(log_name, self._followed))
        late_us = round(self._plan.late_s * 1_000_000)
        verify_logs(self._place, self._folder, checked, late_us=late_us, scrubbed=scrubbed, progress=progress)
        return Summary(
            run=self.run,
            store=self._store.url.partition("?")[0],
            seed=self._plan.load.seed,
            logs=self._plan.load.logs,
            load_s=self._load_s,
            checked=checked,
            figures=self._figures(),
            kept=(),
        )

    # ------------------------------------------------------------------ processes

    def _elapsed_s(self) -> float:
        return self._runtime.monotonic_s() - self._began_s

    def _figures(self) -> Figures:
        return read_figures(self._folder) + Figures(self._ends)

    def _is_over(self) -> bool:
        durable_bytes = self._figures().counts["bytes"]
        if self._plan.duration_s is not None:
            # A check of nothing would say that every promise was kept.
            more_s = 0.0 if durable_bytes else _STARTS_S_MAX
            if self._elapsed_s() >= self._plan.duration_s + more_s:
                return True
        return durable_bytes >= self._plan.bytes_max

    def _progress(self) -> ExerciseProgress:
        at_s = self._elapsed_s()
        rate_per_s = self._plan.load.rate_at(at_s) * self._plan.load.processes
        return ExerciseProgress(at_s, rate_per_s, self._figures())

    def _start(self, role: str, process: int = 0, life: int = 0) -> _Process:
        task = Task(
            role=role,
            url=self._url,
            run=self.run,
            folder=str(self._folder),
            load=self._plan.load,
            began_s=self._began_s,
            process=process,
            life=life,
            followed=self._followed,
            maintained=self._plan.maintenance,
        )
        with (self._folder / f"{task.name}.errors").open("w") as errors:
            # In a session of its own: Ctrl-C is for the program, which then ends its processes.
            popen = subprocess.Popen(
                [sys.executable, "-m", "wal3_core.exercise.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert popen.stdin is not None
        popen.stdin.write(task.to_line())
        popen.stdin.flush()
        end = self._plan.load.life(process, life, kills=self._plan.kills)
        return _Process(task, popen, self._elapsed_s() + end.seconds, end.killed and role == _WRITER)

    def _next_life(self, process: _Process) -> _Process:
        """Return the process, or its next life when this one is over."""
        if process.popen.poll() is None:
            if self._elapsed_s() >= process.ends_s:
                process.popen.kill() if process.killed else process.ask_to_end()
            return process
        if self._elapsed_s() < process.ends_s:
            self._check_alive([process])
        self._note_end(process)
        return self._start(_WRITER, process.task.process, process.task.life + 1)

    def _check_alive(self, processes: list[_Process]) -> None:
        """Raise UnavailableError when a process has ended by itself: it says why."""
        for each in processes:
            if each.popen.poll() is not None:
                raise self._failed(each)

    def _note_end(self, process: _Process) -> None:
        """Count the end of a process; raise UnavailableError when it has failed."""
        if process.killed and process.popen.returncode == -signal.SIGKILL:
            self._ends["killed"] += 1
        elif process.popen.returncode:
            raise self._failed(process)
        elif process.task.role == _WRITER:
            self._ends["closed"] += 1

    def _failed(self, process: _Process) -> UnavailableError:
        lines = (self._folder / f"{process.task.name}.errors").read_text().strip().splitlines()
        cause = lines[-1] if lines else f"exit code {process.popen.returncode}"
        return UnavailableError(f"exercise {self.run}: process {process.task.name} ended: {cause}")

    def _end(
        self, processes: list[_Process], show: Callable[[ExerciseProgress], None], hurry: Callable[[], bool]
    ) -> None:
        """Ask processes to end, and wait; kill those that take too long."""
        until_s = self._elapsed_s() + timeout_s_of(self._url) + _ENDS_S_MAX
        for each in processes:
            each.ask_to_end()
        while any(each.popen.poll() is None for each in processes):
            if hurry() or self._elapsed_s() >= until_s:
                for each in processes:
                    each.popen.kill()
                    each.popen.wait()
                return
            show(self._progress())
            self._runtime.sleep(_TICK_S)
        for each in processes:
            self._note_end(each)


def verify_logs(
    place: RunStore,
    folder: Path,
    checked: Checked,
    *,
    late_us: int,
    scrubbed: Collection[str],
    progress: Callable[[int, int | None], None],
) -> None:
    """Check every log that the ledgers name; those in ``scrubbed`` are scrubbed as well. Adds to ``checked``.

    Loads one part of the ledgers at a time. UnavailableError when the store does not answer.
    """
    run = place.url.partition("?")[0].rstrip("/").rpartition("/")[2]
    done = 0
    for part in range(PARTS):
        for log, ledger in sorted(read_part(folder, part).items()):
            checked.sizes["followed"] += len({each.offset for each in ledger.found})
            before = len(ledger.found)
            kept_from = _read_back(place, log, ledger)
            checked.sizes["read"] += len(ledger.found) - before
            checked.add_findings(check_log(run, log, replace(ledger, kept_from=kept_from), late_us=late_us))
            if log in scrubbed:
                checked.add_findings(_scrubbed(place, log))
                checked.sizes["scrubbed"] += 1
            _count_appends(checked, ledger)
            done += 1
            progress(done, None)


def _read_back(place: RunStore, log: str, ledger: LogLedger) -> int:
    """Add the records of a log to its ledger, and what is wrong with them; return from where on the log holds them."""
    kept_from = 1
    try:
        reader = LogReader.open(place, log)
        manifest = reader.manifest()
        kept_from = manifest.first.position.offset
        for record in reader.records(manifest=manifest):
            ledger.found.append(ReadRecord.of(record))
    except LogNotFoundError:
        # Created by the first append: there may have been none. If there was, its records are missing.
        pass
    except (CorruptError, GarbageCollectedError) as error:
        ledger.problems.append(str(error))
    return kept_from


def _scrubbed(place: RunStore, log: str) -> list[Violation]:
    try:
        report = scrub(place, log)
    except LogNotFoundError:
        return []
    return [
        Violation(ViolationKind.UNSOUND, log, 0, "", f"{problem.path}: {problem.message}")
        for problem in report.problems
    ]


def _count_appends(checked: Checked, ledger: LogLedger) -> None:
    for append in ledger.appends:
        checked.outcomes[append.outcome] += 1
        checked.sizes["conditional"] += append.expect_next is not None
        if append.outcome is AppendOutcome.DURABLE:
            checked.sizes["bytes"] += append.num_bytes
            checked.sizes["largest"] = max(checked.sizes["largest"], append.num_bytes)
            checked.latencies.add((append.answered_us - append.submitted_us) / 1_000_000)
