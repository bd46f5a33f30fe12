"""The store's own time, independent of every process's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import UnavailableError
from wal3_core.model.paths import CLOCK
from wal3_core.storage.object_store import Versioned

if TYPE_CHECKING:
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore

# A token.
_BYTES_MAX = 1024


def store_now_us(store: ObjectStore, runtime: Runtime) -> int:
    """Return the time of a log's store: the change time it reports of an object just written.

    If the object could not be written now, the time is that of an earlier write: callers then only wait longer.
    Requires that the store's clock does not run backwards.
    """
    data, found = runtime.token().encode(), store.get(CLOCK, length_max=_BYTES_MAX)
    if isinstance(found, Versioned):
        store.replace(CLOCK, data, found.etag)
    else:
        store.create(CLOCK, data)
    written = store.head(CLOCK)
    if written is None:
        message = f"log {store.url}: {CLOCK} could not be written to learn the store's time"
        raise UnavailableError(message)
    return written.last_modified_us
