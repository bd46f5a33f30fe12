"""Attempted appends and their outcomes, written where a kill cannot lose them, and what must follow from them.

Each process writes a file of its own, unbuffered: a line before an append, and one after it. A record that a
killed process saw acknowledged is in the log; one without an outcome may or may not be.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wal3_core import LogPosition, LogReader, NotDurableError, Record, UnknownDurabilityError, scrub
from wal3_core.store.object_store import ObjectStore

Outcome = Literal["acked", "refused", "unknown", "pending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One append of ``count`` records; times are of the clock that all processes of a machine share."""

    name: str
    count: int
    began_ns: int
    outcome: Outcome = "pending"
    offset: int = 0
    answered_ns: int = 2**63
    why: str = ""

    @property
    def bodies(self) -> list[bytes]:
        """The bodies it appends: each names its attempt, and no two are alike."""
        return [body_of(self.name, part) for part in range(self.count)]


def body_of(name: str, part: int) -> bytes:
    """Make a body in which any changed byte is detectable."""
    head = f"{name}#{part}"
    chance = random.Random(head)
    return f"{head}:".encode() + chance.randbytes(chance.randrange(600))


class Journal:
    """One process's attempts. Safe to share between its threads: a line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append(self, name: str, count: int, action: Callable[[list[bytes]], LogPosition]) -> Outcome:
        """Record the attempt, let ``action`` append its bodies, record the outcome."""
        attempt = Attempt(name=name, count=count, began_ns=time.monotonic_ns())
        self._write({"name": name, "count": count, "began_ns": attempt.began_ns})
        outcome: Outcome
        offset, why = 0, ""
        try:
            offset, outcome = action(attempt.bodies).offset, "acked"
        except NotDurableError as error:
            outcome, why = "refused", f"{type(error.__cause__).__name__}: {error}"
        except UnknownDurabilityError as error:
            outcome, why = "unknown", f"{type(error.__cause__).__name__}: {error}"
        answered_ns = time.monotonic_ns()
        self._write({"name": name, "outcome": outcome, "offset": offset, "answered_ns": answered_ns, "why": why})
        return outcome

    def _write(self, line: Mapping[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_journals(folder: Path) -> dict[str, Attempt]:
    """Collect the attempts of all processes, by name."""
    attempts: dict[str, Attempt] = {}
    for path in sorted(folder.iterdir()):
        # A line cut short by a kill was never complete.
        for line in path.read_bytes().split(b"\n")[:-1]:
            fields = json.loads(line)
            name = fields["name"]
            if "count" in fields:
                assert name not in attempts, f"attempt {name}: begun twice"
                attempts[name] = Attempt(**fields)
            else:
                attempts[name] = replace(attempts[name], **fields)
    return attempts


def check_promises(store: ObjectStore, log: str, attempts: Mapping[str, Attempt]) -> list[Record]:
    """Compare a log with its writers' outcomes; return its records.

    Acknowledged records exist exactly once, at the reported offset; refused ones never; the others at most once;
    no other records exist; appends are whole and in real time's order; no gap; sound.
    """
    records = list(LogReader.open(store, log).records())
    assert [record.offset for record in records] == list(range(1, len(records) + 1))
    places = _places(records, attempts)
    for name, attempt in attempts.items():
        match attempt.outcome:
            case "acked":
                assert places.get(name) == attempt.offset, f"{attempt}: found at {places.get(name)}"
            case "refused":
                assert name not in places, f"{attempt}: found at {places[name]}"
            case "unknown" | "pending":
                pass
    _check_order([attempts[name] for name in sorted(places, key=places.__getitem__)])
    report = scrub(store, log)
    assert report.sound, report.problems
    assert report.num_records == len(records)
    return records


def _places(records: Iterable[Record], attempts: Mapping[str, Attempt]) -> dict[str, int]:
    """Find the first record of each attempt; none may be there twice, in part, or with other bytes."""
    places: dict[str, int] = {}
    expected: list[bytes] = []
    for record in records:
        assert record.body is not None
        if not expected:
            name = record.body.split(b"#", 1)[0].decode()
            assert name in attempts, f"offset {record.offset}: no attempt appended {record.body[:40]!r}"
            assert name not in places, f"{attempts[name]}: found at {places[name]} and again at {record.offset}"
            places[name], expected = record.offset, attempts[name].bodies
        wanted = expected.pop(0)
        assert record.body == wanted, f"offset {record.offset}: expected {wanted[:40]!r}, found {record.body[:40]!r}"
    assert not expected, f"log ends inside an append, before {expected[0][:40]!r}"
    return places


def _check_order(in_log: list[Attempt]) -> None:
    """Check that no append lies behind one that began after it had been acknowledged."""
    earliest = None
    for attempt in reversed(in_log):
        if earliest is not None:
            assert attempt.began_ns <= earliest.answered_ns, (
                f"{attempt} lies before {earliest}, which was acknowledged before"
            )
        if earliest is None or attempt.answered_ns < earliest.answered_ns:
            earliest = attempt


def summary(attempts: Mapping[str, Attempt]) -> dict[str, int]:
    """Count the outcomes, for printing."""
    return dict(Counter(attempt.outcome for attempt in attempts.values()))
