"""The bodies of requests, and how they are read: with limits, before and beside anything else.

Types are strict: a number in quotes is no number. Ranges are the queue's to check.
"""

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, FailFast, Field, PrivateAttr, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.wire import new_item, value_of
from wal3_core.views.queue import NewItem, QueueDefinition, Requeue

_DEFAULTS = QueueDefinition()
_JSON = "application/json"
# What a batch may have for each of its items, and besides: brackets, commas, colons. An item has 13 at most.
_SIGNS_PER_ITEM, _SIGNS_BESIDE = 16, 100
_PIECE_BYTES = 2**18
# Of a text that may be as long as the body.
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

    _item: NewItem = PrivateAttr()

    def model_post_init(self, _: object) -> None:
        """Make the item; InvalidRequestError as for any item."""
        self._item = new_item(self.model_dump())

    @property
    def item(self) -> NewItem:
        """The item."""
        return self._item


class ItemsBody(_StrictModel):
    """Items to enqueue, all or none."""

    items: Annotated[list[ItemBody], Field(min_length=1), FailFast()]


class DefinitionBody(_StrictModel):
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

    def definition(self) -> QueueDefinition:
        """Make the definition; InvalidRequestError for a value out of range."""
        return QueueDefinition(**self.model_dump(exclude={"queue"}))


class CreateBody(DefinitionBody):
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

    def operation(self) -> Requeue:
        """Make the operation."""
        return Requeue(self.id, self.token, self.deadline_us, self.delay_s, self._value)


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
