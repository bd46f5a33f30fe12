"""Destroying a pinned log leaves it as it was, whenever the pin was made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spec.copying import FEW
from tests.spec.pins import fill
from tests.stores import FaultyStore
from wal3_core import (
    InvalidRequestError,
    LogAt,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    copy,
    destroy,
    pinned_records,
)
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import MANIFEST
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import log_store


@pytest.mark.parametrize("late", [False, True])
def test_pinned_log_is_not_destroyed_unless_requested(memory_store: MemoryStore, *, late: bool) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)

    def pin(kind: str, _path: str) -> None:
        if kind == "replace":
            store.before = lambda _kind, _path: None
            PinStore(memory_store, "a").create("audit", reason="a test")

    if late:
        store.before = pin
    else:
        PinStore(memory_store, "a").create("audit", reason="a test")
    with pytest.raises(InvalidRequestError, match="expected no pins, found audit"):
        destroy(store, "a")

    assert len(list(LogReader.open(memory_store, "a").records())) == 3
    destroy(memory_store, "a", also_pinned=True)
    assert [meta.path for meta in memory_store.list_objects("a/")] == [f"a/{MANIFEST}"]


def test_log_that_a_pin_kept_from_being_destroyed_is_unchanged(memory_store: MemoryStore) -> None:
    """Regression: it stayed sealed and announced, so it could not be appended to, pinned or copied."""
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)

    def pin(kind: str, _path: str) -> None:
        if kind == "replace":
            store.before = lambda _kind, _path: None
            PinStore(memory_store, "a").create("audit", reason="a test")

    with LogWriter.open(memory_store, "a", options=FEW) as writer:
        store.before = pin
        with pytest.raises(InvalidRequestError, match="expected no pins, found audit: remove them"):
            destroy(store, "a")

        manifest = LogReader.open(memory_store, "a").manifest()
        assert (manifest.seal, manifest.destroying) == (None, False)
        writer.append(b"still open")
    PinStore(memory_store, "a").create("another", reason="a test")
    assert copy(LogAt(memory_store, "a"), LogAt(memory_store, "b")).num_records == 4


def test_pin_made_while_another_call_withdrew_its_announcement_is_not_destroyed(
    memory_store: MemoryStore,
) -> None:
    """One call is about to make the name vacant; another withdraws, a pin is made, a third announces again."""
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)
    names = ManifestStore(log_store(memory_store, "a"), shared_runtime())

    def change(change: Callable[[Manifest], Manifest]) -> None:
        seen = names.look()
        assert seen is not None
        assert isinstance(seen.document, Manifest)
        assert names.swap(change(seen.document), seen) is not None

    def meet(kind: str, path: str) -> None:
        if kind == "replace" and path == f"a/{MANIFEST}" and LogReader.open(memory_store, "a").manifest().seal:
            store.before = lambda _kind, _path: None
            change(Manifest.withdraw_destroy)
            PinStore(memory_store, "a").create("audit", reason="a test")
            change(Manifest.announce_destroy)

    store.before = meet
    expected = "expected no pins, found audit.*sealed as being destroyed: a copy of it is open"
    with pytest.raises(InvalidRequestError, match=expected):
        destroy(store, "a")

    assert len(list(pinned_records(memory_store, "a", "audit"))) == 3
    assert copy(LogAt(memory_store, "a"), LogAt(memory_store, "b")).num_records == 3
    fill(memory_store, "b", 1)
