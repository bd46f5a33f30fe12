"""The ASGI application: routes behind the gate, and one shape for every error."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from wal3_core.errors import LogError
from wal3_core.queue_server.answers import HealthAnswer, answer_of, error_answer
from wal3_core.queue_server.gate import Access, Gate
from wal3_core.queue_server.routes import router
from wal3_core.queue_server.service import QueueService
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.runtime.loggers import QUEUE

_WORDS = {
    400: "invalid",
    404: "unknown_path",
    405: "unknown_method",
    408: "too_slow",
    413: "too_large",
    503: "busy",
}
# No route has this path, or this method.
_UNROUTED = frozenset({404, 405})
_DESCRIPTION = """Delay queues on object storage. `POST /v1/queues/{queue}/enqueue` answers once the item is durable;
`dequeue` leases due items, and `release` removes one whose work is done.

Values are base64 in `value`, or UTF-8 in `text`. Times are microseconds since 1970 (`…_us`) or seconds (`…_s`). With
access tokens, every request but `/health` has the header `Authorization: Bearer TOKEN`."""


def application(service: QueueService, access: Access, *, runtime: Runtime | None = None) -> FastAPI:
    """Return the application; it closes the service's queues when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="wal3 delay queues",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        middleware=[
            Middleware(Gate, service=service, access=access, runtime=runtime or shared_runtime()),
        ],
        exception_handlers={
            LogError: _refused,
            ClientDisconnect: _gone,
            RequestValidationError: _invalid,
            HTTPException: _by_status,
            Exception: _failed,
        },
    )
    app.state.service = service
    app.include_router(router)

    @app.get("/health", response_model=HealthAnswer)
    async def health() -> JSONResponse:
        """Say whether the server takes requests; 503 once it stops. Asks no store."""
        return JSONResponse({"status": "ok"})

    return app


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, LogError)
    return answer_of(error)


async def _gone(_: Request, __: Exception) -> Response:
    """Answer in vain: the client has gone before its body was there."""
    return Response(status_code=400)


async def _invalid(_: Request, error: Exception) -> Response:
    """Say which parameter of the path or the query is not as described."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return error_answer(422, "invalid", f"request: expected it as /docs describes, found {where}: {first['msg']}")


async def _by_status(request: Request, error: Exception) -> Response:
    """Answer with what the gate, or the framework, has said."""
    assert isinstance(error, HTTPException)
    word = _WORDS.get(error.status_code, "refused")
    said = error.detail
    if error.status_code in _UNROUTED:
        said = f"request: expected one that /docs describes, found {request.method} {request.url.path}"
    return error_answer(error.status_code, word, said, headers=dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer without details, which are in the server's log."""
    QUEUE.log(logging.ERROR, "%s %s failed", request.method, request.url.path, exc_info=error)
    return error_answer(500, "failed", "server: expected to answer, found an error of its own: see its log")
