"""Appending by key: the part of a keyed log that writes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal, Self, overload
from weakref import WeakSet

from wal3_core.arguments import checked, flag, integer, optional, record_bytes, several, wrong
from wal3_core.errors import ClosedError, LogError
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.record import Message
from wal3_core.options import View, of_view
from wal3_core.views.keyed.conditional import ConditionalAppend
from wal3_core.views.keyed.key_reader import KeyReader
from wal3_core.views.keyed.key_tails import KeyTails

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from wal3_core.model.position import LogPosition
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.keyed.keyed_options import KeyedOptions


class KeyedAppends:
    """The appends of a keyed log, by a writer that the first one opens."""

    def __init__(self, store: ObjectStore, log: str, *, options: KeyedOptions, runtime: Runtime) -> None:
        self._store = store
        self._log = log
        self._options = options
        self._runtime = runtime
        self._keys = KeyReader(store, log, options, runtime)
        self._tails = KeyTails(self._keys)
        self._lock = runtime.lock()
        self._writer: LogWriter | None = None
        self._closed = False
        # The outcomes of conditional appends that someone still waits for, the log itself included.
        self._conditional: WeakSet[Future[LogPosition]] = WeakSet()

    @overload
    def append(
        self, key: bytes, value: bytes | None, *, expect_tail: int | None = None, await_durable: Literal[True] = True
    ) -> LogPosition: ...
    @overload
    def append(
        self, key: bytes, value: bytes | None, *, expect_tail: int | None = None, await_durable: Literal[False]
    ) -> Future[LogPosition]: ...

    @checked(key=record_bytes, value=optional(record_bytes), expect_tail=optional(integer), await_durable=flag)
    def append(
        self, key: bytes, value: bytes | None, *, expect_tail: int | None = None, await_durable: bool = True
    ) -> LogPosition | Future[LogPosition]:
        """Append a record to a key's log and block until it is durable; return its position.

        Without a value it is a tombstone, as key compaction understands it. With ``expect_tail`` it is appended only
        if the key's last record in the log is the one at that offset, 0 for none: compare and append in one step.
        Otherwise TailMismatchError has the actual offset. ContentionError when others appended records of other keys
        at each of ``KeyedOptions.tries_max`` tries. Unless ``await_durable``, return a future that gets the position or
        the error. Other errors as ``LogWriter.append``; one of reading the log, such as UnavailableError, comes from
        looking up the last record: then the record is not in the log.
        """
        expected = None if expect_tail is None else {key: expect_tail}
        return self._append((Message(value, key),), expected, await_durable=await_durable)

    @overload
    def append_batch(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        *,
        expect_tails: Mapping[bytes, int] | None = None,
        await_durable: Literal[True] = True,
    ) -> LogPosition: ...
    @overload
    def append_batch(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        *,
        expect_tails: Mapping[bytes, int] | None = None,
        await_durable: Literal[False],
    ) -> Future[LogPosition]: ...

    @checked(records=several, await_durable=flag)
    def append_batch(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        *,
        expect_tails: Mapping[bytes, int] | None = None,
        await_durable: bool = True,
    ) -> LogPosition | Future[LogPosition]:
        """Append records, each a key and a value, at adjacent offsets, all or none; return the first one's position.

        ``expect_tails`` names keys, of these records or others, and the offsets of their last records, all of which
        must hold. Otherwise as ``append``.
        """
        messages = [_message(record) for record in records]
        return self._append(messages, _expected(expect_tails), await_durable=await_durable)

    def _append(
        self, records: Sequence[Message], expected: Mapping[bytes, int] | None, *, await_durable: bool
    ) -> LogPosition | Future[LogPosition]:
        writer = self._opened()
        if not expected:
            return writer.append_many(records) if await_durable else writer.submit_many(records)
        conditional = ConditionalAppend(writer, self._tails, expected, records, self._runtime)
        try:
            with self._lock:
                self._conditional.add(conditional.outcome)
            conditional.begin(self._options.tries_max)
        except BaseException as failure:
            conditional.give_up(failure)
            raise
        return self._runtime.wait(conditional.outcome) if await_durable else conditional.outcome

    def close(self) -> None:
        """Accept no more appends, and block until those submitted have their outcome. Reads go on."""
        # Before the lock, which a thread of the parent may have held when this process was forked.
        self._runtime.check_process()
        with self._lock:
            self._closed, writer, conditional = True, self._writer, list(self._conditional)
        for outcome in conditional:
            # It may need the writer for another try.
            with contextlib.suppress(LogError):
                self._runtime.wait(outcome)
        if writer is not None:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> LogWriter:
        """Return the writer, which is opened at the first append."""
        self._runtime.check_process()
        with self._lock:
            writer, closed = self._writer, self._closed
        if closed:
            message = f"log {self._log}: expected an open keyed log, found it closed"
            raise ClosedError(message)
        if writer is not None:
            return writer
        opened = LogWriter.open(
            self._store, self._log, options=of_view(self._options.writer, View.KEYED), runtime=self._runtime
        )
        # LogReplacedError if the writer has opened another log than the one that is read.
        self._keys.manifest()
        with self._lock:
            if self._writer is None and not self._closed:
                self._writer = opened
            writer = self._writer
        if writer is None:
            return self._opened()
        return writer


def _message(record: object) -> Message:
    if not isinstance(record, tuple) or len(record) != 2:  # noqa: PLR2004 - a key and a value
        raise wrong("records", "pairs of a key and a value", record)
    key, value = record
    return Message(value, record_bytes(key, "key"))


def _expected(tails: object) -> dict[bytes, int] | None:
    if tails is None:
        return None
    if not hasattr(tails, "items"):
        raise wrong("expect_tails", "a mapping of keys to offsets", tails)
    return {
        record_bytes(key, "expect_tails: key"): integer(tail, "expect_tails: offset") for key, tail in tails.items()
    }
