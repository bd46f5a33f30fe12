"""Decodes documents before they are written: one that its own strict reader refuses is never sent to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.model import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable


class Encodable(Protocol):
    """A document that can be encoded."""

    def to_bytes(self) -> bytes:
        """Encode."""
        ...


D = TypeVar("D", bound=Encodable)
T = TypeVar("T")


def encoded(encode: Callable[[], T], what: str) -> T:
    """Encode a document; InvalidRequestError, with ``what`` and the field, for a value that JSON cannot represent."""
    try:
        return encode()
    except InvalidRequestError as error:
        message = f"{what}: not written: {error}"
        raise InvalidRequestError(message) from error


def check_readable(data: bytes, document: D, read: Callable[[bytes, str], D], what: str) -> None:
    """Decode an encoded document; InvalidRequestError when that fails, or gives another document."""
    try:
        found = read(data, what)
    except CorruptError as error:
        field = strict_json.unreadable_field(data)
        message = f"{what}: not written, since it could not be read back: {field or error}"
        raise InvalidRequestError(message) from error
    if found != document:
        message = f"{what}: not written, since it would be read back as {found}, not {document}"
        raise InvalidRequestError(message[:1000])


def readable(document: D, read: Callable[[bytes, str], D], what: str) -> bytes:
    """Encode a document; InvalidRequestError if its reader would not return it unchanged."""
    data = encoded(document.to_bytes, what)
    check_readable(data, document, read, what)
    return data
