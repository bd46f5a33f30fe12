"""``wal3 init`` and ``wal3 append``."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

import click

from wal3_core.cli.failures import Failure, InvalidFailure
from wal3_core.cli.lines import line_batches, message_of_json, message_of_raw
from wal3_core.cli.output import count, print_json, progress
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.stopping import StoppedError, StopSignals
from wal3_core.errors import InvalidRequestError, LogError, NotDurableError, UnknownDurabilityError
from wal3_core.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.cli.lines import ByteStream
    from wal3_core.log.halt import Resumed
    from wal3_core.model.position import LogPosition
    from wal3_core.model.record import Message

    Parser = Callable[[bytes], Message | None]

_BATCH_LINES_MAX = 10_000
_BATCHES_AHEAD = 64


@click.command()
@click.argument("log")
@pass_session
def init(session: Session, log: str) -> None:
    """Create the empty log LOG.

    A log's name has parts of letters, digits, _ and -, joined by /. Creating one that exists fails,
    and leaves it as it was.

    \b
    Examples:
      wal3 init orders
      wal3 init tenants/acme/orders
    """  # noqa: D301 - \b keeps click from wrapping what follows
    LogWriter.initialize(session.store(), log)
    click.echo(f"created {log}")


@click.command()
@click.argument("log")
@click.option("--raw", is_flag=True, help="Each line is a record's body, as it is.")
@click.option("--create", is_flag=True, help="Create the log when there is none of that name.")
@json_option
@pass_session
def append(session: Session, log: str, raw: bool, create: bool, as_json: bool) -> None:
    """Append the records on standard input to LOG.

    One JSON object a line: {"key": "k", "body": "b"}. Strings are UTF-8; bytes that are not come as
    key_b64 and body_b64. No key is a record without one; a null body with a key is a tombstone.
    Fields that `wal3 cat` adds (offset, timestamp_us) are ignored.

    Lines go on as they come in, many at a time, and in order: what is in the log is always the beginning
    of the input. At a line that is no record, or can not be appended, it stops, and says which lines are in
    the log. While the store does not answer it tries for two minutes (`wal3 --timeout`). Ctrl-C and SIGTERM
    end it once what it has read is in the log.

    \b
    Examples:
      echo '{"key": "user-1", "body": "Ada"}' | wal3 append users
      echo '{"key": "user-1", "body": null}'  | wal3 append users
      tail -f access.log                      | wal3 append --raw --create access
      wal3 cat users                          | wal3 --store s3://bucket append --create users
    """  # noqa: D301 - \b keeps click from wrapping what follows
    opened = LogWriter.open_or_initialize if create else LogWriter.open
    writer = opened(session.store(), log, ordered=True)
    # The binary stream behind stdin has it, though its declared type has not.
    stream = cast("ByteStream", sys.stdin.buffer)
    with StopSignals() as signals, progress(f"append {log}", None) as advance:
        appending = Appending(writer, signals, lambda done: advance(done, None))
        stopped = appending.run(stream, message_of_raw if raw else message_of_json)
    if as_json:
        print_json({"log": log, **appending.to_json()})
    elif stopped is None:
        click.echo(f"{appending.summary} to {log}")
    if stopped is not None:
        raise stopped


@dataclass(frozen=True, slots=True)
class _Sent:
    """Records on their way: from ``first_line`` to ``last_line`` of the input."""

    first_line: int
    last_line: int
    messages: int
    num_bytes: int
    future: Future[LogPosition]


class Appending:
    """Appends lines in order, several batches on their way at a time, and counts what was acknowledged.

    The writer is ordered: what is in the log is the beginning of the input.
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
        """Say what is in the log."""
        if self._records == 0:
            return "0 records appended"
        noun = "record" if self._records == 1 else "records"
        return f"{count(self._records)} {noun} appended (offsets {self._first_offset} to {self._last_offset})"

    @property
    def _lines(self) -> str:
        if self._last_line == 0:
            return "no line is in the log"
        return "line 1 is in the log" if self._last_line == 1 else f"lines 1 to {self._last_line} are in the log"

    def to_json(self) -> dict[str, object]:
        """Say what is in the log, for programs: of the input, the first ``lines`` lines."""
        return {
            "records": self._records,
            "bytes": self._num_bytes,
            "lines": self._last_line,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
        }

    def run(self, stream: ByteStream, parse: Parser) -> Failure | None:
        """Append everything; returns what ended it early, after all that was sent has its outcome."""
        ended: Failure | None = None
        try:
            self._submit_all(stream, parse)
        except InvalidRequestError as error:
            ended = InvalidFailure(str(error))
        except StoppedError:
            ended = self._signals.failure
        try:
            while self._sent:
                self._settle()
        except StoppedError:
            return self._abandoned()
        if self._failures:
            ended = self._failed()
        elif ended is not None and not isinstance(ended, InvalidFailure):
            ended = type(ended)(f"{ended.message}; {self._lines}")
        return None if ended is None else type(ended)(f"{self.summary}; {ended.message}")

    def _submit_all(self, stream: ByteStream, parse: Parser) -> None:
        line = 0
        batches = line_batches(stream)
        while not self._failures:
            try:
                with self._signals.waiting():
                    lines = next(batches, None)
            except InvalidRequestError as error:
                message = f"line {line + 1}: {error}"
                raise InvalidRequestError(message) from error
            if lines is None:
                return
            several = iter(lines)
            while batch := list(islice(several, _BATCH_LINES_MAX)):
                self._submit(batch, line + 1, parse)
                line += len(batch)

    def _submit(self, lines: list[bytes], first_line: int, parse: Parser) -> None:
        """Parse and send; what comes before a bad line is sent too."""
        messages: list[Message] = []
        bad: InvalidRequestError | None = None
        number = first_line
        for number, line in enumerate(lines, start=first_line):
            try:
                message = parse(line)
            except InvalidRequestError as error:
                bad = InvalidRequestError(f"line {number}: {error}")
                break
            if message is not None:
                messages.append(message)
        if messages:
            self._send(messages, first_line, number - (bad is not None))
        if bad is not None:
            raise bad
        while self._sent and (self._sent[0].future.done() or len(self._sent) > _BATCHES_AHEAD):
            self._settle()

    def _send(self, messages: list[Message], first_line: int, last_line: int) -> None:
        num_bytes = sum(len(message.key or b"") + len(message.body or b"") for message in messages)
        try:
            future = self._writer.submit_many(messages)
        except NotDurableError as error:
            # Halted or sealed: an outcome like the others, behind theirs.
            future = Future()
            future.set_exception(error)
        self._sent.append(_Sent(first_line, last_line, len(messages), num_bytes, future))

    def _settle(self) -> None:
        try:
            position = self._sent[0].future.result()
        except LogError as error:
            self._failures.append((self._sent.popleft(), error))
            return
        sent = self._sent.popleft()
        self._count(sent, position.offset + sent.messages)

    def _count(self, sent: _Sent, next_offset: int) -> None:
        self._appends += 1
        self._records += sent.messages
        self._num_bytes += sent.num_bytes
        self._last_line = sent.last_line
        self._first_offset = next_offset - sent.messages if self._first_offset is None else self._first_offset
        self._last_offset = next_offset - 1
        self._progress(self._records)

    def _failed(self) -> Failure | None:
        """Say which lines are in the log, having asked the log where that was unknown."""
        error = self._failures[0][1]
        settled = ""
        if isinstance(error, UnknownDurabilityError):
            try:
                resumed = self._writer.resume()
            except LogError as why:
                return self._unknown(error, why)
            settled = " (found out from the log after an unanswered commit)"
            self._count_settled(resumed)
        if not self._failures:
            return Failure(f"{self._lines}{settled}; it stopped there: {error}")
        sent, left = self._failures[0]
        cause = left if settled else error
        return Failure(
            f"{self._lines}{settled}; line {sent.first_line} is not, nor is any line behind it: {cause};"
            f" they can be appended again"
        )

    def _count_settled(self, resumed: Resumed) -> None:
        """Count the batches that turned out to be in the log; they are the first of those that failed."""
        durable = self._failures[: max(0, resumed.appends - self._appends)]
        self._failures = self._failures[len(durable) :]
        offset = (resumed.next_offset or 0) - sum(sent.messages for sent, _ in durable)
        for sent, _ in durable:
            offset += sent.messages
            self._count(sent, offset)

    def _unknown(self, error: LogError, why: LogError) -> Failure:
        unknown = [sent for sent, failure in self._failures if isinstance(failure, UnknownDurabilityError)]
        return Failure(
            f"{self._lines}; whether lines {unknown[0].first_line} to {unknown[-1].last_line} are is unknown, and no"
            f" line behind them is: {error}; the log could not be asked: {why};"
            f" read the log before appending them again"
        )

    def _abandoned(self) -> Failure:
        first, last = self._sent[0].first_line, self._sent[-1].last_line
        message = f"{self.summary}; {self._lines}; whether lines {first} to {last} are is unknown"
        return type(self._signals.failure)(f"{message}: stopped while they were under way")
