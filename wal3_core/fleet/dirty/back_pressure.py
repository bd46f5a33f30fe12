"""How far the consumers of logs are behind, and the refusal of appends to logs where that is too far.

A fleet's append only looks whether its log is refused: checks are made by workers, after appends have their outcome,
and their cost follows what is written. A check that fails refuses nothing. Source: docs/fleet.md, "Back-pressure".
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from wal3_core.arguments import checked, integer, optional, several
from wal3_core.errors import BackPressureError, InvalidRequestError, LogError, LogNotFoundError, LogReplacedError
from wal3_core.fleet.dirty.rollup_plan import MarkedLog
from wal3_core.fleet.outcomes import try_log
from wal3_core.format.cursor import BYTES_MAX, Cursor, consumes
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CURSOR_FOLDER, check_log_name, cursor_name, cursor_path
from wal3_core.format.policy import Policy
from wal3_core.format.strict_json import JsonObject, Shown
from wal3_core.options import UNPROCESSED_MIN, FleetOptions, RetryOptions
from wal3_core.runtime import Lock, Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import WRITER, Seldom
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.named_store import NamedStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore, a_store, log_store, share_of
from wal3_core.store.retrying import with_retries


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure(Shown):
    """A log's unprocessed records, from the offset ``processed`` to ``next``, exclusive, and their limit.

    ``processed`` lies at most as many offsets before ``next`` as the log holds records.
    ``consumer`` names the cursor that is farthest behind; None: the log has no cursor. ``limit`` is that of the log's
    policy, or else the one that was asked for; None: none.
    """

    log: str
    consumer: str | None
    processed: int
    next: int
    limit: int | None

    SHOWN = "log unprocessed processed next over consumer limit"

    @property
    def unprocessed(self) -> int:
        """How many records are unprocessed."""
        return self.next - self.processed

    @property
    def over(self) -> bool:
        """Whether these are more than the limit."""
        return self.limit is not None and self.unprocessed > self.limit

    @property
    def reason(self) -> str:
        """What is behind, in a sentence, with the command to look at it."""
        expected = "" if self.limit is None else f"expected at most {self.limit} unprocessed records, "
        found = f"log {self.log}: {expected}found {self.unprocessed}"
        if self.consumer is None:
            return f"{found}, and no cursor: create its consumer's (`wal3 cursor set {self.log} NAME first`)"
        return f"{found}: the consumer {self.consumer} is farthest behind: wake it (`wal3 cursor list {self.log}`)"

    def to_json(self) -> JsonObject:
        """Return as a JSON object, without what is None."""
        return {name: value for name, value in Shown.to_json(self).items() if value is not None}


def pressure_of(
    log: str, manifest: Manifest, cursors: Mapping[str, int] | None, policy: Policy | None, unprocessed_max: int | None
) -> Pressure:
    """Measure a log by the offsets of its cursors, and by its policy if it has one.

    ``cursors`` None: they were not read, and all that the log holds counts as unprocessed. These have no limit: a
    sealed log, whose appends fail for good, and a log without cursors that needs none by its policy, unless that sets a
    limit.
    """
    limit = unprocessed_max
    if policy is not None and policy.unprocessed_max is not None:
        limit = policy.unprocessed_max
    elif policy is not None and cursors == {} and (policy.without_cursors or not policy.collects):
        # As its owner wants it: what is compacted alone holds what is newest.
        limit = None
    if manifest.seal is not None:
        limit = None
    first, next_offset = manifest.first.position.offset, manifest.next.position.offset
    offset, consumer = min(((offset, name) for name, offset in (cursors or {}).items()), default=(first, None))
    # A cursor may have moved on since the manifest was loaded.
    processed = min(max(first, offset), next_offset)
    # No more than it holds: where records were dropped, there are fewer than offsets.
    processed = max(processed, next_offset - manifest.num_records)
    return Pressure(log=log, consumer=consumer, processed=processed, next=next_offset, limit=limit)


_LOGS_AHEAD = 16


@checked(store=a_store, logs=several, unprocessed_max=optional(integer))
def over_limit(
    store: ObjectStore,
    logs: Iterable[str | MarkedLog],
    *,
    unprocessed_max: int | None = None,
    runtime: Runtime | None = None,
) -> list[Pressure]:
    """Return those of these logs with more unprocessed records than they may have, the farthest behind first.

    ``logs`` are names, or what a roll-up has found (``plan.dirty``). The limit is that of a log's policy, or else
    ``unprocessed_max``; None: logs without one are never over. Changes nothing. A log that is gone, or cannot be read,
    is left out: roll-ups and checks report it. UnavailableError when the store does not answer.
    """
    if unprocessed_max is not None and unprocessed_max < UNPROCESSED_MIN:
        raise InvalidRequestError(f"unprocessed_max: expected at least {UNPROCESSED_MIN}, found {unprocessed_max}")
    measured = measure_logs(store, logs, unprocessed_max, runtime=runtime, whole=False)
    found = [each for each in measured.values() if not isinstance(each, LogError) and each.over]
    return sorted(found, key=lambda each: (-each.unprocessed, each.log))


def measure_logs(
    store: ObjectStore,
    logs: Iterable[str | MarkedLog],
    unprocessed_max: int | None,
    *,
    runtime: Runtime | None = None,
    whole: bool = True,
) -> dict[str, Pressure | LogError]:
    """Measure each log once, several at a time; by name, with its own error if it cannot be measured."""
    runtime = runtime or shared_runtime()
    names = sorted({each.log if isinstance(each, MarkedLog) else check_log_name(each) for each in logs})

    def measured(log: str) -> Pressure | LogError:
        return try_log(partial(measure, store, unprocessed_max=unprocessed_max, runtime=runtime, whole=whole), log)

    found = map_ahead(runtime, measured, names, count=_LOGS_AHEAD, share=share_of(store))
    return dict(zip(names, found, strict=True))


def measure(
    store: ObjectStore,
    log: str,
    *,
    unprocessed_max: int | None,
    runtime: Runtime,
    retry: RetryOptions | None = None,
    whole: bool = False,
) -> Pressure:
    """Measure the log that has this name now; LogNotFoundError when there is none.

    Unless the ``whole`` answer is wanted, cursors are read only if the log holds more records than its limit: otherwise
    all that it holds counts as unprocessed.
    """
    retry = retry or RetryOptions()
    manifests = ManifestStore(with_retries(log_store(store, log), runtime, retry), runtime, retry)
    manifest = manifests.load().manifest
    policy = PolicyStore(store, log, runtime=runtime, retry=retry, log_id=manifest.log_id).saved()
    if_none_processed = pressure_of(log, manifest, None, policy, unprocessed_max)
    if not whole and not if_none_processed.over:
        return if_none_processed
    return pressure_of(log, manifest, _cursors(manifests, runtime, retry), policy, unprocessed_max)


def _cursors(manifests: ManifestStore, runtime: Runtime, retry: RetryOptions) -> dict[str, int]:
    """Load the offsets of a log's consumers one by one: a shared worker must not wait for others."""
    cursors = NamedStore(manifests, runtime, retry, Cursor.from_fields, bytes_max=BYTES_MAX)
    found = {}
    for meta in manifests.objects.list_objects(CURSOR_FOLDER):
        name = cursor_name(meta.path)
        seen = cursors.load(cursor_path(name))
        if seen is not None and seen.document.pins and consumes(name, seen.document):
            found[name] = seen.document.position.offset
    return found


