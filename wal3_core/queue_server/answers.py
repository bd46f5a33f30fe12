"""Answers: one shape for every error, and items in pieces."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from math import ceil

from starlette.responses import JSONResponse, Response, StreamingResponse

from wal3_core.errors import FencedError, LogError
from wal3_core.queue_server.wire import ERRORS, StoppingError, item_json
from wal3_core.runtime.loggers import without_secrets
from wal3_core.views.queue.operations import Leased, Peeked

# The values that are shown in one piece.
_PIECE_BYTES = 2**18
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
    message = f"{error}{_RESTART}" if isinstance(error, FencedError) else str(error)
    for kind, _, status, word, retry_s in ERRORS:
        if isinstance(error, kind):
            return error_answer(status, word, message, retry_s=retry_s)
    return error_answer(500, "failed", message)


def stopping_answer() -> JSONResponse:
    """Answer that the server is about to end."""
    message = "server: expected to go on, found that it is stopping: ask again, once another is there"
    return error_answer(503, "stopping", message, retry_s=1, headers={"connection": "close"})


def items_answer(items: Sequence[Leased | Peeked], *, as_text: bool) -> Response:
    """Answer with items; with large ones piece by piece, as the client takes them: others are served meanwhile."""
    if sum(len(item.value) for item in items) <= _PIECE_BYTES:
        return JSONResponse({"items": [item_json(item, as_text=as_text) for item in items]})
    return StreamingResponse(_pieces(items, as_text=as_text), media_type=JSONResponse.media_type)


async def _pieces(items: Sequence[Leased | Peeked], *, as_text: bool) -> AsyncIterator[bytes]:
    before = b'{"items":['
    for item in items:
        shown = item_json(item, as_text=as_text)
        yield before + json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()
        before = b","
        await asyncio.sleep(0)
    yield b"]}"
