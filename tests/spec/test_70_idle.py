"""What nobody uses costs nothing."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tests.stores import CountingStore
from wal3_core import LogReader, LogWriter
from wal3_core.runtime import ThreadRuntime

if TYPE_CHECKING:
    from wal3_core.storage.memory import MemoryStore

LOGS = 300
WORKERS = 4


def test_idle_open_logs_make_no_requests_and_own_no_thread(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    before = threading.active_count()
    with ThreadRuntime(workers_max=WORKERS) as runtime:
        writers = [LogWriter.open_or_initialize(store, f"log{n}", runtime=runtime) for n in range(LOGS)]
        readers = [LogReader.open(store, f"log{n}", runtime=runtime) for n in range(LOGS)]
        opened = threading.active_count()
        for writer in writers:
            writer.append(b"x")
        # The timer's thread ends by itself when no batch waits.
        time.sleep(0.5)
        store.requests.clear()

        time.sleep(1.0)

        assert store.requests == {}
        assert opened - before <= WORKERS
        assert threading.active_count() - before <= WORKERS
        assert [len(list(reader.records())) for reader in readers] == [1] * LOGS
        for writer in writers:
            writer.close()
    assert threading.active_count() <= before


def test_opened_and_closed_log_leaves_nothing_running(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    LogWriter.initialize(store, "a")
    with ThreadRuntime(workers_max=WORKERS) as runtime:
        before = threading.active_count()
        for _ in range(200):
            LogWriter.open(store, "a", runtime=runtime).close()

        assert threading.active_count() == before
    assert store.requests["replace"] == 1  # the probe of initialize: opening and closing wrote nothing
