"""What processes tried to append and were told, kept where no kill reaches it, and what must follow from it.

Each process writes a file of its own, unbuffered: a line before an append, and one after it. What a
killed process had been told is there; what it had not been told may or may not be in the log.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from wal3_core import LogReader, NotDurableError, UnknownDurabilityError, scrub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from wal3_core import LogPosition, Record
    from wal3_core.storage.object_store import ObjectStore

Outcome = Literal["acked", "refused", "unknown", "untold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One append of ``count`` records; times are of the clock that all processes of a machine share."""

    name: str
    count: int
    began_ns: int
    outcome: Outcome = "untold"
    offset: int = 0
    told_ns: int = 2**63
    why: str = ""

    @property
    def bodies(self) -> list[bytes]:
        """What it appends: every body names its attempt, and no two are alike."""
        return [body_of(self.name, part) for part in range(self.count)]


def body_of(name: str, part: int) -> bytes:
    """Make a body that tells by itself whether any byte of it was changed."""
    head = f"{name}#{part}"
    chance = random.Random(head)
    return f"{head}:".encode() + chance.randbytes(chance.randrange(600))


class Journal:
    """One process's attempts. Safe to share between its threads: a line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append(self, name: str, count: int, action: Callable[[list[bytes]], LogPosition]) -> Outcome:
        """Note the attempt, let ``action`` append its bodies, note what was told."""
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
        told_ns = time.monotonic_ns()
        self._write({"name": name, "outcome": outcome, "offset": offset, "told_ns": told_ns, "why": why})
        return outcome

    def _write(self, line: Mapping[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_journals(folder: Path) -> dict[str, Attempt]:
    """Gather what all processes wrote, by the attempts' names."""
    attempts: dict[str, Attempt] = {}
    for path in sorted(folder.iterdir()):
        # A line that a kill cut short was told to nobody.
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
    """Hold a log against what its writers were told; return its records.

    Acknowledged exactly once, where it was said to be; refused never; the others at most once;
    nothing else; appends whole and in real time's order; no gap; sound.
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
            case "unknown" | "untold":
                pass
    _check_order([attempts[name] for name in sorted(places, key=places.__getitem__)])
    report = scrub(store, log)
    assert report.sound, report.problems
    assert report.num_records == len(records)
    return records


def _places(records: Iterable[Record], attempts: Mapping[str, Attempt]) -> dict[str, int]:
    """Find where each attempt's first record is; none may be there twice, in part, or with other bytes."""
    places: dict[str, int] = {}
    expected: list[bytes] = []
    for record in records:
        assert record.body is not None
        if not expected:
            name = record.body.split(b"#", 1)[0].decode()
            assert name in attempts, f"offset {record.offset}: nobody appended {record.body[:40]!r}"
            assert name not in places, f"{attempts[name]}: found at {places[name]} and again at {record.offset}"
            places[name], expected = record.offset, attempts[name].bodies
        wanted = expected.pop(0)
        assert record.body == wanted, f"offset {record.offset}: expected {wanted[:40]!r}, found {record.body[:40]!r}"
    assert not expected, f"log ends inside an append, before {expected[0][:40]!r}"
    return places


def _check_order(in_log: list[Attempt]) -> None:
    """See that no append lies behind one that began after it had been acknowledged."""
    earliest = None
    for attempt in reversed(in_log):
        if earliest is not None:
            assert attempt.began_ns <= earliest.told_ns, f"{attempt} lies before {earliest}, which was told before"
        if earliest is None or attempt.told_ns < earliest.told_ns:
            earliest = attempt


def summary(attempts: Mapping[str, Attempt]) -> dict[str, int]:
    """Count the outcomes, for people."""
    return dict(Counter(attempt.outcome for attempt in attempts.values()))
