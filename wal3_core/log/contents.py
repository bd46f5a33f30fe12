"""The objects under a log's root: its own by kind, and those that belong to no log.

A log may lie below another one: a folder whose name may be part of a log's name, and in or below which there is a log,
is not this log's and is not searched.

``delete_remains`` deletes the objects of lives that are over: nothing reads them, no write to them has any effect. A
life is over once its name's manifest is another life's, or was replaced by a ``Vacancy``; ids do not come back. So
lives that were listed before a look at the manifest can be deleted if it does not name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import islice

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.paths import (
    CLOCK,
    COMPACTION_FOLDER,
    CURSOR_FOLDER,
    FRAGMENT_FOLDER,
    GARBAGE_FOLDER,
    KEY_ROLLUP_FOLDER,
    MANIFEST,
    MANIFEST_FOLDER,
    PIN_FOLDER,
    POLICY,
    SNAPSHOT_FOLDER,
    STORE_IDENTITY,
    LogId,
    check_garbage_path,
    check_object_path,
    cursor_name,
    hinted_path,
    is_name_part,
    life_folder,
    life_of,
    pass_token,
    pin_name,
)
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, map_ahead
from wal3_core.store.object_store import ObjectMeta, ObjectStore, share_of
from wal3_core.store.retrying import for_store, until_answered


class ObjectKind(StrEnum):
    """The kinds of a log's objects."""

    MANIFEST = "manifest"
    FRAGMENT = "fragment"
    SNAPSHOT = "snapshot"
    KEY_ROLLUP = "key_rollup"
    CURSOR = "cursor"
    PIN = "pin"
    GARBAGE = "garbage"
    POLICY = "policy"
    COMPACTION = "compaction"


def _check_garbage(path: str) -> None:
    if path != CLOCK and hinted_path(path) is None:
        check_garbage_path(path)


_CHECKS: dict[str, tuple[ObjectKind, Callable[[str], object]]] = {
    PIN_FOLDER: (ObjectKind.PIN, pin_name),
    CURSOR_FOLDER: (ObjectKind.CURSOR, cursor_name),
    GARBAGE_FOLDER: (ObjectKind.GARBAGE, _check_garbage),
    COMPACTION_FOLDER: (ObjectKind.COMPACTION, pass_token),
    SNAPSHOT_FOLDER: (ObjectKind.SNAPSHOT, check_object_path),
    KEY_ROLLUP_FOLDER: (ObjectKind.KEY_ROLLUP, check_object_path),
    FRAGMENT_FOLDER: (ObjectKind.FRAGMENT, check_object_path),
}


def kind_of(path: str) -> ObjectKind | None:
    """Return the kind of the object at a path under a log's root; None when no log has such an object."""
    if path == MANIFEST:
        return ObjectKind.MANIFEST
    log_id = life_of(path)
    if log_id is None:
        return None
    within = path.removeprefix(life_folder(log_id))
    if within == POLICY:
        return ObjectKind.POLICY
    kind, check = _CHECKS.get(f"{within.partition('/')[0]}/", (None, str))
    try:
        check(within)
    except CorruptError:
        return None
    return kind


def own_objects(store: ObjectStore) -> Iterator[ObjectMeta]:
    """Go through the objects in a log's own folders and directly under its root; ``store`` is the log's own."""
    for folder in (MANIFEST_FOLDER, *filter(life_of, store.list_folders(""))):
        yield from store.list_objects(folder)
    yield from (meta for meta in _root_objects(store) if meta.path != STORE_IDENTITY)


def strangers(store: ObjectStore) -> Iterator[ObjectMeta]:
    """Go through the objects in other folders under the root in which there is no log."""
    for folder in store.list_folders(""):
        if folder != MANIFEST_FOLDER and life_of(folder) is None and not _holds_log(store, folder):
            # A store was opened where there is an identity.
            listed = store.list_objects(folder)
            yield from (meta for meta in listed if not meta.path.endswith(f"/{STORE_IDENTITY}"))


def _root_objects(store: ObjectStore) -> Iterator[ObjectMeta]:
    """Go through the objects directly under the root, past the folders without listing them."""
    after = ""
    while (found := next(iter(store.list_objects("", start_after=after)), None)) is not None:
        folder, slash, _ = found.path.partition("/")
        if not slash:
            yield found
        # Names of our own sort before ~; objects after it in a folder are passed one by one.
        after = max(found.path, f"{folder}/~") if slash else found.path


def _holds_log(store: ObjectStore, folder: str) -> bool:
    """Tell whether a folder is a log's root, or has one below it."""
    if not is_name_part(folder.rstrip("/").rpartition("/")[2]):
        return False
    below = store.list_folders(folder)
    names = [found.removeprefix(folder) for found in below]
    return any(map(is_of_log, names)) or any(_holds_log(store, found) for found in below)


def is_of_log(folder: str) -> bool:
    """Tell whether a folder of this name makes the one it lies in a log's root."""
    return folder == MANIFEST_FOLDER or life_of(folder) is not None


_NAMED_MAX = 10
_CHUNK = 1000
_DELETES_AHEAD = 8


def delete_remains(
    root: ObjectStore,
    lives: Sequence[LogId],
    runtime: Runtime,
    retry: RetryOptions,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Delete all objects of lives that are over, and return how many there were; ``root`` is the log's own store.

    InvalidRequestError at an object that no log has.
    """
    retry = for_store(retry, root)

    def delete_one(path: str) -> None:
        until_answered(lambda: root.delete(path), retry, runtime)

    deleted = 0
    for log_id in lives:
        listed = iter(root.list_objects(life_folder(log_id)))
        while paths := [meta.path for meta in islice(listed, _CHUNK)]:
            unknown = [path for path in paths if kind_of(path) is None]
            if unknown:
                raise unknown_objects(root, unknown)
            for _ in map_ahead(runtime, delete_one, paths, count=_DELETES_AHEAD, share=share_of(root)):
                deleted += 1
                progress(deleted)
    return deleted


def unknown_objects(root: ObjectStore, paths: Sequence[str]) -> InvalidRequestError:
    """Name objects that no log has."""
    more = " and more" if len(paths) > _NAMED_MAX else ""
    return InvalidRequestError(
        f"log {root.url}: expected only a log's objects, found {', '.join(paths[:_NAMED_MAX])}{more}:"
        f" move or delete them first"
    )
