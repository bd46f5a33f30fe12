"""Store URLs: ``file:///…``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``memory:``."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote_to_bytes

from wal3_core.arguments import checked, optional, text, with_methods
from wal3_core.errors import InvalidRequestError
from wal3_core.options import S3_READS_PER_S, S3_WRITES_PER_S
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.runtime.extras import missing
from wal3_core.store.backends.local import LOCK_WAIT_S_MAX, LocalStore
from wal3_core.store.backends.memory import MemoryStore
from wal3_core.store.instrumented import InstrumentedStore
from wal3_core.store.rate_limits import Throttle, ThrottledStore
from wal3_core.store.store_urls import options_of_url, split_store_url, without_secrets

if TYPE_CHECKING:
    import boto3

    from wal3_core.store.backends.remote import RemoteStore
    from wal3_core.store.object_store import ObjectStore

_LOCK_WAIT_S_LIMIT = 24 * 60 * 60
# The wait of a request for its turn, unless the URL says how long a request may take.
_TURN_S_MAX = 20.0
_RATES_PER_S = {("s3", "writes"): S3_WRITES_PER_S, ("s3", "reads"): S3_READS_PER_S}
_RATE_MAX = 1_000_000
_registry_lock = threading.Lock()  # the registries belong to the process, not to a runtime
_memory_stores: dict[str, MemoryStore] = {}
# By bucket, folder and endpoint, and by kind of request. Never dropped: a new one would let another burst through.
_throttles: dict[tuple[str, str], Throttle] = {}


# Checked by its methods, since boto3 takes long to import and may not be installed.
_a_session = with_methods("Session", "client", "get_credentials")


@checked(url=text, session=optional(_a_session))
def open_store(
    url: str, *, session: boto3.session.Session | None = None, runtime: Runtime | None = None
) -> ObjectStore:
    """Open a store by its URL; no request is sent to it yet.

    ``s3://bucket/prefix`` takes its credentials, region and endpoint from ``session`` or the usual AWS
    variables and profiles; ``?endpoint=…&region=…&profile=…`` override them, ``?etags=unquoted`` is for
    servers that expect unquoted ETags (``wal3 doctor`` detects this). On s3, gs and az ``?timeout_s=…`` says
    how long requests are retried while the server does not answer (120 s), ``?request_timeout_s=…`` how long
    one request may take, and may wait for its turn (20 s). ``?writes_per_s=…`` (PUT, DELETE, LIST) and
    ``?reads_per_s=…`` (GET, HEAD) limit the requests of this process to this bucket and folder, 0 does not; the
    defaults are 3,500 and 5,500 on s3, 0 on gs and az. All stores opened for one place share its limits, and a
    limit in a URL changes it for all.
    ``file:///path?lock_wait_s=…`` says how many seconds a write waits for a lock of the directory (20 by
    default). ``memory:name`` is the same store for the whole process. Raises InvalidRequestError for a malformed
    URL, or if the packages for its kind of store are not installed, StoreDeniedError when there are no
    credentials.
    """
    runtime = runtime or shared_runtime()
    parts = split_store_url(url)
    options = options_of_url(url)
    if parts.scheme == "memory" and not parts.netloc:
        with _registry_lock:
            memory = _memory_stores.setdefault(parts.path, MemoryStore(runtime, name=parts.path))
        return InstrumentedStore(memory, runtime)
    if parts.scheme == "file":
        return InstrumentedStore(_local_store(url, parts, options, runtime), runtime)
    if parts.scheme in {"s3", "gs", "az"} and parts.netloc:
        return _remote_store(parts, options, session, runtime)
    raise InvalidRequestError(
        f"store URL: expected file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"
        f" or memory:name, found {without_secrets(url)!r}"
    )


def _local_store(url: str, parts: SplitResult, options: Mapping[str, str], runtime: Runtime) -> LocalStore:
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise InvalidRequestError(f"store URL: expected file:///absolute/path, found {url!r}")
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


def _remote_store(
    parts: SplitResult, options: Mapping[str, str], session: boto3.session.Session | None, runtime: Runtime
) -> ObjectStore:
    rates = {kind: _rate_of(kind, parts, options) for kind in ("writes", "reads")}
    store = InstrumentedStore(_opened(parts, options, session, retry_reads=not rates["reads"]), runtime)
    if not any(rates.values()):
        return store
    throttles = {kind: _throttle(kind, parts, options, rate, runtime) for kind, rate in rates.items()}
    wait_s_max = float(options.get("request_timeout_s", _TURN_S_MAX))
    return ThrottledStore(store, runtime, **throttles, wait_s_max=wait_s_max)


def _rate_of(kind: str, parts: SplitResult, options: Mapping[str, str]) -> float:
    """Return a rate of requests, 0 for none."""
    name = f"{kind}_per_s"
    named = options.get(name)
    if named is None:
        return _RATES_PER_S.get((parts.scheme, kind), 0.0)
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,6})?", named) or not (named == "0" or 1 <= float(named) <= _RATE_MAX):
        message = f"store URL: expected {name} to be 0, or requests a second from 1 to {_RATE_MAX}, found {named!r}"
        raise InvalidRequestError(message)
    return float(named)


def _throttle(
    kind: str, parts: SplitResult, options: Mapping[str, str], rate_per_s: float, runtime: Runtime
) -> Throttle | None:
    """Return the throttle that all stores of a place share, None if the rate is 0."""
    if not rate_per_s:
        return None
    address = parts._replace(query="").geturl().rstrip("/")
    key = f"{address}?{options.get('endpoint', '')}", kind
    with _registry_lock:
        found = _throttles.get(key)
        if found is None:
            found = _throttles[key] = Throttle(address, kind, rate_per_s, runtime)
    if f"{kind}_per_s" in options:
        found.limit(rate_per_s)
    return found


def _opened(
    parts: SplitResult, options: Mapping[str, str], session: boto3.session.Session | None, *, retry_reads: bool
) -> RemoteStore:
    try:
        from wal3_core.store.backends.remote import open_remote  # noqa: PLC0415 - only these stores need obstore

        return open_remote(parts, options, session, retry_reads=retry_reads)
    except ModuleNotFoundError as error:
        if error.name not in {"boto3", "botocore", "obstore"}:
            raise
        address = parts._replace(query="").geturl()
        raise InvalidRequestError(f"store {address}: {missing(error.name, parts.scheme)}") from error
