"""Finding the logs of a store, and loading their manifests.

A listing of objects finds many small logs by a request. Where it finds few, a listing of each folder finds them,
several at a time, whatever the logs hold. A GET of each log loads its manifest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from wal3_core.arguments import checked, text
from wal3_core.errors import CorruptError, LogError, LogNotFoundError, StoreDeniedError, UnavailableError
from wal3_core.format.manifest import BYTES_MAX, Manifest
from wal3_core.format.paths import MANIFEST, MANIFEST_FOLDER, check_log_name, is_name_part
from wal3_core.format.vacancy import Vacancy, VacancyKind, manifest_or_vacancy
from wal3_core.log.contents import is_of_log
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.manifest_store import lost_manifest
from wal3_core.store.object_store import ObjectMeta, ObjectStore, Versioned, a_store, log_store, share_of
from wal3_core.store.retrying import reread_if_damaged, with_retries

_TASKS_AHEAD = 16
# Folders whose listings are held at a time, however many logs there are.
_FOLDERS_AT_ONCE = 512
# Objects in a page of S3.
_PAGE = 1_000
# Logs that a page has to find: so many listings of folders are under way in the time of one page.
_LOGS_OF_A_PAGE = _TASKS_AHEAD
_POOR_PAGES_MAX = 2
# Sorts behind all that is in a log's own folders.
_LAST = "~"


def _folder(value: object, argument: str) -> str:
    """Take a prefix, or a log's name; return its folder."""
    prefix = text(value, argument).strip("/")
    return f"{check_log_name(prefix, argument)}/" if prefix else ""


@checked(store=a_store, prefix=_folder, start_after=_folder)
def list_logs(store: ObjectStore, prefix: str = "", *, start_after: str = "") -> Iterator[str]:
    """Yield the names of a store's logs in order; with a prefix, that log and those below it (whole parts of names).

    The order is that of the logs' folders: ``a-b``, ``a``, ``a/b``. A listing that was left can go on behind the log
    ``start_after``, which need not exist. InvalidRequestError for a prefix that no log's name can have.
    UnavailableError when the store does not answer, or does not let this process look into a folder that may hold
    logs. A log whose manifest cannot be read is named too.
    """
    runtime, after = shared_runtime(), start_after
    retrying = with_retries(store, runtime)
    # A directory's folders are read whichever way, and a listing of objects reads all that is in them.
    if not store.url.startswith("file:"):
        rest = yield from _Pages(store, retrying, prefix, after).logs()
        if rest is None:
            return
        after = rest
    visit = partial(_visit, retrying, after)
    visit_all = partial(map_ahead, runtime, visit, count=_TASKS_AHEAD, share=share_of(store))
    yield from (folder.removesuffix("/") for folder in _in_folders(visit_all, [prefix]))


# ---------------------------------------------------------------------- by objects


class _Pages:
    """A listing of objects in pages, from which logs are known as long as a page shows many of them.

    A folder above a log is looked into before that log is named, so that the order is kept.
    """

    def __init__(self, store: ObjectStore, retrying: ObjectStore, prefix: str, after: str) -> None:
        self._store = store
        self._retrying = retrying
        self._prefix = prefix
        self._after = after
        self._path = after
        # The folder, of the log that was named last, that the last object is in, and the folders above and with it.
        self._own = ""
        self._seen: list[str] = []
        self._num_found = 0
        self._num_requests = 0

    def logs(self) -> Generator[str, None, str | None]:
        """Yield the logs; return the path behind which the listing no longer pays, None at its end."""
        start: str | None = self._after
        objects: Iterator[ObjectMeta] = iter(())
        while self._num_requests <= _POOR_PAGES_MAX + self._num_found // _LOGS_OF_A_PAGE:
            try:
                if start is not None:
                    objects = self._store.list_objects(self._prefix, start_after=start)
                    start = None
                page = [meta.path for meta in islice(objects, _PAGE)]
            except UnavailableError:
                # A folder may be denied that no log lies in: the listings of folders tell.
                break
            self._num_requests += 1
            for self._path in page:
                if not self._own or not self._path.startswith(self._own):
                    yield from self._logs_at(self._path)
            if len(page) < _PAGE:
                return None
            if self._own and page[0].startswith(self._own):
                # A page of one log, which may have thousands.
                start = f"{self._own}{_LAST}"
        return self._path

    def _logs_at(self, path: str) -> Iterator[str]:
        """Yield the log that an object makes one, and those above it, unless they were seen."""
        root, self._own = _split(path)
        self._seen = [folder for folder in self._seen if path.startswith(folder)]
        for folder in _down_to(self._prefix, root):
            if folder in self._seen:
                continue
            self._seen.append(folder)
            has_life = folder == root and self._own != f"{root}{MANIFEST_FOLDER}"
            if folder <= self._after or not (has_life or self._is_log(folder)):
                continue
            self._num_found += 1
            yield folder.removesuffix("/")

    def _is_log(self, folder: str) -> bool:
        self._num_requests += 1
        return _visit(self._retrying, self._after, folder)[0]


def _split(path: str) -> tuple[str, str]:
    """Return the folder of the log that an object makes one, and which folder of it the object is in; or nothing."""
    parts = path.split("/")[:-1]
    depth = next((depth for depth, part in enumerate(parts) if not is_name_part(part)), 0)
    if not depth or not is_of_log(f"{parts[depth]}/"):
        return "", ""
    root = "".join(f"{part}/" for part in parts[:depth])
    return root, f"{root}{parts[depth]}/"


def _down_to(prefix: str, root: str) -> Iterator[str]:
    """Yield the folders that may be logs, from a prefix down to a log's root."""
    if prefix and root:
        yield prefix
    for part in root.removeprefix(prefix).split("/")[:-1]:
        prefix = f"{prefix}{part}/"
        yield prefix


# ---------------------------------------------------------------------- by folders


def _in_folders(
    visit_all: Callable[[Sequence[str]], Iterator[tuple[bool, list[str]]]], folders: Sequence[str]
) -> Iterator[str]:
    """Yield the folders that are logs, of these and of all below them, in order."""
    for start in range(0, len(folders), _FOLDERS_AT_ONCE):
        some = folders[start : start + _FOLDERS_AT_ONCE]
        visited = list(visit_all(some))
        logs = [folder for folder, (is_log, _) in zip(some, visited, strict=True) if is_log]
        below = [folder for _, inside in visited for folder in inside]
        yield from heapq.merge(logs, _in_folders(visit_all, below)) if below else logs


def _visit(store: ObjectStore, after: str, folder: str) -> tuple[bool, list[str]]:
    """Return whether a folder is a log, and the folders in it that may be or hold some; only those behind a path."""
    names = [found.removeprefix(folder) for found in store.list_folders(folder)]
    # Other folders cannot be part of a log's name.
    inside = (f"{folder}{name}" for name in names if is_name_part(name.removesuffix("/")))
    is_log = folder > after and _is_log(store, folder, names)
    return is_log, [each for each in inside if each > after or after.startswith(each)]


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
