"""The end of an exercise: every log is read back, verified, and compared with the ledgers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, GarbageCollectedError, LogNotFoundError
from wal3_core.fleet.exercise.checker import Finding, Kind, check_log
from wal3_core.fleet.exercise.ledger import PARTS, Found, LogLedger, Outcome, read_part
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import scrub

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from wal3_core.fleet.exercise.place import RunStore
    from wal3_core.fleet.exercise.report import Checked


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
            _count(checked, ledger)
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
            ledger.found.append(Found.of(record))
    except LogNotFoundError:
        # Created by the first append: there may have been none. If there was, its records are missing.
        pass
    except (CorruptError, GarbageCollectedError) as error:
        ledger.problems.append(str(error))
    return kept_from


def _scrubbed(place: RunStore, log: str) -> list[Finding]:
    try:
        report = scrub(place, log)
    except LogNotFoundError:
        return []
    return [
        Finding(kind=Kind.UNSOUND, log=log, offset=0, record="", text=f"{problem.path}: {problem.message}")
        for problem in report.problems
    ]


def _count(checked: Checked, ledger: LogLedger) -> None:
    for append in ledger.appends:
        checked.outcomes[append.outcome] += 1
        checked.sizes["conditional"] += append.expect_next is not None
        if append.outcome is Outcome.DURABLE:
            checked.sizes["bytes"] += append.num_bytes
            checked.sizes["largest"] = max(checked.sizes["largest"], append.num_bytes)
            checked.latencies.add((append.answered_us - append.submitted_us) / 1_000_000)
