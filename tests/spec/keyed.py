"""Shared by the tests of keyed logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core import Cleanup, LogWriter, Policy, PolicyStore
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from tests.stores import FaultyStore


def clean_up(store: ObjectStore, cleanup: Cleanup, log: str = "a") -> Policy:
    """Change how a log is cleaned up."""
    return PolicyStore(store, log).change(lambda policy: replace(policy, cleanup=cleanup))


def keyed_log(store: ObjectStore, log: str = "a") -> None:
    """Make a log that is compacted."""
    LogWriter.create(store, log)
    clean_up(store, Cleanup.COMPACT, log)


def once(store: FaultyStore, kind: str, path_part: str, act: Callable[[], object]) -> None:
    """Run ``act`` just before the next request of a kind whose path contains ``path_part``."""

    def before(found: str, path: str) -> None:
        if found == kind and path_part in path:
            store.before = lambda _kind, _path: None
            act()

    store.before = before
