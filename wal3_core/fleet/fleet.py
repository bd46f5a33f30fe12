"""Writing to many logs of a store from one process: logs are opened when they are used, and closed for others.

All logs share the process's workers, which take turns by log, and one dirty log. Source: docs/fleet.md.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import InvalidStateError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, integer, optional, seconds, several, text
from wal3_core.errors import InvalidRequestError, LogError, UnknownDurabilityError, UnmarkedError
from wal3_core.fleet.dirty.back_pressure import BackPressure
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.fleet.open_logs import FleetOptions, OpenLogs, Use
from wal3_core.format.paths import DIRTY, check_log_name, is_dirty_log
from wal3_core.log.write.columns import a_table, check_records, check_table, one_record
from wal3_core.log.write.writer import LogWriter, num_offsets_held, result_of, submit_columns
from wal3_core.runtime import Closing, Outcome, Runtime, shared_runtime
from wal3_core.store.object_store import a_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from wal3_core.format.position import LogPosition
    from wal3_core.format.record import Message
    from wal3_core.log.write.columns import Columns, Rows
    from wal3_core.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats:
    """A fleet at one moment; counts start when it was opened.

    ``logs_open`` are open, ``logs_working`` of them have appends without an outcome. ``appends_waiting`` and
    ``bytes_held`` (roughly, in memory) are those appends; ``appends`` counts the durable ones, ``appends_failed`` every
    append with an error. ``logs_opened`` and ``logs_closed`` count openings, and closings for other logs.
    ``dirty_logs`` is how many logs the markers go to. ``logs_refused`` have more unprocessed records than they may:
    their appends are refused.
    """

    logs_open: int
    logs_working: int
    appends_waiting: int
    bytes_held: int
    appends: int
    appends_failed: int
    logs_opened: int
    logs_closed: int
    dirty_logs: int
    logs_refused: int


def _check_written(log: object, what: str) -> str:
    """Check the name of a log to write. Names may come from a fleet's users: none of them is a dirty log's.

    A record there that is no marker would stop the roll-ups of all logs that are marked beside it.
    """
    name = check_log_name(log, what)
    if is_dirty_log(name):
        message = f"{what} {name!r}: expected none below {DIRTY}/, where servers mark what they append"
        raise InvalidRequestError(message)
    return name


# An append that takes longer is waited for as one whose store may hang.
_PROMPT_S = 5.0


class Fleet(Closing):
    """Appends to any number of logs of one store.

    Safe to share between threads; close it, or use it as a context manager. An open log that is not written makes no
    requests. A callback of an append's future may make any call, and wait for it, as one of a ``LogWriter``. After an
    append that finds its log sealed, destroyed or replaced, the next one opens the log again that has the name then.
    """

    def __init__(self, store: ObjectStore, dirty_log: DirtyLog | None, options: FleetOptions, runtime: Runtime) -> None:
        open_log = LogWriter.open_or_create if options.creates else LogWriter.open
        open_writer = partial(open_log, store, options=options.writer, runtime=runtime, marks=dirty_log)
        self._logs = OpenLogs(store, open_writer, options, runtime)
        self._pressure = BackPressure(store, options, runtime, self._logs.lock)
        self._options = options
        self._dirty_log = dirty_log
        self._runtime = runtime
        # Outcomes that callers wait for.
        self._under_way: set[Outcome[LogPosition]] = set()

    @classmethod
    @checked(store=a_store, server=optional(text), options=optional(instance_of(FleetOptions)))
    def open(
        cls,
        store: ObjectStore,
        *,
        server: str | None = None,
        options: FleetOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a fleet. With the name of this server its appends are marked in ``dirty/SERVER``, for maintenance."""
        runtime, options = runtime or shared_runtime(), options or FleetOptions()
        dirty_log = None if server is None else DirtyLog.open_or_create(store, server, runtime=runtime)
        return cls(store, dirty_log, options, runtime)

    @checked(log=_check_written)
    def append(
        self, log: str, body: bytes | None, *, key: bytes | None = None, expect_next: int | None = None
    ) -> LogPosition:
        """Append one record to a log and block until it is durable; arguments and errors as ``LogWriter.append``.

        LogNotFoundError when there is no log of that name, unless the options say ``creates``. BackPressureError when
        the log's consumers are too far behind.
        """
        return self._outcome(log, self.submit(log, body, key=key, expect_next=expect_next))

    @checked(log=_check_written, records=several)
    def append_many(
        self, log: str, records: Iterable[bytes | Message], *, expect_next: int | None = None
    ) -> LogPosition:
        """Append records to a log at adjacent offsets, all or none; return the first one's position."""
        return self._outcome(log, self.submit_many(log, records, expect_next=expect_next))

    @checked(log=_check_written, table=a_table)
    def append_table(self, log: str, table: Rows, *, expect_next: int | None = None) -> LogPosition:
        """Append the rows of an Arrow table to a log, as ``LogWriter.append_table``."""
        return self._outcome(log, self.submit_table(log, table, expect_next=expect_next))

    @checked(log=_check_written, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit(
        self,
        log: str,
        body: bytes | None,
        *,
        key: bytes | None = None,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue one record for a log; the future gets what ``append`` returns or raises.

        Blocks while the log is opened, and while there is no room within ``bytes_held_max`` or
        ``logs_open_max``; for ``timeout_s`` seconds at most, then raises OverloadedError and the record is certainly
        not in the log. Raises BackPressureError at once when the log's consumers are too far behind.
        """
        self._logs.check_reentry()
        return self._submit(log, one_record(body, key, self._options.writer), expect_next, timeout_s)

    @checked(log=_check_written, records=several, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit_many(
        self,
        log: str,
        records: Iterable[bytes | Message],
        *,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue records for a log that stay together; the future gets what ``append_many`` returns or raises."""
        self._logs.check_reentry()
        # Also bounds what is taken from an iterable without an end.
        return self._submit(log, check_records(records, self._options.writer), expect_next, timeout_s)

    @checked(log=_check_written, table=a_table, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit_table(
        self, log: str, table: Rows, *, expect_next: int | None = None, timeout_s: float | None = None
    ) -> Future[LogPosition]:
        """Queue the rows of a table for a log; the future gets what ``append_table`` returns or raises."""
        self._logs.check_reentry()
        return self._submit(log, check_table(table, self._options.writer), expect_next, timeout_s)

    def _submit(
        self, log: str, columns: Columns, expect_next: int | None, timeout_s: float | None
    ) -> Future[LogPosition]:
        until_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        self._pressure.refuse(log)
        use = Use()
        outcome: Outcome[LogPosition] = Outcome()
        try:
            writer = self._logs.take(log, use, until_s)
            self._logs.begin(use, columns.bytes_held, until_s)
            self._under_way.add(outcome)
            # Not by a callback: those of other appends may wait for this outcome.
            on_complete = partial(self._ended, use, columns, outcome)
            submit_columns(writer, columns, on_complete, expect_next=expect_next, timeout_s=self._logs.left_s(until_s))
        except BaseException as error:
            # The caller never gets it, but ``flush`` may wait for it.
            self._pass_on(outcome, LogError(f"log {log}: the caller was interrupted"))
            self._logs.end(use, error)
            raise
        finally:
            self._logs.leave(use)
        return outcome

    def _outcome(self, log: str, future: Future[LogPosition]) -> LogPosition:
        """Wait as the log's writer does; a log that was closed for others has no append under way."""
        # Nearly all have their outcomes by then.
        with contextlib.suppress(TimeoutError):
            return self._runtime.wait(future, _PROMPT_S)
        with self._logs.lock:
            slot = next((slot for slot in self._logs if slot.log == log), None)
        if slot is None or not slot.opened.done() or slot.opened.exception() is not None:
            return self._runtime.wait(future)
        return result_of(slot.opened.result(), future)

    def _ended(self, use: Use, columns: Columns, outcome: Outcome[LogPosition], done: Future[LogPosition]) -> None:
        """Pass an outcome on once it is counted: a caller that knows it finds a log that is over opened again."""
        error = done.exception()
        try:
            self._logs.end(use, error)
            if use.slot is not None and (error is None or isinstance(error, UnmarkedError)):
                held = partial(num_offsets_held, use.slot.opened.result())
                self._pressure.appended(use.slot.log, held, columns.num_records)
        finally:
            self._pass_on(outcome, error or done.result())

    def _pass_on(self, outcome: Outcome[LogPosition], found: LogPosition | BaseException) -> None:
        # That of an interrupted caller is set already.
        with contextlib.suppress(InvalidStateError):
            if isinstance(found, BaseException):
                outcome.set_exception(found)
            else:
                outcome.set_result(found)
        self._under_way.discard(outcome)

    @checked(log=_check_written)
    def writer(self, log: str) -> HeldWriter:
        """Return a log's writer, opened now and kept open until it is closed; it is shared with all other users."""
        self._logs.check_reentry()
        use = Use()
        try:
            self._logs.take(log, use, None)
            return HeldWriter(self, log, partial(self._logs.leave, use))
        except BaseException:
            self._logs.leave(use)
            raise

    def stats(self) -> FleetStats:
        """Return what is open and waits, and the counts so far. Cheap; from any thread."""
        self._runtime.check_process()
        with self._logs.lock:
            working = [slot.appends for slot in self._logs if slot.appends]
            return FleetStats(
                logs_open=len(self._logs),
                logs_working=len(working),
                appends_waiting=sum(working),
                bytes_held=self._logs.bytes_held,
                appends=self._logs.appends,
                appends_failed=self._logs.appends_failed,
                logs_opened=self._logs.opened,
                logs_closed=self._logs.closed_for_others,
                dirty_logs=0 if self._dirty_log is None else self._dirty_log.lanes,
                logs_refused=self._pressure.num_refused(),
            )

    def flush(self) -> None:
        """Block until everything submitted so far has its outcome."""
        self._logs.check_reentry()
        with self._logs.lock:
            slots = [slot for slot in self._logs if slot.appends]
        under_way = tuple(self._under_way)
        for slot in slots:
            slot.opened.result().flush()
        self._await(under_way)

    def close(self) -> None:
        """Accept no more appends, and block until those submitted have their outcome."""
        self._logs.check_reentry()
        self._pressure.close()
        hung: UnknownDurabilityError | None = None
        for slot in self._logs.close():
            try:
                self._runtime.wait(slot.opened).close()
            except UnknownDurabilityError as error:
                # A call of the store does not return: the others are closed first.
                hung = hung or error
            except LogError:
                # One that cannot be opened has nothing to wait for.
                continue
        if hung is not None:
            raise hung
        self._await(tuple(self._under_way))
        if self._dirty_log is not None:
            self._dirty_log.close()

    def _await(self, outcomes: tuple[Outcome[LogPosition], ...]) -> None:
        for outcome in outcomes:
            with contextlib.suppress(LogError):
                self._runtime.wait(outcome)


class HeldWriter(Closing):
    """One log's writer, kept open by its fleet until this is closed. Its limits are those of the fleet."""

    def __init__(self, fleet: Fleet, log: str, leave: Callable[[], None]) -> None:
        self.log = log
        self.append = partial(fleet.append, log)
        self.append_many = partial(fleet.append_many, log)
        self.append_table = partial(fleet.append_table, log)
        self.submit = partial(fleet.submit, log)
        self.submit_many = partial(fleet.submit_many, log)
        self.submit_table = partial(fleet.submit_table, log)
        self._check_reentry = fleet._logs.check_reentry  # noqa: SLF001 - of this module
        self._leave = leave

    def close(self) -> None:
        """Let the fleet close the log for others; appends under way are not affected."""
        self._check_reentry()
        self._leave()
