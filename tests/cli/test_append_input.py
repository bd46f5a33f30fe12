"""Input of ``wal3 append``: slow, absent, broken off, or with signals in between."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.stores import FaultyStore
from wal3_core import LogReader, LogWriter, WriterOptions, open_store, seal
from wal3_core.cli.commands.append import Appending
from wal3_core.cli.shell.input import StopSignals, message_of_raw
from wal3_core.store.object_store import ObjectStore

from .conftest import PROGRAM, Process

if TYPE_CHECKING:
    from .conftest import Command

DEADLINE_S = 60
# Far below the time limits of locks and of retries.
AT_ONCE_S = 10
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def local_process(local_url: str) -> Process:
    """The installed program on a directory with an empty log."""
    LogWriter.create(open_store(local_url), "events")
    return Process(local_url)


def bodies(url: str) -> list[bytes | None]:
    return [record.body for record in LogReader.open(open_store(url), "events").records()]


def wait_until(met: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.slow
def test_nonblocking_pipe_without_data_is_not_the_end_of_the_input(local_process: Process) -> None:
    """Regression: with a non-blocking stdin, the rest was lost and half a line became a record."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with local_process.start("append", "--raw", "events", stdin=reading) as process:
        os.close(reading)
        os.write(writing, b"one\ntwo\nhal")
        wait_until(lambda: len(bodies(local_process.url)) == 2)
        os.write(writing, b"f\nthree\n")
        os.close(writing)
        assert process.stderr is not None
        complaint = process.stderr.read()

    assert (process.returncode, complaint) == (0, b"")
    assert bodies(local_process.url) == [b"one", b"two", b"half", b"three"]


@pytest.mark.slow
def test_refused_line_is_reported_before_another_line_arrives(local_process: Process) -> None:
    with local_process.start("append", "--raw", "events") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_until(lambda: len(bodies(local_process.url)) == 1)
        seal(open_store(local_process.url), "events", reason="moved")
        process.stdin.write(b"two\n")
        process.stdin.flush()

        assert process.wait(DEADLINE_S) == 1
        assert b"line 1 is in the log; line 2 is not, nor is any line after it: " in process.stderr.read()


