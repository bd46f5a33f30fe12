"""The public face of writing a log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, flag, instance_of, integer, optional, seconds, several
from wal3_core.errors import LogExistsError, LogNotFoundError
from wal3_core.log.write.batch import Entry, check_expected, check_records
from wal3_core.log.write.pipeline import Pipeline
from wal3_core.model.manifest import Manifest
from wal3_core.model.paths import check_log_name
from wal3_core.model.record import Message
from wal3_core.options import WriterOptions
from wal3_core.runtime import Outcome, Runtime, a_runtime, shared_runtime
from wal3_core.storage.documents.manifest_store import ManifestStore, new_log_id
from wal3_core.storage.object_store import a_store, log_store
from wal3_core.storage.patient import patient
from wal3_core.storage.retry import for_store, until_answered, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from wal3_core.arguments import Check
    from wal3_core.log.write.halt import ResumeReport
    from wal3_core.log.write.stats import WriterStats
    from wal3_core.model.position import LogPosition
    from wal3_core.storage.object_store import ObjectStore


_OPENING: Mapping[str, Check] = {
    "store": a_store,
    "log": check_log_name,
    "options": optional(instance_of(WriterOptions)),
    "ordered": flag,
    "runtime": optional(a_runtime),
}
_APPENDING: Mapping[str, Check] = {"expect_next": optional(integer), "timeout_s": optional(seconds)}


class LogWriter:
    """Appends to one log. Safe to share between threads; close it, or use it as a context manager.

    Any number of writers may have a log open; when two append at once, one of them is given new
    places for its records, or told that they are not in the log. An open writer without appends
    makes no requests and has no thread.

    A call from a signal's handler or a ``__del__`` that comes in the middle of another call, and could only
    wait for that one, raises InvalidRequestError and does nothing; ``stats`` never does. A callback of an
    append's future may call all there is, and wait for it: it has a worker that nothing else waits for. Those of
    one commit are called one after another, and of one log in at most half of the workers at once. At the
    interpreter's exit one that waits for a future has to do so by ``append`` or ``flush``.
    """

    def __init__(self, pipeline: Pipeline, runtime: Runtime, options: WriterOptions) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._options = options

    @classmethod
    @checked(store=a_store, log=check_log_name, runtime=optional(a_runtime))
    def initialize(cls, store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> None:
        """Create an empty log; LogExistsError, and the log untouched, when there is one."""
        runtime = runtime or shared_runtime()
        manifests = ManifestStore(log_store(patient(store, runtime), check_log_name(log)), runtime)
        # No clock is asked: a log's time begins with its first fragment.
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
    ) -> Self:
        """Open a log for appending: one GET. LogNotFoundError when it was never initialized.

        An ``ordered`` writer halts at its first append that fails, or of which there is no telling: those
        behind it get HaltedError until ``resume`` is called. So what is in the log is always the beginning
        of what was submitted, in that order, with no hole.
        """
        runtime, options = runtime or shared_runtime(), options or WriterOptions()
        inside = log_store(store, check_log_name(log))
        timeout_s = options.delivery_timeout_s
        retry = options.retry if timeout_s is None else within(options.retry, timeout_s)
        manifests = ManifestStore(inside, runtime, options.retry)
        base = until_answered(manifests.load, for_store(retry, inside), runtime)
        return cls(Pipeline(manifests, base, runtime, options, ordered=ordered), runtime, options)

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
    ) -> Self:
        """Open a log for appending, creating it first when it does not exist."""
        try:
            return cls.open(store, log, options=options, runtime=runtime, ordered=ordered)
        except LogNotFoundError:
            # Somebody else may be as quick, which is as good.
            with contextlib.suppress(LogExistsError):
                cls.initialize(store, log, runtime=runtime)
            return cls.open(store, log, options=options, runtime=runtime, ordered=ordered)

    def append(self, body: bytes | None, *, key: bytes | None = None, expect_next: int | None = None) -> LogPosition:
        """Append one record and block until it is durable; return its position.

        A record with a key and no body is a tombstone. ``expect_next`` appends it only if its offset is
        that one, which compares and appends in one step; else ConditionNotMetError has the log's true next
        offset. Raises NotDurableError (ContentionError, ConditionNotMetError, HaltedError, SealedError) when
        the record is not in the log and never will be, UnknownDurabilityError when there is no telling,
        InvalidRequestError when it can not be a record.
        """
        self._pipeline.check_awaited_here()
        return self._runtime.wait(self.submit(body, key=key, expect_next=expect_next))

    @checked(records=several, expect_next=optional(integer))
    def append_many(self, records: Iterable[bytes | Message], *, expect_next: int | None = None) -> LogPosition:
        """Append records at adjacent offsets, all or none; return the first one's position.

        Errors as ``append``; ``expect_next`` is of the first record.
        """
        self._pipeline.check_awaited_here()
        return self._runtime.wait(self.submit_many(records, expect_next=expect_next))

    @checked(**_APPENDING)
    def submit(
        self,
        body: bytes | None,
        *,
        key: bytes | None = None,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue one record; the future has what ``append`` returns or raises.

        Blocks only while ``bytes_held_max`` bytes wait to become durable, ``timeout_s`` seconds at most
        (0: not at all), then raises OverloadedError and the record is certainly not in the log. An append that
        was queued can not be cancelled.
        """
        return self.submit_many((Message(body, key),), expect_next=expect_next, timeout_s=timeout_s)

    @checked(records=several, **_APPENDING)
    def submit_many(
        self,
        records: Iterable[bytes | Message],
        *,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue records that stay together; the future has what ``append_many`` returns or raises.

        ``timeout_s`` as ``submit``.
        """
        columns = check_records(records, self._options)
        expect_next = check_expected(expect_next)
        future: Outcome[LogPosition] = Outcome()
        # Marked as running, so that it can not be cancelled: the records may be on their way already.
        future.set_running_or_notify_cancel()
        self._pipeline.submit(Entry(columns, future, self._runtime.monotonic_s(), expect_next), timeout_s)
        return future

    def resume(self) -> ResumeReport:
        """Let an ordered writer go on after it has halted; say what of its appends is in the log.

        An outcome that was unknown is found out: from the manifest, which is written once more so that
        nothing under way can be applied later. Raises UnavailableError while the store does not answer, CorruptError
        while the manifest can not be read, and UnknownDurabilityError when the log can not tell any more; the writer
        stays halted then. Of a writer that is not halted it blocks, as ``flush`` does, until nothing is on its way,
        and counts that, too.
        """
        return self._pipeline.resume()

    def stats(self) -> WriterStats:
        """Say how the writer is doing: what waits, how long, and what became of the rest. Cheap, from any thread."""
        return self._pipeline.stats()

    def flush(self) -> None:
        """Block until everything submitted so far has its outcome."""
        self._pipeline.flush()

    def close(self) -> None:
        """Take no more appends, and block until those submitted have their outcome."""
        self._pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
