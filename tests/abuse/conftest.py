"""The fixtures of tests/orchestration: an instance, logs for it to look after, and the daemon beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.orchestration.conftest import dagster_home, fleet, instance, known, look, run, tick, write

__all__ = ["dagster_home", "fleet", "instance", "known", "look", "run", "tick", "write"]

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def stored(dagster_home: Path) -> Path:
    """The instance is stored: the daemon, and what comes after a kill, are processes of their own."""
    return dagster_home
