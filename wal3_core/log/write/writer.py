"""The callers' side of a log's writer: what they call, and how they wait. ``WriteLoop`` does the rest on workers."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self, TypeVar
from weakref import WeakKeyDictionary

from wal3_core.arguments import Check, checked, flag, instance_of, integer, optional, seconds, several, with_methods
from wal3_core.errors import InvalidRequestError, LogError, LogExistsError, LogNotFoundError, UnknownDurabilityError
from wal3_core.format.manifest import Manifest
from wal3_core.format.parquet.encoding import import_what_arrow_uses
from wal3_core.format.paths import LogId, check_log_name
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message
from wal3_core.format.strict_json import U64_MAX
from wal3_core.log.write.appends import Append, Marks
from wal3_core.log.write.columns import a_table, check_records, check_table, one_record
from wal3_core.log.write.write_loop import WriteLoop
from wal3_core.options import WriterOptions
from wal3_core.runtime import Closing, NotifyingOutcome, Outcome, Runtime, ThreadRuntime, reentered, shared_runtime
from wal3_core.runtime.loggers import WRITER
from wal3_core.runtime.threads import HUNG_S_MAX, WATCH
from wal3_core.store.documents.manifest_store import Installed, ManifestStore, new_log_id
from wal3_core.store.object_store import ObjectStore, a_store, log_store
from wal3_core.store.retrying import delivery_s_of, for_store, until_answered, with_retries, within

if TYPE_CHECKING:
    from wal3_core.log.write.columns import Columns, Rows
    from wal3_core.log.write.commit_results import ResumeReport
    from wal3_core.log.write.stats import WriterStats

T = TypeVar("T")

# The loops of real processes, with their logs' addresses; one that its program forgot lives as long as it has work.
_loops: WeakKeyDictionary[WriteLoop, tuple[str, ThreadRuntime]] = WeakKeyDictionary()

# The pause between two looks of an append that waits at whether others get their outcomes, and the looks in vain after
# which it gives up.
_LOOK_S = 5.0
_LOOKS_MAX = 6

_OPENING: Mapping[str, Check] = {
    "store": a_store,
    "log": check_log_name,
    # Before a log is made for a writer that cannot be.
    "options": optional(instance_of(WriterOptions)),
    "ordered": flag,
    "marks": optional(with_methods("a dirty log, as DirtyLog.open_or_create returns it", "mark")),
}
_APPENDING: Mapping[str, Check] = {"expect_next": optional(integer), "timeout_s": optional(seconds)}


class LogWriter(Closing):
    """Appends to one log. Safe to share between threads; close it, or use it as a context manager.

    Any number of writers may have a log open. When two append at once, one of them gets new places
    for its records, or an error that says they are not in the log. An open writer without appends
    makes no requests and has no thread.

    A call from a signal handler or a ``__del__`` that interrupts another call, and could only wait for
    it, raises InvalidRequestError and does nothing; ``stats`` never does. A callback of an append's
    future may make any call and wait for it: it runs on a worker that nothing else waits for. The callbacks of
    one commit run one after another; those of one log use at most half of the workers at once. At
    interpreter exit a callback that waits for a future has to do so by ``append`` or ``flush``.
    """

    def __init__(
        self,
        manifests: ManifestStore,
        load: Callable[[], Installed],
        runtime: Runtime,
        options: WriterOptions,
        *,
        ordered: bool,
        marks: Marks | None,
    ) -> None:
        timeout_s = options.delivery_timeout_s
        retry = options.retry if timeout_s is None else within(options.retry, timeout_s)
        base = until_answered(load, for_store(retry, manifests), runtime)
        import_what_arrow_uses()
        self._manifests = manifests
        self._runtime = runtime
        self._options = options
        self._loop = WriteLoop(manifests, base, runtime, options, ordered=ordered, marks=marks)
        self._hung_s_max = delivery_s_of(options, manifests.url) + HUNG_S_MAX
        if isinstance(runtime, ThreadRuntime):
            _keep_count(self._loop, manifests.url, runtime)

    @classmethod
    @checked(store=a_store, log=check_log_name)
    def create(cls, store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> None:
        """Create an empty log. LogExistsError when there is one; it stays unchanged."""
        runtime = runtime or shared_runtime()
        manifests = ManifestStore(log_store(with_retries(store, runtime), log), runtime)
        # No clock is read: a log's time begins with its first fragment.
        log_id, writer = new_log_id(runtime), runtime.process_name()
        manifests.create(Manifest.initial(log_id=log_id, writer=writer, timestamp_us=0))

    @classmethod
    @checked(**_OPENING)
    def open(
        cls,
        store: ObjectStore,
        log: str,
        *,
        options: WriterOptions | None = None,
        runtime: Runtime | None = None,
        ordered: bool = False,
        marks: Marks | None = None,
    ) -> Self:
        """Open a log for appending: one GET. LogNotFoundError when it was never created, CorruptError when damaged.

        An ``ordered`` writer halts at its first append that fails or whose outcome is unknown: appends
        behind it get HaltedError until ``resume`` is called. So the log always holds the beginning of
        what was submitted, in that order, without a hole.

        With ``marks``, a server's ``DirtyLog``, each fragment is marked there while it is uploaded, and an append is
        acknowledged when both are durable. UnmarkedError is raised for one that is in the log without a mark.
        """
        runtime, options = runtime or shared_runtime(), options or WriterOptions()
        manifests = ManifestStore(log_store(store, log), runtime, options.retry)
        return cls(manifests, manifests.open, runtime, options, ordered=ordered, marks=marks)

    @classmethod
    @checked(**_OPENING)
    def open_or_create(
        cls,
        store: ObjectStore,
        log: str,
        *,
        options: WriterOptions | None = None,
        runtime: Runtime | None = None,
        ordered: bool = False,
        marks: Marks | None = None,
    ) -> Self:
        """Open a log for appending, creating it first when it does not exist."""
        runtime, options = runtime or shared_runtime(), options or WriterOptions()
        manifests = ManifestStore(log_store(store, log), runtime, options.retry)
        try:
            # Whether a manifest that is not found was lost, ``create`` finds out.
            return cls(manifests, manifests.load, runtime, options, ordered=ordered, marks=marks)
        except LogNotFoundError:
            # Another process may have created it just now; that is fine.
            with contextlib.suppress(LogExistsError):
                cls.create(store, log, runtime=runtime)
            return cls.open(store, log, options=options, runtime=runtime, ordered=ordered, marks=marks)

    @property
    def options(self) -> WriterOptions:
        """The writer's limits."""
        return self._options

    @property
    def log_id(self) -> LogId:
        """The id of this life of the log: another one after the log was destroyed and its name used again."""
        return self._manifests.log_id()

    def append(self, body: bytes | None, *, key: bytes | None = None, expect_next: int | None = None) -> LogPosition:
        """Append one record and block until it is durable; return its position.

        A record with a key and no body is a tombstone. With ``expect_next`` it is appended only at that
        offset: compare and append in one step. Otherwise ConditionNotMetError has the log's actual next
        offset. Raises NotDurableError (ContentionError, ConditionNotMetError, HaltedError, SealedError) when
        the record is not in the log and never will be, UnknownDurabilityError when that is unknown,
        InvalidRequestError when it cannot be a record. KeyRequiredError is both: a log that its policy compacts takes
        no record without a key.
        """
        self._check_may_wait()
        return self._result(self.submit(body, key=key, expect_next=expect_next))

    @checked(records=several, expect_next=optional(integer))
    def append_many(self, records: Iterable[bytes | Message], *, expect_next: int | None = None) -> LogPosition:
        """Append records at adjacent offsets, all or none; return the first one's position.

        Errors as ``append``; ``expect_next`` is the first record's offset.
        """
        self._check_may_wait()
        return self._result(self.submit_many(records, expect_next=expect_next))

    @checked(table=a_table, expect_next=optional(integer))
    def append_table(self, table: Rows, *, expect_next: int | None = None) -> LogPosition:
        """Append the rows of an Arrow table, record batch or reader at adjacent offsets, all or none.

        Returns the first one's position. The columns are ``body`` and, if need be, ``key``: of the type binary, large
        or not, of fixed size, views, or a dictionary of one of these. A row with a key and a null for its body is a
        tombstone. Limits and errors are those of ``append_many``, but no Python object is made for a record, which is
        several times as fast.
        """
        self._check_may_wait()
        return self._result(self.submit_table(table, expect_next=expect_next))

    @checked(**_APPENDING)
    def submit(
        self,
        body: bytes | None,
        *,
        key: bytes | None = None,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue one record; the future gets what ``append`` returns or raises.

        Blocks only while ``bytes_held_max`` bytes wait to become durable, ``timeout_s`` seconds at most
        (0: not at all), then raises OverloadedError and the record is certainly not in the log. A queued
        append cannot be cancelled.
        """
        return self._submit(one_record(body, key, self._options), expect_next, timeout_s)

    @checked(records=several, **_APPENDING)
    def submit_many(
        self,
        records: Iterable[bytes | Message],
        *,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue records that stay together; the future gets what ``append_many`` returns or raises.

        ``timeout_s`` as ``submit``.
        """
        return self._submit(check_records(records, self._options), expect_next, timeout_s)

    @checked(table=a_table, **_APPENDING)
    def submit_table(
        self,
        table: Rows,
        *,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue the rows of a table, which is copied; the future gets what ``append_table`` returns or raises.

        ``timeout_s`` as ``submit``.
        """
        return self._submit(check_table(table, self._options), expect_next, timeout_s)

    def _submit(self, columns: Columns, expect_next: int | None, timeout_s: float | None) -> Future[LogPosition]:
        future: Outcome[LogPosition] = Outcome()
        self._accept(columns, future, expect_next, timeout_s)
        return future

    def _accept(
        self, columns: Columns, future: Outcome[LogPosition], expect_next: int | None, timeout_s: float | None
    ) -> None:
        """Queue an append; block while too many bytes wait to become durable.

        OverloadedError after ``timeout_s``, or when a call of the store never returns.
        """
        if expect_next is not None and not 1 <= expect_next <= U64_MAX:
            message = f"append: expected an offset from 1 to 2**64 - 1 for expect_next, found {expect_next!r}"
            raise InvalidRequestError(message)
        append = Append(columns, future, self._runtime.monotonic_s(), expect_next)
        self._check_reentry()
        self._loop.accept(append, may_wait=timeout_s is None or timeout_s > 0)
        if append.admitted is None:
            return
        try:
            if timeout_s is None:
                self._wait_until_done(append.admitted)
            self._runtime.wait(append.admitted, timeout_s)
        except Exception as error:
            overloaded = self._loop.withdraw(append)
            # Withdrawn, whatever was raised: an append reported as not begun must not begin.
            if not isinstance(error, TimeoutError | UnknownDurabilityError):
                raise
            if append.withdrawn:
                raise overloaded from (None if isinstance(error, TimeoutError) else error)

    def resume(self) -> ResumeReport:
        """Let an ordered writer continue after it has halted; report which of its appends are in the log.

        An unknown outcome is determined from the manifest, which is written once more so that no
        request under way can be applied later. Raises UnavailableError while the store does not answer, CorruptError
        while the manifest cannot be read, and UnknownDurabilityError when the log no longer shows the outcome; the
        writer then stays halted. If the writer is not halted, the call blocks, as ``flush`` does, until nothing is
        in flight, and counts those appends, too.
        """
        self._check_may_wait()
        halt = self._loop.halt
        if not halt.ordered:
            message = f"log {self._manifests.url}: expected an ordered writer to resume, found one that is not"
            raise InvalidRequestError(message)
        report = None
        while report is None:
            if halt.failure is None:
                # Appends in flight may still become durable, or halt the writer: count them now, not later.
                self.flush()
            report = self._loop.resume()
        return report

    def stats(self) -> WriterStats:
        """Return what waits, for how long, and what became of the rest. Cheap; from any thread."""
        self._runtime.check_process()
        return self._loop.stats()

    def flush(self) -> None:
        """Block until everything submitted so far has its outcome, without waiting for fuller batches."""
        self._check_may_wait()
        for future in self._loop.hurry():
            self._wait_until_done(future)

    def close(self) -> None:
        """Accept no more appends, and block until those submitted have their outcome."""
        self._check_may_wait()
        self._loop.close()
        self.flush()

    # ------------------------------------------------------------------ waiting

    def _result(self, future: Future[LogPosition]) -> LogPosition:
        """Block until an append has its outcome; UnknownDurabilityError when a call of the store never returns."""
        self._wait_until_done(future)
        return future.result()

    def _wait_until_done(self, future: Future[T]) -> None:
        """Raise UnknownDurabilityError once the oldest append should have its outcome, and none gets any."""
        ended, looks = -1, 0
        while not future.done():
            with contextlib.suppress(TimeoutError, LogError):
                self._runtime.wait(future, _LOOK_S)
                return
            stats = self.stats()
            # Looks are counted, too: in a process that was stopped, nothing could end.
            before, ended = ended, stats.appends + stats.appends_failed
            looks = looks + 1 if ended == before else 0
            if looks >= _LOOKS_MAX and stats.oldest_age_s > self._hung_s_max:
                raise self._hung(stats)

    def _hung(self, stats: WriterStats) -> UnknownDurabilityError:
        longest = WATCH.longest()
        message = (
            f"log {self._manifests.url}: {stats.appends_waiting} appends have no outcome after"
            f" {stats.oldest_age_s:.0f} s: {longest or 'a call of the store does not return'}: unknown whether they are"
            f" in the log, or will be"
        )
        WRITER.error("%s", message)
        return UnknownDurabilityError(message)

    def _check_may_wait(self) -> None:
        """Refuse to wait for an append where the wait would block it, as in a ``__del__`` called during a step."""
        self._check_reentry()
        if self._loop.driven_here:
            raise reentered(f"log {self._manifests.url}")

    def _check_reentry(self) -> None:
        self._runtime.check_process()
        if self._loop.lock.owned():
            raise reentered(f"log {self._manifests.url}")


def submit_columns(
    writer: LogWriter,
    columns: Columns,
    on_done: Callable[[Future[LogPosition]], object],
    *,
    expect_next: int | None = None,
    timeout_s: float | None = None,
) -> None:
    """Queue records that were checked by the writer's options, as ``submit_many`` does.

    ``on_done`` gets their future once it has its outcome. It is no callback: it waits for none, and must wait for
    nothing. It may be called although this raises an error.
    """
    writer._accept(columns, NotifyingOutcome(on_done), expect_next, timeout_s)  # noqa: SLF001 - of this module


def result_of(writer: LogWriter, future: Future[LogPosition]) -> LogPosition:
    """Block until an append through a writer has its outcome, as ``append`` does."""
    return writer._result(future)  # noqa: SLF001 - of this module


def num_offsets_held(writer: LogWriter) -> int:
    """Return how many offsets the log holds, as far as its writer knows; 0 while its state is unknown. No request."""
    base = writer._loop.position.base  # noqa: SLF001 - of this module
    return 0 if base is None else base.manifest.next.position.offset - base.manifest.first.position.offset


def _keep_count(loop: WriteLoop, url: str, runtime: ThreadRuntime) -> None:
    if not _loops:
        # Again, if it was before: what is registered last runs first, and the runtime's end forgets what waits.
        atexit.unregister(_name_unfinished)
        atexit.register(_name_unfinished)
    _loops[loop] = url, runtime


def _name_unfinished() -> None:
    """Say how many appends the process may end without: their writers were not closed."""
    for loop, (url, runtime) in list(_loops.items()):
        with contextlib.suppress(LogError):
            # A fork has its parent's writers.
            runtime.check_process()
            count = loop.num_waiting()
            if count:
                text = (
                    "log %s: the process ends without an outcome of %d appends, which may not be in the log: close the"
                    " writer, or wait for their futures"
                )
                WRITER.warning(text, url, count)
