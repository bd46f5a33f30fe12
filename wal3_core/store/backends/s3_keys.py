"""What boto3 knows of S3: where a bucket is, and the keys to sign with; and listings that name every object's key.

obstore's paths have no empty or dotted parts and no control characters. A key may have them, and one such key fails
obstore's listing of everything around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.runtime.loggers import STORE
from wal3_core.store.object_store import ObjectMeta, is_odd

if TYPE_CHECKING:
    from boto3.session import Session
    from obstore.store import S3Credential

_CONNECT_S, _READ_S, _TRIES = 5, 20, 5
# The statuses of refusals: not 429, which asks for fewer requests.
_REFUSED = range(400, 429)
_SLOW_DOWN = frozenset({429, 503})
_WARNED_MAX = 1000
# The variables that boto3 takes keys from, beside sources whose keys it renews itself.
_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
)
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))


@dataclass(frozen=True, slots=True)
class S3Place:
    """Where boto3 sends requests for a bucket, and the region that it signs them for.

    With ``virtual_hosted`` the bucket is in the host of the endpoint, else it follows in the path.
    """

    endpoint: str
    virtual_hosted: bool
    region: str


class S3Account:
    """A session's client and keys. A session that was not given is made again when its files or variables change.

    So whatever renews the keys there renews them here.
    """

    def __init__(self, options: Mapping[str, str], given: Session | None) -> None:
        self._options = options
        self._given = given is not None
        self._stamp = None if self._given else _stamp()
        self._session = given or self._new_session()
        self._made: Any = None
        # A session makes one client at a time.
        self._making = shared_runtime().lock()

    def _new_session(self) -> Session:
        named = self._options
        return boto3.session.Session(profile_name=named.get("profile"), region_name=named.get("region"))

    @property
    def has_keys(self) -> bool:
        """Whether there are any."""
        return self._session.get_credentials() is not None

    @property
    def authorities(self) -> bytes | None:
        """The certificates of further authorities that sign servers' certificates; None if none are named.

        StoreDeniedError when their file cannot be read.
        """
        # The same as boto3's clients.
        named = self._session._session.get_config_variable("ca_bundle")  # noqa: SLF001 - it has no public name
        path = named or os.environ.get("REQUESTS_CA_BUNDLE")
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            message = f"expected a file of certificates (AWS_CA_BUNDLE, or the profile's ca_bundle), found {error}"
            raise StoreDeniedError(message) from error

    def __call__(self) -> S3Credential:
        """Return the keys to sign with. They end at once, so that obstore asks again for each request."""
        with self._making:
            self._renew()
            credentials = self._session.get_credentials()
        if credentials is None:
            raise StoreDeniedError("expected AWS credentials, found none")
        keys = credentials.get_frozen_credentials()
        return {
            "access_key_id": str(keys.access_key),
            "secret_access_key": str(keys.secret_key),
            "token": keys.token,
            "expires_at": datetime.now(UTC),
        }

    def _renew(self) -> None:
        stamp = None if self._given else _stamp()
        if stamp == self._stamp:
            return
        # Before they are read: what is written meanwhile is read the next time.
        self._stamp = stamp
        try:
            session = self._new_session()
            if session.get_credentials() is not None:
                self._session, self._made = session, None
        except BotoCoreError as error:
            # As when half of a file is written.
            STORE.warning("AWS credentials: expected new ones, found %s: those of before are used", error)

    def client(self) -> Any:  # noqa: ANN401 - boto3 makes its clients' classes when it runs
        """Return boto3's client for S3."""
        with self._making:
            self._renew()
            if self._made is None:
                config = Config(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    retries={"total_max_attempts": _TRIES, "mode": "standard"},
                )
                # boto3 does not read AWS_REGION, which all other tools of AWS do.
                region = self._options.get("region") or self._session.region_name or os.environ.get("AWS_REGION")
                region = region or "us-east-1"
                endpoint = self._options.get("endpoint")
                self._made = self._session.client("s3", region_name=region, endpoint_url=endpoint, config=config)
            return self._made

    def place(self, bucket: str) -> S3Place:
        """Return where boto3 sends requests for a bucket, by all its settings; sends none."""
        asked: list[tuple[str, str]] = []

        def instead(
            *, params: Mapping[str, str], context: Mapping[str, Any], **_: object
        ) -> tuple[SimpleNamespace, object]:
            asked.append((params["url"], context["signing"]["region"]))
            return SimpleNamespace(status_code=200), {}

        events = (client := self.client()).meta.events
        events.register("before-call.s3.HeadBucket", instead)
        try:
            client.head_bucket(Bucket=bucket)
        finally:
            events.unregister("before-call.s3.HeadBucket", instead)
        ((url, region),) = asked
        virtual_hosted = not url.endswith(f"/{bucket}")
        return S3Place(url.removesuffix(f"/{bucket}").rstrip("/"), virtual_hosted, region)


def _stamp() -> tuple[object, ...]:
    """Return what changes with the files and variables that keys come from."""
    files: list[tuple[int, int, int] | None] = []
    for variable, default in _FILES:
        try:
            found = os.stat(os.path.expanduser(os.environ.get(variable, default)))  # noqa: PTH111,PTH116 - asked often
            files.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except OSError:
            files.append(None)
    return (*map(os.environ.get, _VARIABLES), *files)


class S3Keys:
    """The keys of a bucket. UnavailableError when it does not answer, StoreDeniedError when it refuses."""

    def __init__(self, account: S3Account, bucket: str) -> None:
        self._account = account
        self._bucket = bucket
        self._warned: set[str] = set()

    def objects(self, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
        """Yield the objects whose keys begin with a prefix, in order of their keys; no markers of folders."""
        after = {"StartAfter": start_after} if start_after else {}
        for page in self._pages(Prefix=prefix, **after):
            for found in page.get("Contents", ()):
                key, size = found["Key"], found["Size"]
                if size or not key.endswith("/"):
                    self._warn(key)
                    yield ObjectMeta(key, size, int(found["LastModified"].timestamp() * US_PER_S))

    def folders(self, prefix: str) -> list[str]:
        """List the prefixes, up to the next slash, of the keys that begin with a prefix."""
        pages = self._pages(Prefix=prefix, Delimiter="/")
        found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", ())]
        for each in found:
            self._warn(each)
        return sorted(found)

    def _pages(self, **asked: str) -> Iterator[Any]:
        try:
            yield from self._account.client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **asked)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            failure = self._failure(asked["Prefix"], error)
            if status in _REFUSED:
                no_bucket = error.response.get("Error", {}).get("Code") == "NoSuchBucket"
                raise StoreDeniedError(failure, no_bucket=no_bucket) from error
            raise UnavailableError(failure, slow_down=status in _SLOW_DOWN) from error
        except BotoCoreError as error:
            raise UnavailableError(self._failure(asked["Prefix"], error)) from error

    def _failure(self, prefix: str, error: Exception) -> str:
        return f"store s3://{self._bucket}: list {prefix!r}: {error}"

    def _warn(self, key: str) -> None:
        """Name a key that no object of a log can have, once."""
        if is_odd(key) and key not in self._warned and len(self._warned) < _WARNED_MAX:
            self._warned.add(key)
            STORE.warning(
                "store s3://%s: expected keys with names between their slashes, found %r, which slows down each list"
                " around it: delete or rename what is there",
                self._bucket,
                key,
            )
