"""The routes, each a method of a queue; the bodies that they take, and how these are read; the models of their answers.

Types are strict: a number in quotes is no number. Ranges are the queue's to check.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, FailFast, Field, PrivateAttr, ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.service import QueueService
from wal3_core.queue_server.wire import item_json, new_item, value_of
from wal3_core.views.queue import loading, operations
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import Enqueued, ItemStats, Leased, Peeked, QueueStats

_JSON = "application/json"
# Brackets, commas and colons of a batch: for each of its items, which has at most 13, and besides.
_SIGNS_PER_ITEM, _SIGNS_BESIDE = 16, 100
# A part of a body that is looked at, and the values that are shown, in one piece.
_PIECE_BYTES = 2**18
# The part that is shown of a text that may be as long as the body.
_SHOWN_CHARS = 100


class BodyRoute(APIRoute):
    """A route whose body is read and checked before FastAPI sees it, and a large one not on the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = cast("type[BaseModel]", self.body_field.field_info.annotation)

        async def read_first(request: Request) -> Response:
            return await handle(_Read(request, await _read(request, model)))

        return read_first


class _Read(Request):
    """A request whose body was read; it is kept nowhere else, as a request may wait for long."""

    def __init__(self, request: Request, body: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._model = body

    async def body(self) -> bytes:
        """Say that there is one."""
        return b"{}"

    async def json(self) -> BaseModel:
        """Return it, as it was checked."""
        return self._model


async def _read(request: Request, model: type[BaseModel]) -> BaseModel:
    kind = request.headers.get("content-type")
    if (kind or "").partition(";")[0].strip().lower() != _JSON:
        raise InvalidRequestError(f"request: expected the header content-type: {_JSON} beside its body, found {kind}")
    data = bytearray()
    async for part in request.stream():
        data += part
    service = request.app.state.service
    signs_max = _SIGNS_BESIDE + _SIGNS_PER_ITEM * service.options.items_max
    body: BaseModel = await service.aside(len(data), partial(_checked, data, model, signs_max))
    return body


def _checked(data: bytearray, model: type[BaseModel], signs_max: int) -> BaseModel:
    """Return what a body says; the data is gone then. InvalidRequestError says what is wrong with it first."""
    _check_size(data, signs_max)
    try:
        text = data.decode()
        data.clear()
        fields = json.loads(text)
        del text
    except (ValueError, RecursionError) as error:
        # Without the error, which holds the text.
        raise InvalidRequestError(f"body: expected JSON in UTF-8, found {str(error)[:_SHOWN_CHARS]}") from None
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, ("body", *first["loc"])))[:_SHOWN_CHARS]
        message = f"request: expected it as /docs describes, found {where}: {first['msg'][:_SHOWN_CHARS]}"
        raise InvalidRequestError(message) from None


