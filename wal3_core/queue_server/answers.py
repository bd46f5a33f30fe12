"""Answers: one shape for every error, and the models of results for the API's description."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from wal3_core.errors import (
    ClosedError,
    FencedError,
    InvalidRequestError,
    LogError,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    NotDurableError,
    QueueFullError,
    StaleTokenError,
    UnavailableError,
    UnknownDurabilityError,
    UnknownItemError,
)
from wal3_core.queue_server.wire import Json
from wal3_core.runtime.loggers import without_secrets
from wal3_core.views.queue import Enqueued, Leased, Peeked, QueueDefinition, QueueStats

Item = TypeVar("Item", Leased, Peeked)

# Of values that are shown in one piece.
_PIECE_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class _HttpError:
    """What an error is over HTTP. ``retry_s``: after how long the same request may succeed."""

    status: int
    error: str
    retry_s: int | None = None


class BusyError(UnavailableError):
    """The server has as much to do as it may."""


class StoppingError(UnavailableError):
    """The server is about to end."""


# The first class that fits counts.
_KINDS: tuple[tuple[type[LogError], _HttpError], ...] = (
    (BusyError, _HttpError(503, "busy", 1)),
    (LogNotFoundError, _HttpError(404, "unknown_queue")),
    (LogExistsError, _HttpError(409, "exists")),
    (ClosedError, _HttpError(503, "stopping", 1)),
    (InvalidRequestError, _HttpError(422, "invalid")),
    (UnknownItemError, _HttpError(404, "unknown_item")),
    (StaleTokenError, _HttpError(409, "stale_token")),
    (QueueFullError, _HttpError(503, "queue_full", 5)),
    (FencedError, _HttpError(503, "fenced", 60)),
    (LogReplacedError, _HttpError(503, "replaced", 1)),
    # Not to be repeated blindly: an item may be in the queue.
    (UnknownDurabilityError, _HttpError(503, "unknown_outcome")),
    (NotDurableError, _HttpError(503, "unavailable", 1)),
    (UnavailableError, _HttpError(503, "unavailable", 5)),
)
_FAILED = _HttpError(500, "failed")
_RESTART = (
    "; the server leaves the queue to it: to serve it from here again, stop the other process, and restart this server"
)


def error_answer(
    status: int, error: str, message: str, *, retry_s: float | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Answer with an error."""
    more = dict(headers or {})
    if retry_s is not None:
        more["retry-after"] = str(max(1, ceil(retry_s)))
    # What a client sent may not be encodable.
    shown = without_secrets(message).encode(errors="backslashreplace").decode()
    return JSONResponse({"error": error, "message": shown}, status, more)


def answer_of(error: LogError) -> JSONResponse:
    """Answer with an error of the library."""
    if isinstance(error, StoppingError):
        return stopping_answer()
    kind = next((kind for of, kind in _KINDS if isinstance(error, of)), _FAILED)
    message = f"{error}{_RESTART}" if isinstance(error, FencedError) else str(error)
    return error_answer(kind.status, kind.error, message, retry_s=kind.retry_s)


def stopping_answer() -> JSONResponse:
    """Answer that the server is about to end."""
    message = "server: expected to go on, found that it is stopping: ask again, once another is there"
    return error_answer(503, "stopping", message, retry_s=1, headers={"connection": "close"})


def items_answer(items: Sequence[Item], show: Callable[[Item], Json]) -> Response:
    """Answer with items; with large ones piece by piece, as the client takes them: others are served meanwhile."""
    if sum(len(item.value) for item in items) <= _PIECE_BYTES:
        return JSONResponse({"items": [show(item) for item in items]})
    return StreamingResponse(_pieces(items, show), media_type=JSONResponse.media_type)


async def _pieces(items: Sequence[Item], show: Callable[[Item], Json]) -> AsyncIterator[bytes]:
    before = b'{"items":['
    for item in items:
        yield before + json.dumps(show(item), ensure_ascii=False, separators=(",", ":")).encode()
        before = b","
        await asyncio.sleep(0)
    yield b"]}"


class ErrorAnswer(BaseModel):
    """What went wrong: a word for programs, and a sentence for people."""

    error: str
    message: str


class PeekedAnswer(BaseModel):
    """An item as it waits, or lies among the dead letters."""

    id: int
    value: str | None = None
    text: str | None = None
    deadline_us: int
    priority: int
    deliveries: int
    enqueued_us: int
    requeued_us: int | None


class LeasedAnswer(PeekedAnswer):
    """An item that was handed out: the caller's alone until `lease_until_us`."""

    token: str
    lease_until_us: int
    dedupe_key: str | None
    dedupe_key_base64: str | None = None


class LeasedItems(BaseModel):
    """Items that were handed out."""

    items: list[LeasedAnswer]


class PeekedItems(BaseModel):
    """Items as they wait."""

    items: list[PeekedAnswer]


class EnqueuedItems(BaseModel):
    """Items that are in the queue now, in the order of the request."""

    items: list[Enqueued]


class QueueInList(BaseModel):
    """A queue. `open`: this server is its broker."""

    queue: str
    open: bool


class QueueList(BaseModel):
    """The queues of the server."""

    queues: list[QueueInList]


class QueueAnswer(QueueInList):
    """A queue and its definition. `open`: this server is its broker."""

    definition: QueueDefinition


class StatsAnswer(QueueInList):
    """What a queue holds, and whether this server is its broker; else by its log, as of now."""

    stats: QueueStats


class ReleasedAnswer(BaseModel):
    """How many items were removed."""

    released: int


class ExtendedAnswer(BaseModel):
    """When the lease ends now."""

    lease_until_us: int


class BuriedAnswer(BaseModel):
    """Which item is among the dead letters now."""

    buried: int


class KickedAnswer(BaseModel):
    """Which dead letters are pending now."""

    ids: list[int]


class PurgedAnswer(BaseModel):
    """How many items were removed; with `dry_run`, how many would be."""

    items: int
    dry_run: bool


class HealthAnswer(BaseModel):
    """The server takes requests."""

    status: str


# For the description of every route.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        401: "no access token, or an unknown one",
        404: "there is no such queue or item",
        409: "the lease has ended, or the queue exists already",
        413: "the body is too large",
        422: "the request is invalid: nothing was changed",
        429: "too many requests: see Retry-After",
        503: "the store, the queue or the server cannot take it now: see Retry-After",
    }.items()
}
