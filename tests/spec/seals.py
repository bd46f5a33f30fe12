"""Shared by the tests of seals and successors: logs to seal, and views of the result."""

from __future__ import annotations

from tests.world import World
from wal3_core import (
    Limits,
    LogWriter,
    records_across,
)
from wal3_core.format.position import ReadStart
from wal3_core.log.collect.collector import Collector
from wal3_core.options import CollectorOptions
from wal3_core.store.object_store import ObjectStore


def fill(store: ObjectStore, log: str, *bodies: bytes) -> None:
    with LogWriter.open_or_create(store, log) as writer:
        for body in bodies:
            writer.append(body)


def bodies(store: ObjectStore, log: str, start: ReadStart = None, limits: Limits | None = None) -> list[bytes | None]:
    return [record.body for record in records_across(store, log, start, limits or Limits())]


def collect(store: ObjectStore, log: str, offset: int) -> None:
    """Advance the log's first record to ``offset``."""
    collector = Collector(store, log, options=CollectorOptions(without_cursors=True, fraction_max=1))
    collector.prune(collector.announce(collector.plan(offset)))
    assert World(store, log).manifest().first.position.offset == offset
