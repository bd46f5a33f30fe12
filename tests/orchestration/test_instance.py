"""The installed Dagster accepts the project's dagster.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance

from wal3_orchestration.deployment import settings

CHECKOUT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_instance_starts_with_the_project_s_settings_and_without_a_dialog(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(settings())

    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.nux_enabled
        assert not instance.telemetry_enabled
        assert instance.get_concurrency_config().run_queue_config is not None


def test_checkout_s_settings_are_those_that_init_writes() -> None:
    assert (CHECKOUT / "dagster.yaml").read_text() == settings()
