"""A writer and its process: fork, exit, threads that cannot be started, callbacks, panics."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests.stores import LOG_ID, FaultyStore
from tests.world import World
from wal3_core import (
    ClosedError,
    Collector,
    CursorStore,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    PinStore,
    PolicyStore,
    SnapshotCompactor,
    UnknownDurabilityError,
    WriterOptions,
    open_store,
)
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.fleet.fleet import Fleet
from wal3_core.format.marker import Marker
from wal3_core.options import FleetOptions, RetryOptions, SnapshotOptions
from wal3_core.runtime import ThreadRuntime, shared_runtime

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
# Snapshots from the first records on.
ROLLED = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2))


def in_child(action: Callable[[], object]) -> str:
    """Run an action in a forked child; return the name of the exception it raised, or "nothing"."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # A child that hangs ends by itself.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            action()
            os.write(writing, b"nothing")
        except BaseException as error:  # noqa: BLE001 - the parent reports any exception
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        raised = answer.read().decode()
    os.waitpid(child, 0)
    return raised


@pytest.mark.parametrize("appended_before", [False, True])
def test_writer_opened_before_a_fork_works_in_the_parent_and_refuses_in_the_child(
    local_url: str, *, appended_before: bool
) -> None:
    """Regression: parent and child had one token, epoch and seq_no, and each took the other's record for its own."""
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a") as writer:
        if appended_before:
            writer.append(b"before")
        reader = LogReader.open(store, "a")
        list(reader.records())

        raised = [in_child(lambda: writer.append(b"child")), in_child(writer.close)]
        reread = in_child(lambda: list(reader.records()))
        writer.append(b"parent")

    assert raised == [ClosedError.__name__] * 2
    assert reread == ClosedError.__name__
    assert World(store).bodies() == [b"before"] * appended_before + [b"parent"]


@pytest.mark.slow
def test_everything_opened_before_a_fork_refuses_every_call_in_the_child(local_url: str) -> None:
    """Regression: calls that only read the store worked in the child, or hung where the parent was using it."""
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a", options=ROLLED) as writer:
        for _ in range(8):
            writer.append(b"before")
        reader = LogReader.open(store, "a")
        manifest = reader.manifest()
        cursors, pins, policies = CursorStore(store, "a"), PinStore(store, "a"), PolicyStore(store, "a")
        witness = cursors.create("c", LogPosition(2, 0))
        collector, compactor = Collector(store, "a"), SnapshotCompactor(store, "a")
        for warm in (pins.list, policies.load, compactor.plan):
            warm()
        calls: dict[str, Callable[[], object]] = {
            "manifest": reader.manifest,
            "is_current": lambda: reader.is_current(manifest),
            "scan": reader.scan,
            "scan in hand": lambda: reader.scan(manifest=manifest),
            "load_snapshot": lambda: reader.load_snapshot(manifest.snapshots[0]),
            "fetch": lambda: reader.fetch(reader.scan()[0]),
            "records": lambda: list(reader.records()),
            "follow": lambda: list(reader.follow(idle_s=0)),
            "cursors": cursors.list,
            "cursor": lambda: cursors.load("c"),
            "save": lambda: cursors.save("c", LogPosition(3, 0), witness),
            "delete": lambda: cursors.delete("c"),
            "pins": pins.list,
            "policy": policies.load,
            "plan": collector.plan,
            "compact": compactor.compact,
            "stats": writer.stats,
            "flush": writer.flush,
            "append": lambda: writer.append(b"child"),
        }

        raised = {name: in_child(call) for name, call in calls.items()}

    assert raised == dict.fromkeys(calls, ClosedError.__name__)
    assert CursorStore(store, "a").load("c") == witness


def test_store_in_memory_refuses_every_call_in_the_child_also_opened_again() -> None:
    """The child has a copy: what it appended, no other process would ever see."""
    store = open_store("memory:before-a-fork")
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append(b"of the parent")
    own = MemoryStore(shared_runtime())

    assert in_child(lambda: LogWriter.open(open_store("memory:before-a-fork"), "a").append(b"lost")) == "ClosedError"
    for refused in (
        lambda: store.read("a"),
        lambda: store.get("a"),
        lambda: store.create("a", b""),
        lambda: store.head("a"),
        lambda: list(store.list_objects("")),
        lambda: store.list_folders(""),
        lambda: store.delete("a"),
        lambda: own.create("a", b""),
    ):
        assert in_child(refused) == "ClosedError"
    assert in_child(lambda: LogWriter.create(open_store("memory:in-the-child"), "a")) == "nothing"


