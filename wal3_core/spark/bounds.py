"""Which part of which logs a query wants: the options' bounds, narrowed by Spark's filters. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from wal3_core.model.strict_json import U64_MAX
from wal3_core.spark.columns import NEVER_NULL

if TYPE_CHECKING:
    from pyspark.sql.datasource import ColumnPath, Filter

    from wal3_core.model.snapshot import Pointer


@dataclass(frozen=True, slots=True)
class Span:
    """The integers from ``start`` to ``limit``, without the limit itself."""

    start: int = 0
    limit: int = U64_MAX + 1

    def __and__(self, other: Span) -> Span:
        return Span(max(self.start, other.start), min(self.limit, other.limit))

    @property
    def empty(self) -> bool:
        """Whether no number lies in it."""
        return self.start >= self.limit


EVERYTHING = Span()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Logs (None: all that are asked for), offsets and timestamps that may hold what a query wants."""

    logs: frozenset[str] | None = None
    offsets: Span = EVERYTHING
    timestamps_us: Span = EVERYTHING

    @property
    def empty(self) -> bool:
        """Whether no record can lie within."""
        return self.offsets.empty or self.timestamps_us.empty or self.logs == frozenset()

    def wants(self, log: str) -> bool:
        """Whether the log's records may lie within."""
        return self.logs is None or log in self.logs

    def touch(self, pointer: Pointer) -> bool:
        """Whether records that a pointer covers may lie within."""
        offsets, times = self.offsets, self.timestamps_us
        return (
            offsets.start < pointer.limit.offset
            and pointer.start.offset < offsets.limit
            and times.start <= pointer.limit.timestamp_us
            and pointer.start.timestamp_us < times.limit
        )

    def hold(self, pointer: Pointer) -> bool:
        """Whether all records that a pointer covers lie within."""
        offsets, times = self.offsets, self.timestamps_us
        return (
            offsets.start <= pointer.start.offset
            and pointer.limit.offset <= offsets.limit
            and times.start <= pointer.start.timestamp_us
            and pointer.limit.timestamp_us < times.limit
        )


def apply_filter(bounds: Bounds, condition: Filter) -> Bounds | None:
    """Narrow the bounds to exactly the records that satisfy a filter; None when bounds cannot express it."""
    match condition:
        case IsNotNull(attribute=(name,)) if name in NEVER_NULL:
            return bounds
        case EqualTo(attribute=("log",), value=str(log)) | EqualNullSafe(attribute=("log",), value=str(log)):
            return _narrow_logs(bounds, frozenset({log}))
        case In(attribute=("log",), value=logs):
            return _narrow_logs(bounds, frozenset(log for log in logs if isinstance(log, str)))
    match _compared(condition):
        case ("offset",), span:
            return replace(bounds, offsets=bounds.offsets & span)
        case ("timestamp_us",), span:
            return replace(bounds, timestamps_us=bounds.timestamps_us & span)
    return None


def _narrow_logs(bounds: Bounds, logs: frozenset[str]) -> Bounds:
    return replace(bounds, logs=logs if bounds.logs is None else bounds.logs & logs)


def _compared(condition: Filter) -> tuple[ColumnPath, Span] | None:
    """Read a comparison with an integer as the numbers that satisfy it."""
    match condition:
        case EqualTo(attribute=path, value=int(value)) | EqualNullSafe(attribute=path, value=int(value)):
            return path, Span(value, value + 1)
        case GreaterThan(attribute=path, value=int(value)):
            return path, Span(start=value + 1)
        case GreaterThanOrEqual(attribute=path, value=int(value)):
            return path, Span(start=value)
        case LessThan(attribute=path, value=int(value)):
            return path, Span(limit=value)
        case LessThanOrEqual(attribute=path, value=int(value)):
            return path, Span(limit=value + 1)
    return None
