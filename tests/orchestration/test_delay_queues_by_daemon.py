"""Under Dagster's daemon each queue is observed, and a run judges it once when a check begins or ceases to fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import AssetCheckKey, AssetKey, DagsterInstance, RunsFilter

from tests.orchestration.daemons import eventually, running_daemon
from wal3_core import DelayQueue
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import LOGS_NAME

KEY = AssetKey("delay_queue")
DEAD = AssetCheckKey(KEY, "dead_letters_below")


def says(instance: DagsterInstance) -> bool | None:
    """Return whether the newest evaluation of the check has passed; None without one."""
    found = instance.get_latest_asset_check_evaluation_record(DEAD)
    event = None if found is None or found.event is None else found.event.asset_check_evaluation
    return None if event is None else event.passed


@pytest.mark.repeat
@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_daemon_observes_a_queue_and_judges_it_when_a_dead_letter_comes_and_goes(
    fleet: ObjectStore, instance: DagsterInstance, tmp_path: Path
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["mail"])
    output = tmp_path / "daemon.log"
    with DelayQueue.open_or_create(fleet, "mail") as queue:
        for number in range(3):
            queue.enqueue(b"%d" % number)
        (item,) = queue.dequeue()
        queue.bury(item.id, item.token)

        with running_daemon(output, "--module-name", "tests.orchestration.queue_location"):
            eventually(lambda: says(instance) is False, output)
            queue.purge(pending=False, dead=True)
            eventually(lambda: says(instance) is True, output)
            seen = {pending(instance)}
            queue.enqueue(b"more")
            eventually(lambda: pending(instance) not in seen, output)

        assert queue.stats().pending == 3

    asked = instance.get_runs(RunsFilter(tags={"dagster/sensor_name": "delay_queues"}))
    assert {run.job_name for run in asked} == {"delay_queue_job"}
    # The sensor has ticked every second. One more run is asked for as the day begins, or a quarter of it.
    assert 2 <= len(asked) <= 3


def pending(instance: DagsterInstance) -> object:
    """Return what the newest observation of the queue says."""
    found = [
        observation.metadata["mail: pending"].value
        for each in instance.fetch_observations(KEY, limit=10).records
        if (observation := each.asset_observation) is not None and "mail: pending" in observation.metadata
    ]
    return found[0]
