"""What an exercise's processes submitted, were answered, and read: files that survive the kill of a process.

A writing process writes a line before it submits a record, and one after it has the outcome, each by one ``write``
without a buffer. So a record in a log has its first line in a file, and one that the process took for acknowledged has
its second: a process killed between the outcome and its line has not used the outcome yet. A line that a kill cut short
is dropped. The files survive the process, not the machine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from wal3_core.fleet.exercise.load import checksum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from wal3_core.model.record import Record

# Files of a process: so many parts, by log, so that a check loads one part at a time.
PARTS = 16
_SUBMITTED, _ANSWERED, _READ, _LOOKED, _PROBLEM = "SARLP"


class AppendOutcome(StrEnum):
    """What a process knows of an append. ``pending``: it was killed before it knew."""

    DURABLE = "durable"
    NOT_DURABLE = "not_durable"
    UNKNOWN = "unknown"
    PENDING = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        key, body = record.key or b"", record.body or b""
        shown = key.decode("ascii", "backslashreplace").replace("\t", "\\t").replace("\n", "\\n")
        return cls(offset=record.offset, key=shown, num_bytes=len(body), checksum=checksum_of(body), seen_us=seen_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSeen:
    """A look at a log's end, begun then: the log ended before ``next_offset``."""

    began_us: int
    next_offset: int


class Ledger:
    """A process's files. Safe to share between threads."""

    def __init__(self, folder: Path, process: str) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self._files = [os.open(folder / f"{process}.{part:02d}", flags, 0o644) for part in range(PARTS)]

    def submit(self, log: str, append: Append) -> None:
        """Note an append that is submitted next."""
        fields = (append.number, append.num_bytes, append.checksum, append.submitted_us, append.expect_next or 0)
        self._write(log, _SUBMITTED, append.process, *fields)

    def answer(self, log: str, append: Append) -> None:
        """Note an append's outcome."""
        fields = (append.number, append.outcome.value, append.offset, append.answered_us)
        self._write(log, _ANSWERED, append.process, *fields)

    def read(self, log: str, found: Iterable[ReadRecord]) -> None:
        """Note records that were read, before anything relies on that."""
        for each in found:
            self._write(log, _READ, each.offset, each.num_bytes, each.checksum, each.seen_us, each.key)

    def look(self, log: str, look: EndSeen) -> None:
        """Note where a log ended."""
        self._write(log, _LOOKED, look.began_us, look.next_offset)

    def problem(self, log: str, message: str) -> None:
        """Note that a log is not sound."""
        self._write(log, _PROBLEM, " ".join(message.split()))

    def _write(self, log: str, *fields: object) -> None:
        line = "\t".join(map(str, (log, *fields))).encode() + b"\n"
        written = os.write(self._files[part_of(log)], line)
        if written != len(line):
            message = f"ledger: expected {len(line)} bytes to be written, found {written}: the disk is full"
            raise OSError(message)


def part_of(log: str) -> int:
    """Return which part of the files has a log: logs end with their number."""
    return int(log.rpartition("-")[2]) % PARTS


@dataclass(frozen=True, slots=True)
class LogLedger:
    """What the files say of one log; in the final read it held its records from ``kept_from`` on."""

    appends: list[Append]
    found: list[ReadRecord]
    looks: list[EndSeen]
    problems: list[str]
    kept_from: int = 1


def read_part(folder: Path, part: int) -> dict[str, LogLedger]:
    """Read one part of every process's files, by log."""
    ledgers: dict[str, LogLedger] = defaultdict(lambda: LogLedger([], [], [], []))
    for path in sorted(folder.glob(f"*.{part:02d}")):
        submitted: dict[tuple[str, str], list[str]] = {}
        answered: dict[tuple[str, str], list[str]] = {}
        for log, kind, *fields in _lines(path):
            match kind:
                case "S":
                    submitted[log, fields[1]] = fields
                case "A":
                    answered[log, fields[1]] = fields
                case _:
                    _add(ledgers[log], kind, fields)
        for (log, number), fields in submitted.items():
            ledgers[log].appends.append(_append(fields, answered.get((log, number))))
    return dict(ledgers)


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open("rb") as lines:
        for line in lines:
            # Only the last one can be cut short.
            if line.endswith(b"\n"):
                yield line[:-1].decode().split("\t")


def _append(submitted: list[str], answered: list[str] | None) -> Append:
    process, number, num_bytes, checksum, submitted_us, expect_next = submitted
    outcome, offset, answered_us = (AppendOutcome.PENDING.value, "0", "0") if answered is None else answered[2:]
    return Append(
        process=process,
        number=int(number),
        num_bytes=int(num_bytes),
        checksum=checksum,
        submitted_us=int(submitted_us),
        expect_next=int(expect_next) or None,
        outcome=AppendOutcome(outcome),
        offset=int(offset),
        answered_us=int(answered_us),
    )


def _add(ledger: LogLedger, kind: str, fields: list[str]) -> None:
    match kind:
        case "R":
            offset, num_bytes, checksum, seen_us, key = fields
            ledger.found.append(
                ReadRecord(
                    offset=int(offset), key=key, num_bytes=int(num_bytes), checksum=checksum, seen_us=int(seen_us)
                )
            )
        case "L":
            ledger.looks.append(EndSeen(began_us=int(fields[0]), next_offset=int(fields[1])))
        case _:
            ledger.problems.append(fields[0])
