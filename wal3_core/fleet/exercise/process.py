"""What a process of an exercise runs, started as ``python -m wal3_core.fleet.exercise.process``.

It gets its task as one line of JSON on standard input, and ends its work when standard input ends: so it also ends with
the process that started it. Its figures are in a file that it replaces twice a second.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.fleet.exercise.load import Load
from wal3_core.fleet.exercise.place import run_store
from wal3_core.fleet.exercise.report import Figures
from wal3_core.runtime import AppendEnd, Observer, RequestEnd, shared_runtime
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore

_REPORTS_S = 0.5
_UNANSWERED = {RequestEnd.UNAVAILABLE, RequestEnd.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of one process: its ``role``, its number and life, and of which exercise."""

    role: str
    url: str
    run: str
    folder: str
    load: Load
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
        return cls(**{**fields, "load": Load(**fields["load"]), "followed": tuple(fields["followed"])})


class Counts(Observer):
    """Counts what the library reports, and what the process does; written to the process's file."""

    def __init__(self, runtime: Runtime, path: Path) -> None:
        self._lock = runtime.lock()
        self._runtime = runtime
        self._path = path
        self._figures = Figures()
        self._written_s = 0.0

    def count(self, name: str, count: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._figures.counts[name] += count

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        """Count a request."""
        del store, seconds
        with self._lock:
            self._figures.requests[kind] += 1
            self._figures.counts["unanswered"] += end in _UNANSWERED

    def throttled(self, store: str, kind: str, seconds: float) -> None:
        """Count a wait."""
        del store, kind
        with self._lock:
            self._figures.counts["throttled"] += 1
            self._figures.counts["throttled_ms"] += round(seconds * 1000)

    def slowed(self, store: str, kind: str) -> None:
        """Count a halving."""
        del store, kind
        self.count("slow_downs")

    def appended(self, log: str, end: AppendEnd, *, num_records: int, num_bytes: int, waits_s: Iterable[float]) -> None:
        """Count nothing: the ledger does."""

    def retried(self, log: str) -> None:
        """Count a request that is sent again."""
        del log
        self.count("retries")

    def report(self, *, at_once: bool = False) -> None:
        """Write the figures if it is time."""
        now_s = self._runtime.monotonic_s()
        if not at_once and now_s < self._written_s + _REPORTS_S:
            return
        self._written_s = now_s
        with self._lock:
            text = json.dumps(self._figures.to_json())
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._path)


def read_figures(folder: Path) -> Figures:
    """Add up the figures of all processes so far."""
    total = Figures()
    for path in folder.glob("*.json"):
        found = json.loads(path.read_text())
        total += Figures(Counter(found["counts"]), Counter(found["requests"]))
    return total


@dataclass(frozen=True, slots=True)
class Work:
    """What a role needs."""

    task: Task
    store: ObjectStore
    runtime: Runtime
    counts: Counts

    @property
    def now_us(self) -> int:
        """The clock that all processes of the machine share, in microseconds."""
        return int(self.runtime.monotonic_s() * 1_000_000)

    @property
    def folder(self) -> Path:
        """Where the ledgers are."""
        return Path(self.task.folder)

    def pause(self, seconds: float) -> bool:
        """Wait; return whether the process has to end, at once when it has to."""
        self.counts.report()
        return bool(select.select([sys.stdin], [], [], seconds)[0])


def main() -> None:
    """Do the work; exit code 1 and one line on stderr when the store does not allow it."""
    from wal3_core.fleet.exercise.following import follow  # noqa: PLC0415 - one role of three
    from wal3_core.fleet.exercise.maintaining import maintain  # noqa: PLC0415 - see above
    from wal3_core.fleet.exercise.writing import write  # noqa: PLC0415 - see above

    task = Task.from_line(sys.stdin.readline())
    runtime = shared_runtime()
    counts = Counts(runtime, Path(task.folder) / f"{task.name}.json")
    runtime.observer = counts
    work = Work(task, run_store(open_store(task.url), task.run), runtime, counts)
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
