"""Which objects of key compaction belong to passes that were installed: these stay as long as the log.

But for the lists of dropped records, if the log's policy has a ``receipt_retention_s``.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, MissingError
from wal3_core.model.paths import is_dropped_path, pass_object_token
from wal3_core.runtime import US_PER_S
from wal3_core.storage.documents.pass_store import PassStore

if TYPE_CHECKING:
    from wal3_core.log.log_stores import LogStores
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.pass_record import PassRecord

# What a pass longer ago than so many has left is not looked up: it stays.
_PASSES_MAX = 1024


class KeptLists:
    """For how long the lists of installed passes stay: the log's policy says it, and is read when it is first asked."""

    def __init__(self, stores: LogStores) -> None:
        self._stores = stores

    @cached_property
    def retention_s(self) -> int | None:
        """How long after what they list was deleted; None for as long as the log."""
        return self._stores.policies.load().receipt_retention_s


class InstalledPasses:
    """The passes that one version of a log has. What is not known counts as installed."""

    def __init__(self, stores: LogStores, manifest: Manifest, kept: KeptLists) -> None:
        self._stores = stores
        self._kept = kept
        self._passes = PassStore(stores.manifests, stores.runtime, stores.retry)
        self._compaction = manifest.compaction
        self._known: dict[str, bool] = {}
        self._deleted_us: dict[str, int | None] = {}
        # Walked back only as far as needed: by number, the tokens of those found so far.
        self._walk = self._passes.back_from(manifest.compaction.token)
        self._tokens: dict[int, str] = {}

    def hold(self, path: str) -> bool:
        """Tell whether an object is of an installed pass, and is to stay; False for one that is not of any pass."""
        token = pass_object_token(path)
        if token is None:
            return False
        if token not in self._known:
            self._deleted_us[token] = self._passes.deleted_us(token)
            self._known[token] = self._is_installed(token)
        return self._known[token] and not (is_dropped_path(path) and self._outlived(token))

    def _outlived(self, token: str) -> bool:
        """Whether the lists of an installed pass have been kept for as long as the policy says."""
        since_us = self._deleted_us[token]
        return since_us is not None and self._kept_since_us is not None and since_us <= self._kept_since_us

    @cached_property
    def _kept_since_us(self) -> int | None:
        retention_s = self._kept.retention_s
        return None if retention_s is None else self._stores.store_now_us() - retention_s * US_PER_S

    def _is_installed(self, token: str) -> bool:
        if token == self._compaction.token or self._deleted_us[token] is not None:
            return True
        try:
            return self._has(self._passes.load(token))
        except MissingError:
            # The record is written before the install, and goes with the lists.
            return False
        except CorruptError:
            # Its own record is damaged, or one that leads to those of its time.
            return True

    def _has(self, record: PassRecord) -> bool:
        passes, number = self._compaction.passes, record.number
        if number > passes:
            return False
        if passes - number >= _PASSES_MAX:
            return True
        while number not in self._tokens:
            found = next(self._walk, None)
            if found is None:
                return True
            self._tokens[found.number] = found.token
        return self._tokens[number] == record.token
