"""The manifests of a store's logs: one GET for each log, several at a time."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

from wal3_core.errors import LogError, LogNotFoundError
from wal3_core.fleet.discovery import list_logs
from wal3_core.model.manifest import BYTES_MAX, Manifest
from wal3_core.model.paths import MANIFEST
from wal3_core.model.vacancy import manifest_or_vacancy
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.storage.documents.manifest_store import lost_manifest
from wal3_core.storage.object_store import log_store, share_of
from wal3_core.storage.retrying import reread_if_damaged, with_retries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.storage.object_store import ObjectStore

_TASKS_AHEAD = 16
# A task takes several logs: reading one manifest from a disk takes no longer than handing a task over.
_LOGS_OF_A_TASK = 8

Found = tuple[str, Manifest | LogError]


def load_manifests(store: ObjectStore, prefix: str = "") -> Iterator[Found]:
    """Yield the logs that ``list_logs`` names, each with its manifest, or the error of one that cannot be read.

    The manifests are for display: on a directory, one that a power cut could still undo is shown, too.
    """
    runtime = shared_runtime()
    load = partial(_load_each, store, with_retries(store, runtime), store.url.partition("?"), runtime)
    logs = list_logs(store, prefix)
    groups = iter(lambda: tuple(islice(logs, _LOGS_OF_A_TASK)), ())
    return chain.from_iterable(map_ahead(runtime, load, groups, count=_TASKS_AHEAD, share=share_of(store)))


def _load_each(
    store: ObjectStore, reads: ObjectStore, address: tuple[str, str, str], runtime: Runtime, logs: tuple[str, ...]
) -> list[Found]:
    found: list[Found] = []
    folder, mark, options = address
    for log in logs:
        what = f"{folder.rstrip('/')}/{log}{mark}{options}/{MANIFEST}"
        try:
            manifest = reread_if_damaged(partial(_load, reads, f"{log}/{MANIFEST}", what), store)
            if manifest is not None:
                found.append((log, manifest))
            # Otherwise it was destroyed after it was listed, or its manifest was lost.
            elif (lost := lost_manifest(log_store(store, log), runtime)) is not None:
                found.append((log, lost))
        except LogNotFoundError:
            continue
        except LogError as error:
            found.append((log, error))
    return found


def _load(store: ObjectStore, path: str, what: str) -> Manifest | None:
    # One byte more than allowed: a larger object is refused without being read whole.
    data = store.read(path, length=BYTES_MAX + 1)
    entry = None if data is None else manifest_or_vacancy(data, what=what)
    return entry if isinstance(entry, Manifest) else None
