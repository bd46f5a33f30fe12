"""Where named appends lie: which has a record, and where fragments are divided."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.format.named_append import NamedAppend, Places

END = 24


@st.composite
def named_appends(draw: st.DrawFn) -> list[NamedAppend]:
    """Appends that do not overlap, in any order, some of which were not found."""
    bounds = sorted(draw(st.sets(st.integers(1, END), max_size=8)))
    found = [NamedAppend(naming=f"{low:012x}", start=low, limit=high) for low, high in pairwise(bounds)]
    kept = [each for each in found if draw(st.booleans())]
    return draw(st.permutations([*kept, NamedAppend(naming="f" * 12)]))


@pytest.mark.slow
@given(appends=named_appends(), offset=st.integers(1, END), limit=st.integers(1, END))
def test_places_are_those_of_the_appends_that_end_behind_the_offset(
    appends: list[NamedAppend], offset: int, limit: int
) -> None:
    def has(at: int) -> str:
        return "".join(each.naming for each in appends if each.start <= at < each.limit and each.limit > offset)

    places = Places(appends, offset)

    assert [places.naming_at(at) for at in range(END + 2)] == [has(at) for at in range(END + 2)]
    cuts = places.cut(offset, max(limit, offset + 1))
    assert cuts == sorted(set(cuts))
    assert (cuts[0], cuts[-1]) == (offset, max(limit, offset + 1))
    assert all(len({has(at) for at in range(low, high)}) == 1 for low, high in pairwise(cuts))