def test_dirty_log_and_held_writer_from_before_a_fork_refuse_calls_in_the_child(
    memory_store: MemoryStore,
) -> None:
    """Regression: the child waited for markers that only a thread of its parent could have passed on."""
    store = FaultyStore(memory_store)
    answered, sent = threading.Event(), threading.Event()
    marker = Marker.of_fragment("a", LOG_ID, LogPosition(1, 0), 1)
    with DirtyLog.open_or_create(store, "s") as marks, Fleet.open(store, options=FleetOptions(creates=True)) as fleet:
        held = fleet.writer("a")
        store.before = lambda _kind, _path: (sent.set(), answered.wait(60))[0]
        marked = marks.mark(marker)
        assert sent.wait(30)
        calls = {"mark": lambda: marks.mark(marker), "flush": marks.flush, "close": marks.close, "held": held.close}
        raised = {name: in_child(call) for name, call in calls.items()}
        answered.set()
        marked.result(30)

    assert raised == dict.fromkeys(calls, ClosedError.__name__)


def test_log_opened_in_the_child_works(local_url: str) -> None:
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append(b"parent")

    def append() -> None:
        with LogWriter.open(open_store(local_url), "a") as own:
            own.append(b"child")

    assert in_child(append) == "nothing"
    assert World(store).bodies() == [b"parent", b"child"]


# Only what the program needs: what another module imports is imported early.
WRITING = """
import atexit, sys, threading, time
from wal3_core import LogWriter, open_store
store = open_store(sys.argv[1])
"""


def ended_by(program: str, url: str) -> str:
    """Run a program on a store in a process of its own, which must succeed; return what it printed."""
    arguments = [sys.executable, "-c", program, url]
    ended = subprocess.run(arguments, timeout=600, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        """
        def serve():
            with LogWriter.open_or_create(store, "a") as writer:
                time.sleep(0.5)
                writer.append(b"late")
        threading.Thread(target=serve).start()
        """,
        """
        writer = LogWriter.open_or_create(store, "a")
        writer.submit(b"late")
        def end():
            writer.submit(b"later")
            writer.close()
        atexit.register(end)
        """,
    ],
    ids=["thread", "atexit"],
)
def test_appends_during_interpreter_exit_complete_and_the_interpreter_exits(local_url: str, program: str) -> None:
    """Regression: the first append of such a process was lost, unless the program had imported more than this."""
    ended_by(WRITING + textwrap.dedent(program), local_url)

    assert World(open_store(local_url)).bodies() in ([b"late"], [b"late", b"later"])


def test_records_of_a_program_that_submits_them_and_ends_are_in_the_log(store_url: str) -> None:
    ended_by(f"{WRITING}writer = LogWriter.open_or_create(store, 'a')\nfor _ in 'abc': writer.submit(b'x')", store_url)

    assert World(open_store(store_url)).bodies() == [b"x"] * 3


def test_log_can_be_read_first_when_the_interpreter_ends(store_url: str) -> None:
    with LogWriter.open_or_create(open_store(store_url), "a") as writer:
        writer.append(b"x")
    program = """
    def read():
        from wal3_core import LogReader
        print([r.body for r in LogReader.open(store, "a").records()])
    atexit.register(read)
    """

    assert ended_by(WRITING + textwrap.dedent(program), store_url) == "[b'x']"


def test_open_writer_has_imported_all_that_its_appends_need(store_url: str) -> None:
    """At the interpreter's end, a worker may not be able to import it."""
    program = """
    import pyarrow
    writer = LogWriter.open_or_create(store, "a")
    before = set(sys.modules)
    writer.append(b"x")
    writer.append(None, key=b"k")
    writer.append_many([b"x" * 1000] * 100)
    writer.append_table(pyarrow.table({"key": [b"k"], "body": [b"v"]}))
    writer.close()
    print(sorted(set(sys.modules) - before))
    """

    assert ended_by(WRITING + textwrap.dedent(program), store_url) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(("end", "warns"), [("pass", True), ("writer.close()", False), ("writer.flush()", False)])