class Broken(io.BytesIO):
    """Input that fails with an I/O error at its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if data or not size:
            return data
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_unreadable_input_is_reported_with_the_lines_in_the_log(wal3: Command) -> None:
    result = wal3("append", "--create", "--raw", "events", stdin=Broken(b"one\ntwo\nthr"))

    assert result.exit_code == 1
    assert result.stderr == (
        "Error: 2 records appended (offsets 1 to 2); standard input: [Errno 5] Input/output error;"
        " lines 1 to 2 are in the log\n"
    )
    assert bodies(wal3.url) == [b"one", b"two"]


@pytest.mark.slow
def test_closed_input_is_reported_in_one_line(local_url: str) -> None:
    command = ["sh", "-c", 'exec "$0" "$@" <&-', str(PROGRAM), "--store", local_url, "append", "--create", "events"]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)

    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: 0 records appended; standard input: expected records, found it closed")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("option", [[], ["--json"]])
@pytest.mark.parametrize(
    ("place", "error"), [("> /dev/full", "No space left on device"), ("| true", "Broken pipe")], ids=["full", "pipe"]
)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["append", "--create", "--raw", "events"], "1 record appended (offsets 1 to 1) to events"),
        (["queue", "enqueue", "jobs", "--raw"], "1 item enqueued to jobs (id 1)"),
    ],
    ids=["append", "enqueue"],
)
def test_what_was_added_is_said_where_the_output_fails(
    wal3: Command, command: list[str], said: str, place: str, error: str, option: list[str]
) -> None:
    wal3.ok("queue", "create", "jobs")
    # The pipe's reader is gone by the time that the line comes.
    script = f'(sleep 1; echo line) | ("$0" "$@"; echo $? >&2) {place}'
    words = ["sh", "-c", script, str(PROGRAM), "--store", wal3.url, *command, *option]

    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=DEADLINE_S)

    message, code = ended.stderr.splitlines()
    assert message.startswith(f"Error: {said}; standard output: ")
    assert message.endswith(error)
    assert code == "1"


@contextlib.contextmanager
def commits_held_up(url: str) -> Iterator[None]:
    """Hold the locks that replacing a document takes, as a stopped process does."""
    locks = Path(urlsplit(url).path) / ".wal3" / "locks"
    with contextlib.ExitStack() as held:
        for path in locks.iterdir():
            if path.name != "folders":
                fcntl.flock(held.enter_context(path.open("ab")), fcntl.LOCK_EX)
        yield


@pytest.mark.slow
def test_second_signal_ends_at_once_and_names_the_lines_that_may_be_in_the_log(local_process: Process) -> None:
    """Regression: pending retries continued, and committed after the report was printed."""
    fragments = Path(urlsplit(local_process.url).path) / "events"
    with local_process.start("append", "--raw", "events") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_until(lambda: len(bodies(local_process.url)) == 1)
        with commits_held_up(local_process.url):
            process.stdin.write(b"two\n")
            process.stdin.flush()
            wait_until(lambda: len(list(fragments.rglob("*.parquet"))) == 2)
            for number in SIGNALS:
                process.send_signal(number)
                # Sent at once, the kernel may deliver them to two threads, in any order.
                time.sleep(0.1)
            assert process.wait(AT_ONCE_S) == 130
        complaint = process.stderr.read()

    assert complaint == (
        b"Error: 1 record appended (offsets 1 to 1); line 1 is in the log; lines 2 to 2 may or may not be,"
        b" and no line after them is: stopped while they were under way\n"
    )
    assert bodies(local_process.url) == [b"one"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handles SIGINT even if the parent process ignores it, as nohup and shells with background jobs do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_line_waiting_for_room_at_a_second_signal_is_in_the_log_only_if_reported(
    memory_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a line in the writer's inbox was appended though the report said that it was not."""
    monkeypatch.setattr("wal3_core.cli.commands.append._BATCH_LINES_MAX", 1)
    LogWriter.create(memory_store, "events")
    store, go_on = FaultyStore(memory_store), threading.Event()
    writer = LogWriter.open(store, "events", ordered=True, options=WriterOptions(bytes_held_max=5000))
    store.before = lambda kind, _path: (kind == "replace" and go_on.wait(DEADLINE_S)) or None

    def stop() -> None:
        wait_until(lambda: writer.stats().bytes_held > 5000)
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        # Long enough for waiting records to be admitted.
        threading.Timer(1, go_on.set).start()

    thread = threading.Thread(target=stop)
    with StopSignals() as signals:
        thread.start()
        ended = Appending(writer, signals, lambda _: None).run(io.BytesIO((b"x" * 1000 + b"\n") * 9), message_of_raw)
        thread.join(DEADLINE_S)
    go_on.wait(DEADLINE_S)
    writer.close()

    assert ended is not None
    reported = re.search("no line is in the log; lines 1 to ([0-9]+) may or may not be", ended.message)
    assert reported is not None
    assert len(list(LogReader.open(store, "events").records())) == int(reported[1])


class Stopping(io.BytesIO):
    """Input that sends a signal at its end."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            os.kill(os.getpid(), signal.SIGTERM)
        return data


def test_second_signal_after_all_outcomes_are_known_does_not_change_the_report(memory_store: ObjectStore) -> None:
    LogWriter.create(memory_store, "events")

    with LogWriter.open(memory_store, "events", ordered=True) as writer, StopSignals() as signals:
        appending = Appending(writer, signals, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        ended = appending.run(Stopping(b"one\ntwo\n"), message_of_raw)

    assert ended is not None
    assert ended.message == "2 records appended (offsets 1 to 2); terminated; lines 1 to 2 are in the log"


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_second_signal_ends_the_wait_for_an_undetermined_commit(
    memory_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    LogWriter.create(memory_store, "events")
    store, resume = FaultyStore(memory_store), LogWriter.resume
    options = WriterOptions(delivery_timeout_s=0.2)
    writer = LogWriter.open(store, "events", ordered=True, options=options)
    store.fail("replace", "MANIFEST", "unknown", times=10_000)
    store.before = lambda kind, _path: store.fail("get", "MANIFEST", "unavailable") if kind == "replace" else None
    go_on = threading.Event()

    def stop_and_resume(writer: LogWriter) -> object:
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        assert go_on.wait(DEADLINE_S)
        return resume(writer)

    monkeypatch.setattr(LogWriter, "resume", stop_and_resume)
    try:
        with StopSignals() as signals:
            ended = Appending(writer, signals, lambda _: None).run(io.BytesIO(b"one\ntwo\n"), message_of_raw)
    finally:
        store.heal()
        store.before = lambda _kind, _path: None
        go_on.set()
    writer.close()

    assert ended is not None
    assert "no line is in the log; lines 1 to 2 may or may not be" in ended.message