def _check_size(data: bytearray, signs_max: int) -> None:
    """Refuse JSON of more values than any request has: as objects, they take a hundred times as much memory.

    Each value is behind a sign outside of all texts. Other threads wait for no more than a piece.
    """
    start = found = num_quotes = 0
    while start < len(data):
        piece = bytes(data[start : start + _PIECE_BYTES])
        # No escape is cut in two.
        piece = piece[: len(piece) - (len(piece) - len(piece.rstrip(b"\\"))) % 2] or piece
        start += len(piece)
        parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[num_quotes % 2 :: 2])
        num_quotes += len(parts) - 1
        found += sum(map(outside.count, (b",", b":", b"[", b"{")))
        if max(found, num_quotes // 2 - 1) > signs_max:
            message = f"body: expected at most {signs_max} values and brackets, found more: send fewer at a time"
            raise InvalidRequestError(message)


# ---------------------------------------------------------------------- what requests say

_DEFAULTS = operations.QueueDefinition()


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _ValueBody(_StrictModel):
    value: Annotated[str | None, Field(description="the value, as base64")] = None
    text: Annotated[str | None, Field(description="the value, if it is text: in place of `value`")] = None


_DeadlineUs = Annotated[int | None, Field(description="microseconds since 1970")]
_DelayS = Annotated[float | None, Field(description="seconds from now")]


class ItemBody(_ValueBody):
    """An item to enqueue: due at `deadline_us`, or after `delay_s`, or at once."""

    deadline_us: _DeadlineUs = None
    delay_s: _DelayS = None
    priority: Annotated[int, Field(description="0 to 255; the smallest is handed out first")] = 100
    dedupe_key: Annotated[
        str | None, Field(description="while the queue has an item with this key, no other is added")
    ] = None

    _item: operations.NewItem = PrivateAttr()

    def model_post_init(self, _: object) -> None:
        """Make the item; InvalidRequestError as for any item."""
        self._item = new_item(self.model_dump())

    @property
    def item(self) -> operations.NewItem:
        """The item."""
        return self._item


class ItemsBody(_StrictModel):
    """Items to enqueue, all or none."""

    items: Annotated[list[ItemBody], Field(min_length=1), FailFast()]


class QueueDefinition(_StrictModel):
    """What holds for a queue's items."""

    lease_s: Annotated[float, Field(description="how long a lease lasts unless a dequeue says otherwise")] = (
        _DEFAULTS.lease_s
    )
    max_deliveries: Annotated[
        int | None, Field(description="an item that comes back after so many goes to the dead letters; null: never")
    ] = _DEFAULTS.max_deliveries
    value_bytes_max: int = _DEFAULTS.value_bytes_max
    items_max: Annotated[int | None, Field(description="more items are refused with 503; null: never")] = (
        _DEFAULTS.items_max
    )

    def definition(self) -> operations.QueueDefinition:
        """Make the definition; InvalidRequestError for a value out of range."""
        return operations.QueueDefinition(**self.model_dump(exclude={"queue"}))


class CreateBody(QueueDefinition):
    """A queue to create."""

    queue: Annotated[str, Field(description="its name: letters, digits, _ and -")]


class DequeueBody(_StrictModel):
    """Which items to lease. `text`: a value that is UTF-8 comes as `text` in place of `value`."""

    count: Annotated[int, Field(description="at most so many")] = 1
    timeout_s: Annotated[float, Field(description="how long to wait for the first one")] = 0
    lease_s: Annotated[float | None, Field(description="null: as the queue is defined")] = None
    text: bool = False


class LeaseBody(_StrictModel):
    """A leased item."""

    id: int
    token: str


class LeasesBody(_StrictModel):
    """Leased items, all or none."""

    leases: Annotated[list[LeaseBody], Field(min_length=1), FailFast()]


class RequeueBody(LeaseBody, _ValueBody):
    """A leased item to put back: due at `deadline_us`, or after `delay_s`, or at once; perhaps with another value."""

    deadline_us: _DeadlineUs = None
    delay_s: _DelayS = None
    _value: bytes | None = PrivateAttr()

    def model_post_init(self, _: object) -> None:
        """Decode the value, if there is one."""
        self._value = value_of(self.value, self.text)

    def operation(self) -> operations.Requeue:
        """Make the operation."""
        return operations.Requeue(self.id, self.token, self.deadline_us, self.delay_s, self._value)


class ExtendBody(LeaseBody):
    """A lease to end `lease_s` seconds from now."""

    lease_s: float


class ReclaimBody(_StrictModel):
    """Leased items to put back, all or none, without their tokens."""

    ids: Annotated[list[int], Field(min_length=1), FailFast()]


class KickBody(_StrictModel):
    """Dead letters to make pending: those with these ids, or the `count` that were buried first."""

    count: int = 1
    ids: list[int] | None = None


class PurgeBody(_StrictModel):
    """Which items to remove."""

    pending: bool = True
    leased: bool = False
    dead: bool = False


# ---------------------------------------------------------------------- what answers say


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


# Errors, for the description of every route.
_ERRORS: dict[int | str, dict[str, Any]] = {
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


# ---------------------------------------------------------------------- the routes

router = APIRouter(prefix="/v1/queues", responses=_ERRORS, default_response_class=JSONResponse, route_class=BodyRoute)


def _service(request: Request) -> QueueService:
    service = request.app.state.service
    assert isinstance(service, QueueService)
    return service


Service = Annotated[QueueService, Depends(_service)]
AsText = Annotated[bool, Query(description="give a value that is UTF-8 as `text`")]


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


def _check(service: QueueService, what: str, count: int, *, least: int = 1) -> None:
    limit = service.options.items_max
    if not least <= count <= limit:
        raise InvalidRequestError(f"{what}: expected {least} to {limit}, found {count}")


# ---------------------------------------------------------------------- queues


@router.get("", response_model=QueueList)
async def list_queues(service: Service) -> JSONResponse:
    """List the queues."""
    names = await service.names()
    return JSONResponse({"queues": [{"queue": name, "open": service.is_open(name)} for name in names]})


@router.post("", status_code=201, response_model=QueueAnswer)
async def create_queue(service: Service, body: CreateBody) -> JSONResponse:
    """Create a queue; 409 if there is one of that name."""
    definition = body.definition()
    await service.create(body.queue, definition)
    return JSONResponse({"queue": body.queue, "open": False, "definition": definition.to_json()}, 201)


@router.get("/{queue}", response_model=QueueAnswer)
async def show_queue(service: Service, queue: str) -> JSONResponse:
    """Show a queue's definition. Fences no other broker, as no `GET` does."""
    definition, is_open = await service.read(queue, lambda held: held.definition, loading.read_queue_definition)
    return JSONResponse({"queue": queue, "open": is_open, "definition": definition.to_json()})


@router.put("/{queue}/definition", response_model=QueueAnswer)
async def define_queue(service: Service, queue: str, body: QueueDefinition) -> JSONResponse:
    """Give a queue another definition; what the body leaves out is the default again."""
    definition = body.definition()
    await service.run(queue, operations.Define(definition))
    return JSONResponse({"queue": queue, "open": True, "definition": definition.to_json()})


@router.get("/{queue}/stats", response_model=StatsAnswer)
async def queue_stats(service: Service, queue: str) -> JSONResponse:
    """Show how many items a queue holds. Fences no other broker."""
    stats, is_open = await service.read(queue, DelayQueue.stats, loading.read_queue_stats)
    return JSONResponse({"queue": queue, "open": is_open, "stats": stats.to_json()})


@router.post("/{queue}/purge", response_model=PurgedAnswer)
async def purge(service: Service, queue: str, body: PurgeBody, confirm: bool = False) -> JSONResponse:  # noqa: FBT001, FBT002 - a parameter of a URL
    """Remove all items of these states for good. Without `?confirm=true`, only say how many: no broker is fenced."""
    if confirm:
        items = await service.run(queue, operations.Purge(body.pending, body.leased, body.dead))
    else:
        held, _ = await service.read(queue, DelayQueue.stats, loading.read_queue_stats)
        items = body.pending * held.pending + body.leased * held.leased + body.dead * held.dead
    return JSONResponse({"items": items, "dry_run": not confirm})


# ---------------------------------------------------------------------- items in


@router.post("/{queue}/enqueue", response_model=Enqueued)
async def enqueue(service: Service, queue: str, body: ItemBody) -> JSONResponse:
    """Add an item."""
    [done] = await service.run(queue, operations.Enqueue((body.item,)))
    return JSONResponse(asdict(done))


@router.post("/{queue}/enqueue_many", response_model=EnqueuedItems)
async def enqueue_many(service: Service, queue: str, body: ItemsBody) -> JSONResponse:
    """Add items, all or none."""
    _check(service, "items", len(body.items))
    done = await service.run(queue, operations.Enqueue(tuple(each.item for each in body.items)))
    return JSONResponse({"items": [asdict(each) for each in done]})


# ---------------------------------------------------------------------- items out


@router.post("/{queue}/dequeue", response_model=LeasedItems, response_model_exclude_unset=True)
async def dequeue(service: Service, queue: str, body: DequeueBody, request: Request) -> Response:
    """Lease due items; wait for the first one. An empty list: none was due in that time, or the server stops.

    A client that goes away while it waits gets no item, and loses none.
    """
    _check(service, "count", body.count)
    timeout_s = min(body.timeout_s, service.options.wait_s_max)
    operation = operations.Dequeue(body.count, timeout_s, body.lease_s, service.options.answer_bytes_max)
    items = await service.dequeue(queue, operation, request.scope["ticket"], partial(_until_gone, request))
    return items_answer(items, as_text=body.text)


async def _until_gone(request: Request) -> None:
    """Return when the client has closed its connection; the body has been read."""
    message = await request.receive()
    while message["type"] != "http.disconnect":
        message = await request.receive()


@router.post("/{queue}/release", response_model=ReleasedAnswer)
async def release(service: Service, queue: str, body: LeaseBody) -> JSONResponse:
    """Remove a leased item: its work is done."""
    await service.run(queue, operations.Release(((body.id, body.token),)))
    return JSONResponse({"released": 1})


@router.post("/{queue}/release_many", response_model=ReleasedAnswer)
async def release_many(service: Service, queue: str, body: LeasesBody) -> JSONResponse:
    """Remove leased items, all or none."""
    _check(service, "leases", len(body.leases))
    await service.run(queue, operations.Release(tuple((each.id, each.token) for each in body.leases)))
    return JSONResponse({"released": len(body.leases)})


@router.post("/{queue}/requeue", response_model=Enqueued)
async def requeue(service: Service, queue: str, body: RequeueBody) -> JSONResponse:
    """Put a leased item back."""
    return JSONResponse(asdict(await service.run(queue, body.operation())))


@router.post("/{queue}/extend", response_model=ExtendedAnswer)
async def extend(service: Service, queue: str, body: ExtendBody) -> JSONResponse:
    """Let a lease end later, or sooner."""
    until_us = await service.run(queue, operations.Extend(body.id, body.token, body.lease_s))
    return JSONResponse({"lease_until_us": until_us})


@router.post("/{queue}/reclaim", response_model=EnqueuedItems)
async def reclaim(service: Service, queue: str, body: ReclaimBody) -> JSONResponse:
    """Put leased items back without their tokens, all or none: for an operator whose worker is gone."""
    _check(service, "ids", len(body.ids))
    done = await service.run(queue, operations.Reclaim(tuple(body.ids)))
    return JSONResponse({"items": [asdict(each) for each in done]})


# ---------------------------------------------------------------------- dead letters


@router.post("/{queue}/bury", response_model=BuriedAnswer)
async def bury(service: Service, queue: str, body: LeaseBody) -> JSONResponse:
    """Put a leased item among the dead letters."""
    await service.run(queue, operations.Bury(body.id, body.token))
    return JSONResponse({"buried": body.id})


@router.post("/{queue}/kick", response_model=KickedAnswer)
async def kick(service: Service, queue: str, body: KickBody) -> JSONResponse:
    """Make dead letters pending, due now: some that were buried first, or those with given ids, all or none."""
    _check(service, "ids", len(body.ids or ()), least=0)
    operation = operations.Kick(body.count, None if body.ids is None else tuple(body.ids))
    return JSONResponse({"ids": await service.run(queue, operation)})


@router.get("/{queue}/dead", response_model=PeekedItems, response_model_exclude_unset=True)
async def dead_letters(
    service: Service,
    queue: str,
    count: int = 100,
    after: int = 0,
    text: AsText = False,  # noqa: FBT002 - of a URL
) -> Response:
    """Show dead letters by rising ids, those above `after`. Fences no other broker."""
    _check(service, "count", count)
    bytes_max = service.options.answer_bytes_max
    items, _ = await service.read(
        queue, DelayQueue.dead, loading.read_queue_dead, count, after=after, bytes_max=bytes_max
    )
    return items_answer(items, as_text=text)


# ---------------------------------------------------------------------- reads


@router.get("/{queue}/peek", response_model=PeekedItems, response_model_exclude_unset=True)
async def peek(
    service: Service,
    queue: str,
    count: int = 1,
    text: AsText = False,  # noqa: FBT002 - of a URL
) -> Response:
    """Show the pending items that come first, due or not. Fences no other broker."""
    _check(service, "count", count)
    bytes_max = service.options.answer_bytes_max
    items, _ = await service.read(queue, DelayQueue.peek, loading.read_queue_head, count, bytes_max=bytes_max)
    return items_answer(items, as_text=text)


@router.get("/{queue}/items/{item_id}", response_model=ItemStats)
async def show_item(service: Service, queue: str, item_id: int) -> JSONResponse:
    """Show what is known of an item, without its value. Fences no other broker."""
    found, _ = await service.read(queue, DelayQueue.item, loading.read_queue_item, item_id)
    return JSONResponse(found.to_json())
