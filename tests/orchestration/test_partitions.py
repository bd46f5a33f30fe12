from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal3_orchestration.partitions import cover, run_request

KEYS = list("abcdefghij")


def test_neighbours_are_covered_by_one_run() -> None:
    assert cover(KEYS, {"b", "c", "d"}, runs_max=4) == [("b", "d")]


def test_distant_partitions_get_separate_runs() -> None:
    assert cover(KEYS, {"a", "b", "j"}, runs_max=4) == [("a", "b"), ("j", "j")]


def test_smallest_gaps_are_bridged_when_runs_are_limited() -> None:
    assert cover(KEYS, {"a", "c", "f", "j"}, runs_max=2) == [("a", "f"), ("j", "j")]


def test_nothing_wanted_requests_nothing() -> None:
    assert cover(KEYS, set(), runs_max=4) == []


@given(wanted=st.sets(st.sampled_from(KEYS)), runs_max=st.integers(1, 5))
def test_every_wanted_partition_is_covered_once_by_at_most_the_runs_allowed(wanted: set[str], runs_max: int) -> None:
    ranges = cover(KEYS, wanted, runs_max=runs_max)

    covered = [key for first, last in ranges for key in KEYS[KEYS.index(first) : KEYS.index(last) + 1]]
    assert len(ranges) <= runs_max
    assert wanted <= set(covered)
    assert len(covered) == len(set(covered))


@given(wanted=st.sets(st.sampled_from(KEYS)))
def test_with_enough_runs_nothing_else_is_covered(wanted: set[str]) -> None:
    ranges = cover(KEYS, wanted, runs_max=len(KEYS))

    assert {key for first, last in ranges for key in KEYS[KEYS.index(first) : KEYS.index(last) + 1]} == wanted


def test_run_of_one_log_carries_the_tag_that_keeps_others_off_it() -> None:
    request = run_request("beta/one", "beta/one")

    assert (request.partition_key, dict(request.tags)) == ("beta/one", {"wal3/log": "beta/one"})
