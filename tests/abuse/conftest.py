"""The fixtures of tests/orchestration: an instance, logs for it to look after, and the daemon beside them."""

from __future__ import annotations

from tests.orchestration.conftest import dagster_home, fleet, instance, known, look, run, tick, write

__all__ = ["dagster_home", "fleet", "instance", "known", "look", "run", "tick", "write"]
