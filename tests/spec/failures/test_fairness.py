"""A store or a log that hangs delays no other caller in the process."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from dataclasses import dataclass, field

import pytest

from tests.stores import FaultyStore
from wal3_core import LogReader, LogWriter, MemoryStore, WriterOptions
from wal3_core.runtime import ThreadRuntime

HANGING = 8
SUBMITS = 8
SAMPLES = 40
ROUNDS = 5
# Time that the scheduler of a busy machine takes occasionally.
SLACK_S = 0.002
WAIT_S_MAX = 60
ONE_EACH = WriterOptions(batch_records_max=1)


@dataclass
class HangingStore(FaultyStore):
    """Does not answer for some logs until it is released; ``held`` counts the waiting requests."""

    gate: threading.Event = field(default_factory=threading.Event)
    held: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def _fault(self, kind: str, path: str) -> None:
        if path.startswith("hanging") and kind == "create" and "/log/" in path:
            self.held.release()
            assert self.gate.wait(WAIT_S_MAX)


def append_s(writer: LogWriter) -> float:
    """The median time of some appends, in seconds."""
    took_s = []
    for _ in range(SAMPLES):
        began_s = time.perf_counter()
        writer.append(b"x")
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s)


@pytest.mark.slow
@pytest.mark.parametrize("same_store", [True, False], ids=["of the same store", "of another store"])
def test_append_beside_eight_hanging_logs_takes_at_most_twice_as_long(*, same_store: bool) -> None:
    with ThreadRuntime() as runtime, contextlib.ExitStack() as stack:
        store = HangingStore(MemoryStore(runtime, name="hanging"))
        well = store if same_store else HangingStore(MemoryStore(runtime, name="well"))
        healthy = stack.enter_context(LogWriter.open_or_create(well, "a", runtime=runtime))
        append_s(healthy)
        alone_s = min(append_s(healthy) for _ in range(ROUNDS))
        logs = [f"hanging{number}" for number in range(HANGING)]
        for log in logs:
            LogWriter.create(store, log, runtime=runtime)
        try:
            futures = []
            for log in logs:
                writer = stack.enter_context(LogWriter.open(store, log, options=ONE_EACH, runtime=runtime))
                futures += [writer.submit(b"x") for _ in range(SUBMITS)]
            for _ in range(HANGING):
                assert store.held.acquire(timeout=WAIT_S_MAX)

            beside_s = min(append_s(healthy) for _ in range(ROUNDS))
            num_read = len(list(LogReader.open(well, "a", runtime=runtime).records()))
            assert not any(future.done() for future in futures)
        finally:
            store.gate.set()
        for future in futures:
            future.result(WAIT_S_MAX)

    print(f"alone {alone_s * 1000:.2f} ms, beside {HANGING} hanging logs {beside_s * 1000:.2f} ms")
    assert beside_s <= 2 * alone_s + SLACK_S
    assert num_read == (2 * ROUNDS + 1) * SAMPLES
