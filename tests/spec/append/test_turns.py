"""A writer that commits without a pause, and maintenance that changes its log's manifest from farther away."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.stores import CountingStore, FaultyStore
from wal3_core import (
    CollectorOptions,
    CursorStore,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    StoreDeniedError,
    WriterOptions,
    collect,
    seal,
)
from wal3_core.log.write.pacing import YieldPause
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

NEAR_S, FAR_S = 0.005, 0.05
# With pauses it takes dozens; without, thousands and luck.
TRIES_MAX = 300


def away(store: ObjectStore, seconds: float) -> FaultyStore:
    return FaultyStore(store, before=lambda _kind, _path: time.sleep(seconds))


def pruned(store: ObjectStore) -> int | None:
    plan = collect(store, "a", options=CollectorOptions(fraction_max=1.0, orphans_max=0)).plan
    return None if plan is None else plan.num_records


MAINTENANCE: dict[str, Callable[[ObjectStore], object]] = {
    "seal": lambda store: seal(store, "a", reason="full"),
    "pin": lambda store: PinStore(store, "a").create("audit", reason="a test").complete,
    "collect": pruned,
}


@pytest.mark.slow
@pytest.mark.parametrize("change", MAINTENANCE)
def test_maintenance_far_from_the_store_gets_its_turn_beside_a_busy_writer(
    memory_store: MemoryStore, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: of thousands of attempts none succeeded, because the next commit always came first."""
    monkeypatch.setattr("wal3_core.log.write.pacing._BUSY_S", 0.5)
    stop = threading.Event()
    # One fragment per record, so that the tree is rolled continuously.
    options = WriterOptions(batch_records_max=1)
    LogWriter.create(memory_store, "a")

    def write() -> None:
        with LogWriter.open(away(memory_store, NEAR_S), "a", options=options) as writer:
            while not stop.is_set() and not LogReader.open(memory_store, "a").manifest().seal:
                for future in [writer.submit(b"x") for _ in range(8)][:1]:
                    future.exception(30)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        while (end := LogReader.open(memory_store, "a").manifest().next.position).offset < 50:
            time.sleep(0.01)
        CursorStore(memory_store, "a").create("consumer", end)

        far = CountingStore(away(memory_store, FAR_S))
        assert MAINTENANCE[change](far)
        assert far.requests["replace"] + far.requests["create"] < TRIES_MAX
    finally:
        stop.set()
        writing.join(60)


def test_append_with_little_time_left_does_not_pause(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.log.write.pacing._FIRST_S", 0.0)
    monkeypatch.setattr("wal3_core.log.write.pacing._PAUSE_S_MIN", 2.0)
    monkeypatch.setattr("wal3_core.log.write.pacing._PAUSE_S_MAX", 2.0)
    began_s = time.monotonic()

    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(delivery_timeout_s=9)) as writer:
        for number in range(20):
            writer.append(b"%d" % number)

    assert time.monotonic() - began_s < 10


class StillRuntime(ThreadRuntime):
    """A process whose clock advances only when a test moves it."""

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.mark.parametrize(
    ("idle_s", "commit_s", "pauses"), [(0, 0.02, [0.16] * 6), (0.2, 0.002, []), (0, 0.2, [0.5] * 6)]
)
def test_writer_pauses_after_one_second_then_once_in_ten_and_not_when_rested(
    idle_s: float, commit_s: float, pauses: list[float]
) -> None:
    with StillRuntime() as runtime:
        breath = YieldPause(runtime)
        while runtime.now_s < 56:
            breath.take(commit_s, lambda: 120)
            runtime.now_s += commit_s
            breath.committed()
            runtime.now_s += idle_s

    assert runtime.slept == pauses


class InterruptedCall(BaseException):
    """Raised by a signal handler, as Ctrl-C raises KeyboardInterrupt."""


def test_interrupt_in_a_pause_on_the_caller_s_thread_leaves_a_working_writer(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the interpreter's exit, where no worker is left. Regression: the next append waited forever."""

    def interrupt(_number: int, _frame: object) -> None:
        raise InterruptedCall

    runtime = ThreadRuntime()
    writer = LogWriter.open_or_create(memory_store, "a", runtime=runtime)
    runtime.close()
    monkeypatch.setattr("wal3_core.log.write.pacing._FIRST_S", 0.0)
    monkeypatch.setattr("wal3_core.log.write.pacing._PAUSE_S_MAX", 60.0)
    monkeypatch.setattr("wal3_core.log.write.pacing._PAUSE_S_MIN", 60.0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedCall):
            writer.append(b"1")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    monkeypatch.setattr("wal3_core.log.write.pacing._FIRST_S", 1e9)

    assert writer.append(b"2").offset == 2
    assert [record.body for record in LogReader.open(memory_store, "a").records()] == [b"1", b"2"]


def test_writers_of_one_log_that_never_pause_append_in_turns(memory_store: MemoryStore) -> None:
    """Regression: one that had met the other looked at the manifest for ever, beyond its appends' delivery timeout."""
    over = threading.Event()

    def refuse(_kind: str, _path: str) -> None:
        if over.is_set():
            raise StoreDeniedError("the test is over")

    store = FaultyStore(memory_store, before=refuse)
    LogWriter.create(store, "a")
    writers = [LogWriter.open(store, "a", options=WriterOptions(commit_pause_s_max=0)) for _ in range(2)]
    try:
        offsets = [writer.submit(b"x").result(20).offset for _ in range(10) for writer in writers]
    finally:
        # Ends what would still run.
        over.set()

    assert offsets == list(range(1, 21))
