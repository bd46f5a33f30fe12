"""Opening a bucket, or a folder of one: S3, Google Cloud Storage and Azure, by the URL's options and a session.

Imported when such a store is opened: it needs obstore, and for S3 boto3.
"""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from wal3_core.errors import InvalidRequestError, StoreDeniedError
from wal3_core.storage.backends.remote import NEVER_RETRY, RETRY_READS, TIMEOUTS, Clients, RemoteStore
from wal3_core.storage.backends.remote_errors import refused_settings
from wal3_core.storage.object_store import is_odd
from wal3_core.storage.store_urls import TIMEOUT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from boto3.session import Session
    from obstore.store import ClientConfig, RetryConfig, S3Config

_TIMEOUT_S_MAX = 24 * 60 * 60
_REQUEST_S_MIN = 0.001


def open_remote(
    parts: SplitResult, options: Mapping[str, str], session: Session | None, *, retry_reads: bool
) -> RemoteStore:
    """Open a bucket by its split URL and the URL's options; errors as ``open_store``."""
    try:
        return _remote_store(parts, options, session, RETRY_READS if retry_reads else NEVER_RETRY)
    except Exception as error:
        if not _is_of_settings(error):
            raise
        message = f"store {parts.geturl()}: {refused_settings(error)}: correct the URL, the profile or the environment"
        raise StoreDeniedError(message) from error


def _is_of_settings(error: Exception) -> bool:
    """Whether obstore or boto3 refused the URL's options, or what the environment sets."""
    # Other stores than S3 are opened without it.
    botocore = sys.modules.get("botocore.exceptions")
    if isinstance(error, BaseError | ValueError):
        return True
    return botocore is not None and isinstance(error, botocore.BotoCoreError)


def _remote_store(
    parts: SplitResult, options: Mapping[str, str], session: Session | None, reads: RetryConfig
) -> RemoteStore:
    if options.get("etags", "unquoted") != "unquoted":
        message = f"store URL: expected etags=unquoted, or no such option, found {options['etags']!r}"
        raise InvalidRequestError(message)
    folder = _folder_of(parts)
    client_options = _timeouts(options)
    bucket = parts.netloc
    match parts.scheme:
        case "s3":
            clients = _s3_clients(parts, options, session, client_options, reads)
        case "gs":
            clients = Clients(
                conditional=GCSStore(bucket, client_options=client_options, retry_config=NEVER_RETRY),
                reading=GCSStore(bucket, client_options=client_options, retry_config=reads),
            )
        case _:
            clients = Clients(
                conditional=AzureStore(bucket, client_options=client_options, retry_config=NEVER_RETRY),
                reading=AzureStore(bucket, client_options=client_options, retry_config=reads),
            )
    # The options stay in the URL: another process that opens it (a Spark worker) needs them too.
    return RemoteStore(parts.geturl(), clients, folder=folder, unquoted_etags="etags" in options)


def _folder_of(parts: SplitResult) -> str:
    """Return the folder in a bucket; InvalidRequestError for one that obstore does not take."""
    try:
        folder = unquote(parts.path, errors="strict").strip("/")
    except UnicodeDecodeError as error:
        message = f"store URL: expected a folder in UTF-8, found {parts.geturl()!r} ({error})"
        raise InvalidRequestError(message) from error
    if is_odd(folder):
        message = (
            f"store URL: expected a folder without empty or dotted parts and control characters, found"
            f" {parts.geturl()!r}"
        )
        raise InvalidRequestError(message)
    return folder


def _timeouts(options: Mapping[str, str]) -> ClientConfig:
    """Check the timeouts in a store's URL; return a client's timeouts for one request."""
    for name in sorted(TIMEOUT_OPTIONS & options.keys()):
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", options[name]) or float(options[name]) > _TIMEOUT_S_MAX:
            message = f"store URL: expected {name} to be seconds from 0 to {_TIMEOUT_S_MAX}, found {options[name]!r}"
            raise InvalidRequestError(message)
    if "request_timeout_s" not in options:
        return TIMEOUTS
    seconds = timedelta(seconds=max(float(options["request_timeout_s"]), _REQUEST_S_MIN))
    return {"timeout": seconds, "connect_timeout": min(seconds, timedelta(seconds=5))}


def _s3_clients(
    parts: SplitResult,
    options: Mapping[str, str],
    session: Session | None,
    timeouts: ClientConfig,
    reads: RetryConfig,
) -> Clients:
    import boto3  # noqa: PLC0415 - other stores than S3 do without it
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - it imports boto3

    from wal3_core.storage.backends.s3_keys import S3Keys  # noqa: PLC0415 - it imports botocore

    session = session or boto3.session.Session(profile_name=options.get("profile"), region_name=options.get("region"))
    region = options.get("region") or session.region_name or "us-east-1"
    endpoint = options.get("endpoint") or custom_endpoint(session, region)
    bucket = parts.netloc
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
            f"store {parts._replace(query='').geturl()}: expected AWS credentials, found none: set AWS_PROFILE, or"
            f" AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
        raise StoreDeniedError(message)
    credentials = Boto3CredentialProvider(session)

    def client(retries: RetryConfig) -> S3Store:
        return S3Store(
            bucket,
            config=config,
            client_options=client_options,
            retry_config=retries,
            credential_provider=credentials,
        )

    keys = S3Keys(session, bucket, region=region, endpoint=endpoint)
    return Clients(conditional=client(NEVER_RETRY), reading=client(reads), keys=keys)


def custom_endpoint(session: Session, region: str) -> str | None:
    """Return the endpoint that the environment or profile sets, None for Amazon's own."""
    endpoint = str(session.client("s3", region_name=region).meta.endpoint_url)
    host = urlsplit(endpoint).hostname or ""
    return None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else endpoint
