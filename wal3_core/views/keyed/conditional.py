"""Appends on the condition that a key's last record is the expected one, by the log's own condition on its end.

The record lands exactly at the end of the log that was looked at, or not at all: so no record of the key comes between.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import InvalidStateError
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import (
    ConditionNotMetError,
    ContentionError,
    TailMismatchError,
    UnavailableError,
    UnknownDurabilityError,
)
from wal3_core.log.write.columns import check_records
from wal3_core.log.write.commit_results import call_each
from wal3_core.log.write.writer import submit_told
from wal3_core.runtime import Outcome, callbacks_held
from wal3_core.workers import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from wal3_core.log.write.writer import LogWriter
    from wal3_core.model.position import LogPosition
    from wal3_core.model.record import Message
    from wal3_core.runtime import Runtime
    from wal3_core.views.keyed.key_tails import KeyTails

# In place of stores: these callbacks share no workers with the tries that they may wait for.
_TRIES = "tries of conditional appends"
_CALLBACKS = "callbacks of conditional appends"


class ConditionalAppend:
    """One append; ``outcome`` gets the position of its first record, or the error that says why there is none.

    It is tried again while only other keys have got records. The first try is made in the caller's thread, any other
    by a worker when the one before it has ended.
    """

    def __init__(
        self,
        writer: LogWriter,
        tails: KeyTails,
        expected: Mapping[bytes, int],
        records: Sequence[Message],
        runtime: Runtime,
    ) -> None:
        self._writer = writer
        self._tails = tails
        self._expected = expected
        self._records = records
        self._runtime = runtime
        self.outcome: Outcome[LogPosition] = Outcome()
        self._lock = runtime.lock()
        # One of them at most: its first try submits it, or its caller waits no longer.
        self._is_submitted = self._is_withdrawn = False

    def begin(self, tries_max: int, until_s: float | None) -> None:
        """Make the first of ``tries_max`` tries; raises what keeps it from being made, but for another last record.

        UnavailableError if the store has not answered by ``until_s``. Then it is to be given up.
        """
        if until_s is None:
            self._try_first(tries_max, None)
            return
        begun: Outcome[None] = Outcome()
        self._runtime.spawn(partial(self._begin, tries_max, until_s, begun), share=Share(_TRIES, self._tails.url))
        try:
            self._runtime.wait(begun, max(0.0, until_s - self._runtime.monotonic_s()))
        except TimeoutError:
            with self._lock:
                self._is_withdrawn = not self._is_submitted
            if self._is_withdrawn:
                raise unanswered(self._tails.url) from None

    def _begin(self, tries_max: int, until_s: float, begun: Outcome[None]) -> None:
        try:
            self._try_first(tries_max, until_s)
        except BaseException as failure:  # noqa: BLE001 - it is raised where one waits for it
            self.give_up(failure)
            begun.set_exception(failure)
        else:
            begun.set_result(None)

    def _try_first(self, tries_max: int, until_s: float | None) -> None:
        try:
            self._submit(tries_max, until_s)
        except TailMismatchError as error:
            with contextlib.suppress(InvalidStateError):
                self.outcome.set_exception(error)

    def give_up(self, failure: BaseException) -> None:
        """End the wait for it: its caller failed to begin it, or was interrupted."""
        interrupted = not isinstance(failure, Exception)
        # A try may be under way by then, and may have ended it. Those who wait for its end were not interrupted.
        with contextlib.suppress(InvalidStateError):
            self.outcome.set_exception(UnknownDurabilityError("interrupted") if interrupted else failure)

    def _submit(self, tries_left: int, until_s: float | None = None) -> None:
        columns, end = check_records(self._records, self._writer.options), self._end()
        with self._lock:
            if self._is_withdrawn:
                return
            self._is_submitted = True
        tell = partial(self._ended, tries_left - 1)
        timeout_s = None if until_s is None else max(0.0, until_s - self._runtime.monotonic_s())
        submit_told(self._writer, columns, tell, expect_next=end, timeout_s=timeout_s)

    def _end(self) -> int:
        """Return the end of the log up to which each key's last record is the expected one."""
        ends = []
        for key, expected in self._expected.items():
            tail, end = self._tails.find(key)
            if tail != expected:
                wanted = f"its last record at offset {expected}" if expected else "no record"
                message = f"key {ascii(key)[:80]}: expected {wanted}, found {f'it at {tail}' if tail else 'none'}"
                raise TailMismatchError(message, tail=tail)
            ends.append(end)
        # What was appended after the first look may be of its key: then the condition on the end fails.
        return min(ends)

    def _ended(self, tries_left: int, done: Future[LogPosition]) -> None:
        # Another try reads the log. It waits for no callback of the log's own, which may wait for this append.
        self._runtime.spawn(partial(self._done, done, tries_left), share=Share(_TRIES, self._tails.url))

    def _done(self, done: Future[LogPosition], tries_left: int) -> None:
        callbacks: list[Callable[[], None]] = []
        with callbacks_held(callbacks):
            self._decide(done, tries_left)
        if callbacks:
            # Callers' code: it may wait for other conditional appends, whose tries may end behind this one, in this
            # thread.
            self._runtime.spawn(partial(call_each, callbacks), share=Share(_CALLBACKS, self._tails.url))

    def _decide(self, done: Future[LogPosition], tries_left: int) -> None:
        error = done.exception()
        try:
            if not isinstance(error, ConditionNotMetError):
                if error is None:
                    self.outcome.set_result(done.result())
                else:
                    self.outcome.set_exception(error)
            elif tries_left:
                self._submit(tries_left)
            else:
                self.outcome.set_exception(_crowded(error))
        except BaseException as failure:  # noqa: BLE001 - it is raised where the outcome is awaited
            self.give_up(failure)


def unanswered(log: str) -> UnavailableError:
    """Return the error of an append that was to begin sooner than the store answers."""
    message = f"log {log}: expected an append to begin in the time that it was given, found the store still silent"
    return UnavailableError(f"{message}: nothing was appended")


def _crowded(error: ConditionNotMetError) -> ContentionError:
    crowded = ContentionError(f"other keys got records at each try of a conditional append: {error}")
    crowded.__cause__ = error
    return crowded
