"""The store as a step or tick finds it: whether it is the right one, and the states of its logs.

The partitions belong to the instance, so the instance remembers which store they describe. A different
store, or the loss of many logs at once, most likely means a wrong URL or a volume that is not mounted:
nothing is changed until an operator accepts it (`accept_store_job` in defs/discovery.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar
from urllib.parse import urlencode

from dagster import DagsterInstance, Failure, MetadataValue, SensorEvaluationContext, TimestampMetadataValue

from wal3_core import CursorStore, LogError, LogNotFoundError, LogReplacedError, StoreDeniedError
from wal3_core.fleet.identity import store_identity
from wal3_core.fleet.outcomes import try_log
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import check_log_name
from wal3_core.options import RetryOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore, lost_manifest
from wal3_core.store.object_store import ObjectStore, StoreWrapper, log_store
from wal3_core.store.retrying import timeout_s_of, with_retries
from wal3_core.store.store_urls import named_in
from wal3_orchestration.framework.runbook import Section, address
from wal3_orchestration.framework.scope import Context, StoreScope
from wal3_orchestration.resources import StoreResource

S = TypeVar("S")
T = TypeVar("T")
LOGS_AT_ONCE = 16


def map_logs(do: Callable[[S], T], logs: Iterable[S], *, count: int = LOGS_AT_ONCE) -> Iterator[T]:
    """Yield what is found for each log, in order. Only a few are worked on ahead, so that few results are held."""
    rest = iter(logs)
    with ThreadPoolExecutor(count, thread_name_prefix="log") as threads:
        ahead = deque(threads.submit(do, log) for log in islice(rest, 2 * count))
        try:
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(threads.submit(do, log) for log in islice(rest, 1))
        finally:
            # After an error, those that have not begun would each wait for a silent store.
            threads.shutdown(wait=False, cancel_futures=True)


ACCEPT_JOB = "accept_store_job"
ACCEPT_OP = "accepted_store"
_KEY = "wal3/store_id"
_NAMED_MAX = 10
_PATIENCE_S = 5.0


class _ImpatientStore(StoreWrapper):
    """A store as a tick uses it: requests are repeated for a few seconds at most, unless its own URL says fewer."""

    @property
    def url(self) -> str:
        address, options = self._store.url.partition("?")[0], named_in(self._store.url)
        patience_s = min(_PATIENCE_S, timeout_s_of(self._store.url))
        return f"{address}?{urlencode({**options, 'timeout_s': f'{patience_s:g}'})}"


def remembered(scope: StoreScope, instance: DagsterInstance) -> str | None:
    """Return the identity of the store that the instance looks after; None until it has seen a log."""
    key = _key(scope)
    return instance.daemon_cursor_storage.get_cursor_values({key}).get(key)


def remember(scope: StoreScope, instance: DagsterInstance, store_id: str) -> None:
    """Record which store the instance looks after."""
    instance.daemon_cursor_storage.set_cursor_values({_key(scope): store_id})


def remember_first(scope: StoreScope, instance: DagsterInstance, store: ObjectStore) -> None:
    """Record the store, which has logs, as the one that the instance looks after, unless it knows one already."""
    if remembered(scope, instance) is None:
        identity = store_identity(store, create=True)
        assert identity is not None
        remember(scope, instance, identity)


def open_known(scope: StoreScope, context: Context) -> ObjectStore:
    """Open the scope's store; Failure when it is not the store that the instance looks after."""
    store = scope.store(context).open()
    patience_s = timeout_s_of(store.url)
    if isinstance(context, SensorEvaluationContext):
        # If the store is silent, a tick fails before Dagster ends it, after a minute.
        patience_s = min(_PATIENCE_S, patience_s)
        # Others have no such option in their URLs.
        store = store if store.url.startswith(("file:", "memory:")) else _ImpatientStore(store)
    expected = remembered(scope, context.instance)
    if expected is None:
        return store
    found = store_identity(store, retry=RetryOptions(timeout_s=patience_s))
    if found == expected:
        return store
    problem = (
        "no identity: check that WAL3_STORE is right and the store is mounted; if only the identity is lost,"
        " create a new one with wal3 store-id --create"
        if found is None
        else f"store {found}: check that WAL3_STORE is right"
    )
    where = address(scope, Section.DISCOVERY)
    message = (
        f"store {store.url}: expected store {expected}, which this instance looks after, found {problem}. Nothing was"
        f" changed. If this store is meant, launch {scope.named(ACCEPT_JOB)} with what wal3 store-id prints ({where})"
    )
    raise Failure(message, allow_retries=False)


def require_few_lost(
    scope: StoreScope, store: ObjectStore, known: Sequence[str], vanished: Sequence[str], limits: StoreResource
) -> None:
    """Refuse the loss of all known logs, or of more than ``logs_lost_max`` that exceed the fraction of them."""
    many = len(vanished) > limits.logs_lost_max and len(vanished) > limits.logs_lost_fraction_max * len(known)
    if not vanished or not (many or len(vanished) == len(known)):
        return
    more = " and more" if len(vanished) > _NAMED_MAX else ""
    message = (
        f"store {store.url}: expected most of the {len(known)} known logs, found {len(vanished)} of them gone:"
        f" {', '.join(vanished[:_NAMED_MAX])}{more}. Nothing was changed. If they were destroyed, launch"
        f" {scope.named(ACCEPT_JOB)} with vanished: {len(vanished)} ({address(scope, Section.DISCOVERY)})"
    )
    raise Failure(message, allow_retries=False)


