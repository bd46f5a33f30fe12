"""The reading process of an exercise: it follows some of the logs, notes what it reads, and moves their cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogError, LogNotFoundError, UnavailableError
from wal3_core.fleet.exercise.ledger import Found, Ledger, Look
from wal3_core.fleet.exercise.place import log_name
from wal3_core.log.read.reader import LogReader
from wal3_core.model.record import position_after
from wal3_core.storage.documents.cursor_store import CursorStore, Witness

if TYPE_CHECKING:
    from wal3_core.fleet.exercise.process import Work
    from wal3_core.model.record import Record

CURSOR = "exercise"
_LOOKS_S = 0.25
_SAVES_S = 1.0
_NOTED_MAX = 1000


def follow(work: Work) -> None:
    """Read until the process has to end, then once more to the ends of the logs."""
    followed = [_Followed(work, log_name(number)) for number in work.task.followed]
    ledger = Ledger(work.folder, work.task.name)
    more = True
    while more:
        # The last round begins after the writers have ended.
        more = not work.pause(_LOOKS_S)
        for each in followed:
            each.look(ledger)


class _Followed:
    """One log."""

    def __init__(self, work: Work, log: str) -> None:
        self._work = work
        self._log = log
        self._reader: LogReader | None = None
        self._next = 1
        self._cursors = CursorStore(work.store, log)
        self._witness: Witness | None = None
        self._saved_s = 0.0

    def look(self, ledger: Ledger) -> None:
        """Read what is new; a store that does not answer, or a log that is not there yet, is for the next time."""
        try:
            self._look(ledger)
        except (UnavailableError, LogNotFoundError):
            self._work.counts.count("looks_failed")
        except LogError as error:
            kind = "" if isinstance(error, CorruptError) else f"{type(error).__name__}: "
            ledger.problem(self._log, f"{kind}{error}")

    def _look(self, ledger: Ledger) -> None:
        began_us = self._work.now_us
        self._reader = self._reader or LogReader.open(self._work.store, self._log)
        manifest = self._reader.manifest()
        end = manifest.next.position.offset
        ledger.look(self._log, Look(began_us=began_us, next_offset=end))
        if end <= self._next:
            return
        last: Record | None = None
        for record in self._reader.records(self._next, manifest=manifest):
            ledger.read(self._log, [Found.of(record, self._work.now_us)])
            self._next, last = record.offset + 1, record
        if self._work.task.maintained and last is not None:
            self._save(last)

    def _save(self, last: Record) -> None:
        """Move the cursor behind what was noted: from then on it can be collected."""
        now_s = self._work.runtime.monotonic_s()
        if now_s < self._saved_s + _SAVES_S:
            return
        self._saved_s = now_s
        witness = self._witness or self._cursors.load(CURSOR)
        self._witness = None
        if witness is None:
            self._witness = self._cursors.init(CURSOR, position_after(last))
        else:
            self._witness = self._cursors.save(CURSOR, last, witness)
