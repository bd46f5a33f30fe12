"""What a client and a server share: names of queues, items as JSON objects, and errors.

The queue NAME is the log PREFIX/NAME. A value is base64 in ``value``, or UTF-8 in ``text``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from wal3_core import arguments, errors
from wal3_core.fleet.discovery import list_logs
from wal3_core.format.paths import is_name_part
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.store.object_store import ObjectStore, share_of
from wal3_core.views.queue.loading import is_queue
from wal3_core.views.queue.operations import Leased, NewItem, Operation, Peeked

# An object, as ``json`` reads and writes it.
Json = dict[str, Any]
PREFIX = "queues"
# Variables with access tokens: a server's, unless a file is named; and that which a client sends.
TOKENS_VARIABLE = "WAL3_QUEUE_TOKENS"
TOKEN_VARIABLE = "WAL3_QUEUE_TOKEN"  # noqa: S105 - the name of a variable
_LOOKS_AT_ONCE = 16
_ITEM_FIELDS = frozenset({"value", "text", "deadline_us", "delay_s", "priority", "dedupe_key"})


def log_of(prefix: str, name: str) -> str:
    """Return the log of a queue. InvalidRequestError for a name that no queue below a prefix may have."""
    if not is_name_part(name):
        raise errors.InvalidRequestError(
            f"queue: expected a name of [A-Za-z0-9_-], at most 255 characters and none that is reserved for a log's own"
            f" folders, found {ascii(name)[:80]}"
        )
    return f"{prefix}/{name}" if prefix else name


def names_below(store: ObjectStore, prefix: str, known: Collection[str] = ()) -> list[str]:
    """Return the names of the queues below a prefix: a listing, and a GET for each log that is not ``known`` as one."""
    folder = f"{prefix}/" if prefix else ""
    names = (log.removeprefix(folder) for log in list_logs(store, prefix) if log != prefix)
    checked = map_ahead(
        shared_runtime(),
        lambda name: (name, name in known or _is_queue(store, f"{folder}{name}")),
        filter(is_name_part, names),
        count=_LOOKS_AT_ONCE,
        share=share_of(store),
    )
    return [name for name, found in checked if found]


def _is_queue(store: ObjectStore, log: str) -> bool:
    try:
        return is_queue(store, log)
    except errors.LogNotFoundError:
        # Destroyed meanwhile.
        return False


def value_of(value: object, text: object) -> bytes | None:
    """Return the bytes of a value; None when there is neither. InvalidRequestError when there are both."""
    if value is not None and text is not None:
        raise errors.InvalidRequestError("expected value or text, found both")
    if text is not None:
        return arguments.text(text, "text").encode()
    if value is None:
        return None
    try:
        return base64.b64decode(arguments.text(value, "value"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.InvalidRequestError(f"value: expected base64, found {ascii(value)[:40]} ({error})") from error


def new_item(fields: Mapping[str, object]) -> NewItem:
    """Make the item that a JSON object describes. InvalidRequestError names what is wrong with it."""
    unknown = fields.keys() - _ITEM_FIELDS
    if unknown:
        message = f"item: expected the fields {', '.join(sorted(_ITEM_FIELDS))}, found {min(unknown)!a}"
        raise errors.InvalidRequestError(message)
    value = value_of(fields.get("value"), fields.get("text"))
    if value is None:
        raise errors.InvalidRequestError("expected value (base64) or text (UTF-8), found neither")
    key = fields.get("dedupe_key")
    others = {name: fields[name] for name in ("deadline_us", "delay_s", "priority") if fields.get(name) is not None}
    encoded = None if key is None else arguments.text(key, "dedupe_key").encode()
    return NewItem(value, dedupe_key=encoded, **others)  # type: ignore[arg-type]  # NewItem checks the types


def given_fields(value: NewItem | Operation) -> Json:
    """Return the fields of a value that are not None, bytes as base64."""
    fields = {name: each for name, each in asdict(value).items() if each is not None}
    if "value" in fields:
        fields["value"] = base64.b64encode(fields["value"]).decode()
    return fields


def item_fields(item: NewItem) -> Json:
    """Show an item as ``new_item`` reads it. InvalidRequestError when its dedupe_key is not UTF-8."""
    fields = given_fields(item)
    if item.dedupe_key is not None:
        fields["dedupe_key"] = item.dedupe_key.decode()
    return fields


def item_json(item: Leased | Peeked, *, as_text: bool) -> Json:
    """Show an item that is leased, or waits; ``as_text``: a value that is UTF-8 is in ``text``."""
    fields = asdict(item)
    value: bytes = fields.pop("value")
    key: bytes | None = fields.pop("dedupe_key", None)
    shown: Json = {}
    if as_text:
        with contextlib.suppress(UnicodeDecodeError):
            shown = {"text": value.decode()}
    fields |= shown or {"value": base64.b64encode(value).decode()}
    if isinstance(item, Leased):
        try:
            fields["dedupe_key"] = None if key is None else key.decode()
        except UnicodeDecodeError:
            # One that is not UTF-8 was given by another program.
            fields |= {"dedupe_key": None, "dedupe_key_base64": base64.b64encode(key or b"").decode()}
    return fields


class BusyError(errors.UnavailableError):
    """The server has as much to do as it may."""


class StoppingError(errors.UnavailableError):
    """The server is about to end."""


# An error of the server, what its client raises, its status and word over HTTP, and after how many seconds the same
# request may succeed. The first class that fits counts.
ERRORS: tuple[tuple[type[errors.LogError], type[errors.LogError], int, str, int | None], ...] = (
    (BusyError, errors.OverloadedError, 503, "busy", 1),
    (errors.LogNotFoundError, errors.LogNotFoundError, 404, "unknown_queue", None),
    (errors.LogExistsError, errors.LogExistsError, 409, "exists", None),
    (errors.ClosedError, errors.UnavailableError, 503, "stopping", 1),
    (errors.InvalidRequestError, errors.InvalidRequestError, 422, "invalid", None),
    (errors.UnknownItemError, errors.UnknownItemError, 404, "unknown_item", None),
    (errors.StaleTokenError, errors.StaleTokenError, 409, "stale_token", None),
    (errors.QueueFullError, errors.QueueFullError, 503, "queue_full", 5),
    (errors.FencedError, errors.FencedError, 503, "fenced", 60),
    (errors.LogReplacedError, errors.UnavailableError, 503, "replaced", 1),
    # Not to be repeated blindly: an item may be in the queue.
    (errors.UnknownDurabilityError, errors.UnknownDurabilityError, 503, "unknown_outcome", None),
    (errors.NotDurableError, errors.UnavailableError, 503, "unavailable", 1),
    (errors.UnavailableError, errors.UnavailableError, 503, "unavailable", 5),
)
