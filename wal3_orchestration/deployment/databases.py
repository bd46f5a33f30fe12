"""The databases of a new Dagster instance, made before anything can race to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import DagsterInstance

if TYPE_CHECKING:
    from pathlib import Path


def create_databases(home: Path) -> None:
    """Create the SQLite databases of the instance in a folder: of runs, events and schedules.

    Otherwise the first command creates them; of two that start at once, one fails, or both leave a
    database that no command opens again.
    """
    with DagsterInstance.from_config(str(home)) as instance:
        instance.get_run_records(limit=1)
        instance.get_asset_keys(limit=1)
        instance.all_instigator_state()
