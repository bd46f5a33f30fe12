"""Shared by the tests of copying: logs to copy, and views of the result."""

from __future__ import annotations

import pytest

from tests.stores import life_store
from wal3_core import LogReader, LogWriter, Record
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions, SnapshotOptions, WriterOptions
from wal3_core.store.object_store import ObjectStore

FEW = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2))
NOW = CollectorOptions(without_cursors=True, fraction_max=1, interval_s=0)


def fill(store: ObjectStore, log: str, count: int) -> None:
    """Append fragments of one record each."""
    with LogWriter.open_or_create(store, log, options=FEW) as writer:
        for number in range(count):
            writer.append(b"%d" % number, key=b"k%d" % (number % 3))


def grow(store: ObjectStore, log: str) -> int:
    """Make a log whose tree has both depths; return its number of records."""
    LogWriter.create(store, log)
    reader = LogReader.open(store, log)
    with LogWriter.open(store, log, options=FEW) as writer:
        for number in range(1, 1000):
            writer.append(b"%d" % number)
            if {snapshot.depth for snapshot in reader.manifest().snapshots} == {1, 2}:
                return number
    pytest.fail("a thousand fragments made no tree of both depths")


def records(store: ObjectStore, log: str) -> list[Record]:
    return list(LogReader.open(store, log).records())


def collect(store: ObjectStore, log: str, offset: int) -> None:
    """Advance the log's first record to ``offset`` and delete everything below."""
    collector = Collector(store, log, options=NOW)
    path = collector.announce(collector.plan(offset))
    collector.prune(path)
    Deleter(store, log, options=NOW).delete(path)


def paths(store: ObjectStore, log: str) -> set[str]:
    return {meta.path.removeprefix(f"{log}/") for meta in store.list_objects(f"{log}/")}


def fragments(store: ObjectStore, log: str) -> dict[str, bytes | None]:
    """The bytes of all stored fragments, by path within the life's folder."""
    inside = life_store(store, log)
    return {meta.path: inside.read(meta.path) for meta in inside.list_objects("log/")}


def data(store: ObjectStore, log: str) -> dict[str, bytes | None]:
    """The bytes of all objects under the log's root."""
    return {path: store.read(f"{log}/{path}") for path in paths(store, log)}
