"""Which store is named, and whether it is one: a mistyped place must not look like a store without logs."""

from __future__ import annotations

import os
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_to_bytes, urlencode, urlsplit

from wal3_core.errors import InvalidRequestError, LogError, LogNotFoundError
from wal3_core.model.paths import MANIFEST, STORE_IDENTITY, is_name_part
from wal3_core.runtime import shared_runtime
from wal3_core.storage.backends.local_roots import is_root
from wal3_core.storage.retrying import with_retries
from wal3_core.storage.store_urls import options_of_url, split_store_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.storage.object_store import ObjectStore

NO_LOGS = "no logs: `wal3 init LOG` creates one"
# Objects of a place, or folders of a store, that are read to say what it is.
_NAMES_MAX = 1000
_REMOTE = frozenset({"s3", "gs", "az"})
_ADVICE = "correct --store or WAL3_STORE; `wal3 init LOG` begins a store there"


def whole_url(url: str, *, timeout_s: float | None = None) -> str:
    """Return the URL of a store; a path that starts with ``/`` or ``.`` is a local directory.

    ``timeout_s`` is added to the URL of a remote store; a directory takes no timeout.
    """
    if url.startswith(("/", ".")):
        url = Path(url).resolve().as_uri()
    parts = split_store_url(url)
    if parts.scheme == "file":
        check_directory(Path(os.fsdecode(unquote_to_bytes(parts.path))))
    return url if timeout_s is None else with_options(url, timeout_s=f"{timeout_s:g}")


def with_options(url: str, **options: str) -> str:
    """Return the URL of the same store with other options; a directory takes none."""
    parts = split_store_url(url)
    if parts.scheme not in _REMOTE:
        return url
    return parts._replace(query=urlencode({**options_of_url(url), **options}, safe=":/")).geturl()


def check_directory(path: Path) -> None:
    """Raise InvalidRequestError for a path that is not a directory, and cannot become one: a file is in the way."""
    taken = next((each for each in (path, *path.parents) if os.path.lexists(each)), None)
    # A link to nothing, and a folder that cannot be entered, are reported by what uses them.
    if taken is not None and os.access(taken, os.F_OK) and not taken.is_dir():
        message = f"store {path}: expected a directory, found that {taken} is a file: correct --store or WAL3_STORE"
        raise InvalidRequestError(message)


def check_store(store: ObjectStore) -> None:
    """Raise InvalidRequestError for a place that is no store: nothing there has come from logs.

    A directory is a store since its first write; any place is with an identity, or with documents of logs, even
    of destroyed ones.
    """
    parts = urlsplit(store.url)
    if parts.scheme == "memory":
        return
    store = with_retries(store, shared_runtime())
    found = "no objects"
    if parts.scheme == "file":
        root = Path(unquote(parts.path))
        if is_root(root):
            return
        found = "none" if not root.exists() else "a directory without logs"
    elif store.head(STORE_IDENTITY) is not None:
        return
    for meta in islice(store.list_objects(""), _NAMES_MAX):
        if meta.path == STORE_IDENTITY or meta.path.endswith(f"/{MANIFEST}"):
            return
        found = f"other objects, like {meta.path!r}"
    raise InvalidRequestError(f"store {store.url}: expected a store, found {found}: {_ADVICE}")


def similar_logs(store: ObjectStore, log: str) -> str:
    """Say which logs beside one that was not found have names much like its own; one listing."""
    above, slash, part = log.rpartition("/")
    with suppress(LogError):
        folders = islice(store.list_folders(f"{above}{slash}"), _NAMES_MAX)
        names = {each.removesuffix("/").rpartition("/")[2] for each in folders}
        # A log that was destroyed has left its folder.
        by_case = {name.lower(): name for name in filter(is_name_part, names - {part})}
        found = [by_case[each] for each in get_close_matches(part.lower(), by_case)]
        if found:
            return f": did you mean {' or '.join(f'{above}{slash}{name}' for name in found)}?"
    return ""


def of_target(error: LogError, opened: Callable[[], ObjectStore] | None, log: str | None) -> LogError:
    """Return the error to report: for a log that was not found, also that there is no store, or similar names.

    ``opened`` opens the named store, if one was named.
    """
    if not isinstance(error, LogNotFoundError) or opened is None:
        return error
    try:
        store = opened()
        check_store(store)
    except InvalidRequestError:
        found = "found none, and no store (if one is expected, correct --store or WAL3_STORE)"
        return type(error)(str(error).replace("found none", found, 1))
    except LogError:
        return error
    if log is not None and str(error).partition(": ")[0].endswith(f"/{log}"):
        return type(error)(f"{error}{similar_logs(store, log)}")
    return error
