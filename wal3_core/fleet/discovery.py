"""Finding the logs of a store, and loading their manifests.

A listing of folders per log and per folder above it finds them, whatever the logs hold; a GET of each loads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice

from wal3_core.arguments import checked, text
from wal3_core.errors import CorruptError, LogError, LogNotFoundError, StoreDeniedError
from wal3_core.format.manifest import BYTES_MAX, Manifest
from wal3_core.format.paths import MANIFEST, MANIFEST_FOLDER, check_log_name, is_name_part
from wal3_core.format.vacancy import Vacancy, VacancyKind, manifest_or_vacancy
from wal3_core.log.contents import is_of_log
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.manifest_store import lost_manifest
from wal3_core.store.object_store import ObjectStore, Versioned, a_store, log_store, share_of
from wal3_core.store.retrying import reread_if_damaged, with_retries


def _folder(value: object, argument: str) -> str:
    """Take a prefix; return its folder."""
    prefix = text(value, argument).strip("/")
    return f"{check_log_name(prefix, argument)}/" if prefix else ""


@checked(store=a_store, prefix=_folder)
def list_logs(store: ObjectStore, prefix: str = "") -> Iterator[str]:
    """Yield the names of a store's logs in order; with a prefix, that log and those below it (whole parts of names).

    InvalidRequestError for a prefix that no log's name can have. UnavailableError when the store does not answer, or
    does not let this process look into a folder that may hold logs. A log whose manifest cannot be read is named too.
    """
    yield from _below(with_retries(store, shared_runtime()), prefix)


def _below(store: ObjectStore, folder: str) -> Iterator[str]:
    names = [found.removeprefix(folder) for found in store.list_folders(folder)]
    if folder and _is_log(store, folder, names):
        yield folder.removesuffix("/")
    for name in names:
        # Other folders cannot be part of a log's name.
        if is_name_part(name.removesuffix("/")):
            yield from _below(store, f"{folder}{name}")


def _is_log(store: ObjectStore, folder: str, names: Sequence[str]) -> bool:
    """Return whether a folder is a log's root: one with a manifest alone may be a vacancy, which takes a GET."""
    found = list(filter(is_of_log, names))
    # Fragments without a manifest are a log too, one to be repaired.
    return bool(found) and (found != [MANIFEST_FOLDER] or not _vacant(store, f"{folder}{MANIFEST}"))


def _vacant(store: ObjectStore, path: str) -> bool:
    """Return whether there is no log, and nothing to finish: a copy may have been cut short."""
    try:
        found = store.get(path, length_max=BYTES_MAX)
        if not isinstance(found, Versioned):
            return found is None
        entry = manifest_or_vacancy(found.data, what=path)
    except (CorruptError, StoreDeniedError):
        # Loading the log reports the error.
        return False
    return isinstance(entry, Vacancy) and entry.kind is not VacancyKind.COPYING


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
