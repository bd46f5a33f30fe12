"""Messages as bytes: msgpack, which any language reads. Text stays text and bytes stay bytes."""

from __future__ import annotations

from typing import Any

from wal3_core.errors import InvalidRequestError
from wal3_core.runtime.extras import missing

try:
    import msgpack
except ImportError as error:
    raise InvalidRequestError(f"feed: {missing('msgpack', 'feed')}") from error

# What msgpack raises for values and bytes that are not its own, by the kind of the fault.
_FAULTS = (TypeError, ValueError, OverflowError, RecursionError, msgpack.exceptions.UnpackException)


def packed(message: object) -> bytes:
    """Encode a message; InvalidRequestError when it, or part of it, is nothing that msgpack has.

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
    return data


def unpacked(data: bytes) -> Any:  # noqa: ANN401 - a message is any value
    """Decode a message; one of ``_FAULTS`` when the bytes are not one msgpack value."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def unpacked_or_error(data: bytes) -> tuple[Any, str | None]:
    """Decode bytes from outside: the message, or what is wrong with them."""
    try:
        return unpacked(data), None
    except _FAULTS as error:
        return None, f"{type(error).__name__}: {error}"
