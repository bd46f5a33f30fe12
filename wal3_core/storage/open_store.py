"""Store URLs: ``file:///…``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``memory:``."""

from __future__ import annotations

import os
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, unquote_to_bytes, urlsplit

import boto3
from botocore.exceptions import BotoCoreError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from wal3_core.arguments import checked, instance_of, optional, text
from wal3_core.errors import InvalidRequestError, StoreDeniedError, UnavailableError
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.backends.local import LOCK_WAIT_S_MAX, LocalStore
from wal3_core.storage.backends.memory import MemoryStore
from wal3_core.storage.backends.remote import NEVER_RETRY, RETRY_READS, TIMEOUTS, Clients, RemoteStore
from wal3_core.storage.store_urls import REMOTE_OPTIONS, options_of_url, split_store_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ClientConfig, S3Config

    from wal3_core.storage.object_store import ObjectStore

_TIMEOUT_S_MAX = 24 * 60 * 60
_REQUEST_S_MIN = 0.001
_LOCK_WAIT_S_LIMIT = 24 * 60 * 60
_memory_lock = threading.Lock()  # the registry belongs to the process, not to a runtime
_memory_stores: dict[str, MemoryStore] = {}


@checked(url=text, session=optional(instance_of(boto3.session.Session)), runtime=optional(a_runtime))
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
    InvalidRequestError for a malformed URL, UnavailableError when there are no credentials.
    """
    parts = split_store_url(url)
    options = options_of_url(url)
    if parts.scheme == "memory" and not parts.netloc:
        return _memory_store(parts.path, runtime or shared_runtime())
    if parts.scheme == "file":
        return _local_store(url, parts, options, runtime or shared_runtime())
    if parts.scheme in {"s3", "gs", "az"} and parts.netloc:
        try:
            return _remote_store(parts, options, session)
        except (BaseError, BotoCoreError, ValueError) as error:
            message = f"store {url}: {type(error).__name__}: {error}"
            raise UnavailableError(message) from error
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
    if options.get("etags", "unquoted") != "unquoted":
        message = f"store URL: expected etags=unquoted, or no such option, found {options['etags']!r}"
        raise InvalidRequestError(message)
    try:
        folder = unquote(parts.path, errors="strict")
    except UnicodeDecodeError as error:
        message = f"store URL: expected a folder in UTF-8, found {parts.geturl()!r} ({error})"
        raise InvalidRequestError(message) from error
    client_options = _timeouts(options)
    bucket = parts.netloc
    match parts.scheme:
        case "s3":
            clients = _s3_clients(bucket, options, session, client_options)
        case "gs":
            clients = Clients(
                conditional=GCSStore(bucket, client_options=client_options, retry_config=NEVER_RETRY),
                reading=GCSStore(bucket, client_options=client_options, retry_config=RETRY_READS),
            )
        case _:
            clients = Clients(
                conditional=AzureStore(bucket, client_options=client_options, retry_config=NEVER_RETRY),
                reading=AzureStore(bucket, client_options=client_options, retry_config=RETRY_READS),
            )
    # The options stay in the URL: another process that opens it (a Spark worker) needs them too.
    return RemoteStore(parts.geturl(), clients, folder=folder, unquoted_etags="etags" in options)


def _timeouts(options: Mapping[str, str]) -> ClientConfig:
    """Check the timeouts in a store's URL; return a client's timeouts for one request."""
    for name in sorted(REMOTE_OPTIONS & options.keys()):
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", options[name]) or float(options[name]) > _TIMEOUT_S_MAX:
            message = f"store URL: expected {name} to be seconds from 0 to {_TIMEOUT_S_MAX}, found {options[name]!r}"
            raise InvalidRequestError(message)
    if "request_timeout_s" not in options:
        return TIMEOUTS
    seconds = timedelta(seconds=max(float(options["request_timeout_s"]), _REQUEST_S_MIN))
    return {"timeout": seconds, "connect_timeout": min(seconds, timedelta(seconds=5))}


def _s3_clients(
    bucket: str, options: Mapping[str, str], session: boto3.session.Session | None, timeouts: ClientConfig
) -> Clients:
    session = session or boto3.session.Session(profile_name=options.get("profile"), region_name=options.get("region"))
    region = options.get("region") or session.region_name or "us-east-1"
    endpoint = options.get("endpoint") or custom_endpoint(session, region)
    # Objects are deleted one by one: by bulk requests, some servers judge the bucket's policy, not the object's.
    config: S3Config = {"region": region, "disable_bulk_delete": True}
    client_options: ClientConfig = {**timeouts}
    if endpoint is not None:
        if not endpoint.startswith(("http://", "https://")):
            message = f"store endpoint: expected http://… or https://…, found {endpoint!r}"
            raise InvalidRequestError(message)
        config["endpoint"] = endpoint
        client_options["allow_http"] = endpoint.startswith("http://")
    if session.get_credentials() is None:
        message = (
            f"store s3://{bucket}: expected AWS credentials, found none: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and"
            f" AWS_SECRET_ACCESS_KEY"
        )
        raise StoreDeniedError(message)
    credentials = Boto3CredentialProvider(session)

    def client(*, conditional: bool) -> S3Store:
        return S3Store(
            bucket,
            config=config,
            client_options=client_options,
            retry_config=NEVER_RETRY if conditional else RETRY_READS,
            credential_provider=credentials,
        )

    return Clients(conditional=client(conditional=True), reading=client(conditional=False))


def custom_endpoint(session: boto3.session.Session, region: str) -> str | None:
    """Return the endpoint that the environment or profile sets, None for Amazon's own."""
    endpoint = str(session.client("s3", region_name=region).meta.endpoint_url)
    host = urlsplit(endpoint).hostname or ""
    return None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else endpoint