def test_process_that_ends_without_outcomes_says_so(local_url: str, end: str, *, warns: bool) -> None:
    program = """
    def wait(kind, path):
        if kind == "create" and "/log/" in path:
            warned.wait(UPLOAD_S)

    def submit():
        writer = LogWriter.open_or_create(FaultyStore(store, before=wait), "a")
        for number in range(5):
            writer.submit(b"%d" % number)
        END
    submit()
    # The child has inherited the writer, and submitted nothing.
    child = os.fork()
    if not child:
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    """
    head = """
    import logging, os, sys, threading
    from tests.stores import FaultyStore
    from wal3_core import *
    warned = threading.Event()
    logging.basicConfig()
    logging.getLogger().handlers[0].addFilter(lambda record: warned.set() or True)
    store = open_store(sys.argv[1])
    """
    # The upload of a process that does not wait for it lasts until the process warns, however late that is.
    upload_s = "60" if warns else "0.5"
    source = textwrap.dedent(head) + textwrap.dedent(program).replace("END", end).replace("UPLOAD_S", upload_s)

    ended = subprocess.run(
        [sys.executable, "-c", source, local_url], timeout=600, capture_output=True, text=True, check=True
    )

    assert ended.stderr.count(f"{local_url}/a: the process ends without an outcome of 5 appends") == warns, ended.stderr


def test_callback_that_appends_and_waits_blocks_no_other_caller(memory_store: MemoryStore) -> None:
    answers: list[int] = []
    with LogWriter.open_or_create(memory_store, "a") as writer:
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


@pytest.mark.slow
@pytest.mark.parametrize("workers_max", [1, 2, 3, 4, 32])
def test_callbacks_that_read_the_log_or_wait_for_another_block_no_other_caller(workers_max: int) -> None:
    """Regression: they occupied the workers that their reads waited for, and the log stopped forever."""
    runtime = ThreadRuntime(workers_max=workers_max)
    store = MemoryStore(runtime)
    logs = [LogWriter.open_or_create(store, name, runtime=runtime) for name in "ab"]
    reader = LogReader.open(store, "a", runtime=runtime)
    answers: list[int] = []

    def ask(future: Future[LogPosition]) -> None:
        offset = future.result().offset
        logs[1].append(b"seen")
        answers.append(sum(1 for record in reader.records() if record.offset <= offset) - offset)

    for number in range(100):
        logs[0].submit(b"%d" % number).add_done_callback(ask)
    for log in logs:
        log.flush()
    until_s = time.monotonic() + 60
    while len(answers) < 100 and time.monotonic() < until_s:
        time.sleep(0.01)
    for log in logs:
        log.close()

    assert answers == [0] * 100


@pytest.mark.parametrize(("target", "raised"), [("/log/", NotDurableError), ("MANIFEST", UnknownDurabilityError)])
def test_panic_inside_the_store_client_reaches_the_callers_and_the_writer_continues(
    memory_store: MemoryStore, target: str, raised: type[Exception]
) -> None:
    """Rust panics arrive as a BaseException."""

    class PanicError(BaseException):
        pass

    LogWriter.create(memory_store, "a")
    store = FaultyStore(memory_store)

    def panic(kind: str, path: str) -> None:
        if kind in {"create", "replace"} and target in path:
            store.before = lambda _kind, _path: None
            raise PanicError

    store.before = panic
    with LogWriter.open(store, "a", options=WriterOptions(retry=QUICK)) as writer:
        with pytest.raises(raised):
            writer.submit(b"1").result(10)
        assert writer.submit(b"2").result(10).offset == 1

    assert World(memory_store).bodies() == [b"2"]


def test_thread_that_cannot_be_started_delays_and_loses_nothing(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal3_core.runtime import ThreadRuntime  # noqa: PLC0415 - only this test runs short of threads

    start, start_new, refuse = threading.Thread.start, _thread.start_new_thread, [True]

    def start_new_or_not(run: Callable[[], object], arguments: tuple[()]) -> int:
        if refuse[0]:
            raise RuntimeError("can't start new thread")
        return start_new(run, arguments)

    def start_or_not(thread: threading.Thread) -> None:
        if refuse[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    LogWriter.create(memory_store, "a")
    with ThreadRuntime() as runtime, LogWriter.open(memory_store, "a", runtime=runtime) as writer:
        monkeypatch.setattr(_thread, "start_new_thread", start_new_or_not)
        monkeypatch.setattr(threading.Thread, "start", start_or_not)
        futures = [writer.submit(b"%d" % index) for index in range(10)]
        refuse[0] = False
        futures.append(writer.submit(b"10"))
        offsets = [future.result(20).offset for future in futures]

    assert offsets == list(range(1, 12))
