"""What an exercise's processes submitted, were answered, and read, and what must follow from it.

A writing process writes a line before it submits a record, and one after it has the outcome, each by one ``write``
without a buffer. So a record in a log has its first line in a file, and one that the process took for acknowledged has
its second: a process killed between the outcome and its line has not used the outcome yet. A line that a kill cut short
is dropped. The files survive the process, not the machine.

The library promises (docs/protocol.md, "Append"): an acknowledged record is in the log, once, at its offset; one that
is not durable never is; one of unknown outcome, or of a killed process, is there once or not at all. An append that
began after another one was acknowledged lies behind it, whichever process began it; the acknowledged appends of one
writer lie in the order of their submission. A read that began after an acknowledgement sees the record. What was
read once is there until it is collected.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from wal3_core.exercise.load import checksum_of
from wal3_core.format.record import Record

if TYPE_CHECKING:
    Identity = tuple[str, int]

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
            raise OSError(f"ledger: expected {len(line)} bytes to be written, found {written}: the disk is full")


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


# ---------------------------------------------------------------------- the check, a pure function of a ledger


class ViolationKind(StrEnum):
    """How a record is wrong."""

    MISSING = "missing"
    ALTERED = "altered"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    MISPLACED = "misplaced"
    UNWANTED = "unwanted"
    FOREIGN = "foreign"
    STALE = "stale"
    UNSOUND = "unsound"
    LATE = "late"


# The store kept every promise, but slowly; or the machine was busy.
HARMLESS = frozenset({ViolationKind.LATE})


@dataclass(frozen=True, slots=True)
class Violation:
    """One record that is wrong: ``record`` is its process and number, ``offset`` 0 if it has none."""

    kind: ViolationKind
    log: str
    offset: int
    record: str
    text: str


def check_log(run: str, log: str, ledger: LogLedger, *, late_us: int) -> list[Violation]:
    """Compare what was read of a log with what its writers submitted and were answered; return what is wrong.

    ``ledger.found`` has every record of the log, and those that readers saw before; a record acknowledged is late when
    a reader that follows the log saw it more than ``late_us`` microseconds after that.
    """
    check = _LedgerCheck(run, log, ledger)
    return [
        *check.altered(),
        *check.wrong_copies(),
        *check.lost(),
        *check.before_acknowledged(),
        *check.out_of_submission_order(),
        *check.stale(),
        *check.late(late_us),
        *(Violation(ViolationKind.UNSOUND, log, 0, "", text) for text in dict.fromkeys(ledger.problems)),
    ]


class _LedgerCheck:
    """One log: its appends by name, its records by offset, and where each append's record was found."""

    def __init__(self, run: str, log: str, ledger: LogLedger) -> None:
        self._run = run
        self._log = log
        self._ledger = ledger
        self._appends = {(each.process, each.number): each for each in ledger.appends}
        self._acknowledged = [each for each in ledger.appends if each.outcome is AppendOutcome.DURABLE]
        self._promised = {each.offset: each for each in self._acknowledged}
        # As it was read at an offset: each version once.
        self._records: dict[int, list[ReadRecord]] = defaultdict(list)
        self._places: dict[Identity, list[int]] = defaultdict(list)
        self._unnamed: set[int] = set()
        for found in sorted(ledger.found, key=lambda each: each.offset):
            versions, version = self._records[found.offset], replace(found, seen_us=0)
            if version not in versions:
                versions.append(version)
                identity = _identity(run, found)
                if identity is None or identity not in self._appends:
                    self._unnamed.add(found.offset)
                elif found.offset not in self._places[identity]:
                    self._places[identity].append(found.offset)

    def altered(self) -> Iterator[Violation]:
        """Find records with other bytes than were submitted, and records that no process submitted."""
        for offset, versions in self._records.items():
            if len(versions) > 1:
                shown = " and as ".join(repr(found.key[:100]) for found in versions)
                yield self._violation(ViolationKind.ALTERED, self._promised.get(offset), offset, f"was read as {shown}")
            for found in versions:
                identity = _identity(self._run, found)
                append = None if identity is None else self._appends.get(identity)
                if append is None:
                    # Named for no append: perhaps its name was altered.
                    owner = self._promised.get(offset)
                    kind = ViolationKind.FOREIGN if owner is None else ViolationKind.ALTERED
                    yield self._violation(kind, owner, offset, f"found {found.key[:100]!r}, which no process submitted")
                elif found.key != append.key(self._run):
                    yield self._violation(ViolationKind.ALTERED, append, offset, f"its key is {found.key[:100]!r}")
                elif (found.num_bytes, found.checksum) != (append.num_bytes, append.checksum):
                    text = f"expected {append.num_bytes} bytes with checksum {append.checksum}, found"
                    text += f" {found.num_bytes} with {found.checksum}"
                    yield self._violation(ViolationKind.ALTERED, append, offset, text)

    def wrong_copies(self) -> Iterator[Violation]:
        """Find appends that are in the log too often, too seldom, or elsewhere than promised."""
        for identity, append in self._appends.items():
            offsets = self._places.get(identity, [])
            if len(offsets) > 1:
                yield self._violation(ViolationKind.DOUBLED, append, offsets[1], f"is at the offsets {offsets}")
            if append.outcome is AppendOutcome.NOT_DURABLE and offsets:
                yield self._violation(
                    ViolationKind.UNWANTED, append, offsets[0], "was reported as not durable, and is in the log"
                )
            if append.outcome is not AppendOutcome.DURABLE:
                continue
            if append.expect_next not in {None, append.offset}:
                text = f"was to be appended at {append.expect_next}, and was acknowledged at {append.offset}"
                yield self._violation(ViolationKind.MISPLACED, append, append.offset, text)
            if offsets and append.offset not in offsets:
                text = f"was acknowledged at {append.offset}, and is at {offsets[0]}"
                yield self._violation(ViolationKind.MISPLACED, append, append.offset, text)
            # A record with another name stands at its offset: reported as altered.
            if not offsets and append.offset not in self._unnamed:
                yield self._violation(
                    ViolationKind.MISSING, append, append.offset, "was acknowledged, and is not in the log"
                )

    def lost(self) -> Iterator[Violation]:
        """Find records that a reader saw, and that are neither collected nor in the log in the end."""
        read_last = {found.offset for found in self._ledger.found if not found.seen_us}
        for offset in sorted(self._records.keys() - read_last):
            if offset >= self._ledger.kept_from:
                text = "was read, and is not in the log any more"
                yield self._violation(ViolationKind.MISSING, self._promised.get(offset), offset, text)

    def before_acknowledged(self) -> Iterator[Violation]:
        """Find appends that lie before one that was acknowledged before they began."""
        earliest: Append | None = None
        appends = ((self._appends[identity], offsets) for identity, offsets in self._places.items())
        placed = [(each.offset if each.offset in offsets else offsets[0], each) for each, offsets in appends]
        for offset, append in sorted(placed, key=lambda each: each[0], reverse=True):
            if earliest is not None and append.submitted_us > earliest.answered_us:
                text = f"lies before {_name(earliest)} at {earliest.offset}, which was acknowledged before it began"
                yield self._violation(ViolationKind.REORDERED, append, offset, text)
            acknowledged = append.outcome is AppendOutcome.DURABLE
            if acknowledged and (earliest is None or append.answered_us < earliest.answered_us):
                earliest = append

    def out_of_submission_order(self) -> Iterator[Violation]:
        """Find acknowledged appends that lie before an earlier one of the same writer."""
        last: dict[str, Append] = {}
        for append in sorted(self._acknowledged, key=lambda each: (each.process, each.number)):
            before = last.get(append.process)
            if before is not None and append.offset < before.offset:
                text = f"lies before {_name(before)} at {before.offset}, which its process submitted earlier"
                yield self._violation(ViolationKind.REORDERED, append, append.offset, text)
            else:
                last[append.process] = append

    def stale(self) -> Iterator[Violation]:
        """Find reads that did not see a record which was acknowledged before they began."""
        answered = deque(sorted(self._acknowledged, key=lambda each: each.answered_us))
        newest: Append | None = None
        for end in sorted(self._ledger.ends, key=lambda each: each.began_us):
            while answered and answered[0].answered_us < end.began_us:
                append = answered.popleft()
                newest = append if newest is None or append.offset > newest.offset else newest
            if newest is not None and end.next_offset <= newest.offset:
                behind_us = end.began_us - newest.answered_us
                text = f"was acknowledged {behind_us} µs before a read that found the log's end at {end.next_offset}"
                yield self._violation(ViolationKind.STALE, newest, newest.offset, text)

    def late(self, late_us: int) -> Iterator[Violation]:
        """Find records that a reader saw too long after their acknowledgement."""
        seen: dict[int, int] = {}
        for each in self._ledger.found:
            if each.seen_us:
                seen[each.offset] = min(each.seen_us, seen.get(each.offset, each.seen_us))
        for append in self._acknowledged:
            waited_us = seen.get(append.offset, 0) - append.answered_us
            if waited_us > late_us:
                text = f"was seen {waited_us / 1_000_000:.1f} s after its acknowledgement"
                yield self._violation(ViolationKind.LATE, append, append.offset, text)

    def _violation(self, kind: ViolationKind, append: Append | None, offset: int, text: str) -> Violation:
        return Violation(kind, self._log, offset, "" if append is None else _name(append), text)


def _name(append: Append) -> str:
    return f"{append.process}/{append.number}"


def _identity(run: str, found: ReadRecord) -> Identity | None:
    """Return which append a record's key names, if it names one of this run."""
    named_run, *parts = found.key.split("/")
    if named_run != run or len(parts) < 2 or not parts[1].isdecimal():  # noqa: PLR2004 - process and number
        return None
    return parts[0], int(parts[1])
