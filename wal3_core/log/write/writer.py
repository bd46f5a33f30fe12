"""The public API for writing a log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, flag, instance_of, integer, optional, seconds, several, with_methods
from wal3_core.errors import LogExistsError, LogNotFoundError
from wal3_core.log.write.batch import Entry, check_expected
from wal3_core.log.write.columns import a_table, check_records, check_table, one_record
from wal3_core.log.write.pipeline import Pipeline
from wal3_core.model.manifest import Manifest
from wal3_core.model.paths import check_log_name
from wal3_core.options import WriterOptions
from wal3_core.runtime import Outcome, Runtime, TellingOutcome, a_runtime, shared_runtime
from wal3_core.storage.documents.manifest_store import ManifestStore, new_log_id
from wal3_core.storage.object_store import a_store, log_store
from wal3_core.storage.retrying import for_store, until_answered, with_retries, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from wal3_core.arguments import Check
    from wal3_core.log.write.columns import Columns, Rows
    from wal3_core.log.write.commit_results import ResumeReport
    from wal3_core.log.write.marking import Marks
    from wal3_core.log.write.stats import WriterStats
    from wal3_core.model.paths import LogId
    from wal3_core.model.position import LogPosition
    from wal3_core.model.record import Message
    from wal3_core.storage.documents.manifest_store import Installed
    from wal3_core.storage.object_store import ObjectStore


_OPENING: Mapping[str, Check] = {
    "store": a_store,
    "log": check_log_name,
    "options": optional(instance_of(WriterOptions)),
    "ordered": flag,
    "runtime": optional(a_runtime),
    "marks": optional(with_methods("a dirty log, as DirtyLog.open returns it", "mark")),
}
_APPENDING: Mapping[str, Check] = {"expect_next": optional(integer), "timeout_s": optional(seconds)}


class LogWriter:
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

    def __init__(self, pipeline: Pipeline, runtime: Runtime, options: WriterOptions) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._options = options

    @classmethod
    @checked(store=a_store, log=check_log_name, runtime=optional(a_runtime))
    def initialize(cls, store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> None:
        """Create an empty log. LogExistsError when there is one; it stays unchanged."""
        runtime = runtime or shared_runtime()
        manifests = ManifestStore(log_store(with_retries(store, runtime), check_log_name(log)), runtime)
        # No clock is read: a log's time begins with its first fragment.
        log_id, writer = new_log_id(runtime), runtime.process_name()
        manifests.initialize(Manifest.initial(log_id=log_id, writer=writer, timestamp_us=0))

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
        """Open a log for appending: one GET. LogNotFoundError when it was never initialized, CorruptError when damaged.

        An ``ordered`` writer halts at its first append that fails or whose outcome is unknown: appends
        behind it get HaltedError until ``resume`` is called. So the log always holds the beginning of
        what was submitted, in that order, without a hole.

        With ``marks``, a server's ``DirtyLog``, each fragment is marked there while it is uploaded, and an append is
        acknowledged when both are durable. UnmarkedError is raised for one that is in the log without a mark.
        """
        runtime, options = runtime or shared_runtime(), options or WriterOptions()
        manifests = ManifestStore(log_store(store, check_log_name(log)), runtime, options.retry)
        return cls._on(manifests, manifests.open, options, runtime, ordered=ordered, marks=marks)

    @classmethod
    def _on(
        cls,
        manifests: ManifestStore,
        load: Callable[[], Installed],
        options: WriterOptions,
        runtime: Runtime,
        *,
        ordered: bool,
        marks: Marks | None,
    ) -> Self:
        timeout_s = options.delivery_timeout_s
        retry = options.retry if timeout_s is None else within(options.retry, timeout_s)
        base = until_answered(load, for_store(retry, manifests), runtime)
        return cls(Pipeline(manifests, base, runtime, options, ordered=ordered, marks=marks), runtime, options)

    @classmethod
    @checked(**_OPENING)
    def open_or_initialize(
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
        manifests = ManifestStore(log_store(store, check_log_name(log)), runtime, options.retry)
        try:
            # Whether a manifest that is not found was lost, ``initialize`` finds out.
            return cls._on(manifests, manifests.load, options, runtime, ordered=ordered, marks=marks)
        except LogNotFoundError:
            # Another process may have created it just now; that is fine.
            with contextlib.suppress(LogExistsError):
                cls.initialize(store, log, runtime=runtime)
            return cls.open(store, log, options=options, runtime=runtime, ordered=ordered, marks=marks)

    @property
    def options(self) -> WriterOptions:
        """The writer's limits."""
        return self._options

    @property
    def log_id(self) -> LogId:
        """The id of this life of the log: another one after the log was destroyed and its name used again."""
        return self._pipeline.log_id

    def append(self, body: bytes | None, *, key: bytes | None = None, expect_next: int | None = None) -> LogPosition:
        """Append one record and block until it is durable; return its position.

        A record with a key and no body is a tombstone. With ``expect_next`` it is appended only at that
        offset: compare and append in one step. Otherwise ConditionNotMetError has the log's actual next
        offset. Raises NotDurableError (ContentionError, ConditionNotMetError, HaltedError, SealedError) when
        the record is not in the log and never will be, UnknownDurabilityError when that is unknown,
        InvalidRequestError when it cannot be a record. KeyRequiredError is both: a log that its policy compacts takes
        no record without a key.
        """
        self._pipeline.check_awaited_here()
        return self._pipeline.outcome_of(self.submit(body, key=key, expect_next=expect_next))

    @checked(records=several, expect_next=optional(integer))
    def append_many(self, records: Iterable[bytes | Message], *, expect_next: int | None = None) -> LogPosition:
        """Append records at adjacent offsets, all or none; return the first one's position.

        Errors as ``append``; ``expect_next`` is the first record's offset.
        """
        self._pipeline.check_awaited_here()
        return self._pipeline.outcome_of(self.submit_many(records, expect_next=expect_next))

    @checked(table=a_table, expect_next=optional(integer))
    def append_table(self, table: Rows, *, expect_next: int | None = None) -> LogPosition:
        """Append the rows of an Arrow table, record batch or reader at adjacent offsets, all or none.

        Returns the first one's position. The columns are ``body`` and, if need be, ``key``: of the type binary, large
        or not, of fixed size, views, or a dictionary of one of these. A row with a key and a null for its body is a
        tombstone. Limits and errors are those of ``append_many``, but no Python object is made for a record, which is
        several times as fast.
        """
        self._pipeline.check_awaited_here()
        return self._pipeline.outcome_of(self.submit_table(table, expect_next=expect_next))

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
        self._queue(columns, future, expect_next, timeout_s)
        return future

    def _queue(
        self, columns: Columns, future: Outcome[LogPosition], expect_next: int | None, timeout_s: float | None
    ) -> None:
        expect_next = check_expected(expect_next)
        self._pipeline.submit(Entry(columns, future, self._runtime.monotonic_s(), expect_next), timeout_s)

    def resume(self) -> ResumeReport:
        """Let an ordered writer continue after it has halted; report which of its appends are in the log.

        An unknown outcome is determined from the manifest, which is written once more so that no
        request under way can be applied later. Raises UnavailableError while the store does not answer, CorruptError
        while the manifest cannot be read, and UnknownDurabilityError when the log no longer shows the outcome; the
        writer then stays halted. If the writer is not halted, the call blocks, as ``flush`` does, until nothing is
        in flight, and counts those appends, too.
        """
        return self._pipeline.resume()

    def stats(self) -> WriterStats:
        """Return what waits, for how long, and what became of the rest. Cheap; from any thread."""
        return self._pipeline.stats()

    def flush(self) -> None:
        """Block until everything submitted so far has its outcome."""
        self._pipeline.flush()

    def close(self) -> None:
        """Accept no more appends, and block until those submitted have their outcome."""
        self._pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def submit_told(
    writer: LogWriter,
    columns: Columns,
    tell: Callable[[Future[LogPosition]], object],
    *,
    expect_next: int | None = None,
    timeout_s: float | None = None,
) -> None:
    """Queue records that were checked by the writer's options, as ``submit_many`` does.

    ``tell`` gets their future once it has its outcome. It is no callback: it waits for none, and must wait for nothing.
    It may be called although this raises an error.
    """
    writer._queue(columns, TellingOutcome(tell), expect_next, timeout_s)  # noqa: SLF001 - of this module


def outcome_of(writer: LogWriter, future: Future[LogPosition]) -> LogPosition:
    """Block until an append through a writer has its outcome, as ``append`` does."""
    return writer._pipeline.outcome_of(future)  # noqa: SLF001 - of this module


def num_offsets_held(writer: LogWriter) -> int:
    """Return how many offsets the log holds, as far as its writer knows; 0 while its state is unknown. No request."""
    return writer._pipeline.num_offsets_held  # noqa: SLF001 - of this module
