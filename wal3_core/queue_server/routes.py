"""The routes: each method of a queue is one. JSON in, JSON out."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server import answers
from wal3_core.queue_server.request_models import (
    BodyRoute,
    CreateBody,
    DefinitionBody,
    DequeueBody,
    ExtendBody,
    ItemBody,
    ItemsBody,
    KickBody,
    LeaseBody,
    LeasesBody,
    PurgeBody,
    ReclaimBody,
    RequeueBody,
)
from wal3_core.queue_server.service import QueueService
from wal3_core.queue_server.wire import leased_json, peeked_json
from wal3_core.views.queue import (
    Bury,
    Define,
    Dequeue,
    Enqueue,
    Enqueued,
    Extend,
    ItemStats,
    Kick,
    Purge,
    Reclaim,
    Release,
)

router = APIRouter(
    prefix="/v1/queues", responses=answers.ERRORS, default_response_class=JSONResponse, route_class=BodyRoute
)


def _service(request: Request) -> QueueService:
    service = request.app.state.service
    assert isinstance(service, QueueService)
    return service


Service = Annotated[QueueService, Depends(_service)]
AsText = Annotated[bool, Query(description="give a value that is UTF-8 as `text`")]


def _check_count(service: QueueService, count: int) -> None:
    limit = service.options.items_max
    if not 1 <= count <= limit:
        raise InvalidRequestError(f"count: expected 1 to {limit}, found {count}")


def _check_batch(service: QueueService, what: str, count: int) -> None:
    if count > service.options.items_max:
        raise InvalidRequestError(f"{what}: expected at most {service.options.items_max}, found {count}")


# ---------------------------------------------------------------------- queues


@router.get("", response_model=answers.QueueList)
async def list_queues(service: Service) -> JSONResponse:
    """List the queues."""
    names = await service.names()
    return JSONResponse({"queues": [{"queue": name, "open": service.is_open(name)} for name in names]})


@router.post("", status_code=201, response_model=answers.QueueAnswer)
async def create_queue(service: Service, body: CreateBody) -> JSONResponse:
    """Create a queue; 409 if there is one of that name."""
    definition = body.definition()
    await service.create(body.queue, definition)
    return JSONResponse({"queue": body.queue, "open": False, "definition": definition.to_json()}, 201)


@router.get("/{queue}", response_model=answers.QueueAnswer)
async def show_queue(service: Service, queue: str) -> JSONResponse:
    """Show a queue's definition. Fences no other broker, as no `GET` does."""
    definition, is_open = await service.definition(queue)
    return JSONResponse({"queue": queue, "open": is_open, "definition": definition.to_json()})


@router.put("/{queue}/definition", response_model=answers.QueueAnswer)
async def define_queue(service: Service, queue: str, body: DefinitionBody) -> JSONResponse:
    """Give a queue another definition; what the body leaves out is the default again."""
    definition = body.definition()
    await service.run(queue, Define(definition))
    return JSONResponse({"queue": queue, "open": True, "definition": definition.to_json()})


@router.get("/{queue}/stats", response_model=answers.StatsAnswer)
async def queue_stats(service: Service, queue: str) -> JSONResponse:
    """Show how many items a queue holds. Fences no other broker."""
    stats, is_open = await service.stats(queue)
    return JSONResponse({"queue": queue, "open": is_open, "stats": stats.to_json()})


@router.post("/{queue}/purge", response_model=answers.PurgedAnswer)
async def purge(service: Service, queue: str, body: PurgeBody, confirm: bool = False) -> JSONResponse:  # noqa: FBT001, FBT002 - a parameter of a URL
    """Remove all items of these states for good. Without `?confirm=true`, only say how many: no broker is fenced."""
    if confirm:
        items = await service.run(queue, Purge(body.pending, body.leased, body.dead))
    else:
        held, _ = await service.stats(queue)
        items = body.pending * held.pending + body.leased * held.leased + body.dead * held.dead
    return JSONResponse({"items": items, "dry_run": not confirm})


# ---------------------------------------------------------------------- items in


@router.post("/{queue}/enqueue", response_model=Enqueued)
async def enqueue(service: Service, queue: str, body: ItemBody) -> JSONResponse:
    """Add an item."""
    [done] = await service.run(queue, Enqueue((body.item,)))
    return JSONResponse(asdict(done))


@router.post("/{queue}/enqueue_many", response_model=answers.EnqueuedItems)
async def enqueue_many(service: Service, queue: str, body: ItemsBody) -> JSONResponse:
    """Add items, all or none."""
    _check_batch(service, "items", len(body.items))
    done = await service.run(queue, Enqueue(tuple(each.item for each in body.items)))
    return JSONResponse({"items": [asdict(each) for each in done]})


# ---------------------------------------------------------------------- items out


