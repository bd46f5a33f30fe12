"""A sweep over manifests says which logs are most behind, largest and fastest, also of those that it left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.orchestration.checked import recorded_by
from wal3_core import CursorStore, LogPosition
from wal3_orchestration.defs.discovery import JOB as LOOK
from wal3_orchestration.framework.recorder import RANKED_MAX, Ranking
from wal3_orchestration.framework.scope import StoreScope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Run, Write
    from dagster import DagsterInstance, TableRecord

    from wal3_core.store.object_store import ObjectStore


SCOPE = StoreScope()


def _logs(rows: Sequence[TableRecord]) -> list[object]:
    return [row.data["log"] for row in rows]


@pytest.mark.slow
def test_sweep_of_one_log_ranks_the_whole_fleet(
    known: list[str], fleet: ObjectStore, run: Run, write: Write, instance: DagsterInstance
) -> None:
    CursorStore(fleet, "alpha").create("slow", LogPosition(1, 0))
    CursorStore(fleet, "gamma").create("fast", LogPosition(7, 0))
    write("beta/one", fragments=5)
    run("", LOOK.request_sweep(SCOPE))
    write("gamma", fragments=2)

    whole = recorded_by(instance, run("", LOOK.request_sweep(SCOPE, ["gamma"])), "manifest")[""]

    assert known == ["alpha", "beta/one", "gamma"]
    assert _logs(whole["most behind"].records) == ["alpha", "gamma"]
    assert [row.data["records behind"] for row in whole["most behind"].records] == [6, 6]
    assert _logs(whole["largest"].records)[0] == "beta/one"
    assert whole["largest"].records[0].data["size"].endswith((" bytes", " kB"))
    # Of a log that was seen once, it is not known how fast it grows.
    assert _logs(whole["fastest"].records) == ["gamma"]


def test_tables_have_the_first_fifty_of_many_logs() -> None:
    ranking = Ranking()
    for number in range(1_000):
        figures = {"bytes": number, "behind": 1_000 - number, "next": 1, "at_s": 0, "grew": number % 7, "since_s": 0}
        ranking.add(f"log-{number:04}", figures)
    ranking.add("never-recorded", {})

    found = {label: _logs(list(each.records)) for label, each in ranking.metadata().items()}

    assert found["most behind"] == [f"log-{number:04}" for number in range(RANKED_MAX)]
    assert found["largest"] == [f"log-{999 - number:04}" for number in range(RANKED_MAX)]
    assert {int(str(log)[-4:]) % 7 for log in found["fastest"]} == {6}
