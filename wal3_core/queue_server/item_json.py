"""Items of a queue as JSON objects. A value is base64 in ``value``, or UTF-8 in ``text``."""

from __future__ import annotations

import base64
import binascii
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wal3_core.errors import InvalidRequestError
from wal3_core.views.queue import NewItem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal3_core.views.queue import Leased, Peeked

# An object, as ``json`` reads and writes it.
Json = dict[str, Any]
_ITEM_FIELDS = frozenset({"value", "text", "deadline_us", "delay_s", "priority", "dedupe_key"})


def value_of(value: object, text: object) -> bytes | None:
    """Return the bytes of a value; None when there is neither. InvalidRequestError when there are both."""
    if value is not None and text is not None:
        message = "expected value or text, found both"
        raise InvalidRequestError(message)
    if text is not None:
        return utf8(text, "text")
    if value is None:
        return None
    try:
        return base64.b64decode(utf8(value, "value"), validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"value: expected base64, found {ascii(value)[:40]} ({error})"
        raise InvalidRequestError(message) from error


def required_value(value: object, text: object) -> bytes:
    """Return the bytes of a value. InvalidRequestError when there is none."""
    found = value_of(value, text)
    if found is None:
        message = "expected value (base64) or text (UTF-8), found neither"
        raise InvalidRequestError(message)
    return found


def utf8(text: object, name: str) -> bytes:
    """Encode a text. InvalidRequestError when it is none, or holds half of a surrogate pair."""
    if not isinstance(text, str):
        message = f"{name}: expected text, found {type(text).__name__}"
        raise InvalidRequestError(message)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: expected UTF-8, found {ascii(text)[:40]} ({error.reason})"
        raise InvalidRequestError(message) from error


def new_item(fields: Mapping[str, object]) -> NewItem:
    """Make the item that a JSON object describes. InvalidRequestError names what is wrong with it."""
    unknown = fields.keys() - _ITEM_FIELDS
    if unknown:
        message = f"item: expected the fields {', '.join(sorted(_ITEM_FIELDS))}, found {min(unknown)!a}"
        raise InvalidRequestError(message)
    value = required_value(fields.get("value"), fields.get("text"))
    key = fields.get("dedupe_key")
    others = {name: fields[name] for name in ("deadline_us", "delay_s", "priority") if fields.get(name) is not None}
    # NewItem checks the types.
    return NewItem(value, dedupe_key=None if key is None else utf8(key, "dedupe_key"), **others)  # type: ignore[arg-type]


def item_fields(item: NewItem) -> Json:
    """Show an item as ``new_item`` reads it. InvalidRequestError when its dedupe_key is not UTF-8."""
    fields: Json = {"value": base64.b64encode(item.value).decode(), "priority": item.priority}
    if item.deadline_us is not None:
        fields["deadline_us"] = item.deadline_us
    if item.delay_s is not None:
        fields["delay_s"] = item.delay_s
    if item.dedupe_key is not None:
        fields["dedupe_key"] = item.dedupe_key.decode()
    return fields


def leased_json(item: Leased, *, as_text: bool) -> Json:
    """Show an item that was handed out; ``as_text``: a value that is UTF-8 is in ``text``."""
    fields = asdict(item)
    key = fields.pop("dedupe_key")
    return {**_with_value(fields, as_text=as_text), **_key_json(key)}


def peeked_json(item: Peeked, *, as_text: bool) -> Json:
    """Show an item as it waits; ``as_text`` as in ``leased_json``."""
    return _with_value(asdict(item), as_text=as_text)


def _with_value(fields: Json, *, as_text: bool) -> Json:
    value = fields.pop("value")
    assert isinstance(value, bytes)
    if as_text:
        with contextlib.suppress(UnicodeDecodeError):
            return {**fields, "text": value.decode()}
    return {**fields, "value": base64.b64encode(value).decode()}


def _key_json(key: bytes | None) -> Json:
    """Show a dedupe_key: one that is not UTF-8, which another program has given, as base64 under another name."""
    try:
        return {"dedupe_key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"dedupe_key": None, "dedupe_key_base64": base64.b64encode(key or b"").decode()}
