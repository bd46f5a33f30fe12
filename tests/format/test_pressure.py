"""How many records of a log are unprocessed, and which limit it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stores import LOG_ID
from wal3_core.fleet.dirty.back_pressure import Pressure, pressure_of
from wal3_core.format.manifest import Boundary, Manifest, Seal
from wal3_core.format.policy import Policy
from wal3_core.format.position import FragmentSeqNo, LogPosition

LOG = replace(
    Manifest.initial(log_id=LOG_ID, writer="w", timestamp_us=0),
    first=Boundary(FragmentSeqNo(3), LogPosition(100, 0)),
    next=Boundary(FragmentSeqNo(9), LogPosition(2000, 0)),
    num_records=1900,
)
SEALED = replace(LOG, seal=Seal(timestamp_us=0, reason="over", sealed_by="w"))
NO_CURSORS = Policy(retention_s=60, without_cursors=True)


@pytest.mark.parametrize(
    ("cursors", "consumer", "processed"),
    [
        ({}, None, 100),
        (None, None, 100),
        ({"c": 1500}, "c", 1500),
        ({"c": 1500, "b": 700, "d": 700}, "b", 700),
        # It was moved there too late, or is about to be moved back; and one that moved after the manifest was loaded.
        ({"c": 50}, "c", 100),
        ({"c": 2010}, "c", 2000),
    ],
)
def test_what_the_last_consumer_has_not_passed_is_unprocessed(
    cursors: dict[str, int] | None, consumer: str | None, processed: int
) -> None:
    found = pressure_of("a", LOG, cursors, None, 1000)

    assert found == Pressure(log="a", consumer=consumer, processed=processed, next=2000, limit=1000)
    assert (found.unprocessed, found.over) == (2000 - processed, 2000 - processed > 1000)


@pytest.mark.parametrize(
    ("manifest", "cursors", "policy", "asked", "limit"),
    [
        (LOG, {}, None, None, None),
        (LOG, {}, None, 1000, 1000),
        (LOG, {}, Policy(), 1000, 1000),
        (LOG, {"c": 1}, Policy(unprocessed_max=5000), 1000, 5000),
        (LOG, {"c": 1}, Policy(unprocessed_max=5000), None, 5000),
        (LOG, {}, NO_CURSORS, 1000, None),
        (LOG, {"c": 1}, NO_CURSORS, 1000, 1000),
        (LOG, None, NO_CURSORS, 1000, 1000),
        (LOG, {}, replace(NO_CURSORS, unprocessed_max=5000), 1000, 5000),
        (SEALED, {"c": 1}, Policy(unprocessed_max=5000), 1000, None),
    ],
)
def test_limit_is_that_of_the_policy_or_else_the_one_that_is_asked_for(
    manifest: Manifest, cursors: dict[str, int] | None, policy: Policy | None, asked: int | None, limit: int | None
) -> None:
    assert pressure_of("a", manifest, cursors, policy, asked).limit == limit
