"""A client of a queue server, on the standard library. Errors are those that the queue itself raises."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from wal3_core.arguments import checked, seconds
from wal3_core.errors import (
    InvalidRequestError,
    LogError,
    OverloadedError,
    StaleTokenError,
    UnavailableError,
    UnknownDurabilityError,
)
from wal3_core.queue_server.wire import ERRORS, Json, given_fields, item_fields, log_of
from wal3_core.runtime import shared_runtime
from wal3_core.views.queue import operations

# Changes of a leased item, besides releasing it.
OfLease = operations.Bury | operations.Requeue | operations.Extend

_ERRORS = {word: raised for _, raised, _, word, _ in ERRORS} | {"too_many_requests": OverloadedError}
# The path of each operation, and the field that has its result.
_ACTIONS: dict[type, tuple[str, str]] = {
    operations.Enqueue: ("enqueue_many", "items"),
    operations.Release: ("release_many", ""),
    operations.Requeue: ("requeue", ""),
    operations.Extend: ("extend", "lease_until_us"),
    operations.Reclaim: ("reclaim", "items"),
    operations.Bury: ("bury", ""),
    operations.Kick: ("kick", "ids"),
    operations.Purge: ("purge?confirm=true", "items"),
}
_INVALID = range(400, 500)
# A proxy that has waited for the server in vain may have handed the request on; the server itself may have failed late.
_FAILED = range(500, 600)
# The longest time for an answer, beside the time that a dequeue waits: a server retries its store for less.
_ANSWER_S = 150.0
# A longer wait is made of several requests: proxies end those that are quiet for long.
_WAIT_S = 50.0
_NO_SERVER = "start a server there (`wal3 queue serve`), or correct --server or WAL3_QUEUE_SERVER"


def _path(name: str) -> str:
    return f"/{log_of('', name)}"


class _Unredirected(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the access token to another server."""

    def redirect_request(self, *_: object) -> None:
        """Return no request."""


class QueueClient:
    """Calls one server. ``url`` is that of the server, such as http://127.0.0.1:8790; ``token`` its access token.

    A call raises UnavailableError when there is no server; UnknownDurabilityError when its answer was lost, or a proxy
    or the server has failed: what it asked for may have been done.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
            raise InvalidRequestError(f"server {url[:80]}: expected a URL like http://127.0.0.1:8790, found another")
        if parts.username is not None:
            raise InvalidRequestError("server: expected a URL without a name and a password, found one with them")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidRequestError("access token: expected printable ASCII characters, found others")
        self.url = url.rstrip("/")
        self._token = token
        self._opener = urllib.request.build_opener(_Unredirected)

    def create(self, name: str, definition: operations.QueueDefinition) -> None:
        """Make a queue. LogExistsError when there is one of that name."""
        self._call("POST", "", {"queue": name, **definition.to_json()})

    def names(self) -> list[str]:
        """Return the names of the queues."""
        return [each["queue"] for each in self._call("GET", "")["queues"]]

    def run(self, name: str, operation: operations.Operation) -> Any:  # noqa: ANN401 - each operation has its own result
        """Return the result of an operation but Dequeue, as JSON has it."""
        action, field = _ACTIONS[type(operation)]
        answer = self._call("POST", f"{_path(name)}/{action}", _body(operation))
        return answer[field] if field else None

    def change(self, name: str, changes: Iterable[OfLease]) -> Iterator[Any | LogError]:
        """Change several leased items; give each result or error, up to the first that is no StaleTokenError."""
        for operation in changes:
            try:
                yield self.run(name, operation)
            except LogError as error:
                yield error
                if not isinstance(error, StaleTokenError):
                    return

    @checked(timeout_s=seconds)
    def dequeue(self, name: str, count: int = 1, *, timeout_s: float = 0.0, lease_s: float | None = None) -> list[Json]:
        """Lease items; wait for the first one. A value that is UTF-8 is in ``text``, another as base64 in ``value``."""
        until_s = shared_runtime().monotonic_s() + timeout_s
        while True:
            wait_s = min(_WAIT_S, max(0.0, until_s - shared_runtime().monotonic_s()))
            body: Json = {"count": count, "timeout_s": wait_s, "lease_s": lease_s, "text": True}
            found = self._items("POST", f"{_path(name)}/dequeue", body, wait_s=wait_s)
            if found or shared_runtime().monotonic_s() >= until_s:
                return found

    def stats(self, name: str) -> Json:
        """Return what a queue holds."""
        found: Json = self._call("GET", f"{_path(name)}/stats")["stats"]
        return found

    def peek(self, name: str, count: int = 1) -> list[Json]:
        """Return the pending items that come first; values as from ``dequeue``."""
        return self._items("GET", f"{_path(name)}/peek?{urlencode({'count': count, 'text': 'true'})}")

    def dead(self, name: str, count: int = 100, *, after: int = 0) -> list[Json]:
        """Return dead letters by rising ids, those above ``after``; values as from ``dequeue``."""
        query = urlencode({"count": count, "after": after, "text": "true"})
        return self._items("GET", f"{_path(name)}/dead?{query}")

    # ------------------------------------------------------------------ requests

    def _items(self, method: str, path: str, body: Json | None = None, *, wait_s: float = 0.0) -> list[Json]:
        items: list[Json] = self._call(method, path, body, wait_s=wait_s)["items"]
        return items

    def _call(self, method: str, path: str, body: Json | None = None, *, wait_s: float = 0.0) -> Any:  # noqa: ANN401 - each answer has its own fields
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1/queues{path}", data, method=method)  # noqa: S310 - http or https
        request.add_header("accept", "application/json")
        if data is not None:
            request.add_header("content-type", "application/json")
        if self._token is not None:
            request.add_unredirected_header("authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=wait_s + _ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                refused = self._refused(method, error)
            raise refused from None
        except urllib.error.URLError as error:
            message = f"server {self.url}: expected an answer, found {error.reason}: {_NO_SERVER}"
            raise UnavailableError(message) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = f"server {self.url}: expected an answer, found that it was lost: {type(error).__name__}: {error}"
            kind = UnavailableError if method == "GET" else UnknownDurabilityError
            raise kind(message) from error

    def _refused(self, method: str, answer: urllib.error.HTTPError) -> LogError:
        """Make the error that an answer reports."""
        status, again = answer.code, answer.headers.get("retry-after")
        try:
            fields = json.loads(answer.read())
            word, said = str(fields["error"]), str(fields["message"])
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
            word, said = "", f"expected a queue server, found an answer of status {status} that is none of its"
        message = f"server {self.url}: {said}"
        if word == "unauthorized":
            message = f"{message} (WAL3_QUEUE_TOKEN has the token)"
        # A fenced server needs a person.
        if again is not None and word != "fenced":
            message = f"{message}; it may succeed in {again} s"
        return (_ERRORS.get(word) or _kind_of(method, status))(message)


def _body(operation: operations.Operation) -> Json:
    if isinstance(operation, operations.Enqueue):
        return {"items": [item_fields(item) for item in operation.items]}
    if isinstance(operation, operations.Release):
        return {"leases": [{"id": item_id, "token": token} for item_id, token in operation.leases]}
    return given_fields(operation)


def _kind_of(method: str, status: int) -> type[LogError]:
    """Return the error of an answer that says nothing known but its status."""
    if status in _INVALID:
        return InvalidRequestError
    return UnknownDurabilityError if status in _FAILED and method != "GET" else UnavailableError
