"""Helpers for the specification's tests that read a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core import LogReader

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore


class Crashed(BaseException):
    """The process is gone."""


def manifest_of(store: ObjectStore, log: str = "a") -> Manifest:
    """Load a log's manifest."""
    return LogReader.open(store, log).manifest()


def bodies(store: ObjectStore, log: str = "a") -> list[bytes | None]:
    """Read the bodies of all records of a log."""
    return [record.body for record in LogReader.open(store, log).records()]
