"""Cursors: named positions; every record at or after one is kept, unless its owner said that it keeps none.

A cursor has an owner, whose kind it says. What the owner knows beside the position is its ``Extension``: the core takes
it along and never reads it. Source: docs/protocol/collection.md, "Cursors".
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format import strict_json
from wal3_core.format.named_append import NAMED_APPENDS_MAX, NamedAppend
from wal3_core.format.paths import LOG_ID, NO_LOG, WRITER_CURSOR, LogId
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import (
    INTEGER,
    JSON,
    TEXT,
    Fields,
    JsonObject,
    Kind,
    Stored,
    StoredDocument,
    member,
    nested,
    one_of,
)

BYTES_MAX = 2**18


class Owner(StrEnum):
    """The kind of what a cursor belongs to. Only that, and an operator, moves it."""

    CONSUMER = "consumer"
    KEYED_CONSUMER = "consumer-by-key"
    SUBSCRIPTION = "subscription"
    WRITER = "writer"
    ROLLUP = "roll-up"
    QUEUE = "queue"

    @property
    def consumes(self) -> bool:
        """Whether what its cursors have passed is processed."""
        return self in {Owner.CONSUMER, Owner.KEYED_CONSUMER, Owner.SUBSCRIPTION}

    @property
    def described(self) -> str:
        """The owner, in words."""
        return _DESCRIBED[self]


_DESCRIBED = {
    Owner.CONSUMER: "a consumer",
    Owner.KEYED_CONSUMER: "a consumer by key",
    Owner.SUBSCRIPTION: "a subscription to a feed",
    Owner.WRITER: "a writer that repeats appends",
    Owner.ROLLUP: "a roll-up",
    Owner.QUEUE: "a queue's broker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension(Stored):
    """What an owner keeps in its cursor beside the position, as JSON that only the owner reads.

    ``terms`` say what the owner is, and stay with the cursor. ``ahead`` says what is processed at and after the
    position, below the offset ``limit``. It is forgotten when anyone but the owner moves the cursor, and in a log that
    ends before ``limit``: then those records are given again.
    """

    terms: JsonObject = field(default_factory=dict, hash=False)
    ahead: JsonObject = field(default_factory=dict, hash=False)
    limit: int = 0

    MEMBERS = (
        member("terms", JSON, default={}),
        member("ahead", JSON, default={}),
        member("limit", INTEGER, default=0, beside="ahead"),
    )

    @property
    def behind(self) -> Extension:
        """It, without what it says of records at and after the position."""
        return Extension(terms=self.terms)

    def check_stored(self, what: str) -> None:
        """Refuse one that says nothing: it is left out."""
        if self == NO_EXTENSION:
            raise CorruptError(f"{what}: expected terms, or something ahead, found neither")


NO_EXTENSION = Extension()


def _appends_from(fields: Fields, name: str) -> tuple[NamedAppend, ...]:
    """Read the named appends, of which there is at least one."""
    found = tuple(map(NamedAppend.from_json, fields.objects(name, count_max=NAMED_APPENDS_MAX)))
    if not found or len({each.naming for each in found}) < len(found):
        raise CorruptError(f"{fields.what}: expected appends of different naming, or no such field, found others")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor(StoredDocument):
    """A position, when it was written (microseconds since the epoch) and by whom.

    ``owner`` is None in a cursor that an earlier version wrote: the first that uses it becomes its owner. One that does
    not ``pin`` keeps no records. ``log_id`` and ``writer`` are set when it is written. ``appends`` are the last ones
    of a writer that names them, the newest last. ``carried_from`` is the life of the log whose cursor this one follows,
    as long as only updates of a copy have moved it.
    """

    position: LogPosition
    epoch_us: int
    generation: int
    log_id: LogId = NO_LOG
    writer: str = ""
    owner: Owner | None = None
    pins: bool = True
    extension: Extension = NO_EXTENSION
    appends: tuple[NamedAppend, ...] = ()
    carried_from: LogId = NO_LOG

    BYTES_MAX = BYTES_MAX
    MEMBERS = (
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("position", nested(LogPosition)),
        member("epoch_us", INTEGER),
        member("writer", TEXT),
        member("owner", one_of(Owner), default=None),
        member("unpinned", Kind(lambda fields, name: not fields.is_set(name), operator.not_), "pins", default=True),
        member("extension", nested(Extension), default=NO_EXTENSION),
        member("appends", Kind(_appends_from, lambda appends: [each.to_json() for each in appends]), default=()),
        member("carried_from", LOG_ID, default=NO_LOG),
    )

    def within(self, limit: LogPosition) -> Cursor:
        """Return it for a log that ends at ``limit``: nothing behind that is processed there."""
        stays = self.position.offset <= limit.offset
        kept = self.extension if stays and self.extension.limit <= limit.offset else self.extension.behind
        appends = tuple(each.within(limit.offset) for each in self.appends)
        return replace(self, position=self.position if stays else limit, extension=kept, appends=appends)

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        said = strict_json.dump_members(self, self.MEMBERS)
        if self.appends:
            # They say that it is a writer's.
            said.pop("owner", None)
        return said

    @classmethod
    def from_json(cls, fields: Fields) -> Cursor:
        """Read from a JSON object."""
        cursor = _of_earlier_version(cls(**strict_json.read_members(fields, cls.MEMBERS)), fields)
        fields.finish()
        if cursor.extension.ahead and cursor.extension.limit <= cursor.position.offset:
            raise CorruptError(
                f"{fields.what}: expected something ahead below a limit behind offset {cursor.position.offset},"
                f" found it below {cursor.extension.limit}"
            )
        return cursor

    def may_be_of(self, owner: Owner) -> bool:
        """Tell whether it belongs to this kind of owner, or may be adopted by it: an earlier version did not say."""
        # A writer names appends in its cursor from the first on, and a subscription its topics.
        adopts = self.owner is None and owner not in {Owner.WRITER, Owner.SUBSCRIPTION}
        return self.owner is owner or adopts

    def check_owner(self, owner: Owner, what: str) -> None:
        """Refuse another kind of owner: what that has read or appended would be passed over.

        InvalidRequestError names ``what`` was to use it.
        """
        if not self.may_be_of(owner):
            found = "a consumer, by an earlier version" if self.owner is None else self.owner.described
            raise InvalidRequestError(
                f"{what}: expected the cursor of {owner.described}, found that of {found}: take another name, or delete"
                f" that cursor"
            )


def is_writers(name: str, cursor: Cursor) -> bool:
    """Tell whether a cursor is that of a writer that repeats appends; earlier versions show it by its name alone."""
    return cursor.owner is Owner.WRITER or (cursor.owner is None and name.startswith(WRITER_CURSOR))


def consumes(name: str, cursor: Cursor) -> bool:
    """Tell whether what a cursor has passed is processed."""
    return not is_writers(name, cursor) and (cursor.owner is None or cursor.owner.consumes)


def _of_earlier_version(cursor: Cursor, fields: Fields) -> Cursor:
    """Read what earlier versions wrote in place of an owner and its extension."""
    if cursor.appends:
        if cursor.owner is not None:
            message = f"{fields.what}: field owner: expected none beside appends, which say it, found {cursor.owner}"
            raise CorruptError(message)
        cursor = replace(cursor, owner=Owner.WRITER)
    if fields.has("keys"):
        keys = fields.json("keys")
        offsets = [each for each in keys.values() if type(each) is int]
        limit = max(offsets, default=0)
        if cursor.owner is not None or len(offsets) < len(keys) or limit <= cursor.position.offset:
            message = f"{fields.what}: field keys: expected offsets behind {cursor.position.offset}, found others"
            raise CorruptError(message)
        extension = Extension(ahead={"keys": keys}, limit=limit)
        cursor = replace(cursor, owner=Owner.KEYED_CONSUMER, extension=extension)
    if fields.has("subscribed"):
        if cursor.owner is not None:
            message = f"{fields.what}: field subscribed: expected none in the cursor of {cursor.owner.described}"
            raise CorruptError(message)
        terms = fields.json("subscribed")
        pins, done = terms.pop("unpinned", False) is not True, terms.pop("done", None)
        # How far it goes is the owner's to read: in another log it is forgotten.
        kept = (
            Extension(terms=terms, ahead={"done": done}, limit=strict_json.U64_MAX) if done else Extension(terms=terms)
        )
        cursor = replace(cursor, owner=Owner.SUBSCRIPTION, pins=pins, extension=kept)
    return cursor