@router.post("/{queue}/dequeue", response_model=answers.LeasedItems, response_model_exclude_unset=True)
async def dequeue(service: Service, queue: str, body: DequeueBody, request: Request) -> Response:
    """Lease due items; wait for the first one. An empty list: none was due in that time, or the server stops.

    A client that goes away while it waits gets no item, and loses none.
    """
    _check_count(service, body.count)
    timeout_s = min(body.timeout_s, service.options.wait_s_max)
    operation = Dequeue(body.count, timeout_s, body.lease_s, service.options.answer_bytes_max)
    items = await service.dequeue(queue, operation, request.scope["ticket"], partial(_until_gone, request))
    return answers.items_answer(items, partial(leased_json, as_text=body.text))


async def _until_gone(request: Request) -> None:
    """Return when the client has closed its connection; the body has been read."""
    message = await request.receive()
    while message["type"] != "http.disconnect":
        message = await request.receive()


@router.post("/{queue}/release", response_model=answers.ReleasedAnswer)
async def release(service: Service, queue: str, body: LeaseBody) -> JSONResponse:
    """Remove a leased item: its work is done."""
    await service.run(queue, Release(((body.id, body.token),)))
    return JSONResponse({"released": 1})


@router.post("/{queue}/release_many", response_model=answers.ReleasedAnswer)
async def release_many(service: Service, queue: str, body: LeasesBody) -> JSONResponse:
    """Remove leased items, all or none."""
    _check_batch(service, "leases", len(body.leases))
    await service.run(queue, Release(tuple((each.id, each.token) for each in body.leases)))
    return JSONResponse({"released": len(body.leases)})


@router.post("/{queue}/requeue", response_model=Enqueued)
async def requeue(service: Service, queue: str, body: RequeueBody) -> JSONResponse:
    """Put a leased item back."""
    return JSONResponse(asdict(await service.run(queue, body.operation())))


@router.post("/{queue}/extend", response_model=answers.ExtendedAnswer)
async def extend(service: Service, queue: str, body: ExtendBody) -> JSONResponse:
    """Let a lease end later, or sooner."""
    return JSONResponse({"lease_until_us": await service.run(queue, Extend(body.id, body.token, body.lease_s))})


@router.post("/{queue}/reclaim", response_model=answers.EnqueuedItems)
async def reclaim(service: Service, queue: str, body: ReclaimBody) -> JSONResponse:
    """Put leased items back without their tokens, all or none: for an operator whose worker is gone."""
    _check_batch(service, "ids", len(body.ids))
    done = await service.run(queue, Reclaim(tuple(body.ids)))
    return JSONResponse({"items": [asdict(each) for each in done]})


# ---------------------------------------------------------------------- dead letters


@router.post("/{queue}/bury", response_model=answers.BuriedAnswer)
async def bury(service: Service, queue: str, body: LeaseBody) -> JSONResponse:
    """Put a leased item among the dead letters."""
    await service.run(queue, Bury(body.id, body.token))
    return JSONResponse({"buried": body.id})


@router.post("/{queue}/kick", response_model=answers.KickedAnswer)
async def kick(service: Service, queue: str, body: KickBody) -> JSONResponse:
    """Make dead letters pending, due now: some that were buried first, or those with given ids, all or none."""
    _check_batch(service, "ids", len(body.ids or ()))
    operation = Kick(body.count, None if body.ids is None else tuple(body.ids))
    return JSONResponse({"ids": await service.run(queue, operation)})


@router.get("/{queue}/dead", response_model=answers.PeekedItems, response_model_exclude_unset=True)
async def dead_letters(
    service: Service,
    queue: str,
    count: int = 100,
    after: int = 0,
    text: AsText = False,  # noqa: FBT002 - of a URL
) -> Response:
    """Show dead letters by rising ids, those above `after`. Fences no other broker."""
    _check_count(service, count)
    items = await service.dead(queue, count, after)
    return answers.items_answer(items, partial(peeked_json, as_text=text))


# ---------------------------------------------------------------------- looking


@router.get("/{queue}/peek", response_model=answers.PeekedItems, response_model_exclude_unset=True)
async def peek(
    service: Service,
    queue: str,
    count: int = 1,
    text: AsText = False,  # noqa: FBT002 - of a URL
) -> Response:
    """Show the pending items that come first, due or not. Fences no other broker."""
    _check_count(service, count)
    items = await service.head(queue, count)
    return answers.items_answer(items, partial(peeked_json, as_text=text))


@router.get("/{queue}/items/{item_id}", response_model=ItemStats)
async def show_item(service: Service, queue: str, item_id: int) -> JSONResponse:
    """Show what is known of an item, without its value. Fences no other broker."""
    return JSONResponse((await service.item(queue, item_id)).to_json())
