"""A queue's definition, which is a record of its log and holds for all its items, and a broker's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core.arguments import integer, make_plain, optional
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.model import strict_json
from wal3_core.model.strict_json import check_format_version
from wal3_core.options import MIB, Options, ReaderOptions, View, WriterOptions, check_range, of_view, within
from wal3_core.views.queue.items import LEASE_S_MAX, a_delay, whole_ms

if TYPE_CHECKING:
    from wal3_core.model.strict_json import JsonValue

FORMAT_VERSION = 1
MS_PER_S = 1000
_BYTES_MAX = 2**16
_COUNT_MAX = 2**31 - 1
# A record has 16 MiB at most, a key and a header among them.
VALUE_BYTES_MAX = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition:
    """What holds for a queue's items.

    A lease lasts ``lease_s`` seconds, 30 days at most, unless the call says otherwise. An item that was handed out
    ``max_deliveries`` times and comes back goes to the dead letters; None: never. A value has at most
    ``value_bytes_max`` bytes. A queue that has ``items_max`` items refuses more with QueueFullError; None: never.
    """

    lease_s: float = 60.0
    max_deliveries: int | None = None
    value_bytes_max: int = MIB
    items_max: int | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range."""
        make_plain(
            self,
            lease_s=a_delay,
            max_deliveries=optional(integer),
            value_bytes_max=integer,
            items_max=optional(integer),
        )
        check_range("lease_s", self.lease_s, 1 / MS_PER_S, LEASE_S_MAX)
        check_range("max_deliveries", self.max_deliveries, 1, _COUNT_MAX)
        check_range("value_bytes_max", self.value_bytes_max, 1, VALUE_BYTES_MAX)
        check_range("items_max", self.items_max, 1, _COUNT_MAX)
        # As it is kept.
        object.__setattr__(self, "lease_s", whole_ms(self.lease_s) / MS_PER_S)

    def to_json(self) -> dict[str, float | None]:
        """Show as a JSON object."""
        return {
            "lease_s": self.lease_s,
            "max_deliveries": self.max_deliveries,
            "value_bytes_max": self.value_bytes_max,
            "items_max": self.items_max,
        }

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON, with times in milliseconds."""
        numbers: dict[str, JsonValue] = {
            "format_version": FORMAT_VERSION,
            "lease_ms": whole_ms(self.lease_s),
            "value_bytes_max": self.value_bytes_max,
        }
        if self.max_deliveries is not None:
            numbers["max_deliveries"] = self.max_deliveries
        if self.items_max is not None:
            numbers["items_max"] = self.items_max
        return strict_json.dump_checksummed(numbers)

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> QueueDefinition:
        """Decode; CorruptError names ``what`` when anything is off."""
        fields = strict_json.load_checksummed(data, what=what, bytes_max=_BYTES_MAX)
        check_format_version(fields, FORMAT_VERSION)
        try:
            definition = cls(
                # An earlier version took longer ones.
                lease_s=min(fields.integer("lease_ms") / MS_PER_S, LEASE_S_MAX),
                value_bytes_max=fields.integer("value_bytes_max"),
                **{name: fields.integer(name) for name in ("max_deliveries", "items_max") if fields.has(name)},
            )
        except InvalidRequestError as error:
            message = f"{what}: expected a queue's definition, found another value: {error}"
            raise CorruptError(message) from error
        fields.finish()
        return definition


_OPTION_MAX = 2**63 - 1
_SECONDS_MAX = 10**9
# What a turn takes may end with one operation more, of 10,000 items and 32 MiB, and with a part of a checkpoint.
_WRITER_MIN = {"record_bytes_max": 9 * MIB, "fragment_bytes_max": 48 * MIB, "batch_records_max": 50_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(Options):
    """Limits of one process that opens a queue.

    Values that were read or enqueued last take at most ``cache_bytes_max`` bytes of memory; those of items due within
    ``prefetch_s`` seconds are read ahead, ``prefetch_items`` of them. A checkpoint is written when
    ``checkpoint_records`` records came after the one before, and a quarter as many as there are items; or
    ``checkpoint_bytes`` bytes, and a quarter of those of all values; or ``checkpoint_fragments`` fragments, and one for
    each 500 items: a queue is loaded by reading them. Operations of at most ``bytes_waiting_max`` bytes
    wait for their turn; beyond that callers block. ``writer`` and ``reader`` are the log's; a writer takes records of
    9 MiB, and 48 MiB or 50,000 of them together.
    """

    cache_bytes_max: int = field(default=64 * MIB, metadata=within(0, _OPTION_MAX))
    prefetch_items: int = field(default=256, metadata=within(0, _COUNT_MAX))
    prefetch_s: float = field(default=5.0, metadata=within(0, _SECONDS_MAX))
    checkpoint_records: int = field(default=100_000, metadata=within(1, _COUNT_MAX))
    checkpoint_bytes: int = field(default=64 * MIB, metadata=within(1, _OPTION_MAX))
    checkpoint_fragments: int = field(default=500, metadata=within(1, _COUNT_MAX))
    bytes_waiting_max: int = field(default=64 * MIB, metadata=within(1, _OPTION_MAX))
    writer: WriterOptions = field(default_factory=lambda: WriterOptions(batch_age_s_max=0))
    reader: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        Options.__post_init__(self)
        object.__setattr__(self, "writer", of_view(self.writer, View.QUEUE))
        for name, least in _WRITER_MIN.items():
            found = getattr(self.writer, name)
            if found < least:
                message = f"queue options: writer: {name}: expected at least {least}, found {found}"
                raise InvalidRequestError(message)
