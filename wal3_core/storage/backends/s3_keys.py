"""Listings of S3 that name every key, for folders with a key that obstore refuses.

obstore's paths have no empty or dotted parts and no control characters. A key may have them, and one such key fails
obstore's listing of everything around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.runtime.loggers import STORE
from wal3_core.storage.object_store import ObjectMeta, is_odd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boto3.session import Session

_CONNECT_S, _READ_S, _TRIES = 5, 20, 5
# Not 429, which asks for fewer requests.
_REFUSED = range(400, 429)
_SLOW_DOWN = frozenset({429, 503})
_WARNED_MAX = 1000


class S3Keys:
    """The keys of a bucket. UnavailableError when it does not answer, StoreDeniedError when it refuses."""

    def __init__(self, session: Session, bucket: str, *, region: str, endpoint: str | None) -> None:
        self._session = session
        self._bucket, self._region, self._endpoint = bucket, region, endpoint
        # Made when it is needed, which is seldom; a session makes one client at a time.
        self._making, self._made = shared_runtime().lock(), None
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
            yield from self._client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **asked)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            kind = StoreDeniedError if status in _REFUSED else UnavailableError
            raise kind(self._failure(asked["Prefix"], error), slow_down=status in _SLOW_DOWN) from error
        except BotoCoreError as error:
            raise UnavailableError(self._failure(asked["Prefix"], error)) from error

    def _client(self) -> Any:  # noqa: ANN401 - boto3 makes its clients' classes when it runs
        with self._making:
            if self._made is None:
                # As obstore is set: the bucket is in the path.
                config = Config(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    retries={"total_max_attempts": _TRIES, "mode": "standard"},
                    s3={"addressing_style": "path"},
                )
                region, endpoint = self._region, self._endpoint
                self._made = self._session.client("s3", region_name=region, endpoint_url=endpoint, config=config)
            return self._made

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
