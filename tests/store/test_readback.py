"""A document that could not be read back is refused by name, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.stores import content
from wal3_core import CursorStore, InvalidRequestError, LogPosition, LogReader, LogWriter, Policy, Seal
from wal3_core.format.cursor import Cursor
from wal3_core.format.garbage import Garbage
from wal3_core.format.pin import Pin
from wal3_core.format.snapshot import Snapshot
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.document_store import DocumentStore
from wal3_core.store.documents.garbage_store import GarbageStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

LOG = "a"
POSITION = LogPosition(1, 0)


@pytest.fixture
def filled(store: ObjectStore) -> ObjectStore:
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"x")
    return store


def documents(store: ObjectStore, read: Callable[[bytes, str], object]) -> DocumentStore:
    manifests = ManifestStore(log_store(store, LOG), shared_runtime())
    return DocumentStore(
        manifests.objects, shared_runtime(), RetryOptions(), read, log_id=manifests.log_id, bytes_max=2**20
    )


def save_cursor(store: ObjectStore, **wrong: object) -> None:
    cursor = replace(Cursor(position=POSITION, epoch_us=0, writer="w", generation=1), **wrong)
    documents(store, lambda data, what: Cursor.from_bytes(data, what=what)).save("cursor/c.json", cursor, None)


def save_policy(store: ObjectStore, **wrong: object) -> None:
    policy = Policy()
    for name, value in wrong.items():
        # Bypasses the policy's own check.
        object.__setattr__(policy, name, value)
    documents(store, lambda data, what: Policy.from_bytes(data, what=what)).save("policy.json", policy, None)


def save_pin(store: ObjectStore, **wrong: object) -> None:
    manifest = LogReader.open(store, LOG).manifest()
    pin = replace(Pin(manifest=manifest, reason="r", epoch_us=0, writer="w", generation=1), **wrong)
    documents(store, lambda data, what: Pin.from_bytes(data, what=what)).save("pin/p.json", pin, None)


def save_garbage(store: ObjectStore, **wrong: object) -> None:
    garbage = Garbage(generation=1, token="0" * 16, writer="w", reason="r", first=None)
    saved = replace(garbage, **wrong)
    manifests = ManifestStore(log_store(store, LOG), shared_runtime())
    GarbageStore(manifests, shared_runtime(), RetryOptions()).save(garbage.path, saved, None)


def install(store: ObjectStore, **wrong: object) -> None:
    manifests = ManifestStore(log_store(store, LOG), shared_runtime())
    base = manifests.load()
    manifests.install(replace(base.manifest, **wrong), base)


def write_snapshot(store: ObjectStore, **wrong: object) -> None:
    manifest = LogReader.open(store, LOG).manifest()
    snapshot = replace(Snapshot(manifest.fragments, 0, manifest.log_id), **wrong)
    manifests = ManifestStore(log_store(store, LOG), shared_runtime())
    manifests.load()
    SnapshotStore(manifests, shared_runtime(), loaded_max=0).write(snapshot, RetryOptions())


def timed(value: object) -> LogPosition:
    position = LogPosition(1, 0)
    object.__setattr__(position, "timestamp_us", value)
    return position


CASES = [
    (save_cursor, {"position": timed(1.7e15)}, "cursor/c.json.*position.timestamp_us.*float"),
    (save_cursor, {"position": timed(np.uint64(3))}, "cursor/c.json.*position.timestamp_us.*uint64"),
    (save_cursor, {"epoch_us": -1}, "cursor/c.json.*epoch_us.*within u64, found -1"),
    (save_cursor, {"generation": True}, "cursor/c.json.*generation: expected an integer"),
    (save_policy, {"retention_s": 1.5}, "retention_s.*float"),
    (save_policy, {"without_cursors": 1}, "without_cursors: expected true or false"),
    (save_pin, {"reason": 7}, "pin/p.json.*reason: expected a string"),
    (save_pin, {"epoch_us": 2**64}, "pin/p.json.*epoch_us.*within u64"),
    (save_pin, {"complete": None}, "pin/p.json.*complete: expected true or false"),
    (save_garbage, {"reason": None}, "gc/GARBAGE.*reason: expected a string"),
    (save_garbage, {"token": "short"}, "gc/GARBAGE.*token"),
    (install, {"fence": 0.0}, "MANIFEST.json.*fence.*float"),
    (install, {"num_records": float("nan")}, "MANIFEST.json.*num_records.*nan"),
    (install, {"num_bytes": 1}, "MANIFEST.json.*expected 1 bytes"),
    (
        install,
        {"seal": Seal(reason="r", sealed_by=4711, timestamp_us=1)},
        "MANIFEST.json.*sealed_by: expected a string",
    ),
    (write_snapshot, {"fence": 1.5}, "SNAPSHOT.*fence.*float"),
    (write_snapshot, {"fence": np.int64(1)}, "snapshot.*fence.*int64"),
]


@pytest.mark.parametrize(("write", "wrong", "complaint"), CASES, ids=[case[2] for case in CASES])
def test_document_that_could_not_be_read_back_is_never_written(
    filled: ObjectStore, write: Callable[..., None], wrong: dict[str, object], complaint: str
) -> None:
    before = content(filled)

    with pytest.raises(InvalidRequestError, match=complaint):
        write(filled, **wrong)

    assert content(filled) == before


def test_cursor_at_a_time_that_is_no_integer_is_refused_and_the_log_can_be_collected(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"x")
    cursors = CursorStore(store, LOG)

    with pytest.raises(InvalidRequestError, match="timestamp_us: expected an integer, found float"):
        cursors.create("c", LogPosition(1, 1.7e15))

    assert cursors.list() == {}
