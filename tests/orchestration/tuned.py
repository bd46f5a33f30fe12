"""Changes the sensors of a workflow before a code location loads it."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any


def tune(name: str, **changes: Any) -> None:  # noqa: ANN401 - fields of sensors
    """Replace fields of all sensors of a workflow, which ``name`` names as in ``defs``."""
    module = import_module(f"wal3_orchestration.defs.{name}")
    sensors = tuple(replace(each, **changes) for each in module.workflow.sensors)
    module.workflow = replace(module.workflow, sensors=sensors)  # type: ignore[attr-defined]  # what each module declares
