"""Finds objects that nothing refers to: uploads of writers that died, and what interrupted maintenance left."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from wal3_core.errors import CollectionRefusedError, CorruptError
from wal3_core.log.collect.passes import KeptLists
from wal3_core.log.collect.references import Leaving, hold_any, read_references
from wal3_core.model.paths import (
    COMPACTION_FOLDER,
    check_object_path,
    deleted_token,
    is_dropped_path,
    pass_object_token,
)
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.log.log_stores import LogStores
    from wal3_core.model.garbage import Garbage
    from wal3_core.options import CollectorOptions
    from wal3_core.storage.object_store import ObjectMeta


class OrphanFinder:
    """Finds the orphans of one life of a log. Changes nothing."""

    def __init__(self, stores: LogStores, options: CollectorOptions) -> None:
        self._stores = stores
        self._options = options

    def find(self, folders: Sequence[str], pending: Iterable[Garbage], now_us: int | None) -> list[ObjectMeta]:
        """Describe up to ``orphans_max`` objects that nothing refers to, oldest first.

        They are older than the interval at the store's time ``now_us``, asked for if it is None, and no ``pending``
        document names them.
        """
        # One search goes by one policy; what it found is looked up by the policy of then before it is marked.
        kept = KeptLists(self._stores)
        leaving, known = Leaving(pending, self._stores.snapshots.load), read_references(self._stores, kept)
        now_us = self._stores.store_now_us() if now_us is None else now_us
        limit_us = now_us - int(self._options.interval_s * US_PER_S)
        found = (
            meta
            for meta in self._data_objects(folders, kept)
            if meta.last_modified_us <= limit_us and not hold_any(known, meta.path) and not leaving.hold(meta.path)
        )
        return oldest(found, self._options.orphans_max)

    def _data_objects(self, folders: Sequence[str], kept: KeptLists) -> Iterator[ObjectMeta]:
        for folder in folders:
            for meta in self._listed(folder, kept):
                try:
                    check_object_path(meta.path)
                except CorruptError as error:
                    message = f"log {self._stores.url}: nothing is collected while a foreign file lies there: {error}"
                    raise CollectionRefusedError(f"{message}: move it away") from error
                yield meta

    def _listed(self, folder: str, kept: KeptLists) -> Iterator[ObjectMeta]:
        """List a folder; of that of key compaction only what may be of a pass that was not installed, or outlived."""
        installed = set[str]()
        for meta in self._stores.objects.list_objects(folder):
            if folder != COMPACTION_FOLDER:
                yield meta
            elif (token := deleted_token(meta.path)) is not None:
                # In the order of their names these come first.
                installed.add(token)
            elif pass_object_token(meta.path) not in installed or _may_go(meta.path, kept):
                yield meta


def _may_go(path: str, kept: KeptLists) -> bool:
    """Whether an object of an installed pass is ever deleted."""
    return is_dropped_path(path) and kept.retention_s is not None


def oldest(metas: Iterable[ObjectMeta], count: int) -> list[ObjectMeta]:
    """Return the ``count`` oldest objects, oldest first."""
    return heapq.nsmallest(count, metas, key=lambda meta: (meta.last_modified_us, meta.path))
