"""The objects under a log's root: its own by kind, and those that belong to no log.

A log may lie below another one: a folder whose name may be part of a log's name, and in or below
which there is a log, is not this log's and is not searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import (
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
    check_garbage_path,
    check_object_path,
    cursor_name,
    is_name_part,
    life_folder,
    life_of,
    marked_path,
    pass_token,
    pin_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.storage.object_store import ObjectMeta, ObjectStore


class Kind(StrEnum):
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


@dataclass(frozen=True, slots=True)
class Found:
    """An object under a log's root; ``kind`` is None where no log has such an object."""

    kind: Kind | None
    meta: ObjectMeta


def _check_garbage(path: str) -> None:
    if path != CLOCK and marked_path(path) is None:
        check_garbage_path(path)


_CHECKS: dict[str, tuple[Kind, Callable[[str], object]]] = {
    PIN_FOLDER: (Kind.PIN, pin_name),
    CURSOR_FOLDER: (Kind.CURSOR, cursor_name),
    GARBAGE_FOLDER: (Kind.GARBAGE, _check_garbage),
    COMPACTION_FOLDER: (Kind.COMPACTION, pass_token),
    SNAPSHOT_FOLDER: (Kind.SNAPSHOT, check_object_path),
    KEY_ROLLUP_FOLDER: (Kind.KEY_ROLLUP, check_object_path),
    FRAGMENT_FOLDER: (Kind.FRAGMENT, check_object_path),
}


def kind_of(path: str) -> Kind | None:
    """Return the kind of the object at a path under a log's root; None when no log has such an object."""
    if path == MANIFEST:
        return Kind.MANIFEST
    log_id = life_of(path)
    return None if log_id is None else _kind_within(path.removeprefix(life_folder(log_id)))


def _kind_within(path: str) -> Kind | None:
    if path == POLICY:
        return Kind.POLICY
    kind, check = _CHECKS.get(f"{path.partition('/')[0]}/", (None, _refuse))
    try:
        check(path)
    except CorruptError:
        return None
    return kind


def _refuse(path: str) -> None:
    raise CorruptError(path)


def own_objects(store: ObjectStore) -> Iterator[Found]:
    """Go through the objects in a log's own folders and directly under its root; ``store`` is the log's own."""
    for folder in (MANIFEST_FOLDER, *filter(life_of, store.list_folders(""))):
        for meta in store.list_objects(folder):
            yield Found(kind_of(meta.path), meta)
    for meta in _root_objects(store):
        if meta.path != STORE_IDENTITY:
            yield Found(kind_of(meta.path), meta)


def strangers(store: ObjectStore) -> Iterator[Found]:
    """Go through the objects in other folders under the root in which there is no log."""
    for folder in store.list_folders(""):
        if folder != MANIFEST_FOLDER and life_of(folder) is None and not _holds_log(store, folder):
            for meta in store.list_objects(folder):
                # A store was opened there.
                if not meta.path.endswith(f"/{STORE_IDENTITY}"):
                    yield Found(None, meta)


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
