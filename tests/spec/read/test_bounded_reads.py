"""No stored object makes a reader hold more bytes than the expected object can have."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.spec.copying import fill
from tests.stores import BoundedStore
from wal3_core import (
    CorruptError,
    CursorStore,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    PolicyStore,
    open_store,
    pinned_records,
    scrub,
)
from wal3_core.format.paths import life_folder
from wal3_core.log.collect.collector import collect
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.copy.copier import LogAt, copy
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.options import CollectorOptions
from wal3_core.store.object_store import Done, ObjectStore, Refused

HUGE_BYTES = 300 * 2**20
HELD_BYTES_MAX = 2**20


def test_get_of_an_object_beyond_its_bound_is_refused_and_one_within_is_not(store: ObjectStore) -> None:
    made = store.create("object", bytes(1000))
    assert isinstance(made, Done)

    found = store.get("object", length_max=1000)
    with pytest.raises(CorruptError, match=r"object: expected at most 999 bytes, found 1000"):
        store.get("object", length_max=999)

    assert getattr(found, "data", None) == bytes(1000)
    assert store.get("missing", length_max=1) is None
    assert isinstance(store.replace("object", b"x", made.etag), Done)


def look_at_cursors(store: ObjectStore) -> None:
    CursorStore(store, "a").list()


def look_at_policy(store: ObjectStore) -> None:
    PolicyStore(store, "a").load()


def look_at_the_time(store: ObjectStore) -> None:
    Deleter(store, "a").store_now_us()


@pytest.mark.parametrize(
    ("path", "look"),
    [("cursor/x.json", look_at_cursors), ("policy.json", look_at_policy), ("gc/CLOCK", look_at_the_time)],
)
def test_huge_document_costs_one_small_read_and_is_named(
    local_url: str, path: str, look: Callable[[ObjectStore], None]
) -> None:
    store = open_store(local_url)
    LogWriter.create(store, "a")
    life = life_folder(LogReader.open(store, "a").manifest().log_id)
    file = Path(urlsplit(local_url).path) / "a" / life / path
    file.parent.mkdir(exist_ok=True, parents=True)
    with file.open("wb") as huge:
        huge.truncate(HUGE_BYTES)

    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match=f"{path}: expected at most"):
            look(store)
        held_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert held_bytes < HELD_BYTES_MAX


def test_upload_to_a_path_with_a_huge_object_reads_no_more_than_its_own_length(memory_store: MemoryStore) -> None:
    store = BoundedStore(memory_store)
    LogWriter.create(store, "a")
    with LogWriter.open(store, "a") as writer:
        writer.append(b"x")

    assert isinstance(memory_store.create("a/manifest/MANIFEST.json", b"y"), Refused)
    assert [record.body for record in LogReader.open(store, "a").records()] == [b"x"]


def test_every_read_of_a_log_s_life_has_a_bound(memory_store: MemoryStore) -> None:
    store = BoundedStore(memory_store)
    fill(store, "a", 20)
    cursors = CursorStore(store, "a")
    cursors.save("x", LogPosition(12, 0), cursors.create("x", LogPosition(10, 0)))
    PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=0))
    pins = PinStore(store, "a")
    pins.create("p", reason="r")
    assert len(list(pinned_records(store, "a", "p"))) == 20
    collect(store, "a", options=CollectorOptions(interval_s=0))
    pins.delete("p")
    assert scrub(store, "a").sound
    copy(LogAt(store, "a"), LogAt(store, "b"))
    assert [record.offset for record in LogReader.open(store, "b").records()][-1] == 20
    destroy(store, "a")

    assert store.requests["get"]
    assert store.requests["read"]
