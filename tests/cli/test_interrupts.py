"""Ctrl-C ends every command in one line with exit code 130, and without a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.programs import Program

from .conftest import PROGRAM, Process

REPORT = b"Interrupted.\n"
DEADLINE_S = 60


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that accepts connections and never answers: its address, and when the first request has come."""
    asked = threading.Event()
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                connection.recv(1)
                asked.set()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


def started(*arguments: str, **environment: str) -> Program:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    return Program(
        [PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **keys, **environment},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("ls",), ("cat", "a"), ("append", "--create", "a"), ("scrub", "--all"), ("cursor", "set", "a", "c", "first")],
    ids=" ".join,
)
def test_silent_store_does_not_hold_up_an_interrupt(arguments: tuple[str, ...]) -> None:
    """A request takes up to 20 s, in which Python runs no signal handler."""
    with silent_server() as (address, asked):
        url = f"s3://b?endpoint=http://{address}&request_timeout_s=600"
        with started("--store", url, *arguments) as process:
            assert asked.wait(DEADLINE_S)
            process.send_signal(signal.SIGINT)
            out, complaint = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, out, complaint) == (130, b"", REPORT)


@pytest.mark.slow
def test_interrupt_while_the_program_is_loaded(tmp_path: Path) -> None:
    """A module that the commands import reports that it is being imported, and takes its time."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with started("ls", PYTHONPATH=path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaint) == (130, REPORT)


@pytest.mark.slow
def test_interrupt_after_the_command_is_one_line_too() -> None:
    """The interpreter joins threads and runs what was registered for its end."""
    code = (
        "import atexit, sys, time\n"
        "atexit.register(lambda: (print('ending', flush=True), time.sleep(60)))\n"
        "sys.argv = ['wal3', '--version']\n"
        "from wal3_core.cli import main\n"
        "main()\n"
    )
    with Program(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        assert b"wal3" in process.stdout.readline()
        assert process.stdout.readline() == b"ending\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaint) == (130, REPORT)


@pytest.mark.slow
def test_interrupt_at_several_moments_of_a_command_is_one_line(local_url: str) -> None:
    process = Process(local_url)
    process("append", "--create", "--raw", "a", stdin=b"a line of some length\n" * 300_000)
    for delay_s in (0.0, 0.02, 0.05, 0.1, 0.3):
        with started("--store", local_url, "cat", "a") as running:
            assert running.stdout is not None
            running.stdout.read(1)
            time.sleep(delay_s)
            running.send_signal(signal.SIGINT)
            _, complaint = running.communicate(timeout=DEADLINE_S)

        assert (running.returncode, complaint) in ((130, REPORT), (0, b""))


@pytest.mark.slow
def test_silent_store_completes_nothing_and_prints_nothing() -> None:
    with silent_server() as (address, asked):
        url = f"s3://b?endpoint=http://{address}&request_timeout_s=600"
        line = {"_WAL3_COMPLETE": "bash_complete", "COMP_WORDS": "wal3 cat o", "COMP_CWORD": "2", "WAL3_STORE": url}
        with started(**line) as process:
            assert asked.wait(DEADLINE_S)
            out, complaint = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, out.strip(), complaint) == (0, b"", b"")
