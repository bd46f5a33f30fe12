"""Windows of a destroy that is cut short or taken back, and of a roll that cannot be made."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from tests.faults.test_symptoms import grow
from tests.stores import FaultyStore
from wal3_core import (
    InvalidRequestError,
    LogNotFoundError,
    LogReader,
    MemoryStore,
    PinStore,
    StoreDeniedError,
    destroy,
    undo_destroy,
)
from wal3_core.format.paths import SNAPSHOT_FOLDER
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import shared_runtime


def follow_a_log_that_is_sealed_to_be_destroyed() -> None:
    """The process that destroys it dies before the log is gone: its end is not where its records end."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow = FaultyStore(store)

    def die(kind: str, _path: str) -> None:
        if kind == "replace" and LogReader.open(store, "a").manifest().seal is not None:
            raise StoreDeniedError("the process died")

    slow.before = die
    with suppress(StoreDeniedError):
        destroy(slow, "a")
    ended = False
    with suppress(LogNotFoundError):
        assert len(list(LogReader.open(store, "a").follow())) == 3
        ended = True
    assert not ended


def destroy_while_it_is_taken_back_and_a_pin_is_made() -> None:
    """The call has found no pin and is about to seal the log; it announces the destroy again, and finds the pin."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow = FaultyStore(store)

    def undo(kind: str, _path: str) -> None:
        if kind == "replace" and LogReader.open(store, "a").manifest().destroying:
            slow.before = lambda _kind, _path: None
            undo_destroy(store, "a")
            PinStore(store, "a").create("audit", reason="a long read")

    slow.before = undo
    with suppress(InvalidRequestError):
        destroy(slow, "a")
    assert LogReader.open(store, "a").manifest().seal is None


def install_staged_while_a_roll_is_denied() -> None:
    """The manifest stays as large as it is; the append is made."""
    store = MemoryStore(shared_runtime())
    grow(store, 19)
    denying = FaultyStore(store)
    denying.fail("create", f"/{SNAPSHOT_FOLDER}", "denied", times=100)
    table = pa.table([pa.array([None], pa.large_binary()), pa.array([b"1"], pa.large_binary())], schema=MESSAGE_SCHEMA)
    install_staged(denying, "a", Stager(store, "a").stage(table))
    assert denying.fired["denied"]
