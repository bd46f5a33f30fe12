"""A store's identity: a random id in one small object at the store's root, written once.

A store's address may be mistyped, lead to another bucket, or to a folder that is not mounted; its
identity shows that. It belongs to no log, so maintenance of logs never touches it. A store that is moved
or copied whole keeps it. Source: docs/protocol/stores.md, "Store identity".
"""

from __future__ import annotations

import re

from wal3_core.errors import CorruptError, UnavailableError
from wal3_core.format import strict_json
from wal3_core.format.paths import STORE_IDENTITY
from wal3_core.format.strict_json import check_format_version
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import Done, ObjectStore, object_url
from wal3_core.store.retrying import attempts, for_store, reread_if_damaged, with_retries

_FORMAT_VERSION = 1
_BYTES_MAX = 1024
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def store_identity(store: ObjectStore, *, create: bool = False, retry: RetryOptions | None = None) -> str | None:
    """Return a store's identity, 32 hex digits; None when it has none and ``create`` does not ask for one.

    Processes that create one at the same time all return the first. CorruptError when it is damaged,
    UnavailableError when the store does not answer, or the identity could not be written.
    """
    runtime, retry = shared_runtime(), retry or RetryOptions()
    store = with_retries(store, runtime, retry)
    found = reread_if_damaged(lambda: _read(store), store)
    return _create(store, runtime, retry) if found is None and create else found


def _read(store: ObjectStore) -> str | None:
    # One byte more than allowed: a larger object is refused without being read whole.
    data = store.read(STORE_IDENTITY, length=_BYTES_MAX + 1)
    if data is None:
        return None
    what = object_url(store, STORE_IDENTITY)
    fields = strict_json.load_checksummed(data, what=what, bytes_max=_BYTES_MAX)
    check_format_version(fields, _FORMAT_VERSION)
    store_id = fields.string("store_id")
    fields.finish()
    if not _ID.fullmatch(store_id):
        raise CorruptError(f"{what}: expected 32 hex digits, found {store_id[:40]!r}")
    return store_id


def _create(store: ObjectStore, runtime: Runtime, retry: RetryOptions) -> str:
    store_id = runtime.token() + runtime.token()
    data = strict_json.dump_checksummed({"format_version": _FORMAT_VERSION, "store_id": store_id})
    tries = 0
    for tries in attempts(for_store(retry, store), runtime):  # noqa: B007 - in the message
        if isinstance(store.create(STORE_IDENTITY, data), Done):
            return store_id
        found = reread_if_damaged(lambda: _read(store), store)
        if found is not None:
            return found
    raise UnavailableError(f"{object_url(store, STORE_IDENTITY)}: could not be written in {tries} tries")
