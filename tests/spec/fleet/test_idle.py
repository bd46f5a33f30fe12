"""An idle log costs nothing."""

from __future__ import annotations

import _thread
import time

import pytest

from tests.stores import CountingStore
from wal3_core import LogReader, LogWriter, MemoryStore
from wal3_core.runtime import ThreadRuntime

# Ending threads are counted until they have ended.
ENDING_S_MAX = 10
LOGS = 300
WORKERS = 4


def wait_until_ended(count: int) -> None:
    until = time.monotonic() + ENDING_S_MAX
    while _thread._count() > count:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
def test_idle_open_logs_make_no_requests_and_own_no_thread(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    before = _thread._count()
    with ThreadRuntime(workers_max=WORKERS) as runtime:
        writers = [LogWriter.open_or_create(store, f"log{n}", runtime=runtime) for n in range(LOGS)]
        readers = [LogReader.open(store, f"log{n}", runtime=runtime) for n in range(LOGS)]
        opened = _thread._count()
        for writer in writers:
            writer.append(b"x")
        # The timer's thread ends when no batch waits.
        time.sleep(0.5)
        store.requests.clear()

        time.sleep(1.0)

        assert store.requests == {}
        assert opened - before <= WORKERS
        assert _thread._count() - before <= WORKERS
        assert [len(list(reader.records())) for reader in readers] == [1] * LOGS
        for writer in writers:
            writer.close()
    wait_until_ended(before)


def test_opened_and_closed_log_leaves_nothing_running(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    LogWriter.create(store, "a")
    with ThreadRuntime(workers_max=WORKERS) as runtime:
        before = _thread._count()
        for _ in range(200):
            LogWriter.open(store, "a", runtime=runtime).close()

        # Those of tests before this one may end meanwhile.
        assert _thread._count() <= before
    assert store.requests["replace"] == 1  # the probe of create: opening and closing wrote nothing
