"""The installed Dagster accepts the project's dagster.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_instance_starts_with_the_project_s_settings_and_without_a_dialog(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")

    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.nux_enabled
        assert not instance.telemetry_enabled
        assert instance.get_concurrency_config().run_queue_config is not None
