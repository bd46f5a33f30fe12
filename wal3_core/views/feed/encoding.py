"""Messages as bytes: msgpack, which any language reads. Text stays text and bytes stay bytes.

A message that has a time of its own is followed by it: a timestamp, as msgpack defines it, in the same bytes.
"""

from __future__ import annotations

from typing import Any

from wal3_core.errors import InvalidRequestError
from wal3_core.runtime import US_PER_S
from wal3_core.runtime.extras import missing

try:
    import msgpack
except ImportError as error:
    raise InvalidRequestError(f"feed: {missing('msgpack', 'feed')}") from error

# What msgpack raises for values and bytes that are not its own, by the kind of the fault.
_FAULTS = (TypeError, ValueError, OverflowError, RecursionError, msgpack.exceptions.UnpackException)


def packed(message: object, own_us: int | None = None) -> bytes:
    """Encode a message, and its own time behind it; InvalidRequestError when part of it is nothing that msgpack has.

    Tuples become lists. What could not be decoded, as a map with a list for a key, is refused here.
    """
    try:
        data: bytes = msgpack.packb(message, use_bin_type=True)
        unpacked(data)
    except _FAULTS as error:
        text = (
            f"message: expected None, a bool, a number, text, bytes, or lists and dicts of these,"
            f" found {type(message).__name__} ({error})"
        )
        raise InvalidRequestError(text) from error
    if own_us is None:
        return data
    seconds, us = divmod(own_us, US_PER_S)
    return data + bytes(msgpack.packb(msgpack.Timestamp(seconds, us * 1000)))


def unpacked(data: bytes) -> Any:  # noqa: ANN401 - a message is any value
    """Decode a message; one of ``_FAULTS`` when the bytes are not one msgpack value."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def unpacked_or_error(data: bytes | None) -> tuple[Any, int | None, str | None]:
    """Decode bytes from outside: the message and its own time, or what is wrong with them."""
    if data is None:
        return None, None, "expected a message as its body, found none: a tombstone"
    try:
        return unpacked(data), None, None
    except msgpack.ExtraData as more:
        own = _own_time(more.extra)
        if own is not None:
            return more.unpacked, own.seconds * US_PER_S + own.nanoseconds // 1000, None
        fault = f"{len(more.extra)} bytes behind it"
    except _FAULTS as error:
        fault = f"{type(error).__name__}: {error}"
    return None, None, f"expected one msgpack value as its body, found {fault}"


def _own_time(data: bytes) -> msgpack.Timestamp | None:
    """Read a time behind a message; None for anything else, and for a time before 1970."""
    try:
        found = unpacked(data)
    except _FAULTS:
        return None
    return found if isinstance(found, msgpack.Timestamp) and found.seconds >= 0 else None
