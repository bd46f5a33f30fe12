"""Appending by key: the part of a keyed log that writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Literal, overload
from weakref import WeakSet

from wal3_core.arguments import Check, checked, flag, integer, optional, record_bytes, seconds, several, wrong
from wal3_core.errors import (
    ClosedError,
    ConditionNotMetError,
    ContentionError,
    InvalidRequestError,
    LogError,
    TailMismatchError,
    UnavailableError,
    UnknownDurabilityError,
)
from wal3_core.format.manifest import Manifest
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message
from wal3_core.format.snapshot import Pointer
from wal3_core.log.read.following import AsyncClosing, Calls, History
from wal3_core.log.read.scan import newest_first, with_reloads
from wal3_core.log.write.columns import check_records
from wal3_core.log.write.commit_results import call_each
from wal3_core.log.write.writer import LogWriter, submit_columns
from wal3_core.options import View, of_view
from wal3_core.runtime import Cache, Outcome, Runtime, callbacks_held, each_ahead, later
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.keyed.key_reader import KeyReader, load_matching
from wal3_core.views.keyed.reads import KeyedOptions, KeyMatch
from wal3_core.workers import Share

# Keys whose last records are remembered.
_KNOWN_MAX = 10_000


class KeyTails:
    """Finds the offset of a key's last record. Safe to share between threads."""

    def __init__(self, keys: KeyReader) -> None:
        self._keys = keys
        self.url = keys.stores.url
        # A key's last record, 0 for none, in a log that had this history: a later pass may have dropped the record.
        self._known: Cache[tuple[int, History]] = Cache(keys.runtime, _KNOWN_MAX, lambda _: 1)

    def find(self, key: bytes) -> tuple[int, int]:
        """Return the offset of a key's last record, 0 for none, and the end of the log that was looked at."""
        keys = self._keys
        work = partial(self._find, key)
        return with_reloads(self.url, keys.manifest(), keys.manifest, work, reloads_max=keys.options.reloads_max)

    def _find(self, key: bytes, manifest: Manifest) -> tuple[int, int]:
        first, match = manifest.first.position.offset, KeyMatch.of(key)
        known, history = self._known.get(key) or (0, None)
        if history is not None and not history.is_comparable(manifest):
            history = None
        tail = self._last(match, manifest.pointers, first if history is None else history.limit)
        if not tail and history is not None:
            if history.goes_on_in(manifest, self._keys.stores.snapshots.load):
                tail = known if known >= first else 0
            else:
                tail = self._last(match, manifest.pointers, first)
        self._known.keep(key, (tail, History.of(manifest)))
        return tail, manifest.next.position.offset

    def _last(self, match: KeyMatch, pointers: Sequence[Pointer], floor: int) -> int:
        count = max(1, self._keys.options.prefetch_fragments)
        # Those that may have records of the key.
        fragments = newest_first(pointers, partial(load_matching, self._keys, match), floor)
        for _, hit in each_ahead(fragments, partial(self._keys.begin_hit, match), lambda: count):
            last = hit.index.last(match)
            if last is not None:
                return last if last >= floor else 0
        return 0


