"""The checks of arguments with which a log is opened: store, name, life, options and runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.arguments import instance_of, optional
from wal3_core.model.paths import check_log_name, given_log_id
from wal3_core.runtime import a_runtime
from wal3_core.storage.object_store import a_store

if TYPE_CHECKING:
    from wal3_core.arguments import Check


def opening(**more: Check) -> dict[str, Check]:
    """Return the checks of a store, a log, its id and a runtime, and the further checks given."""
    return {
        "store": a_store,
        "log": check_log_name,
        "runtime": optional(a_runtime),
        "log_id": optional(given_log_id),
        **more,
    }


def options_of(kind: type) -> Check:
    """Take options of one class, or None for the defaults."""
    return optional(instance_of(kind))
