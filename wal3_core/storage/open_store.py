"""Store URLs: ``file:///…``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``memory:``."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote_to_bytes

from wal3_core.arguments import checked, optional, text, with_methods
from wal3_core.errors import InvalidRequestError
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.runtime.extras import missing
from wal3_core.storage.backends.local import LOCK_WAIT_S_MAX, LocalStore
from wal3_core.storage.backends.memory import MemoryStore
from wal3_core.storage.observed import ObservedStore
from wal3_core.storage.store_urls import options_of_url, split_store_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    import boto3

    from wal3_core.storage.backends.remote import RemoteStore
    from wal3_core.storage.object_store import ObjectStore

_LOCK_WAIT_S_LIMIT = 24 * 60 * 60
_memory_lock = threading.Lock()  # the registry belongs to the process, not to a runtime
_memory_stores: dict[str, MemoryStore] = {}


# Checked by its methods, since boto3 takes long to import and may not be installed.
_a_session = with_methods("Session", "client", "get_credentials")


@checked(url=text, session=optional(_a_session), runtime=optional(a_runtime))
def open_store(
    url: str, *, session: boto3.session.Session | None = None, runtime: Runtime | None = None
) -> ObjectStore:
    """Open a store by its URL; no request is sent to it yet.

    ``s3://bucket/prefix`` takes its credentials, region and endpoint from ``session`` or the usual AWS
    variables and profiles; ``?endpoint=…&region=…&profile=…`` override them, ``?etags=unquoted`` is for
    servers that expect unquoted ETags (``wal3 doctor`` detects this). On s3, gs and az ``?timeout_s=…`` says
    how long requests are retried while the server does not answer (120 s), ``?request_timeout_s=…`` how long
    one request may take (20 s). ``file:///path?lock_wait_s=…`` says how many seconds a write waits for a lock
    of the directory (20 by default). ``memory:name`` is the same store for the whole process. Raises
    InvalidRequestError for a malformed URL, or if the packages for its kind of store are not installed,
    StoreDeniedError when there are no credentials.
    """
    runtime = runtime or shared_runtime()
    return ObservedStore(_unobserved(url, session, runtime), runtime)


def _unobserved(url: str, session: boto3.session.Session | None, runtime: Runtime) -> ObjectStore:
    parts = split_store_url(url)
    options = options_of_url(url)
    if parts.scheme == "memory" and not parts.netloc:
        return _memory_store(parts.path, runtime)
    if parts.scheme == "file":
        return _local_store(url, parts, options, runtime)
    if parts.scheme in {"s3", "gs", "az"} and parts.netloc:
        return _remote_store(parts, options, session)
    message = (
        f"store URL: expected file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"
        f" or memory:name, found {url!r}"
    )
    raise InvalidRequestError(message)


def _memory_store(name: str, runtime: Runtime) -> MemoryStore:
    with _memory_lock:
        return _memory_stores.setdefault(name, MemoryStore(runtime, name=name))


def _local_store(url: str, parts: SplitResult, options: Mapping[str, str], runtime: Runtime) -> LocalStore:
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        message = f"store URL: expected file:///absolute/path, found {url!r}"
        raise InvalidRequestError(message)
    waits_s = _seconds(options.get("lock_wait_s", str(LOCK_WAIT_S_MAX)), url)
    # A directory's name is bytes, not necessarily UTF-8.
    root = Path(os.fsdecode(unquote_to_bytes(parts.path)))
    return LocalStore(root, runtime=runtime, lock_wait_s_max=waits_s)


def _seconds(text: str, url: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    # This form also refuses NaN.
    if not 0 <= seconds <= _LOCK_WAIT_S_LIMIT:
        message = f"store URL: option lock_wait_s: expected 0 to {_LOCK_WAIT_S_LIMIT} seconds, found {url!r}"
        raise InvalidRequestError(message)
    return seconds


def _remote_store(parts: SplitResult, options: Mapping[str, str], session: boto3.session.Session | None) -> RemoteStore:
    try:
        from wal3_core.storage.backends.buckets import open_remote  # noqa: PLC0415 - only these stores need obstore

        return open_remote(parts, options, session)
    except ModuleNotFoundError as error:
        if error.name not in {"boto3", "botocore", "obstore"}:
            raise
        address = parts._replace(query="").geturl()
        message = f"store {address}: {missing(error.name, parts.scheme)}"
        raise InvalidRequestError(message) from error