def _key(scope: StoreScope) -> str:
    return f"{_KEY}/{scope.name}" if scope.name else _KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log's manifest and cursors, read together."""

    log: str
    manifest: Manifest
    cursors: Mapping[str, Cursor]

    @property
    def data_version(self) -> str:
        """Identify what the log held: no two versions of a manifest share it."""
        return f"{self.manifest.log_id}-{self.manifest.generation}-{self.manifest.setsum.hexdigest()}"

    @property
    def fingerprint(self) -> str:
        """Identify the state, including the cursors."""
        moved = ",".join(f"{name}@{cursor.generation}" for name, cursor in sorted(self.cursors.items()))
        return f"{self.data_version} {moved}"

    def numbers(self) -> dict[str, int]:
        """Return the numbers that Dagster plots.

        ``fragments`` counts the fragment numbers that the log holds, including those in snapshots;
        ``lag/<cursor> (records)`` counts the records at and after a cursor, unless it pins nothing.
        """
        manifest = self.manifest
        limit = manifest.next.position.offset
        pinning = {name: cursor.position.offset for name, cursor in sorted(self.cursors.items()) if cursor.pins}
        return {
            "records": manifest.num_records,
            "bytes": manifest.num_bytes,
            "fragments": manifest.next.seq_no - manifest.first.seq_no,
            "snapshots": len(manifest.snapshots),
            "generation": manifest.generation,
            "next_offset": limit,
            **{f"lag/{name} (records)": limit - offset for name, offset in pinning.items()},
        }

    @property
    def figures(self) -> dict[str, float]:
        """The figures by which the fleet's logs are compared: bytes, records behind, offset of the next record."""
        following = self.manifest.next.position.offset
        pinning = [cursor.position.offset for cursor in self.cursors.values() if cursor.pins]
        behind = following - min(pinning, default=following)
        return {"bytes": self.manifest.num_bytes, "behind": behind, "next": following}

    def metadata(self) -> dict[str, int | str | bool | TimestampMetadataValue]:
        """Return the numbers, the time of the last append, the setsum, and whether the log is sealed."""
        following = self.manifest.next.position
        appended = MetadataValue.timestamp(following.timestamp_us / US_PER_S)
        return {
            **self.numbers(),
            **({"last_append": appended} if following.offset > 1 else {}),
            "setsum": self.manifest.setsum.hexdigest(),
            "sealed": self.manifest.seal is not None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLog:
    """A log with a damaged manifest or cursor, or one that the store denies access to."""

    log: str
    message: str
    denied: bool = False

    @property
    def fingerprint(self) -> str:
        """Identify the damage. All denials count as one: a store may put a number into each."""
        return "denied" if self.denied else self.message


def read_state(store: ObjectStore, log: str) -> LogState | UnreadableLog | None:
    """Read a log's present state; None when there is no log. UnavailableError when the store does not answer."""
    found = try_log(partial(_read_state, store), log)
    if not isinstance(found, LogError):
        return found
    return UnreadableLog(log=log, message=str(found), denied=isinstance(found, StoreDeniedError))


def _read_state(store: ObjectStore, log: str) -> LogState | UnreadableLog | None:
    try:
        manifest = _manifest(store, log)
        witnesses = CursorStore(store, log, log_id=manifest.log_id).list()
        cursors = {name: witness.cursor for name, witness in witnesses.items()}
    except LogReplacedError:
        return _read_state(store, log)
    except LogNotFoundError:
        lost = lost_manifest(log_store(store, log), shared_runtime())
        return None if lost is None else UnreadableLog(log=log, message=str(lost))
    return LogState(log=log, manifest=manifest, cursors=cursors)


def _manifest(store: ObjectStore, log: str) -> Manifest:
    """Read a log's manifest by one request."""
    runtime = shared_runtime()
    return ManifestStore(with_retries(log_store(store, check_log_name(log)), runtime), runtime).load().manifest


def read_states(store: ObjectStore, logs: Iterable[str]) -> Iterator[LogState | UnreadableLog]:
    """Read the states of many logs, several at a time, in order; logs that are gone are left out.

    Keep of each state what is needed: manifests of thousands of logs take hundreds of MB.
    """
    yield from (state for state in map_logs(partial(read_state, store), logs) if state is not None)


def read_manifests(store: ObjectStore, logs: Iterable[str]) -> Iterator[tuple[str, Manifest]]:
    """Read the manifests of many logs by one request each; those that cannot be read, or are gone, are left out.

    Keep of each manifest what is needed. UnavailableError when the store does not answer.
    """
    for log, found in map_logs(lambda log: (log, try_log(partial(_manifest, store), log)), logs):
        if not isinstance(found, LogError):
            yield log, found
