"""Cursors: named positions; every record at or after one is kept, unless it is a subscription's that pins nothing."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.model import strict_json
from wal3_core.model.named_append import NAMED_APPENDS_MAX, NamedAppend
from wal3_core.model.paths import NO_LOG, WRITER_CURSOR, LogId, check_log_id
from wal3_core.model.position import LogPosition
from wal3_core.model.snapshot import check_format_version
from wal3_core.model.subscription import Subscribed

if TYPE_CHECKING:
    from wal3_core.model.strict_json import JsonObject

FORMAT_VERSION = 2
BYTES_MAX = 2**18
# Of a consumer by key. Collections read every cursor, so that it stays small.
KEYS_MAX = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position, when it was written (microseconds since the epoch) and by whom.

    ``keys`` are those of a consumer by key that are ahead of the position, rising, each with the offset from which on
    its records are not processed. They keep no records: the position does. ``log_id`` and ``writer`` are set when it
    is written. ``subscribed`` is what a subscription to a feed adds; no cursor has both. ``appends`` are the
    last ones of a writer that names them, the newest last.
    """

    position: LogPosition
    epoch_us: int
    generation: int
    log_id: LogId = NO_LOG
    writer: str = ""
    keys: tuple[tuple[bytes, int], ...] = ()
    subscribed: Subscribed | None = None
    appends: tuple[NamedAppend, ...] = ()

    @property
    def pins(self) -> bool:
        """Whether it keeps the records at and after it."""
        return self.subscribed is None or self.subscribed.pins

    def within(self, limit: LogPosition) -> Cursor:
        """Return it for a log that ends at ``limit``: nothing behind that is processed there.

        ``keys`` are forgotten, so that their records are given again.
        """
        offset = min(self.position.offset, limit.offset)
        position = self.position if self.position.offset <= limit.offset else limit
        subscribed = self.subscribed
        if subscribed is not None:
            subscribed = replace(subscribed, done=subscribed.done.between(offset, limit.offset))
        appends = tuple(each.within(limit.offset) for each in self.appends)
        return replace(self, position=position, subscribed=subscribed, keys=(), appends=appends)

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        subscribed = self.subscribed
        return strict_json.dump_checksummed(
            {
                "format_version": FORMAT_VERSION,
                "log_id": self.log_id,
                "generation": self.generation,
                "position": self.position.to_json(),
                **self._keys_to_json(),
                "epoch_us": self.epoch_us,
                "writer": self.writer,
                **({} if subscribed is None else {"subscribed": subscribed.to_json(self.position.offset)}),
                **({"appends": [each.to_json() for each in self.appends]} if self.appends else {}),
            }
        )

    def _keys_to_json(self) -> JsonObject:
        return {"keys": {base64.b64encode(key).decode(): offset for key, offset in self.keys}} if self.keys else {}

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> Cursor:
        """Decode; CorruptError names ``what`` when anything is off."""
        return cls.from_fields(strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX))

    @classmethod
    def from_fields(cls, fields: strict_json.Fields) -> Cursor:
        """Read from a JSON object."""
        check_format_version(fields, FORMAT_VERSION)
        position = LogPosition.from_json(fields.object("position"))
        subscribed = (
            Subscribed.from_json(fields.object("subscribed"), position.offset) if fields.has("subscribed") else None
        )
        cursor = cls(
            log_id=check_log_id(fields.string("log_id"), fields.what),
            generation=fields.integer("generation"),
            position=position,
            epoch_us=fields.integer("epoch_us"),
            writer=fields.string("writer"),
            keys=_keys_from(fields) if fields.has("keys") else (),
            subscribed=subscribed,
            appends=_appends_from(fields) if fields.has("appends") else (),
        )
        fields.finish()
        cursor.check(fields.what)
        return cursor

    def check_plain(self, what: str) -> None:
        """Refuse to read by the cursor of something else: what it passes would count as acknowledged, or not appended.

        InvalidRequestError names ``what`` was to read.
        """
        if self.subscribed is not None or self.appends:
            found = "a subscription to a feed" if self.subscribed is not None else "a writer that repeats appends"
            message = f"{what}: expected the cursor of a consumer, found that of {found}: take another name"
            raise InvalidRequestError(message)

    def check(self, what: str) -> None:
        """Refuse keys that are not in order, or not ahead of the position, or in the cursor of a subscription."""
        if self.keys and self.subscribed is not None:
            message = f"{what}: expected the cursor of a consumer by key, or of a subscription, found one of both"
            raise CorruptError(message)
        rising = all(low < high for (low, _), (high, _) in pairwise(self.keys))
        if not rising or any(offset <= self.position.offset for _, offset in self.keys):
            message = f"{what}: expected rising keys, all ahead of offset {self.position.offset}, found others"
            raise CorruptError(message)


def in_copy(name: str, cursor: Cursor, first: LogPosition, limit: LogPosition) -> Cursor | None:
    """Return a cursor as a copy from ``first`` to ``limit`` has it; None if the copy lacks records that it keeps.

    One that has moved beyond the copy's end has read all of the copy. A writer's keeps what the copy has.
    """
    found = cursor.within(limit)
    if found.position.offset >= first.offset or not found.pins:
        return found
    return replace(found, position=first) if name.startswith(WRITER_CURSOR) else None


def _appends_from(fields: strict_json.Fields) -> tuple[NamedAppend, ...]:
    """Read the named appends, of which there is at least one."""
    found = tuple(map(NamedAppend.from_json, fields.objects("appends", count_max=NAMED_APPENDS_MAX)))
    if not found or len({each.naming for each in found}) < len(found):
        message = f"{fields.what}: expected appends of different naming, or no such field, found others"
        raise CorruptError(message)
    return found


def _keys_from(fields: strict_json.Fields) -> tuple[tuple[bytes, int], ...]:
    """Read the keys, of which there is at least one."""
    found = []
    below = fields.object("keys")
    for text, offset in below.integers(count_max=KEYS_MAX).items():
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if base64.b64encode(key).decode() != text:
            message = f"{below.what}: expected keys as base64, found {ascii(text)[:80]}"
            raise CorruptError(message)
        found.append((key, offset))
    if not found:
        message = f"{below.what}: expected keys, or no such field, found none"
        raise CorruptError(message)
    return tuple(found)