# Names in place of stores: these callbacks share no workers with the tries that they may wait for.
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
        with contextlib.suppress(TailMismatchError):
            if until_s is None:
                self._try(tries_max)
                return
            begun = later(self._runtime, partial(self._try, tries_max, until_s), Share(_TRIES, self._tails.url))
            try:
                self._runtime.wait(begun, max(0.0, until_s - self._runtime.monotonic_s()))
            except TimeoutError:
                with self._lock:
                    self._is_withdrawn = not self._is_submitted
                if self._is_withdrawn:
                    raise unanswered(self._tails.url) from None

    def give_up(self, failure: BaseException) -> None:
        """End the wait for it: it cannot be made, or its caller was interrupted."""
        interrupted = not isinstance(failure, Exception)
        # A try may be under way by then, and may have ended it. Those who wait for its end were not interrupted.
        with contextlib.suppress(InvalidStateError):
            self.outcome.set_exception(UnknownDurabilityError("interrupted") if interrupted else failure)

    def _try(self, tries_left: int, until_s: float | None = None) -> None:
        """Submit it; what keeps it from that is raised, and is the outcome: its caller may wait no longer."""
        try:
            self._submit(tries_left, until_s)
        except BaseException as failure:
            self.give_up(failure)
            raise

    def _submit(self, tries_left: int, until_s: float | None) -> None:
        columns, end = check_records(self._records, self._writer.options), self._end()
        with self._lock:
            if self._is_withdrawn:
                return
            self._is_submitted = True
        on_complete = partial(self._ended, tries_left - 1)
        timeout_s = None if until_s is None else max(0.0, until_s - self._runtime.monotonic_s())
        submit_columns(self._writer, columns, on_complete, expect_next=end, timeout_s=timeout_s)

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
        if isinstance(error, ConditionNotMetError) and tries_left:
            # What is raised is the outcome.
            with contextlib.suppress(BaseException):
                self._try(tries_left)
            return
        with contextlib.suppress(InvalidStateError):
            if error is None:
                self.outcome.set_result(done.result())
            elif isinstance(error, ConditionNotMetError):
                crowded = ContentionError(f"other keys got records at each try of a conditional append: {error}")
                crowded.__cause__ = error
                self.outcome.set_exception(crowded)
            else:
                self.outcome.set_exception(error)


def unanswered(log: str) -> UnavailableError:
    """Return the error of an append that was to begin sooner than the store answers."""
    message = f"log {log}: expected an append to begin in the time that it was given, found the store still silent"
    return UnavailableError(f"{message}: nothing was appended")


# Calls from asyncio that are made at a time.
_CALLS_MAX = 8
_WAITING: Mapping[str, Check] = {"await_durable": flag, "timeout_s": optional(seconds)}


class KeyedAppends(AsyncClosing):
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
        # The writer, once the first append has begun to open it.
        self._opening: Future[LogWriter] | None = None
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
        # One thread for all appends: they are submitted in the order of their calls, and wait for each other's room.
        return await self._submitting.submitted(
            lambda: self.append(key, value, expect_tail=expect_tail, await_durable=False)
        )

    async def append_batch_async(
        self, records: Iterable[tuple[bytes, bytes | None]], *, expect_tails: Mapping[bytes, int] | None = None
    ) -> LogPosition:
        """Await ``append_batch``, as ``append_async``."""
        return await self._submitting.submitted(
            lambda: self.append_batch(records, expect_tails=expect_tails, await_durable=False)
        )

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
            writer = self._writer(None)
            if not expected:
                return writer.append_many(records)
            return self._runtime.wait(self._begun(writer, records, expected, None))
        until_s = self._runtime.monotonic_s() + (self._options.append_timeout_s if timeout_s is None else timeout_s)
        writer = self._writer(until_s)
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
            self._closed, opening, conditional = True, self._opening, list(self._conditional)
        for outcome in conditional:
            # It may need the writer for another try.
            with contextlib.suppress(LogError):
                self._runtime.wait(outcome)
        if opening is not None and opening.done() and opening.exception() is None:
            opening.result().close()
        self._async.close()
        self._submitting.close()

    def _writer(self, until_s: float | None) -> LogWriter:
        """Return the writer, which the first append opens.

        UnavailableError if it is not open by ``until_s``: it goes on being opened.
        """
        self._runtime.check_process()
        while True:
            with self._lock:
                self._check_open()
                opening = self._opening
                begins = opening is None or (opening.done() and opening.exception() is not None)
                if begins or opening is None:
                    self._opening = opening = later(self._runtime, self._open, self._keys.share)
            try:
                left_s = None if until_s is None else max(0.0, until_s - self._runtime.monotonic_s())
                writer = self._runtime.wait(opening, left_s)
            except TimeoutError:
                raise unanswered(self._keys.stores.url) from None
            except LogError:
                if begins:
                    raise
                # Another caller's tries: this one makes its own.
                continue
            self._check_open()
            return writer

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"log {self._log}: expected an open keyed log, found it closed")

    def _open(self) -> LogWriter:
        options = of_view(self._options.writer, View.KEYED)
        writer = LogWriter.open(self._store, self._log, options=options, runtime=self._runtime)
        # LogReplacedError if the writer has opened another log than the one that is read.
        self._keys.manifest()
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
