"""What processes do to a writer: fork, exit, threads that can not be had, callbacks, panics."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.stores import FaultyStore
from wal3_core import (
    ClosedError,
    LogReader,
    LogWriter,
    NotDurableError,
    UnknownDurabilityError,
    WriterOptions,
    open_store,
)
from wal3_core.options import RetryOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.storage.memory import MemoryStore
    from wal3_core.storage.object_store import ObjectStore

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)


def bodies(store: ObjectStore, log: str = "a") -> list[bytes | None]:
    return [record.body for record in LogReader.open(store, log).records()]


def in_child(action: Callable[[], object]) -> str:
    """Do something in a forked child; return the name of what it raised, or "" if nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # A fork that hangs ends by itself.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            action()
            os.write(writing, b"nothing")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is to hear of it
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read().decode()
    os.waitpid(child, 0)
    return told


@pytest.mark.parametrize("appended_before", [False, True])
def test_writer_opened_before_a_fork_works_in_the_parent_and_refuses_in_the_child(
    local_url: str, *, appended_before: bool
) -> None:
    """Parent and child had one token, epoch and seq_no: each took the other's record for its own."""
    store = open_store(local_url)
    with LogWriter.open_or_initialize(store, "a") as writer:
        if appended_before:
            writer.append(b"before")
        reader = LogReader.open(store, "a")
        list(reader.records())

        told = [in_child(lambda: writer.append(b"child")), in_child(writer.close)]
        reread = in_child(lambda: list(reader.records()))
        writer.append(b"parent")

    assert told == [ClosedError.__name__] * 2
    assert reread in {ClosedError.__name__, "nothing"}
    assert bodies(store) == [b"before"] * appended_before + [b"parent"]


def test_log_opened_in_the_child_works(local_url: str) -> None:
    store = open_store(local_url)
    with LogWriter.open_or_initialize(store, "a") as writer:
        writer.append(b"parent")

    def append() -> None:
        with LogWriter.open(open_store(local_url), "a") as own:
            own.append(b"child")

    assert in_child(append) == "nothing"
    assert bodies(store) == [b"parent", b"child"]


@pytest.mark.parametrize(
    "program",
    [
        """
        def serve():
            with LogWriter.open_or_initialize(store, "a") as writer:
                time.sleep(0.5)
                writer.append(b"late")
                print([r.body for r in LogReader.open(store, "a").records()])
        threading.Thread(target=serve).start()
        """,
        """
        writer = LogWriter.open_or_initialize(store, "a")
        writer.submit(b"late")
        def end():
            writer.submit(b"later")
            writer.close()
            print([r.body for r in LogReader.open(store, "a").records()][:1])
        atexit.register(end)
        """,
    ],
    ids=["thread", "atexit"],
)
def test_appends_while_the_interpreter_ends_are_done_and_it_ends(local_url: str, program: str) -> None:
    head = "import atexit, sys, threading, time\nfrom wal3_core import *\nstore = open_store(sys.argv[1])\n"

    ended = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program), local_url],
        timeout=60,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.strip() == "[b'late']"


def test_callback_that_appends_and_waits_holds_up_nobody(memory_store: MemoryStore) -> None:
    answers: list[int] = []
    with LogWriter.open_or_initialize(memory_store, "a") as writer:
        for _ in range(20):
            futures = [writer.submit(b"x" * 1000) for _ in range(20)]
            futures[0].add_done_callback(lambda _: answers.append(writer.append(b"callback").offset))
            futures += [writer.submit(b"y" * 1000) for _ in range(20)]
            for future in futures:
                future.result(20)
        until = time.monotonic() + 20
        while len(answers) < 20 and time.monotonic() < until:
            time.sleep(0.01)

    assert len(answers) == 20


@pytest.mark.parametrize(("target", "told"), [("/log/", NotDurableError), ("MANIFEST", UnknownDurabilityError)])
def test_panic_inside_the_store_client_reaches_the_callers_and_the_writer_goes_on(
    memory_store: MemoryStore, target: str, told: type[Exception]
) -> None:
    """Rust panics arrive as a BaseException."""

    class PanicError(BaseException):
        pass

    LogWriter.initialize(memory_store, "a")
    store = FaultyStore(memory_store)

    def panic(kind: str, path: str) -> None:
        if kind in {"create", "replace"} and target in path:
            store.before = lambda _kind, _path: None
            raise PanicError

    store.before = panic
    with LogWriter.open(store, "a", options=WriterOptions(retry=QUICK)) as writer:
        with pytest.raises(told):
            writer.submit(b"1").result(10)
        assert writer.submit(b"2").result(10).offset == 1

    assert bodies(memory_store) == [b"2"]


def test_thread_that_can_not_be_had_delays_and_loses_nothing(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal3_core.runtime import ThreadRuntime  # noqa: PLC0415 - only here is one short of threads

    start, start_new, refuse = threading.Thread.start, _thread.start_new_thread, [True]

    def start_new_or_not(run: Callable[[], object], arguments: tuple[()]) -> int:
        if refuse[0]:
            raise RuntimeError("can't start new thread")
        return start_new(run, arguments)

    def start_or_not(thread: threading.Thread) -> None:
        if refuse[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    LogWriter.initialize(memory_store, "a")
    with ThreadRuntime() as runtime, LogWriter.open(memory_store, "a", runtime=runtime) as writer:
        monkeypatch.setattr(_thread, "start_new_thread", start_new_or_not)
        monkeypatch.setattr(threading.Thread, "start", start_or_not)
        futures = [writer.submit(b"%d" % index) for index in range(10)]
        refuse[0] = False
        futures.append(writer.submit(b"10"))
        offsets = [future.result(20).offset for future in futures]

    assert offsets == list(range(1, 12))
