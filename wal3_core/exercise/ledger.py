"""What an exercise's processes submitted, were answered, and read: files that survive the kill of a process.

A writing process writes a line before it submits a record, and one after it has the outcome, each by one ``write``
without a buffer. So a record in a log has its first line in a file, and one that the process took for acknowledged has
its second: a process killed between the outcome and its line has not used the outcome yet. A line that a kill cut short
is dropped. The files survive the process, not the machine.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from wal3_core.exercise.load import checksum_of

if TYPE_CHECKING:
    from pathlib import Path

    from wal3_core.format.record import Record

# Files of a process: each has the logs of one part, so that a check loads one part at a time.
PARTS = 16


class AppendOutcome(StrEnum):
    """What a process knows of an append. ``pending``: it was killed before it knew."""

    DURABLE = "durable"
    NOT_DURABLE = "not_durable"
    UNKNOWN = "unknown"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Append:
    """One record that was submitted; times are of the clock that all processes of the machine share.

    ``process`` names one life of a process, ``number`` counts its records in the order of their submission.
    """

    process: str
    number: int
    num_bytes: int
    checksum: str
    submitted_us: int
    expect_next: int | None = None
    outcome: AppendOutcome = AppendOutcome.PENDING
    offset: int = 0
    answered_us: int = 0

    def key(self, run: str) -> str:
        """Return the key of its record, which names it."""
        return f"{run}/{self.process}/{self.number}/{self.num_bytes}/{self.checksum}/{self.submitted_us}"


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One record as it was read; ``seen_us`` is when a reader that follows the log saw it, 0 in the final read."""

    offset: int
    key: str
    num_bytes: int
    checksum: str
    seen_us: int = 0

    @classmethod
    def of(cls, record: Record, seen_us: int = 0) -> ReadRecord:
        """Describe a record."""
        body, key = record.body or b"", (record.key or b"").decode("ascii", "backslashreplace")
        return cls(record.offset, key, len(body), checksum_of(body), seen_us)


@dataclass(frozen=True, slots=True)
class EndSeen:
    """A read of a log's end, begun then: the log ended before ``next_offset``."""

    began_us: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What makes a log unsound."""

    text: str


_NOTES = {kind.__name__: kind for kind in (Append, ReadRecord, EndSeen, Problem)}


class Ledger:
    """A process's files. Safe to share between threads."""

    def __init__(self, folder: Path, process: str) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self._files = [os.open(folder / f"{process}.{part:02d}", flags, 0o644) for part in range(PARTS)]

    def note(self, log: str, note: Append | ReadRecord | EndSeen | Problem) -> None:
        """Write a line; OSError when the disk is full.

        An append is noted before it is submitted and when it has its outcome, a record before anything relies on it.
        """
        line = json.dumps([log, type(note).__name__, *astuple(note)]).encode() + b"\n"
        # Logs end with their number, which says what part they are in.
        written = os.write(self._files[int(log.rpartition("-")[2]) % PARTS], line)
        if written != len(line):
            message = f"ledger: expected {len(line)} bytes to be written, found {written}: the disk is full"
            raise OSError(message)


@dataclass(frozen=True, slots=True)
class LogLedger:
    """What the files say of one log; in the final read it held its records from ``kept_from`` on."""

    appends: list[Append]
    found: list[ReadRecord]
    ends: list[EndSeen]
    problems: list[str]
    kept_from: int = 1


def read_part(folder: Path, part: int) -> dict[str, LogLedger]:
    """Read one part of every process's files, by log."""
    ledgers: dict[str, LogLedger] = defaultdict(lambda: LogLedger([], [], [], []))
    for path in sorted(folder.glob(f"*.{part:02d}")):
        # By log and number; the line with the outcome comes last.
        appends: dict[tuple[str, int], Append] = {}
        # Only the last line can be cut short.
        for line in path.read_text().split("\n")[:-1]:
            log, kind, *fields = json.loads(line)
            match _NOTES[kind](*fields):
                case Append() as append:
                    appends[log, append.number] = replace(append, outcome=AppendOutcome(append.outcome))
                case ReadRecord() as record:
                    ledgers[log].found.append(record)
                case EndSeen() as end:
                    ledgers[log].ends.append(end)
                case Problem() as problem:
                    ledgers[log].problems.append(problem.text)
        for (log, _), append in appends.items():
            ledgers[log].appends.append(append)
    return dict(ledgers)
