"""Filters narrow a read to exactly the records that satisfy them, or are left to Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from wal3_core.spark.requests import Bounds, apply_filter


@dataclass(frozen=True)
class Boundary:
    log: str
    offset: int
    timestamp_us: int


LOGS = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(-2, 6)
PLACES = [Boundary(log, offset, timestamp_us) for log in "abc" for offset in range(6) for timestamp_us in range(6)]
COMPARISONS: dict[type[Filter], Callable[[int, int], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
FILTERS = st.one_of(
    st.builds(
        lambda kind, column, value: kind((column,), value),
        st.sampled_from([*COMPARISONS]),
        st.sampled_from(["offset", "timestamp_us"]),
        NUMBERS,
    ),
    st.builds(lambda kind, log: kind(("log",), log), st.sampled_from([EqualTo, EqualNullSafe]), LOGS),
    st.builds(lambda logs: In(("log",), tuple(logs)), st.lists(LOGS)),
    st.sampled_from([IsNotNull((name,)) for name in ("log", "offset", "timestamp_us", "fragment")]),
)


def satisfies(place: Boundary, condition: Filter) -> bool:
    if isinstance(condition, IsNotNull):
        return True
    value = getattr(place, condition.attribute[0])
    if isinstance(condition, In):
        return value in condition.value
    return COMPARISONS[type(condition)](value, condition.value)


@given(st.lists(FILTERS, max_size=5))
def test_bounds_hold_exactly_the_records_that_satisfy_the_filters(filters: list[Filter]) -> None:
    bounds = Bounds()
    for condition in filters:
        narrowed = apply_filter(bounds, condition)
        assert narrowed is not None
        bounds = narrowed

    inside = {place for place in PLACES if holds(bounds, place)}

    assert inside == {place for place in PLACES if all(satisfies(place, condition) for condition in filters)}
    assert not (inside and bounds.empty)


def holds(bounds: Bounds, place: Boundary) -> bool:
    return (
        bounds.wants(place.log)
        and bounds.offsets.start <= place.offset < bounds.offsets.limit
        and bounds.timestamps_us.start <= place.timestamp_us < bounds.timestamps_us.limit
    )


def test_filters_that_bounds_cannot_express_are_left_to_spark() -> None:
    for condition in (
        Not(EqualTo(("offset",), 3)),
        In(("offset",), (1, 3)),
        IsNull(("offset",)),
        IsNotNull(("key",)),
        EqualTo(("body",), b"x"),
        EqualTo(("fragment",), "x"),
        GreaterThan(("log",), "a"),
        GreaterThan(("offset",), 1.5),
        EqualTo(("offset", "part"), 1),
        StringStartsWith(("log",), "a"),
    ):
        assert apply_filter(Bounds(), condition) is None, condition
