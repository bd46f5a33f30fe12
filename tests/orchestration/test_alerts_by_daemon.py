"""A run that fails under Dagster's daemon reaches the webhook, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from tests.orchestration.daemons import eventually, running_daemon
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from conftest import Write

    from tests.orchestration.webhook import Webhook


ALERTS = ("failed_run_alert", "failed_check_alert")


def _begun(instance: DagsterInstance) -> dict[str, float]:
    """Return when each alert's last tick began; only for those that know from which event on they look."""
    states = {state.instigator_name: state.instigator_data for state in instance.all_instigator_state()}
    return {
        name: data.last_tick_start_timestamp
        for name, data in states.items()
        if name in ALERTS and data is not None and data.cursor and data.last_tick_start_timestamp
    }


@pytest.mark.repeat
@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_failed_run_under_the_daemon_is_posted_once_and_names_its_log(
    write: Write, fleet: ObjectStore, instance: DagsterInstance, webhook: Webhook, tmp_path: Path
) -> None:
    output = tmp_path / "daemon.log"
    write("orders")
    write("refunds")
    with running_daemon(output, "--module-name", "tests.orchestration.quick_location"):
        succeeded = RunsFilter(statuses=[DagsterRunStatus.SUCCESS])
        eventually(lambda: len(instance.get_runs(succeeded)) == 1 and _begun(instance).keys() == set(ALERTS), output)
        manifest = next((Path(urlsplit(fleet.url).path) / "orders").glob("manifest/MANIFEST*"))
        manifest.chmod(0o644)
        manifest.write_bytes(manifest.read_bytes()[:-9])

        eventually(lambda: webhook.posted != [], output)
        posted = _begun(instance)
        # Every alert looks again, to post nothing.
        eventually(lambda: all(begun > posted[name] for name, begun in _begun(instance).items()), output)

    (message,) = webhook.posted
    (failed,) = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE]))
    assert message["text"].startswith(f"FAILURE manifest_job, run {failed.run_id}, store {fleet.url}")
    assert "orders: " in message["text"]
    assert "refunds" not in message["text"]
