"""``wal3 init`` and ``wal3 append``."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

import click

from wal3_core.cli.failures import Failure, InterruptedFailure, InvalidFailure, explain
from wal3_core.cli.lines import line_batches, message_of_json, message_of_raw
from wal3_core.cli.output import count, print_json, progress
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from wal3_core.cli.lines import ByteStream
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

    Lines go on as they come in, many at a time. At a line that is no record it stops: the records
    before are in the log, and the error says how many.

    \b
    Examples:
      echo '{"key": "user-1", "body": "Ada"}' | wal3 append users
      echo '{"key": "user-1", "body": null}'  | wal3 append users
      tail -f access.log                      | wal3 append --raw --create access
      wal3 cat users                          | wal3 --store s3://bucket append --create users
    """  # noqa: D301 - \b keeps click from wrapping what follows
    opened = LogWriter.open_or_initialize if create else LogWriter.open
    writer = opened(session.store(), log)
    # The binary stream behind stdin has it, though its declared type has not.
    stream = cast("ByteStream", sys.stdin.buffer)
    with progress(f"append {log}", None) as advance:
        appending = Appending(writer, lambda done: advance(done, None))
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
    """Appends lines in order, several batches on their way at a time, and counts what was acknowledged."""

    def __init__(self, writer: LogWriter, progress: Callable[[int], None]) -> None:
        self._writer = writer
        self._progress = progress
        self._sent: deque[_Sent] = deque()
        self._failures: list[tuple[_Sent, LogError]] = []
        self._records = 0
        self._num_bytes = 0
        self._first_offset: int | None = None
        self._last_offset: int | None = None

    @property
    def summary(self) -> str:
        """Say what is in the log."""
        if self._records == 0:
            return "0 records appended"
        noun = "record" if self._records == 1 else "records"
        return f"{count(self._records)} {noun} appended (offsets {self._first_offset} to {self._last_offset})"

    def to_json(self) -> dict[str, object]:
        """Say what is in the log, for programs."""
        return {
            "records": self._records,
            "bytes": self._num_bytes,
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
        except KeyboardInterrupt:
            ended = InterruptedFailure("interrupted")
        while self._sent:
            self._settle()
        if self._failures:
            ended = self._failed()
        return None if ended is None else type(ended)(f"{self.summary}; {ended.message}")

    def _submit_all(self, stream: ByteStream, parse: Parser) -> None:
        line = 0
        batches = line_batches(stream)
        while not self._failures:
            try:
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
        try:
            messages.extend(_parsed(lines, first_line, parse))
        finally:
            if messages:
                num_bytes = sum(len(message.key or b"") + len(message.body or b"") for message in messages)
                future = self._writer.submit_many(messages)
                last_line = first_line + len(lines) - 1
                self._sent.append(_Sent(first_line, last_line, len(messages), num_bytes, future))
        while self._sent and (self._sent[0].future.done() or len(self._sent) > _BATCHES_AHEAD):
            self._settle()

    def _settle(self) -> None:
        sent = self._sent.popleft()
        try:
            position = sent.future.result()
        except LogError as error:
            self._failures.append((sent, error))
            return
        self._records += sent.messages
        self._num_bytes += sent.num_bytes
        self._first_offset = position.offset if self._first_offset is None else self._first_offset
        self._last_offset = position.offset + sent.messages - 1
        self._progress(self._records)

    def _failed(self) -> Failure:
        sent, error = self._failures[0]
        others = len(self._failures) - 1
        also = f" (and {others} later batches)" if others else ""
        return Failure(f"lines {sent.first_line} to {sent.last_line}{also}: {explain(error)}")


def _parsed(lines: list[bytes], first_line: int, parse: Parser) -> Iterator[Message]:
    for number, line in enumerate(lines, start=first_line):
        try:
            message = parse(line)
        except InvalidRequestError as error:
            text = f"line {number}: {error}"
            raise InvalidRequestError(text) from error
        if message is not None:
            yield message
