"""A queue's definition: what holds for all its items. It is a record of the queue's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import integer, make_plain, optional
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.model import strict_json
from wal3_core.model.strict_json import check_format_version
from wal3_core.options import MIB, check_ranges
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
        ranges: dict[str, tuple[float, float]] = {
            "lease_s": (1 / MS_PER_S, LEASE_S_MAX),
            "value_bytes_max": (1, VALUE_BYTES_MAX),
        }
        if self.max_deliveries is not None:
            ranges["max_deliveries"] = (1, _COUNT_MAX)
        if self.items_max is not None:
            ranges["items_max"] = (1, _COUNT_MAX)
        check_ranges(self, ranges)
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
