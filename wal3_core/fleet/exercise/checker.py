"""What must follow from an exercise's ledgers, and where a log does not fulfil it. Pure.

The library promises (docs/protocol.md, "Append"): an acknowledged record is in the log, once, at its offset; one that
is not durable never is; one of unknown outcome, or of a killed process, is there once or not at all. An append that
began after another one was acknowledged lies behind it, whichever process began it; the acknowledged appends of one
writer lie in the order of their submission. A read that began after an acknowledgement sees the record. What was
read once is there until it is collected.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from wal3_core.fleet.exercise.ledger import Append, AppendOutcome, EndSeen, LogLedger, ReadRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core.model.strict_json import JsonObject

    Identity = tuple[str, int]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One record that is wrong: ``record`` is its process and number, ``offset`` 0 if it has none."""

    kind: ViolationKind
    log: str
    offset: int
    record: str
    text: str

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "kind": self.kind.value,
            "log": self.log,
            "offset": self.offset,
            "record": self.record,
            "text": self.text,
        }


def check_log(run: str, log: str, ledger: LogLedger, *, late_us: int) -> list[Violation]:
    """Compare what was read of a log with what its writers submitted and were answered; return what is wrong.

    ``ledger.found`` has every record of the log, and those that readers saw before; a record acknowledged is late when
    a reader that follows the log saw it more than ``late_us`` microseconds after that.
    """
    check = _LedgerCheck(run, log, ledger)
    findings = [
        *check.altered(),
        *check.wrong_copies(),
        *check.lost(ledger.kept_from),
        *check.before_acknowledged(),
        *check.out_of_submission_order(),
        *check.stale(ledger.looks),
        *check.late(ledger.found, late_us),
    ]
    findings += [
        Violation(kind=ViolationKind.UNSOUND, log=log, offset=0, record="", text=text)
        for text in dict.fromkeys(ledger.problems)
    ]
    return findings


