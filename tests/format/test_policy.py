"""Policies: every valid one is read back as it was written, and every contradiction is refused by both names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores import LOG_ID
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format import strict_json
from wal3_core.format.policy import Cleanup, CompactionLimits, Policy
from wal3_core.options import View

MILLENNIUM_S = 1000 * 365 * 86_400
RANGES = {
    "retention_s": (0, MILLENNIUM_S),
    "percent_max": (0, 100),
    "unprocessed_max": (1000, 2**63 - 1),
    "min_compaction_lag_s": (0, MILLENNIUM_S),
    "max_compaction_lag_s": (1, MILLENNIUM_S),
    "delete_retention_s": (0, MILLENNIUM_S),
    "min_dirty_percent": (0, 100),
    "compacted_fragment_bytes": (4096, 512 * 2**20),
    "receipt_retention_s": (0, MILLENNIUM_S),
}
OF_COLLECTIONS = ("retention_s", "percent_max", "without_cursors")
OF_COMPACTIONS = tuple(RANGES)[3:]


def within(name: str) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(*RANGES[name])


POLICIES = st.builds(
    Policy,
    log_id=st.just(LOG_ID),
    generation=st.integers(0, 2**64 - 1),
    writer=st.text(alphabet="abc", max_size=5),
    without_cursors=st.booleans(),
    cleanup=st.sampled_from(Cleanup),
    arrange_by_key=st.booleans(),
    view=st.sampled_from([None, *View]),
    **{name: within(name) for name in RANGES},
)


def contradictions(policy: Policy) -> set[str]:
    """The values that are set and that the policy's cleanup does not use."""
    of_collections = ("delete_retention_s", "receipt_retention_s") if policy.arrange_by_key else OF_COMPACTIONS
    unused = {
        Cleanup.COLLECT: of_collections,
        Cleanup.COMPACT: OF_COLLECTIONS,
        Cleanup.BOTH: (),
        Cleanup.NOTHING: (*OF_COLLECTIONS, *of_collections),
    }[policy.cleanup]
    return {name for name in unused if getattr(policy, name) not in {None, False}} | {
        name for name in unused if getattr(policy, name) == 0 and name != "without_cursors"
    }


@given(policy=POLICIES)
def test_policy_is_read_back_as_it_was_written(policy: Policy) -> None:
    assert Policy.from_bytes(policy.to_bytes(), what="policy") == policy


@given(policy=POLICIES)
def test_policy_is_refused_if_and_only_if_its_values_contradict_each_other(policy: Policy) -> None:
    unused = contradictions(policy)
    lag_s = policy.max_compaction_lag_s
    reversed_lags = lag_s is not None and lag_s < (policy.min_compaction_lag_s or 0)
    without_retention = policy.without_cursors and policy.retention_s is None

    if not (unused or reversed_lags or without_retention):
        policy.check()
        return
    with pytest.raises(InvalidRequestError) as caught:
        policy.check()

    message = str(caught.value)
    if unused:
        assert any(f"{name}: expected none with cleanup {policy.cleanup}" in message for name in unused)
        assert "set cleanup to" in message
    elif reversed_lags:
        assert message.startswith("policy: max_compaction_lag_s: expected at least min_compaction_lag_s")


@pytest.mark.parametrize("name", RANGES)
def test_value_out_of_range_is_refused_by_its_name(name: str) -> None:
    least, most = RANGES[name]
    base = Policy(cleanup=Cleanup.BOTH, min_compaction_lag_s=0)

    for value in (least, most):
        replace(base, **{name: value}).check()
    for value in (least - 1, most + 1):
        with pytest.raises(InvalidRequestError, match=f"{name}: expected an integer from {least} to {most}"):
            replace(base, **{name: value}).check()


@pytest.mark.parametrize(
    ("cleanup", "does"), [("collect", (True, False)), ("compact", (False, True)), ("nothing", (False, False))]
)
def test_cleanup_is_given_by_its_name(cleanup: str, does: tuple[bool, bool]) -> None:
    policy = Policy(cleanup=cleanup)

    assert (policy.collects, policy.compacts) == does
    assert type(policy.cleanup) is Cleanup


@pytest.mark.parametrize("wrong", ["delete", "", None, 1, True])
def test_another_cleanup_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequestError, match="cleanup: expected "):
        Policy(cleanup=wrong)


def test_values_that_are_left_out_have_their_defaults() -> None:
    given_one = Policy(cleanup=Cleanup.COMPACT, delete_retention_s=0).compaction_limits

    assert given_one == CompactionLimits(delete_retention_s=0)
    assert Policy().compaction_limits == CompactionLimits(
        min_compaction_lag_s=0,
        max_compaction_lag_s=None,
        delete_retention_s=86_400,
        min_dirty_percent=50,
        compacted_fragment_bytes=8 * 2**20,
    )


@pytest.mark.parametrize(
    "fields", [{"cleanup": "collect"}, {"cleanup": "delete"}, {"cleanup": 1}, {"cleanup": None}, {"compact": True}]
)
def test_cleanup_that_no_version_writes_is_damage(fields: Mapping[str, strict_json.JsonValue]) -> None:
    document = {"format_version": 2, "log_id": LOG_ID, "generation": 1, "writer": "w", "without_cursors": False}

    with pytest.raises(CorruptError, match=r"cleanup|compact"):
        Policy.from_bytes(strict_json.dump_checksummed({**document, **fields}), what="policy")
