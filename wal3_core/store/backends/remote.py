"""S3, Google Cloud Storage and Azure through obstore.

PUTs and DELETEs go through clients that never retry, since only the protocol knows what a repeated PUT means; reads
and lists through one that does, unless reads are throttled: then the library's own retries, which take their turn, are
the only ones. A read may take long while bytes arrive: its client limits the silence between them. While it sends, a
client limits the whole request alone: so there is one for each size of a body, which grows with its time.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store
from obstore.store import ObjectStore as Client

from wal3_core.errors import ClosedError, InvalidRequestError, StoreDeniedError, UnavailableError
from wal3_core.runtime import US_PER_S
from wal3_core.store.backends.remote_errors import Trouble, refused_settings, trouble
from wal3_core.store.object_store import (
    Buffer,
    Done,
    Etag,
    NotModified,
    ObjectMeta,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
    check_length,
    check_path,
    is_odd,
)
from wal3_core.store.store_urls import NO_SECRETS, TIMEOUT_OPTIONS, without_secrets

if TYPE_CHECKING:
    from boto3.session import Session
    from obstore import GetOptions, UpdateVersion
    from obstore import ObjectMeta as StoredMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config

    from wal3_core.store.backends.s3_keys import S3Keys

    class _Make(Protocol):
        """Makes a client of one bucket."""

        def __call__(self, *, client_options: ClientConfig, retry_config: RetryConfig) -> Client: ...


_LIST_CHUNK = 1000

NEVER_RETRY: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=20)}
RETRY_READS: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2},
}
REQUEST_S_MAX = 20.0
_CONNECT_S_MAX = 5.0
# The length of a read, however slowly its bytes arrive.
_READ_S_MAX = 60 * 60.0
# A larger body gets the time of a request once more for each MiB.
_SMALL_BYTES = 2**18
_MIB = 2**20

# A range beyond an object's end, or an answer with another range, has no exception class of its own, only these words.
_NO_RANGE = re.compile("status code: 416 ")
_OTHER_RANGE = re.compile(r"Received non-partial response|Requested \S+, got \S+")


@dataclass(frozen=True, slots=True)
class Clients:
    """The same bucket through clients that never retry, and one for reads, which may retry them.

    ``conditional`` returns the one for a body of so many MiB at most, 0 for a small one.
    """

    conditional: Callable[[int], Client]
    reading: Client
    # Lists what obstore cannot; there is none for others than S3.
    keys: S3Keys | None = None


class RemoteStore:
    """A bucket, or a folder of one.

    ``unquoted_etags`` is for servers that compare an If-Match header with the unquoted ETag, as radosgw does.
    """

    def __init__(self, url: str, clients: Clients, *, folder: str = "", unquoted_etags: bool = False) -> None:
        self.url = url
        self._clients = clients
        self._folder = f"{folder.strip('/')}/" if folder.strip("/") else ""
        self._unquoted_etags = unquoted_etags

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        options: GetOptions = {}
        if length is not None:
            options = {"range": (start, start + length)}
        elif start:
            options = {"range": {"offset": start}}
        with self._translated(path):
            try:
                return bytes(obstore.get(self._clients.reading, self._key(path), options=options).bytes())
            except (exceptions.NotFoundError, FileNotFoundError) as error:
                self._check_bucket(path, error)
                return None
            except exceptions.GenericError as error:
                if not _NO_RANGE.search(str(error)) and not _OTHER_RANGE.search(str(error)):
                    raise
                return self._read_none(path, start, error)

    def _read_none(self, path: str, start: int, error: exceptions.GenericError) -> bytes | None:
        """Find the result for a range that the server did not return: empty if the object ends before it."""
        found = self.head(path)
        if found is None:
            return None
        if found.size <= start:
            return b""
        if _NO_RANGE.search(str(error)):
            # The object has changed since, or the answer was wrong.
            raise error
        raise StoreDeniedError(
            f"store {self.url}: {path}: expected the bytes from {start} on, found that the server returns another"
            f" range: {trouble(error).text}"
        )

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        options: GetOptions = {}
        if if_none_match is not None:
            options = {"if_none_match": _version(if_none_match).get("e_tag")}
        with self._translated(path):
            try:
                found = obstore.get(self._clients.reading, self._key(path), options=options)
                # The size is in the answer's headers; the body is not read yet.
                check_length(self, path, found.meta["size"], length_max)
                return Versioned(bytes(found.bytes()), self._etag(found.meta["e_tag"], found.meta["version"]))
            except exceptions.NotModifiedError:
                return NotModified()
            except (exceptions.NotFoundError, FileNotFoundError) as error:
                self._check_bucket(path, error)
                return None

    def create(self, path: str, data: Buffer) -> PutOutcome:
        return self._put(path, data, None)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        return self._put(path, data, etag)

    def _put(self, path: str, data: Buffer, etag: Etag | None) -> PutOutcome:
        try:
            done = obstore.put(
                self._clients.conditional(_mib(data)),
                self._key(path),
                data,
                mode="create" if etag is None else _version(etag),
                use_multipart=False,
            )
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            # Also a 409, which says neither done nor exists: callers read back.
            return Refused()
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            if etag is not None:
                return Refused()
            raise self._unavailable(path, error) from error
        except (exceptions.BaseError, OSError) as error:
            found = self._trouble(path, error)
            if found.denied:
                raise found.error(self.url, path) from error
            return Unknown(found.text, slow_down=found.slow_down)
        written = self._etag(done["e_tag"], done["version"])
        if written == etag:
            # A PUT that is answered with 303 is followed by a GET, whose answer looks the same.
            return Unknown("the server answered with the version that was to be replaced")
        return Done(written)

    def head(self, path: str) -> ObjectMeta | None:
        with self._translated(path):
            try:
                return self._meta(obstore.head(self._clients.reading, self._key(path)))
            except (exceptions.NotFoundError, FileNotFoundError):
                return None

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder, on S3 also those with a key that no object of a log can have."""
        with self._translated(folder):
            try:
                for listed in self._listed(folder, start_after):
                    yield listed
                    start_after = listed.path
            except exceptions.InvalidPathError:
                if self._clients.keys is None:
                    raise
            else:
                return
        after = self._folder + start_after if start_after else ""
        for found in self._clients.keys.objects(self._folder + folder, after):
            yield replace(found, path=found.path.removeprefix(self._folder))

    def _listed(self, folder: str, start_after: str) -> Iterator[ObjectMeta]:
        _check_names(folder, start_after)
        offset = self._folder + start_after if start_after else None
        for chunk in obstore.list(self._clients.reading, self._folder + folder, offset=offset, chunk_size=_LIST_CHUNK):
            for listed in map(self._meta, chunk):
                # Some servers ignore where a list is to start.
                if listed.path > start_after and self._is_object(listed):
                    yield listed

    def _is_object(self, listed: ObjectMeta) -> bool:
        """Tell whether what a list names is an object, and no marker that another program has made for a folder.

        A marker is an empty object whose key ends in a slash, which obstore cuts off.
        """
        return listed.size > 0 or self.head(listed.path) is not None

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder, on S3 also those whose names no folder of a log can have."""
        with self._translated(folder):
            try:
                _check_names(folder)
                found = obstore.list_with_delimiter(self._clients.reading, self._folder + folder)
                prefixes = [f"{prefix}/" for prefix in found["common_prefixes"]]
            except exceptions.InvalidPathError:
                if self._clients.keys is None:
                    raise
                prefixes = self._clients.keys.folders(self._folder + folder)
        return sorted(prefix.removeprefix(self._folder) for prefix in prefixes)

    def delete(self, path: str) -> None:
        with self._translated(path):
            try:
                obstore.delete(self._clients.conditional(0), self._key(path))
            except (exceptions.NotFoundError, FileNotFoundError):
                return

    def _check_bucket(self, path: str, error: Exception) -> None:
        """Raise StoreDeniedError if the bucket, not the object, is missing."""
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            raise self._unavailable(path, error) from error

    def _key(self, path: str) -> str:
        _check_process()
        return self._folder + check_path(path)

    def _meta(self, found: StoredMeta) -> ObjectMeta:
        modified: datetime = found["last_modified"]
        path = found["path"].removeprefix(self._folder)
        return ObjectMeta(path, found["size"], int(modified.timestamp() * US_PER_S))

    def _etag(self, e_tag: str | None, version: str | None) -> Etag:
        if e_tag is not None and self._unquoted_etags:
            e_tag = e_tag.strip('"')
        return Etag(json.dumps([e_tag, version]))

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    def _unavailable(self, path: str, error: Exception) -> UnavailableError:
        return self._trouble(path, error).error(self.url, path)

    def _trouble(self, path: str, error: Exception) -> Trouble:
        found = trouble(error)
        return replace(found, text=found.text + permission_needed(self.url, self._folder + path, error))


def _mib(data: Buffer) -> int:
    """Return 0 for a small body, else the next power of two in MiB: there are few clients."""
    return 0 if len(data) <= _SMALL_BYTES else 1 << ((len(data) - 1) // _MIB).bit_length()


def _check_names(*paths: str) -> None:
    """Raise for a path what obstore raises for a listed key that it refuses: for a path it has no class of its own."""
    odd = next(filter(is_odd, paths), None)
    if odd is not None:
        message = f"expected names between the slashes of a path, found {odd!r}"
        raise exceptions.InvalidPathError(message)


_first_process: list[int] = []


def _check_process() -> None:
    """Raise ClosedError in a fork of a process that has used obstore: a call would hang without its threads."""
    if not _first_process:
        _first_process.append(os.getpid())
    elif _first_process[0] != os.getpid():
        message = "object store: expected the process that used it first, found a fork: start processes with spawn"
        raise ClosedError(message)


def _version(etag: Etag) -> UpdateVersion:
    e_tag, version = json.loads(etag)
    named: UpdateVersion = {}
    if e_tag is not None:
        named["e_tag"] = e_tag
    if version is not None:
        named["version"] = version
    return named


_FORBIDDEN = re.compile("status code: 403 ")
_METHOD = re.compile("Error performing ([A-Z]+) ")
_LISTING = "Error performing list request"
_ACTIONS = {"PUT": "s3:PutObject", "GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}


def permission_needed(url: str, key: str, error: Exception) -> str:
    """Say which action on ``key`` these credentials need, by obstore's text; empty if that is not why it failed."""
    text = str(error)
    method = _METHOD.search(text)
    if not url.startswith("s3:") or not _FORBIDDEN.search(text) or method is None:
        return ""
    action = "s3:ListBucket" if _LISTING in text else _ACTIONS.get(method[1], method[1])
    return f": these credentials need {action} for {key}"


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
        raise InvalidRequestError(f"store URL: expected etags=unquoted, or no such option, found {options['etags']!r}")
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

    connect, silence = timedelta(seconds=min(request_s, _CONNECT_S_MAX)), timedelta(seconds=request_s)

    @cache
    def conditional(body_mib: int) -> Client:
        timeout = timedelta(seconds=request_s * (1 + body_mib))
        return make(client_options={"connect_timeout": connect, "timeout": timeout}, retry_config=NEVER_RETRY)

    # Of a read, the silence before its first byte is limited, and that between others.
    of_reads: ClientConfig = {
        "connect_timeout": connect,
        "read_timeout": silence,
        "timeout": max(silence, timedelta(seconds=_READ_S_MAX)),
    }
    clients = Clients(conditional, make(client_options=of_reads, retry_config=reads), keys)
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
        raise InvalidRequestError(
            f"store URL: expected a folder without empty or dotted parts and control characters, found"
            f" {parts.geturl()!r}"
        )
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
    from wal3_core.store.backends.s3_keys import S3Account, S3Keys  # noqa: PLC0415 - other stores do without boto3

    _check_endpoint(options.get("endpoint", "http://"))
    account = S3Account(options, session)
    bucket = parts.netloc
    place = account.place(bucket)
    _check_endpoint(place.endpoint)
    if not account.has_keys:
        raise StoreDeniedError(
            f"store {parts._replace(query='').geturl()}: expected AWS credentials, found none: set AWS_PROFILE, or"
            f" AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
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
        raise InvalidRequestError(f"store endpoint: expected http://… or https://…, found {endpoint!r}")
    if "@" in urlsplit(endpoint).netloc:
        message = f"store endpoint: {NO_SECRETS}, found some before the @ of {without_secrets(endpoint)!r}"
        raise InvalidRequestError(message)
