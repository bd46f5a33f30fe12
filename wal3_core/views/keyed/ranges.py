"""What a read by key is about: which keys, and which offsets of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from wal3_core.arguments import integer, make_plain, record_bytes, wrong
from wal3_core.format.strict_json import U64_MAX
from wal3_core.log.read.scan import check_start

if TYPE_CHECKING:
    from wal3_core.format.manifest import Manifest

B = TypeVar("B", int, bytes)


@dataclass(frozen=True, slots=True)
class _Bound(Generic[B]):
    value: B

    def __post_init__(self) -> None:
        make_plain(self, value=_offset_or_key)


class Included(_Bound[B]):
    """A bound that belongs to its range, an offset or a key; so does a start that is given alone."""

    __slots__ = ()


class Excluded(_Bound[B]):
    """A bound that does not belong to its range, an offset or a key; nor does a limit that is given alone."""

    __slots__ = ()


OffsetBound = int | Included[int] | Excluded[int]
KeyBound = bytes | Included[bytes] | Excluded[bytes]


@dataclass(frozen=True, slots=True)
class KeyMatch:
    """The keys that a read is about: those from ``start`` to below ``limit``, without a limit all that follow."""

    start: bytes
    limit: bytes | None

    @classmethod
    def of(cls, key: bytes) -> Self:
        """Return what fits one key, and never one that only resembles it."""
        return cls(key, _next_key(key))

    @classmethod
    def of_prefix(cls, prefix: bytes) -> Self:
        """Return what fits all keys that begin with a prefix."""
        raised = prefix.rstrip(b"\xff")
        return cls(prefix, raised[:-1] + bytes([raised[-1] + 1]) if raised else None)

    @classmethod
    def between(cls, start: KeyBound | None, limit: KeyBound | None) -> Self:
        """Return what fits the keys between two bounds."""
        low = b"" if start is None else record_bytes(_value(start), "start_key")
        high = None if limit is None else record_bytes(_value(limit), "limit_key")
        return cls(
            _next_key(low) if isinstance(start, Excluded) else low,
            _next_key(high) if isinstance(limit, Included) and high is not None else high,
        )

    @property
    def key(self) -> bytes | None:
        """The key, if there is only one."""
        return self.start if self.limit == _next_key(self.start) else None

    def fits(self, key: bytes | None) -> bool:
        """Whether a record with this key is meant; one without a key never is."""
        return key is not None and self.start <= key and (self.limit is None or key < self.limit)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from ``start`` to below ``limit``, without a limit to the log's end.

    They are cut to what the log holds. One that is ``held`` is refused if the log does not hold its start.
    """

    start: int = 0
    limit: int | None = None
    held: bool = False

    @classmethod
    def between(cls, start: OffsetBound | None, limit: OffsetBound | None) -> Self:
        """Return the range between two bounds; InvalidRequestError for one that no offset can be."""
        low = 0 if start is None else _offset(_value(start), "start")
        high = None if limit is None else _offset(_value(limit), "limit")
        if high is not None:
            high += isinstance(limit, Included)
        return cls(low + isinstance(start, Excluded), high)

    def within(self, manifest: Manifest) -> tuple[int, int]:
        """Return what a log holds of it; of a range beside the log an empty one, which begins where it does."""
        first, end = manifest.first.position.offset, manifest.next.position.offset
        if self.held:
            check_start(manifest, self.start)
        begin = max(first, self.start)
        return begin, max(begin, end if self.limit is None else min(self.limit, end))


def _offset_or_key(value: object, name: str) -> object:
    return record_bytes(value, name) if isinstance(value, bytes | bytearray | memoryview) else integer(value, name)


def _value(bound: object) -> object:
    return bound.value if isinstance(bound, _Bound) else bound


def _offset(value: object, name: str) -> int:
    plain = integer(value, name)
    if not 0 <= plain <= U64_MAX:
        raise wrong(name, f"an offset from 0 to {U64_MAX}", value)
    return plain


def _next_key(key: bytes) -> bytes:
    return key + b"\0"
