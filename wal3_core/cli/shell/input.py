"""Records as lines of JSON, and input split into lines.

``{"key": …, "body": …}``: strings are UTF-8; other bytes are ``key_b64`` and ``body_b64``. A null body with a
key is a tombstone. Written lines also have ``offset`` and ``timestamp_us``, which reading ignores, so
that the output of one log can be appended to another.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from wal3_core.cli.shell.failures import Failure, InterruptedFailure, TerminatedFailure
from wal3_core.errors import InvalidRequestError
from wal3_core.format.record import Message, Record, check_message
from wal3_core.options import WriterOptions

T = TypeVar("T")

_CHUNK_BYTES = 2**20
_RECORD_BYTES_MAX = WriterOptions().record_bytes_max
# JSON may spell each byte of a record in six characters.
LINE_BYTES_MAX = 6 * _RECORD_BYTES_MAX + 1024
_BODIES = frozenset({"body", "body_b64"})
_AS_IT_IS = "--raw appends each line as it is"
_FIELDS = frozenset({"key", "key_b64", "body", "body_b64", "offset", "timestamp_us"})


class ByteStream(Protocol):
    """A source of lines: a stream without a buffer, or one that never waits."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most ``size`` available bytes; empty at the end, None when there are none yet."""
        ...

    def fileno(self) -> int:
        """Return the file descriptor; OSError when the stream has none."""
        ...


def standard_input() -> ByteStream | None:
    """Return stdin unbuffered: a buffered stream mistakes "no data yet" for the end. None when it is closed."""
    if sys.stdin is None:
        return None
    # At run time `buffer` has `raw`; its declared type does not.
    return cast("ByteStream", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))


def line_batches(stream: ByteStream) -> Iterator[list[bytes]]:
    """Split a stream into lines, without their newlines, as many at a time as have arrived.

    So a slow stream's lines are yielded at once, and a fast one's in large batches. An empty list means that
    no line has ended: the caller regains control ten times a second. InvalidRequestError for a line that is
    longer than any record, OSError when the stream cannot be read.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    while True:
        chunk = stream.read(_CHUNK_BYTES) if _is_readable(stream) else None
        if chunk is None:
            yield []
            continue
        if not chunk:
            break
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun, begun_bytes = [], 0
        yield whole
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes > LINE_BYTES_MAX:
            message = f"expected a line of at most {LINE_BYTES_MAX} bytes, found {begun_bytes} and no end"
            raise InvalidRequestError(message)
    if begun_bytes:
        yield [b"".join(begun)]


def _is_readable(stream: ByteStream) -> bool:
    """Wait a moment for something to read, or the end."""
    try:
        file = stream.fileno()
    except OSError:
        return True
    return bool(select.select([file], [], [], PAUSE_S)[0])


def message_of_raw(line: bytes) -> Message:
    """Take a whole line as a body."""
    message = Message(line)
    check_message(message, record_bytes_max=_RECORD_BYTES_MAX)
    return message


def message_of_json(line: bytes) -> Message | None:
    """Read a line of JSON; None for a blank one, InvalidRequestError for one that is not a record."""
    if not line.strip():
        return None
    try:
        fields = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"expected a JSON object, found {_shown(line)} ({error}): {_AS_IT_IS}") from error
    if not isinstance(fields, dict):
        message = f'expected a JSON object like {{"key": "k", "body": "b"}}, found {_shown(line)}: {_AS_IT_IS}'
        raise InvalidRequestError(message)
    if not fields.keys() <= _FIELDS:
        unknown = ", ".join(sorted(fields.keys() - _FIELDS))
        message = f"expected the fields key, body, key_b64, body_b64, found {unknown[:80]!r}: {_AS_IT_IS}"
        raise InvalidRequestError(message)
    if fields.keys().isdisjoint(_BODIES):
        # A missing body is more likely an oversight than a deletion.
        raise InvalidRequestError(f"expected a body (null for a tombstone), found none in {_shown(line)}")
    record = Message(_bytes(fields, "body"), _bytes(fields, "key"))
    check_message(record, record_bytes_max=_RECORD_BYTES_MAX)
    return record


def _bytes(fields: dict[str, object], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(f"{name}_b64")
    if text is not None and encoded is not None:
        raise InvalidRequestError(f"expected {name} or {name}_b64, found both")
    value = text if encoded is None else encoded
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name}: expected a string or null, found {json.dumps(value)[:40]}")
    try:
        return value.encode() if encoded is None else base64.b64decode(value, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        message = f"{name}: expected {'UTF-8' if encoded is None else 'base64'}, found {value[:40]!r} ({error})"
        raise InvalidRequestError(message) from error


def json_of_record(record: Record) -> bytes:
    """Write a record as a line of JSON, newline included."""
    fields: dict[str, object] = {"offset": record.offset, "timestamp_us": record.timestamp_us}
    if record.key is not None:
        _put(fields, "key", record.key)
    if record.body is None:
        fields["body"] = None
    else:
        _put(fields, "body", record.body)
    return _ENCODER.encode(fields).encode() + b"\n"


def _put(fields: dict[str, object], name: str, value: bytes) -> None:
    try:
        fields[name] = value.decode()
    except UnicodeDecodeError:
        fields[f"{name}_b64"] = base64.b64encode(value).decode()


def _object_of_pairs(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _shown(line: bytes) -> str:
    return f"{line[:40]!r}{'…' if len(line) > 40 else ''}"  # noqa: PLR2004 - as much as is shown


_DECODER = json.JSONDecoder(object_pairs_hook=_object_of_pairs)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


PAUSE_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Records both signals within a ``with`` block; a signal that the parent process ignores stays ignored."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, object] = {}
        self._received: list[int] = []

    def __enter__(self) -> Self:
        # Only the main thread can install signal handlers.
        with contextlib.suppress(ValueError):
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was returned

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)

    @property
    def stop(self) -> bool:
        """Whether a signal asks the command to end."""
        return bool(self._received)

    @property
    def at_once(self) -> bool:
        """Whether a second signal asks it to end without waiting."""
        return len(self._received) > 1

    def wait(self, future: Future[Any]) -> bool:
        """Wait until a future has its outcome; False when a second signal ends the wait."""
        while not future.done():
            if self.at_once:
                return False
            with contextlib.suppress(TimeoutError):
                future.exception(PAUSE_S)
        return True

    @property
    def failure(self) -> Failure:
        """The failure for the signal that came first."""
        if self._received[:1] == [signal.SIGTERM]:
            return TerminatedFailure("terminated")
        return InterruptedFailure("interrupted")
