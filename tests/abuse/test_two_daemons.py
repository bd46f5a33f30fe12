"""Someone starts a second daemon, or a tick is evaluated twice at once: each log is maintained as by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus, SensorResult, build_sensor_context

from tests.abuse.collectable import PLAN_ALL, make_collectable
from tests.abuse.daemon import eager_daemon, eventually, under_way
from wal3_core import Fleet, FleetOptions, LogReader, LogWriter, Message, scrub
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.delay_queues import observe_queues
from wal3_orchestration.defs.dirty_logs.sensors import roll_up_dirty_logs
from wal3_orchestration.defs.discovery import discover
from wal3_orchestration.defs.garbage_collection.sensors import request_deletion, request_pruning
from wal3_orchestration.defs.key_compaction.sensors import find_due
from wal3_orchestration.defs.lost_runs import fail_lost_runs
from wal3_orchestration.defs.snapshot_compaction import find_lopsided
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.resources import CollectionResource, RollUpResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run, Write


LOGS = [f"log-{number}" for number in range(5)]
TICKS = (
    discover,
    roll_up_dirty_logs,
    request_pruning,
    request_deletion,
    find_due,
    find_lopsided,
    observe_queues,
    fail_lost_runs,
)


@pytest.fixture
def collectable(
    write: Write, fleet: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Logs of which two fragments can be collected."""
    make_collectable(LOGS, write, fleet, instance, monkeypatch)
    return LOGS


def _is_collected(store: ObjectStore, log: str) -> bool:
    left = list(Deleter(store, log).documents())
    return LogReader.open(store, log).manifest().first.position.offset == 7 and not left


def test_two_daemons_on_one_instance_collect_and_delete_each_log_once(
    collectable: list[str], fleet: ObjectStore, instance: DagsterInstance, run: Run, tmp_path: Path
) -> None:
    assert run("", PLAN_ALL).success
    one, two = tmp_path / "one.log", tmp_path / "two.log"

    with eager_daemon(one), eager_daemon(two):
        eventually(lambda: all(_is_collected(fleet, log) for log in collectable), one)
        eventually(lambda: set(collectable) <= instance.get_materialized_partitions(AssetKey("manifest")), one)
        eventually(lambda: under_way(instance) == [], one)

    assert {each.status for each in instance.get_runs()} == {DagsterRunStatus.SUCCESS}
    for log in collectable:
        assert scrub(fleet, log).sound
        assert [record.offset for record in LogReader.open(fleet, log).records()] == list(range(7, 13))


def test_two_ticks_at_once_of_every_sensor_ask_for_the_same_runs(
    collectable: list[str], fleet: ObjectStore, instance: DagsterInstance, run: Run
) -> None:
    """Each sensor has something to ask for; the daemon then starts each run once."""
    with LogWriter.open_or_create(fleet, "keyed") as writer:
        for _ in range(2):
            writer.append_many([Message(b"a body", b"a key")])
    PolicyStore(fleet, "keyed").change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    instance.add_dynamic_partitions(LOGS_NAME, ["keyed"])
    with Fleet.open(fleet, server="server-1", options=FleetOptions(creates=True)) as opened:
        opened.append("marked", b"a record")
    assert run("", PLAN_ALL).success
    collector = Collector(fleet, collectable[0])
    collector.prune(collector.announce(collector.plan()))

    def tick(evaluate: object) -> list[tuple[str | None, str | None]]:
        assert callable(evaluate)
        resources = {
            "store": StoreResource.from_environment(),
            "collection": CollectionResource(),
            "rollup": RollUpResource(age_s_max=0.0, period_s=0.0),
        }
        with build_sensor_context(instance, resources=resources) as context:
            result = evaluate(StoreScope(), context)
        assert isinstance(result, SensorResult)
        return [(each.job_name, each.run_key) for each in result.run_requests or ()]

    with ThreadPoolExecutor(2 * len(TICKS)) as threads:
        found = list(threads.map(tick, [each for each in TICKS for _ in range(2)]))

    for number, evaluate in enumerate(TICKS):
        first, second = found[2 * number : 2 * number + 2]
        # The dirty logs are judged once a day: perhaps only the tick that came first asks for it.
        assert {each for each in first if each[0] != "rollup_job"} == {
            each for each in second if each[0] != "rollup_job"
        }
        first = first or second
        assert bool(first) == (evaluate not in {find_lopsided, observe_queues, fail_lost_runs}), evaluate
