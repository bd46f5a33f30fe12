"""A process that is stopped while it holds a lock delays others only until their deadline."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.children import await_word, child
from wal3_core import (
    InvalidRequestError,
    LogReader,
    LogWriter,
    NotDurableError,
    UnavailableError,
    WriterOptions,
    open_store,
)
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import Done, Versioned

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WAIT_S_MAX = 60
QUICK = WriterOptions(retry=RetryOptions(attempts_max=2, pause_s_min=0.001))


def hold_all(connection: Connection, folder: str) -> None:
    """Hold all locks of a store, since a stopped process may hold any of them."""
    files = [path.open("ab") for path in Path(folder).iterdir()]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    connection.send(("held", len(files)))
    connection.recv()


@pytest.mark.slow
def test_append_beside_a_stopped_process_fails_as_not_durable_and_names_the_process(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path.as_uri()}?lock_wait_s=0.2")
    with LogWriter.open_or_create(store, "a", options=QUICK) as writer:
        writer.append(b"1")
        with child(hold_all, str(tmp_path / ".wal3" / "locks")) as (process, connection):
            await_word(connection, "held")
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)

            began_s = time.monotonic()
            with pytest.raises(NotDurableError) as refused:
                writer.append(b"2")
            took_s = time.monotonic() - began_s

        text = str(refused.value)
        assert "expected the lock" in text
        assert f"{tmp_path}/.wal3/locks/" in text
        assert "within 0.2 s" in text
        assert f"process {process_id(text)} (" in text
        assert "stopped" in text
        assert took_s < WAIT_S_MAX
        # It was killed: the kernel has freed its locks.
        assert writer.append(b"3").offset == 2

    assert [record.body for record in LogReader.open(store, "a").records()] == [b"1", b"3"]


def process_id(text: str) -> int:
    return int(text.split("held by process ")[1].split(maxsplit=1)[0])


@pytest.mark.slow
def test_lock_released_in_time_causes_no_error(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    made = store.create("object", b"1")
    assert isinstance(made, Done)
    assert isinstance(store.replace("object", b"2", made.etag), Done)
    with child(hold_all, str(tmp_path / ".wal3" / "locks")) as (_, connection):
        await_word(connection, "held")
        threading.Timer(0.5, connection.send, ("go",)).start()
        began_s = time.monotonic()
        found = store.get("object")
        assert isinstance(found, Versioned)
        assert isinstance(store.replace("object", b"3", found.etag), Done)

    assert 0.4 < time.monotonic() - began_s < WAIT_S_MAX


def fork_and_die(connection: Connection, url: str) -> None:
    """Fork while a lock is held, as a program with other threads may, and die."""
    store = open_store(url)
    found = store.get("object")
    assert isinstance(found, Versioned)

    def rename(*_: object) -> None:
        forked = os.fork()
        if not forked:
            time.sleep(2 * WAIT_S_MAX)
            os._exit(0)
        connection.send(("forked", forked))
        os.kill(os.getpid(), signal.SIGKILL)

    os.rename = rename  # in this process alone
    store.replace("object", b"never", found.etag)


@pytest.mark.slow
def test_lock_of_a_dead_process_is_not_held_by_its_forked_child(tmp_path: Path) -> None:
    """It was once held for as long as the child lived, and the message named the dead process."""
    store = open_store(f"{tmp_path.as_uri()}?lock_wait_s=5")
    made = store.create("object", b"1")
    assert isinstance(made, Done)
    with child(fork_and_die, store.url) as (process, connection):
        forked = await_word(connection, "forked")
        assert isinstance(forked, int)
        try:
            process.join(WAIT_S_MAX)

            assert isinstance(store.replace("object", b"2", made.etag), Done)
        finally:
            os.kill(forked, signal.SIGKILL)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files and folders synced while a lock was held."""
    locks, during, flock, fsync = [0], [], fcntl.flock, os.fsync

    def count(file: int, operation: int) -> None:
        flock(file, operation)
        locks[0] += -1 if operation & fcntl.LOCK_UN else 1

    def note(handle: int) -> None:
        if locks[0]:
            during.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(fcntl, "flock", count)
    monkeypatch.setattr(os, "fsync", note)
    yield during
    assert locks == [0]


def test_nothing_is_synced_while_a_lock_is_held(local_url: str, held: list[str]) -> None:
    store = open_store(local_url)

    made = store.create("one/two/object", b"1")
    assert isinstance(made, Done)
    store.create("one/two/object", b"refused")
    store.replace("one/two/object", b"2", made.etag)
    store.replace("one/two/object", b"refused", made.etag)
    store.delete("one/two/object")
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append(b"x")

    assert held == []


def test_version_whose_writer_hangs_in_fsync_can_be_replaced_at_once(
    local_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for its disk, or was stopped there, no longer holds a lock."""
    slow, other = open_store(local_url), open_store(local_url)
    made = slow.create("object", b"1")
    assert isinstance(made, Done)
    reached, go_on, fsync = threading.Event(), threading.Event(), os.fsync

    def hang(handle: int) -> None:
        if threading.current_thread() is thread and stat.S_ISDIR(os.fstat(handle).st_mode):
            reached.set()
            assert go_on.wait(WAIT_S_MAX)
        fsync(handle)

    thread = threading.Thread(target=slow.replace, args=("object", b"2", made.etag))
    monkeypatch.setattr(os, "fsync", hang)
    thread.start()
    try:
        assert reached.wait(WAIT_S_MAX)
        found = other.get("object")
        assert isinstance(found, Versioned)
        assert found.data == b"2"
        assert isinstance(other.replace("object", b"3", found.etag), Done)
    finally:
        go_on.set()
        thread.join(WAIT_S_MAX)

    assert other.read("object") == b"3"


@pytest.mark.parametrize("option", ["lock_wait_s=-1", "lock_wait_s=nan", "lock_wait_s=", "lock_wait_s=1e9", "wait=1"])
def test_invalid_lock_wait_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(InvalidRequestError, match="lock_wait_s"):
        open_store(f"{tmp_path.as_uri()}?{option}")


def test_url_of_a_store_keeps_its_wait(tmp_path: Path) -> None:
    assert open_store(f"{tmp_path.as_uri()}?lock_wait_s=0.5").url == f"{tmp_path.as_uri()}?lock_wait_s=0.5"
    assert open_store(f"{tmp_path.as_uri()}?lock_wait_s=20").url == tmp_path.as_uri()


@pytest.mark.slow
def test_process_that_holds_a_lock_too_long_is_named(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path.as_uri()}?lock_wait_s=0.1")
    made = store.create("object", b"1")
    assert isinstance(made, Done)
    with child(hold_all, str(tmp_path / ".wal3" / "locks")) as (process, connection):
        await_word(connection, "held")

        with pytest.raises(UnavailableError, match=f"create .*expected the lock .*held by process {process.pid} "):
            store.create("other", b"1")
