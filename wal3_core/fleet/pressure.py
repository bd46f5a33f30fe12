"""Looks up how far the consumers of logs are behind: a few requests for each log, none of them from a shared worker.

A log costs two GETs and, unless it holds fewer records than it may have unprocessed, a listing of its cursors and a GET
of each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, integer, optional, several
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.fleet.asking import ask
from wal3_core.model.cursor import BYTES_MAX, Cursor, consumes
from wal3_core.model.paths import CURSOR_FOLDER, check_log_name, cursor_name, cursor_path
from wal3_core.model.policy import UNPROCESSED_MIN
from wal3_core.model.pressure import pressure_of
from wal3_core.model.rollup import MarkedLog
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, a_runtime, map_ahead, shared_runtime
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.documents.named_store import NamedStore
from wal3_core.storage.documents.policy_store import PolicyStore
from wal3_core.storage.object_store import a_store, log_store, share_of
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.model.pressure import Pressure
    from wal3_core.storage.object_store import ObjectStore

_LOGS_AHEAD = 16


@checked(store=a_store, logs=several, unprocessed_max=optional(integer), runtime=optional(a_runtime))
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
        message = f"unprocessed_max: expected at least {UNPROCESSED_MIN}, found {unprocessed_max}"
        raise InvalidRequestError(message)
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
        return ask(partial(measure, store, unprocessed_max=unprocessed_max, runtime=runtime, whole=whole), log)

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
    # As if nothing was processed.
    most = pressure_of(log, manifest, None, policy, unprocessed_max)
    if not whole and not most.over:
        return most
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
