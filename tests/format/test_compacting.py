"""Clean prefixes rise, expire one by one, and stay few."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.errors import CorruptError
from wal3_core.format import strict_json
from wal3_core.format.manifest import CLEAN_PREFIXES_MAX, NOT_COMPACTED, CleanPrefix, Compaction
from wal3_core.runtime import US_PER_S

TOKEN = "a" * 16
PASSES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=60)


@given(PASSES, st.integers(0, 1000), st.integers(0, 100))
def test_tombstone_expires_a_retention_after_the_first_pass_above_it_never_before(
    passes: list[tuple[int, int]], now_s: int, retention_s: int
) -> None:
    """INV-43."""
    compaction, at_s, first_above = NOT_COMPACTED, 0, dict[int, int]()
    for limit, later_s in passes:
        at_s += later_s
        for offset in range(compaction.clean_limit, limit):
            first_above[offset] = at_s
        compaction = compaction.passed(TOKEN, limit, at_s * US_PER_S, swept=0)

    below = compaction.expired_below(now_s * US_PER_S, retention_s)

    assert len(compaction.clean) <= CLEAN_PREFIXES_MAX
    assert all(first_above[offset] + retention_s <= now_s for offset in range(below))
    if len(passes) <= CLEAN_PREFIXES_MAX:
        expired = [offset for offset, cleaned_s in first_above.items() if cleaned_s + retention_s <= now_s]
        assert below == max(expired, default=-1) + 1
    assert read_back(compaction) == compaction


@pytest.mark.parametrize("lags_s", [(60,), (59, 61), (50, 60, 75), (1,), (600, 5)])
def test_tombstones_expire_however_many_passes_come_within_their_time(lags_s: tuple[int, ...]) -> None:
    """With a pass a minute, all but the oldest marks must not be left out for ever."""
    retention_s, compaction, at_s = 6000, NOT_COMPACTED, 0
    cleaned_s = list[int]()
    for number in range(1, 4000):
        at_s += lags_s[number % len(lags_s)]
        below = compaction.expired_below(at_s * US_PER_S, retention_s)
        due = bisect_right(cleaned_s, at_s - 5 * retention_s // 4)
        assert below >= due, f"pass {number}"
        cleaned_s.append(at_s)
        compaction = compaction.passed(TOKEN, number, at_s * US_PER_S, swept=below)
        assert len(compaction.clean) <= CLEAN_PREFIXES_MAX


def read_back(compaction: Compaction) -> Compaction:
    """Write it as JSON, and read it."""
    if compaction == NOT_COMPACTED:
        return compaction
    fields = strict_json.load(strict_json.dump(compaction.to_json()), what="test", bytes_max=10**6)
    return Compaction.from_json(fields)


@pytest.mark.parametrize("marks", [(CleanPrefix(5, 1), CleanPrefix(5, 2)), (CleanPrefix(5, 2), CleanPrefix(6, 1))])
def test_marks_that_do_not_rise_are_refused(marks: tuple[CleanPrefix, ...]) -> None:
    fields = strict_json.load(strict_json.dump(Compaction(1, TOKEN, marks).to_json()), what="manifest", bytes_max=10**6)

    with pytest.raises(CorruptError, match="expected rising clean prefixes"):
        Compaction.from_json(fields)


def test_offset_below_which_a_log_is_arranged_is_left_out_when_there_is_none() -> None:
    plain = NOT_COMPACTED.passed("a" * 16, 5, 7, swept=0)
    arranged = plain.passed("b" * 16, 0, 8, swept=0, arranged=9)

    assert "arranged" not in plain.to_json()
    assert (arranged.arranged, arranged.clean, arranged.passes) == (9, plain.clean, 2)
    fields = strict_json.load(strict_json.dump(arranged.to_json()), what="compaction", bytes_max=1000)
    assert Compaction.from_json(fields) == arranged
    # A pass that does not arrange may have written anything anywhere.
    assert arranged.passed("c" * 16, 9, 9, swept=0).arranged == 0


def test_store_s_clock_that_seems_to_run_back_makes_tombstones_wait() -> None:
    compaction = NOT_COMPACTED.passed(TOKEN, 5, 100, swept=0).passed(TOKEN, 9, 50, swept=0)

    assert compaction.clean == (CleanPrefix(5, 100), CleanPrefix(9, 100))
