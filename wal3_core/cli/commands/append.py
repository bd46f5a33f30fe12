"""``wal3 init`` and ``wal3 append``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice

import click

from wal3_core.cli.shell.failures import Failure, InvalidFailure, again, leave
from wal3_core.cli.shell.input import (
    PAUSE_S,
    ByteStream,
    StopSignals,
    line_batches,
    message_of_json,
    message_of_raw,
    standard_input,
)
from wal3_core.cli.shell.output import counted, progress, report, show
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import log_argument
from wal3_core.errors import InvalidRequestError, LogError, NotDurableError, OverloadedError, UnknownDurabilityError
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message
from wal3_core.log.write.commit_results import ResumeReport
from wal3_core.log.write.writer import LogWriter
from wal3_core.runtime import later, shared_runtime

Parser = Callable[[bytes], Message | None]


@click.command()
@log_argument()
@session_and_json
def init(session: Session, log: str, as_json: bool) -> None:
    """Create the empty log LOG.

    A log's name has parts of letters, digits, _ and -, joined by /. Fails if LOG exists, and leaves it
    unchanged.

    \b
    Examples:
      wal3 init orders
      wal3 init tenants/acme/orders
    """
    LogWriter.create(session.store(), log)
    show(f"created {log}", {"log": log, "created": True}, as_json=as_json)


_BATCH_LINES_MAX = 10_000
_BATCHES_AHEAD = 64


@click.command()
@log_argument()
@click.option("--raw", is_flag=True, help="Take each line, unparsed, as a record's body.")
@click.option("--create", is_flag=True, help="Create the log if it does not exist.")
@session_and_json
def append(session: Session, log: str, raw: bool, create: bool, as_json: bool) -> None:
    """Append the records on standard input to LOG.

    Each line is one JSON object: {"key": "k", "body": "b"}. Strings are UTF-8; other bytes are given as
    key_b64 and body_b64. The key is optional; a null body with a key is a tombstone. The fields that
    `wal3 cat` adds (offset, timestamp_us) are ignored.

    Lines are appended as they arrive, many at a time, in order: the log always holds the beginning of the
    input. At a line that is not a record or cannot be appended, the command stops and says which lines are
    in the log. While the store does not answer, it retries for two minutes (`wal3 --timeout`). Ctrl-C or
    SIGTERM ends it once the lines it has read are in the log; a second signal ends it at once.

    \b
    Examples:
      echo '{"key": "user-1", "body": "Ada"}' | wal3 append users
      echo '{"key": "user-1", "body": null}'  | wal3 append users
      tail -f access.log | wal3 append --raw --create access
      wal3 cat users | wal3 --store s3://bucket append --create users
    """
    stream = standard_input()
    if stream is None:
        message = "0 records appended; standard input: expected records, found it closed; no line is in the log"
        raise InvalidFailure(message)
    opened = LogWriter.open_or_create if create else LogWriter.open
    writer = opened(session.store(), log, ordered=True)
    with StopSignals() as signals, progress(f"append {log}", None) as advance:
        appending = Appending(writer, signals, lambda done: advance(done, None))
        stopped = appending.run(stream, message_of_raw if raw else message_of_json)
    if as_json or stopped is None:
        unsaid = report(f"{appending.summary} to {log}", {"log": log, **appending.to_json()} if as_json else None)
        stopped = stopped or unsaid
    if stopped is None:
        return
    if signals.at_once:
        leave(stopped)
    raise stopped


def _refused(line: int, cause: LogError) -> str:
    return f"line {line} is not, nor is any line after it: {cause}"


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch that was sent: lines ``first_line`` to ``last_line`` of the input."""

    first_line: int
    last_line: int
    messages: int
    num_bytes: int
    future: Future[LogPosition]


