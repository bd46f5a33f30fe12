"""What is written is first read: a document that its own strict reader refuses is never sent to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.model import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable


class Encodable(Protocol):
    """What can be written."""

    def to_bytes(self) -> bytes:
        """Encode."""
        ...


D = TypeVar("D", bound=Encodable)


def encoded(document: Encodable, what: str) -> bytes:
    """Encode a document; InvalidRequestError names ``what`` and the field for a value that JSON does not have."""
    try:
        return document.to_bytes()
    except InvalidRequestError as error:
        message = f"{what}: not written: {error}"
        raise InvalidRequestError(message) from error


def check_readable(data: bytes, document: D, read: Callable[[bytes, str], D], what: str) -> None:
    """Read an encoded document back; InvalidRequestError when that fails, or gives another one."""
    try:
        found = read(data, what)
    except CorruptError as error:
        field = strict_json.unreadable_field(data)
        message = f"{what}: not written, since it could not be read back: {field or error}"
        raise InvalidRequestError(message) from error
    if found != document:
        message = f"{what}: not written, since another document would be read back: {found}, not {document}"
        raise InvalidRequestError(message[:1000])


def readable(document: D, read: Callable[[bytes, str], D], what: str) -> bytes:
    """Encode a document that its reader gives back as it is; InvalidRequestError for any other."""
    data = encoded(document, what)
    check_readable(data, document, read, what)
    return data
