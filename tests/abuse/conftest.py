"""The fixtures of tests/orchestration: an instance, logs for it to look after, and the daemon beside them."""

from __future__ import annotations

import pytest

from tests.orchestration.conftest import dagster_home, fleet, instance, known, look, run, tick, write

__all__ = ["dagster_home", "fleet", "instance", "known", "look", "run", "tick", "write"]


@pytest.fixture(autouse=True)
def stored(request: pytest.FixtureRequest) -> None:
    """The instance is stored: the daemon, and what comes after a kill, are processes of their own."""
    # A module with gates has a home for all of its runs, which the environment names.
    if "gates" not in request.fixturenames:
        request.getfixturevalue("dagster_home")
