"""Deletes the objects of lives that are over: nothing reads them, and no write to them has any effect.

A life is over once its name's manifest is another life's, or was replaced by a ``Vacancy``; ids do not come back. So
lives that were listed before a look at the manifest can be deleted if it does not name them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.log.contents import kind_of
from wal3_core.model.paths import life_folder
from wal3_core.runtime import Runtime, map_ahead
from wal3_core.storage.object_store import share_of
from wal3_core.storage.retrying import for_store, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.model.paths import LogId
    from wal3_core.options import RetryOptions
    from wal3_core.storage.object_store import ObjectStore

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