class Appending:
    """Appends lines in order, several batches in flight at a time, and counts acknowledged records.

    The writer is ordered, so the log holds the beginning of the input.
    """

    def __init__(self, writer: LogWriter, signals: StopSignals, progress: Callable[[int], None]) -> None:
        self._writer = writer
        self._signals = signals
        self._progress = progress
        self._sent: deque[_Sent] = deque()
        self._failures: list[tuple[_Sent, LogError]] = []
        self._appends = 0
        self._records = 0
        self._num_bytes = 0
        self._last_line = 0
        self._first_offset: int | None = None
        self._last_offset: int | None = None

    @property
    def summary(self) -> str:
        """Describe what is in the log."""
        if self._records == 0:
            return "0 records appended"
        return f"{counted(self._records, 'record')} appended (offsets {self._first_offset} to {self._last_offset})"

    @property
    def _lines(self) -> str:
        if self._last_line == 0:
            return "no line is in the log"
        return "line 1 is in the log" if self._last_line == 1 else f"lines 1 to {self._last_line} are in the log"

    def to_json(self) -> dict[str, object]:
        """Describe what is in the log, for programs: the first ``lines`` lines of the input."""
        return {
            "records": self._records,
            "bytes": self._num_bytes,
            "lines": self._last_line,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
        }

    def run(self, stream: ByteStream, parse: Parser) -> Failure | None:
        """Append everything; return the failure that ended it early, or None.

        Every batch that was sent has an outcome by then, unless a second signal came.
        """
        ended = self._submit_all(stream, parse)
        self._await_sent(0)
        if self._sent:
            ended = self._abandoned()
        elif self._failures:
            ended = self._failed()
        elif isinstance(ended, InvalidFailure):
            ended = InvalidFailure(f"{self._lines}; {ended.message}")
        elif ended is not None:
            ended = type(ended)(f"{ended.message}; {self._lines}")
        return None if ended is None else type(ended)(f"{self.summary}; {ended.message}")

    def _submit_all(self, stream: ByteStream, parse: Parser) -> Failure | None:
        """Send lines until one fails or a signal comes; return the failure that ended it early, or None."""
        line = 0
        batches = line_batches(stream)
        while not self._failures and not self._signals.stop:
            try:
                lines = next(batches, None)
            except InvalidRequestError as error:
                return InvalidFailure(_refused(line + 1, error))
            except OSError as error:
                return Failure(f"standard input: {error}")
            if lines is None:
                break
            several = iter(lines)
            while batch := list(islice(several, _BATCH_LINES_MAX)):
                try:
                    self._submit(batch, line + 1, parse)
                except InvalidRequestError as error:
                    return InvalidFailure(str(error))
                line += len(batch)
            # Also while the input is slow, so that a refused line is reported before the next one arrives.
            self._await_sent(_BATCHES_AHEAD)
        return self._signals.failure if self._signals.stop else None

    def _submit(self, lines: list[bytes], first_line: int, parse: Parser) -> None:
        """Parse and send lines; those before a bad line are still sent."""
        messages: list[Message] = []
        bad: InvalidRequestError | None = None
        number = first_line
        for number, line in enumerate(lines, start=first_line):
            try:
                message = parse(line)
            except InvalidRequestError as error:
                bad = InvalidRequestError(_refused(number, error))
                break
            if message is not None:
                messages.append(message)
        if messages:
            self._send(messages, first_line, number - (bad is not None))
        if bad is not None:
            raise bad
        self._await_sent(_BATCHES_AHEAD)

    def _send(self, messages: list[Message], first_line: int, last_line: int) -> None:
        """Send a batch as soon as there is room; after a second signal, send nothing more."""
        num_bytes = sum(len(message.key or b"") + len(message.body or b"") for message in messages)
        while not self._signals.at_once:
            try:
                future = self._writer.submit_many(messages, timeout_s=PAUSE_S)
            except OverloadedError:
                # Not accepted yet: outcomes make room; signals are checked in between.
                continue
            except NotDurableError as error:
                # Halted or sealed: an outcome like the others, queued after theirs.
                future = Future()
                future.set_exception(error)
            self._sent.append(_Sent(first_line, last_line, len(messages), num_bytes, future))
            return

    def _await_sent(self, sent_max: int) -> None:
        """Take the outcomes that are known; wait for more while over ``sent_max`` batches are in flight."""
        while self._sent:
            sent = self._sent[0]
            waits = len(self._sent) > sent_max
            if not (self._signals.wait(sent.future) if waits else sent.future.done()):
                return
            self._sent.popleft()
            try:
                position = sent.future.result()
            except LogError as error:
                self._failures.append((sent, error))
            else:
                self._count(sent, position.offset + sent.messages)

    def _count(self, sent: _Sent, next_offset: int) -> None:
        self._appends += 1
        self._records += sent.messages
        self._num_bytes += sent.num_bytes
        self._last_line = sent.last_line
        self._first_offset = next_offset - sent.messages if self._first_offset is None else self._first_offset
        self._last_offset = next_offset - 1
        self._progress(self._records)

    def _failed(self) -> Failure:
        """Say which lines are in the log; where that is unknown, read the log first."""
        error = self._failures[0][1]
        read_back = ""
        if isinstance(error, UnknownDurabilityError):
            resuming = later(shared_runtime(), self._writer.resume)
            if not self._signals.wait(resuming):
                return self._abandoned()
            try:
                resumed = resuming.result()
            except LogError as why:
                unknown = [sent for sent, failure in self._failures if isinstance(failure, UnknownDurabilityError)]
                return Failure(
                    f"{self._unknown_lines(unknown)}: {error}; the log could not be read: {why};"
                    f" read the log before appending them again"
                )
            read_back = " (read from the log after an unanswered commit)"
            self._count_resumed(resumed)
        if not self._failures:
            return Failure(f"{self._lines}{read_back}; it stopped there: {error}")
        sent, left = self._failures[0]
        cause = left if read_back else error
        return Failure(f"{self._lines}{read_back}; {_refused(sent.first_line, cause)}; {again(cause)}")

    def _count_resumed(self, resumed: ResumeReport) -> None:
        """Count the batches that turned out to be in the log; they are the first of those that failed."""
        durable = self._failures[: max(0, resumed.appends - self._appends)]
        self._failures = self._failures[len(durable) :]
        offset = (resumed.next_offset or 0) - sum(sent.messages for sent, _ in durable)
        for sent, _ in durable:
            offset += sent.messages
            self._count(sent, offset)

    def _abandoned(self) -> Failure:
        """Say what is known of the batches sent, without waiting for more."""
        if self._failures and not isinstance(self._failures[0][1], UnknownDurabilityError):
            # No line after one that is not in the log ever will be.
            return self._failed()
        unknown = [*(sent for sent, _ in self._failures), *self._sent]
        return type(self._signals.failure)(f"{self._unknown_lines(unknown)}: stopped while they were under way")

    def _unknown_lines(self, unknown: Sequence[_Sent]) -> str:
        return (
            f"{self._lines}; lines {unknown[0].first_line} to {unknown[-1].last_line} may or may not be, and no line"
            f" after them is"
        )