class _LedgerCheck:
    """One log: its appends by name, its records by offset, and where each append's record was found."""

    def __init__(self, run: str, log: str, ledger: LogLedger) -> None:
        self._run = run
        self._log = log
        self._appends = {(each.process, each.number): each for each in ledger.appends}
        self._acknowledged = [each for each in ledger.appends if each.outcome is AppendOutcome.DURABLE]
        self._records: dict[int, list[ReadRecord]] = defaultdict(list)
        for found in ledger.found:
            same = (found.key, found.num_bytes, found.checksum)
            versions = self._records[found.offset]
            if all((each.key, each.num_bytes, each.checksum) != same for each in versions):
                versions.append(found)
        self._read_last = {found.offset for found in ledger.found if not found.seen_us}
        self._places = self._places_of(self._records)
        self._unnamed = {
            offset
            for offset, versions in self._records.items()
            if any(_identity(run, found) not in self._appends for found in versions)
        }

    def _places_of(self, records: Mapping[int, Sequence[ReadRecord]]) -> Mapping[Identity, list[int]]:
        places: dict[Identity, list[int]] = defaultdict(list)
        for offset in sorted(records):
            for identity in dict.fromkeys(_identity(self._run, found) for found in records[offset]):
                if identity is not None and identity in self._appends:
                    places[identity].append(offset)
        return places

    def altered(self) -> Iterator[Violation]:
        """Find records with other bytes than were submitted, and records that no process submitted."""
        promised = {each.offset: each for each in self._acknowledged}
        for offset, versions in self._records.items():
            if len(versions) > 1:
                shown = " and as ".join(repr(found.key[:100]) for found in versions)
                yield self._finding(ViolationKind.ALTERED, promised.get(offset), offset, f"was read as {shown}")
            for found in versions:
                identity = _identity(self._run, found)
                append = None if identity is None else self._appends.get(identity)
                if append is None:
                    # Named for no append: perhaps its name was altered.
                    owner = promised.get(offset)
                    kind = ViolationKind.FOREIGN if owner is None else ViolationKind.ALTERED
                    yield self._finding(kind, owner, offset, f"found {found.key[:100]!r}, which no process submitted")
                elif found.key != append.key(self._run):
                    yield self._finding(ViolationKind.ALTERED, append, offset, f"its key is {found.key[:100]!r}")
                elif (found.num_bytes, found.checksum) != (append.num_bytes, append.checksum):
                    text = f"expected {append.num_bytes} bytes with checksum {append.checksum}, found"
                    text += f" {found.num_bytes} with {found.checksum}"
                    yield self._finding(ViolationKind.ALTERED, append, offset, text)

    def wrong_copies(self) -> Iterator[Violation]:
        """Find appends that are in the log too often, too seldom, or elsewhere than promised."""
        for identity, append in self._appends.items():
            offsets = self._places.get(identity, [])
            if len(offsets) > 1:
                yield self._finding(ViolationKind.DOUBLED, append, offsets[1], f"is at the offsets {offsets}")
            if append.outcome is AppendOutcome.NOT_DURABLE and offsets:
                yield self._finding(
                    ViolationKind.UNWANTED, append, offsets[0], "was reported as not durable, and is in the log"
                )
            if append.outcome is not AppendOutcome.DURABLE:
                continue
            if append.expect_next not in {None, append.offset}:
                text = f"was to be appended at {append.expect_next}, and was acknowledged at {append.offset}"
                yield self._finding(ViolationKind.MISPLACED, append, append.offset, text)
            if offsets and append.offset not in offsets:
                text = f"was acknowledged at {append.offset}, and is at {offsets[0]}"
                yield self._finding(ViolationKind.MISPLACED, append, append.offset, text)
            # A record with another name stands at its offset: reported as altered.
            if not offsets and append.offset not in self._unnamed:
                yield self._finding(
                    ViolationKind.MISSING, append, append.offset, "was acknowledged, and is not in the log"
                )

    def lost(self, kept_from: int) -> Iterator[Violation]:
        """Find records that a reader saw, and that are neither collected nor in the log in the end."""
        promised = {each.offset: each for each in self._acknowledged}
        for offset in sorted(self._records.keys() - self._read_last):
            if offset >= kept_from:
                text = "was read, and is not in the log any more"
                yield self._finding(ViolationKind.MISSING, promised.get(offset), offset, text)

    def before_acknowledged(self) -> Iterator[Violation]:
        """Find appends that lie before one that was acknowledged before they began."""
        earliest: Append | None = None
        placed = [(self._place(each, offsets), each) for each, offsets in self._placed()]
        for offset, append in sorted(placed, key=lambda each: each[0], reverse=True):
            if earliest is not None and append.submitted_us > earliest.answered_us:
                text = f"lies before {_name(earliest)} at {earliest.offset}, which was acknowledged before it began"
                yield self._finding(ViolationKind.REORDERED, append, offset, text)
            acknowledged = append.outcome is AppendOutcome.DURABLE
            if acknowledged and (earliest is None or append.answered_us < earliest.answered_us):
                earliest = append

    def _placed(self) -> Iterator[tuple[Append, list[int]]]:
        for identity, offsets in self._places.items():
            yield self._appends[identity], offsets

    @staticmethod
    def _place(append: Append, offsets: list[int]) -> int:
        return append.offset if append.offset in offsets else offsets[0]

    def out_of_submission_order(self) -> Iterator[Violation]:
        """Find acknowledged appends that lie before an earlier one of the same writer."""
        last: dict[str, Append] = {}
        for append in sorted(self._acknowledged, key=lambda each: (each.process, each.number)):
            before = last.get(append.process)
            if before is not None and append.offset < before.offset:
                text = f"lies before {_name(before)} at {before.offset}, which its process submitted earlier"
                yield self._finding(ViolationKind.REORDERED, append, append.offset, text)
            else:
                last[append.process] = append

    def stale(self, looks: Iterable[EndSeen]) -> Iterator[Violation]:
        """Find reads that did not see a record which was acknowledged before they began."""
        answered = sorted(self._acknowledged, key=lambda each: each.answered_us)
        newest: Append | None = None
        index = 0
        for look in sorted(looks, key=lambda each: each.began_us):
            while index < len(answered) and answered[index].answered_us < look.began_us:
                if newest is None or answered[index].offset > newest.offset:
                    newest = answered[index]
                index += 1
            if newest is not None and look.next_offset <= newest.offset:
                behind_us = look.began_us - newest.answered_us
                text = f"was acknowledged {behind_us} µs before a read that found the log's end at {look.next_offset}"
                yield self._finding(ViolationKind.STALE, newest, newest.offset, text)

    def late(self, found: Iterable[ReadRecord], late_us: int) -> Iterator[Violation]:
        """Find records that a reader saw too long after their acknowledgement."""
        seen: dict[int, int] = {}
        for each in found:
            if each.seen_us:
                seen[each.offset] = min(each.seen_us, seen.get(each.offset, each.seen_us))
        for append in self._acknowledged:
            waited_us = seen.get(append.offset, 0) - append.answered_us
            if waited_us > late_us:
                text = f"was seen {waited_us / 1_000_000:.1f} s after its acknowledgement"
                yield self._finding(ViolationKind.LATE, append, append.offset, text)

    def _finding(self, kind: ViolationKind, append: Append | None, offset: int, text: str) -> Violation:
        record = "" if append is None else _name(append)
        return Violation(kind=kind, log=self._log, offset=offset, record=record, text=text)


def _name(append: Append) -> str:
    return f"{append.process}/{append.number}"


def _identity(run: str, found: ReadRecord) -> Identity | None:
    """Return which append a record's key names, if it names one of this run."""
    named_run, *parts = found.key.split("/")
    if named_run != run or len(parts) < 2 or not parts[1].isdecimal():  # noqa: PLR2004 - process and number
        return None
    return parts[0], int(parts[1])
