"""Opening a bucket, or a folder of one: S3, Google Cloud Storage and Azure, by the URL's options and a session.

Imported when such a store is opened: it needs obstore, and for S3 boto3.
"""

from __future__ import annotations

import re
import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from wal3_core.errors import InvalidRequestError, StoreDeniedError
from wal3_core.storage.backends.remote import (
    NEVER_RETRY,
    REQUEST_S_MAX,
    RETRY_READS,
    Clients,
    RemoteStore,
    read_timeouts,
    write_timeouts,
)
from wal3_core.storage.backends.remote_errors import refused_settings
from wal3_core.storage.object_store import is_odd
from wal3_core.storage.store_urls import NO_SECRETS, TIMEOUT_OPTIONS, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from boto3.session import Session
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as Client

    from wal3_core.storage.backends.s3_keys import S3Keys

    class _Make(Protocol):
        """Makes a client of one bucket."""

        def __call__(self, *, client_options: ClientConfig, retry_config: RetryConfig) -> Client: ...


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
    request_s = _request_s(options)
    keys: S3Keys | None = None
    make: _Make
    match parts.scheme:
        case "s3":
            make, keys = _s3(parts, options, session)
        case "gs":
            make = partial(GCSStore, parts.netloc)
        case _:
            make = partial(AzureStore, parts.netloc)

    @cache
    def conditional(body_mib: int) -> Client:
        return make(client_options=write_timeouts(request_s, body_mib), retry_config=NEVER_RETRY)

    clients = Clients(conditional, make(client_options=read_timeouts(request_s), retry_config=reads), keys)
    # Made now, when what is wrong with the settings is said.
    conditional(0)
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


def _request_s(options: Mapping[str, str]) -> float:
    """Check the timeouts in a store's URL; return that of one request."""
    for name in sorted(TIMEOUT_OPTIONS & options.keys()):
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", options[name]) or float(options[name]) > _TIMEOUT_S_MAX:
            message = f"store URL: expected {name} to be seconds from 0 to {_TIMEOUT_S_MAX}, found {options[name]!r}"
            raise InvalidRequestError(message)
    return max(float(options.get("request_timeout_s", REQUEST_S_MAX)), _REQUEST_S_MIN)


def _s3(parts: SplitResult, options: Mapping[str, str], session: Session | None) -> tuple[_Make, S3Keys]:
    """Return what makes clients of a bucket of S3, and a lister of its keys."""
    from wal3_core.storage.backends.s3_keys import S3Account, S3Keys  # noqa: PLC0415 - other stores do without boto3

    _check_endpoint(options.get("endpoint", "http://"))
    account = S3Account(options, session)
    bucket = parts.netloc
    place = account.place(bucket)
    _check_endpoint(place.endpoint)
    if not account.has_keys:
        message = (
            f"store {parts._replace(query='').geturl()}: expected AWS credentials, found none: set AWS_PROFILE, or"
            f" AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
        raise StoreDeniedError(message)
    config: S3Config = {
        "region": place.region,
        # By the name that goes before others: obstore looks into the environment, too.
        "aws_endpoint_url_s3": place.endpoint,
        "virtual_hosted_style_request": place.virtual_hosted,
        # Objects are deleted one by one: by bulk requests, some servers judge the bucket's policy, not the object's.
        "disable_bulk_delete": True,
    }
    more: ClientConfig = {"allow_http": place.endpoint.startswith("http://")}
    authorities = account.authorities
    if authorities is not None:
        more["root_certificate"] = authorities

    def make(*, client_options: ClientConfig, retry_config: RetryConfig) -> S3Store:
        return S3Store(
            bucket,
            config=config,
            client_options={**client_options, **more},
            retry_config=retry_config,
            credential_provider=account,
        )

    return make, S3Keys(account, bucket)


def _check_endpoint(endpoint: str) -> None:
    """Raise InvalidRequestError for one without http:// or https://, or with a password, which errors would print."""
    if not endpoint.startswith(("http://", "https://")):
        message = f"store endpoint: expected http://… or https://…, found {endpoint!r}"
        raise InvalidRequestError(message)
    if "@" in urlsplit(endpoint).netloc:
        message = f"store endpoint: {NO_SECRETS}, found some before the @ of {without_secrets(endpoint)!r}"
        raise InvalidRequestError(message)
