"""What callers saw of appends with a name, in every life of a log and of its copy, and what must hold of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tests.faults.history import PENDING_S, Append, History
from wal3_core.format.paths import LogId

if TYPE_CHECKING:
    from tests.faults.oracle import Oracle
    from wal3_core import Message
    from wal3_core.log.write.once import Once

Rows = tuple["Message", ...]
# refused: nothing of this attempt is in the log, nor will be. pending: its process was killed before the answer.
Outcome = Literal["pending", "made", "repeated", "refused", "unknown"]


@dataclass(slots=True)
class Attempt:
    """One install of an append, in one life of a log, and when (virtual seconds)."""

    once: Once
    rows: Rows
    log_id: LogId
    began_s: float
    ended_s: float = PENDING_S
    outcome: Outcome = "pending"

    @property
    def name(self) -> tuple[str, str]:
        """The append's; each writer has names of its own."""
        return self.once.cursor, self.once.append


@dataclass
class NamedLedger:
    """All attempts; ``next_numbers`` are the checkpoints of series, ``promoted`` is whether the copy is in use."""

    attempts: list[Attempt] = field(default_factory=list)
    next_numbers: dict[str, int] = field(default_factory=dict)
    begun: dict[str, Once] = field(default_factory=dict)
    rows: dict[Message, Attempt] = field(default_factory=dict)
    promoted: bool = False

    def begin(self, attempt: Attempt) -> Attempt:
        """Note an attempt before it is made, as a killed process never returns."""
        self.attempts.append(attempt)
        self.rows.update(dict.fromkeys(attempt.rows, attempt))
        series, number = attempt.once.series, attempt.once.number
        if series and (series not in self.begun or self.begun[series].number < number):
            self.begun[series] = attempt.once
        return attempt

    def names(self, life: Oracle, log_id: LogId) -> Iterator[Named]:
        """Return the appends by name that were attempted in a life, or that it has."""
        by_name = defaultdict[tuple[str, str], list[Attempt]](list)
        for attempt in self.attempts:
            by_name[attempt.name].append(attempt)
        for attempts in by_name.values():
            yield Named(life, attempts, [each for each in attempts if each.log_id == log_id])

    def check(self, lives: Mapping[LogId, Oracle]) -> None:
        """Check each life; AssertionError where a promise was broken."""
        for log_id, life in lives.items():
            for named in self.names(life, log_id):
                named.check(lives.values())


@dataclass(frozen=True, slots=True)
class Named:
    """An append in one life: all attempts of its name, and those in this life."""

    life: Oracle
    attempts: Sequence[Attempt]
    mine: Sequence[Attempt]

    def places(self) -> dict[Rows, list[int]]:
        """Where the life has which rows under the name, by the offset of the first."""
        found = dict[Rows, list[int]]()
        records = self.life.records
        for rows in {attempt.rows for attempt in self.attempts}:
            if self._begins_within(rows):
                continue
            offsets = [at for at, record in enumerate(records, 1) if record == rows[0]]
            for row in rows[1:]:
                assert records.count(row) == len(offsets), f"in {self.life.log}, torn or doubled: {rows}"
            for at in offsets:
                assert tuple(records[at - 1 : at - 1 + len(rows)]) == rows, f"in {self.life.log}, torn: {rows}"
            if offsets:
                found[rows] = offsets
        return found

    def _begins_within(self, rows: Rows) -> bool:
        """Whether the life is a copy that begins within the append: collections of its source had taken the rest."""
        records = self.life.records
        held = records[self.life.begins - 1 :] if self.life.begins > 1 else []
        cut = rows.index(held[0]) if held and held[0] in rows else 0
        return cut > 0 and (*held[: len(rows) - cut],) == rows[cut:] and not any(map(records.count, rows[:cut]))

    def _was_before(self, lives: Iterable[Oracle]) -> bool:
        """Whether the life is a copy that begins behind the append: its source's collections had taken that."""
        first = {attempt.rows[0] for attempt in self.attempts}
        return any(not first.isdisjoint(each.records[: self.life.begins - 1]) for each in lives)

    def check(self, lives: Iterable[Oracle]) -> None:
        """It is in the log at most once, and once if an install returned; refused rows are not."""
        places = self.places()
        count = sum(map(len, places.values()))
        assert count <= 1, f"in {self.life.log}, {count} times: {self.attempts[0].name} at {[*places.values()]}"
        for attempt in self.mine:
            if attempt.outcome == "made":
                assert attempt.rows in places, f"in {self.life.log}, lost: {attempt}"
            if attempt.outcome == "repeated":
                assert places or self._was_before(lives), f"in {self.life.log}, said to be there, and is not: {attempt}"
        for rows, (at,) in places.items():
            if at > self.life.num_inherited and not self.life.log.startswith("backup/"):
                may = [each for each in self.mine if each.rows == rows and each.outcome != "refused"]
                assert may, f"in {self.life.log} at {at}, and every attempt was refused: {self.mine}"


@dataclass
class NamedHistory(History):
    """A history in which some records are those of named appends."""

    ledger: NamedLedger = field(default_factory=NamedLedger)

    def native(self, life: Oracle) -> list[Message]:
        return [message for message in super().native(life) if message not in self.ledger.rows]

    def appends_of(self, log_id: LogId, life: Oracle, homes: Mapping[Message, Oracle]) -> list[Append]:
        """Return also the named ones that this life has, each from its first attempt to its first answer."""
        found = super().appends_of(log_id, life, homes)
        for named in self.ledger.names(life, log_id):
            for rows, (at,) in named.places().items():
                mine = [each for each in named.mine if each.rows == rows]
                if at > life.num_inherited and mine:
                    answered = [each.ended_s for each in mine if each.outcome in {"made", "repeated"}]
                    outcome = "acked" if answered else "unknown"
                    ended_s = min(answered, default=PENDING_S)
                    found.append(Append(rows, mine[0].began_s, ended_s, offset=at, outcome=outcome))
        return found
