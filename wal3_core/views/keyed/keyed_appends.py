"""Appending by key: the part of a keyed log that writes."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Literal, overload
from weakref import WeakSet

from wal3_core.arguments import checked, flag, integer, optional, record_bytes, seconds, several, wrong
from wal3_core.errors import ClosedError, InvalidRequestError, LogError
from wal3_core.log.read.following import Calls, Closing
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.record import Message
from wal3_core.options import View, of_view
from wal3_core.runtime import Outcome
from wal3_core.views.keyed.conditional import ConditionalAppend, unanswered
from wal3_core.views.keyed.key_reader import KeyReader
from wal3_core.views.keyed.key_tails import KeyTails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from wal3_core.arguments import Check
    from wal3_core.model.position import LogPosition
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.keyed.keyed_options import KeyedOptions

# Of asyncio, at a time.
_CALLS_MAX = 8
_WAITING: Mapping[str, Check] = {"await_durable": flag, "timeout_s": optional(seconds)}


class KeyedAppends(Closing):
    """The appends of a keyed log, by a writer that the first one opens."""

    def __init__(self, store: ObjectStore, log: str, *, options: KeyedOptions, runtime: Runtime) -> None:
        self._store = store
        self._log = log
        self._options = options
        self._runtime = runtime
        self._keys = KeyReader(store, log, options, runtime)
        self._tails = KeyTails(self._keys)
        self._async, self._submitting = Calls("wal3-keyed", _CALLS_MAX), Calls("wal3-keyed-appends")
        self._lock = runtime.lock()
        self._writer: LogWriter | None = None
        # What those wait for who wait no longer than they said.
        self._opening: Outcome[LogWriter] | None = None
        self._closed = False
        # The outcomes of conditional appends that someone still waits for, the log itself included.
        self._conditional: WeakSet[Future[LogPosition]] = WeakSet()

    @overload
    def append(
        self, key: bytes, value: bytes | None, *, expect_tail: int | None = None, await_durable: Literal[True] = True
    ) -> LogPosition: ...
    @overload
    def append(
        self,
        key: bytes,
        value: bytes | None,
        *,
        expect_tail: int | None = None,
        await_durable: Literal[False],
        timeout_s: float | None = None,
    ) -> Future[LogPosition]: ...

    @checked(key=record_bytes, value=optional(record_bytes), expect_tail=optional(integer), **_WAITING)
    def append(
        self,
        key: bytes,
        value: bytes | None,
        *,
        expect_tail: int | None = None,
        await_durable: bool = True,
        timeout_s: float | None = None,
    ) -> LogPosition | Future[LogPosition]:
        """Append a record to a key's log and block until it is durable; return its position.

        Without a value it is a tombstone, as key compaction understands it. With ``expect_tail`` it is appended only
        if the key's last record in the log is the one at that offset, 0 for none: compare and append in one step.
        Otherwise TailMismatchError has the actual offset. ContentionError when others appended records of other keys
        at each of ``KeyedOptions.tries_max`` tries. Other errors as ``LogWriter.append``; one of reading the log, such
        as UnavailableError, comes from looking up the last record: then the record is not in the log.

        Unless ``await_durable``, return a future that gets the position or the error. That blocks for ``timeout_s``
        seconds at most (as ``KeyedOptions`` says; 0: not at all): then OverloadedError if too many bytes wait to become
        durable, UnavailableError if the store has not answered. The record is certainly not in the log then.
        """
        expected = None if expect_tail is None else {key: expect_tail}
        return self._append((Message(value, key),), expected, await_durable=await_durable, timeout_s=timeout_s)

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
        timeout_s: float | None = None,
    ) -> Future[LogPosition]: ...

    @checked(records=several, **_WAITING)
    def append_batch(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        *,
        expect_tails: Mapping[bytes, int] | None = None,
        await_durable: bool = True,
        timeout_s: float | None = None,
    ) -> LogPosition | Future[LogPosition]:
        """Append records, each a key and a value, at adjacent offsets, all or none; return the first one's position.

        ``expect_tails`` names keys, of these records or others, and the offsets of their last records, all of which
        must hold. Otherwise as ``append``.
        """
        messages = [_message(record) for record in records]
        expected = _expected(expect_tails)
        return self._append(messages, expected, await_durable=await_durable, timeout_s=timeout_s)

    async def append_async(self, key: bytes, value: bytes | None, *, expect_tail: int | None = None) -> LogPosition:
        """Await ``append``. To cancel it does not withdraw an append that has begun."""
        return await self._durable(lambda: self.append(key, value, expect_tail=expect_tail, await_durable=False))

    async def append_batch_async(
        self, records: Iterable[tuple[bytes, bytes | None]], *, expect_tails: Mapping[bytes, int] | None = None
    ) -> LogPosition:
        """Await ``append_batch``, as ``append_async``."""
        return await self._durable(lambda: self.append_batch(records, expect_tails=expect_tails, await_durable=False))

    async def _durable(self, submit: Callable[[], Future[LogPosition]]) -> LogPosition:
        import asyncio  # noqa: PLC0415 - as in ``Calls``

        # One thread for all appends: they are submitted in the order of their calls, and wait for each other's room.
        return await asyncio.wrap_future(await self._submitting.made(submit))

    def _append(
        self,
        records: Sequence[Message],
        expected: Mapping[bytes, int] | None,
        *,
        await_durable: bool,
        timeout_s: float | None,
    ) -> LogPosition | Future[LogPosition]:
        if await_durable:
            if timeout_s is not None:
                message = "timeout_s: expected none for an append that is awaited, since it blocks until it is durable"
                raise InvalidRequestError(message)
            writer = self._opened()
            if not expected:
                return writer.append_many(records)
            return self._runtime.wait(self._begun(writer, records, expected, None))
        until_s = self._runtime.monotonic_s() + (self._options.append_timeout_s if timeout_s is None else timeout_s)
        writer = self._opened_by(until_s)
        if not expected:
            return writer.submit_many(records, timeout_s=max(0.0, until_s - self._runtime.monotonic_s()))
        return self._begun(writer, records, expected, until_s)

    def _begun(
        self, writer: LogWriter, records: Sequence[Message], expected: Mapping[bytes, int], until_s: float | None
    ) -> Future[LogPosition]:
        conditional = ConditionalAppend(writer, self._tails, expected, records, self._runtime)
        try:
            with self._lock:
                self._conditional.add(conditional.outcome)
            conditional.begin(self._options.tries_max, until_s)
        except BaseException as failure:
            conditional.give_up(failure)
            raise
        return conditional.outcome

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
        self._async.close()
        self._submitting.close()

    def _opened_by(self, until_s: float) -> LogWriter:
        """Return the writer; UnavailableError if it is not open by then, and goes on being opened."""
        self._runtime.check_process()
        with self._lock:
            if self._writer is None and not self._closed:
                opening = self._opening or Outcome()
                begins, self._opening = self._opening is None, opening
            else:
                opening, begins = None, False
        if opening is None:
            return self._opened()
        try:
            if begins:
                self._runtime.start_thread("wal3-keyed-open", partial(self._open, opening))
            return self._runtime.wait(opening, max(0.0, until_s - self._runtime.monotonic_s()))
        except TimeoutError:
            raise unanswered(self._keys.stores.url) from None

    def _open(self, opening: Outcome[LogWriter]) -> None:
        try:
            opened = self._opened()
        except BaseException as error:  # noqa: BLE001 - it is raised where the writer is awaited
            self._opening = None
            opening.set_exception(error)
        else:
            self._opening = None
            opening.set_result(opened)

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
