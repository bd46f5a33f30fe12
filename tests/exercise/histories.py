"""Made-up histories of one log: what processes submit and are answered, and the log that follows from it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from wal3_core.exercise.ledger import Append, AppendOutcome, EndSeen, LogLedger, ReadRecord

RUN = "run-20260101T120000Z-a1b2c3"
LOG = "log-0007"
LATE_US = 1000
PROCESSES = ("p00.0", "p00.1", "p01.0")

# One step of one process: submit, commit its oldest append, refuse it, answer the oldest that is done.
Step = tuple[str, str]
steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "commit", "commit", "answer", "answer", "refuse", "forget", "look"]),
        st.sampled_from(PROCESSES),
    ),
    max_size=80,
)


@dataclass
class History:
    """A right history, made step by step; a step that is not possible is left out. The clock ticks at each step."""

    now_us: int = 0
    submitted: defaultdict[str, deque[Append]] = field(default_factory=lambda: defaultdict(deque))
    done: defaultdict[str, deque[Append]] = field(default_factory=lambda: defaultdict(deque))
    ended: list[Append] = field(default_factory=list)
    found: list[ReadRecord] = field(default_factory=list)
    end_reads: list[EndSeen] = field(default_factory=list)
    number: int = 0

    def step(self, what: str, process: str) -> None:
        self.now_us += 1
        getattr(self, f"_{what}")(process)

    @property
    def ledger(self) -> LogLedger:
        """What the ledgers say, with the final read: those without an answer are pending."""
        left = [each for queue in (*self.submitted.values(), *self.done.values()) for each in queue]
        pending = [replace(each, outcome=AppendOutcome.PENDING, offset=0) for each in left]
        return LogLedger([*self.ended, *pending], list(self.found), list(self.end_reads), [])

    def _submit(self, process: str) -> None:
        self.number += 1
        append = Append(
            process=process, number=self.number, num_bytes=9, checksum=f"{self.number:016x}", submitted_us=self.now_us
        )
        self.submitted[process].append(append)

    def _commit(self, process: str) -> None:
        if self.submitted[process]:
            append = self.submitted[process].popleft()
            offset = len(self.found) + 1
            self.found.append(found_of(append, offset))
            self.done[process].append(replace(append, outcome=AppendOutcome.DURABLE, offset=offset))

    def _refuse(self, process: str) -> None:
        if self.submitted[process]:
            self.done[process].append(replace(self.submitted[process].popleft(), outcome=AppendOutcome.NOT_DURABLE))

    def _answer(self, process: str) -> None:
        if self.done[process]:
            self.ended.append(replace(self.done[process].popleft(), answered_us=self.now_us))

    def _forget(self, process: str) -> None:
        """Answer with an unknown outcome; whether it is in the log is open."""
        if self.done[process]:
            append = replace(self.done[process].popleft(), outcome=AppendOutcome.UNKNOWN, offset=0)
            self.ended.append(replace(append, answered_us=self.now_us))

    def _look(self, _process: str) -> None:
        self.end_reads.append(EndSeen(began_us=self.now_us, next_offset=len(self.found) + 1))


def found_of(append: Append, offset: int) -> ReadRecord:
    return ReadRecord(offset=offset, key=append.key(RUN), num_bytes=append.num_bytes, checksum=append.checksum)


def history(taken: Iterable[Step]) -> LogLedger:
    made = History()
    for what, process in taken:
        made.step(what, process)
    return made.ledger


def acknowledged(ledger: LogLedger) -> list[Append]:
    return sorted(
        (each for each in ledger.appends if each.outcome is AppendOutcome.DURABLE), key=lambda each: each.offset
    )