# A log is checked when a fleet has appended this share of its limit since the last check; before its policy is known,
# or while it has no limit, after so many records at most.
_SHARE_OF_LIMIT = 4
_UNKNOWN_RECORDS = 10_000
# The pause before a log is checked again that is refused, or whose check failed.
_AGAIN_S = 5.0
# A refusal expires so long after its check: one that cannot be repeated does not refuse appends for ever.
_VALID_S = 60.0
# Checks under way at the same time: they leave most workers to appends.
_CHECKS_MAX = 4
# Logs that are remembered for each that may be open: one that is closed for others stays refused.
_KEPT_PER_OPEN = 4
# A check is repeated anyway.
_ONCE = RetryOptions(attempts_max=1)


@dataclass(slots=True, eq=False)
class _CheckedLog:
    """What is known of a log: ``due`` is after how many records it is checked, ``over`` why it is refused."""

    due: int
    records: int
    checking: bool = False
    not_before_s: float = float("-inf")
    checked_s: float = float("-inf")
    over: Pressure | None = None


class BackPressure:
    """Which logs of a fleet are refused. Guarded by the fleet's lock, which is never held during a request."""

    def __init__(self, store: ObjectStore, options: FleetOptions, runtime: Runtime, lock: Lock) -> None:
        self._store = store
        self._unprocessed_max = options.unprocessed_max
        self._kept_max = _KEPT_PER_OPEN * options.logs_open_max
        self._runtime = runtime
        self._lock = lock
        self._share = share_of(store)
        self._watched: OrderedDict[str, _CheckedLog] = OrderedDict()
        self._refused: dict[str, _CheckedLog] = {}
        self._waiting: deque[str] = deque()
        self._running = 0
        self._closed = False
        self._refusals, self._failures = Seldom(runtime, WRITER), Seldom(runtime, WRITER)

    # ------------------------------------------------------------------ appends

    def refuse(self, log: str) -> None:
        """Raise BackPressureError while a log is over its limit; have it checked again from time to time."""
        if log not in self._refused:
            return
        with self._lock:
            watched = self._refused.get(log)
            over = None if watched is None else watched.over
            if watched is None or over is None:
                return
            self._watched.move_to_end(log)
            now_s = self._runtime.monotonic_s()
            valid = now_s < watched.checked_s + _VALID_S
            if not valid:
                self._accept(log, watched)
            begins = now_s >= watched.not_before_s and self._queue(log, watched)
        if begins:
            self._begin()
        if valid:
            self._runtime.observer.refused(log)
            raise BackPressureError(
                f"{over.reason}: the append was not begun; appends are accepted again once it has caught up",
                log=log,
                consumer=over.consumer or "",
                unprocessed=over.unprocessed,
                limit=over.limit or 0,
            )

    def appended(self, log: str, num_held: Callable[[], int], num_records: int) -> None:
        """Count durable records, and have their log checked when it is due. From a worker; never raises a LogError.

        ``num_held`` returns how many offsets the log holds.
        """
        with self._lock:
            watched = self._watched.get(log)
            if watched is None:
                watched = self._watch(log, num_held)
            self._watched.move_to_end(log)
            watched.records += num_records
            is_due = watched.records >= watched.due and self._runtime.monotonic_s() >= watched.not_before_s
            begins = is_due and self._queue(log, watched)
        if begins:
            self._begin()

    def num_refused(self) -> int:
        """Count the logs that are refused. Called with the lock."""
        valid_s = self._runtime.monotonic_s() - _VALID_S
        return sum(watched.checked_s > valid_s for watched in self._refused.values())

    def close(self) -> None:
        """Begin no further check."""
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _watch(self, log: str, num_held: Callable[[], int]) -> _CheckedLog:
        limit = self._unprocessed_max
        due = _UNKNOWN_RECORDS if limit is None else min(_UNKNOWN_RECORDS, limit // _SHARE_OF_LIMIT)
        # No more can be unprocessed than a log holds. Without a limit for all logs, few have one: no hurry.
        held = 0 if limit is None else num_held()
        watched = self._watched[log] = _CheckedLog(due, due if held >= UNPROCESSED_MIN else 0)
        while len(self._watched) > self._kept_max:
            oldest, _ = self._watched.popitem(last=False)
            self._refused.pop(oldest, None)
        return watched

    def _accept(self, log: str, watched: _CheckedLog) -> None:
        self._refused.pop(log, None)
        watched.over = None

    # ------------------------------------------------------------------ checks

    def _queue(self, log: str, watched: _CheckedLog) -> bool:
        """Have a log checked, unless it is about to be; return whether a worker is needed for that.

        A caller may be interrupted before it asks for one: then the next caller does.
        """
        if self._closed:
            return False
        if not watched.checking:
            watched.checking, watched.records = True, 0
            self._waiting.append(log)
        return bool(self._waiting) and self._running < _CHECKS_MAX

    def _begin(self) -> None:
        self._runtime.spawn(self._run, share=self._share)

    def _run(self) -> None:
        """Check the log that has waited longest, and let others take their turn before the next."""
        with self._lock:
            if not self._waiting or self._running >= _CHECKS_MAX:
                return
            log = self._waiting.popleft()
            self._running += 1
        try:
            self._check(log)
        finally:
            with self._lock:
                self._running -= 1
                more = bool(self._waiting)
            if more:
                self._begin()

    def _check(self, log: str) -> None:
        began_s, limit, found = self._runtime.monotonic_s(), self._unprocessed_max, None
        try:
            found = measure(self._store, log, unprocessed_max=limit, runtime=self._runtime, retry=_ONCE)
        except (LogNotFoundError, LogReplacedError):
            # Nothing is behind in a log that has just begun, or is gone.
            self._ended(log, began_s, None)
        except LogError as error:
            self._failed(log, began_s)
            self._failures.warn("log %s: not known how far its consumers are behind: %s", log, error)
        except BaseException:
            # Otherwise it would count as being checked for ever.
            self._failed(log, began_s)
            raise
        else:
            self._ended(log, began_s, found)

    def _failed(self, log: str, began_s: float) -> None:
        with self._lock:
            watched = self._watched.get(log)
            if watched is not None:
                watched.checking, watched.records = False, watched.due
                watched.not_before_s = began_s + _AGAIN_S

    def _ended(self, log: str, began_s: float, found: Pressure | None) -> None:
        with self._lock:
            watched = self._watched.get(log)
            if watched is None:
                return
            was_over, watched.checking = watched.over is not None, False
            # Also of a process that was suspended meanwhile: the answer is as old as the question.
            watched.checked_s, watched.not_before_s = began_s, began_s + _AGAIN_S
            over = None if found is None or not found.over else found
            if over is None:
                self._accept(log, watched)
                watched.not_before_s = began_s
            else:
                watched.over = over
                self._refused[log] = watched
            limit = None if found is None else found.limit
            watched.due = _UNKNOWN_RECORDS if limit is None else limit // _SHARE_OF_LIMIT
        if over is not None and not was_over:
            self._refusals.warn("appends are refused: %s", over.reason)
        elif was_over and over is None:
            WRITER.info("log %s: appends are accepted again", log)
