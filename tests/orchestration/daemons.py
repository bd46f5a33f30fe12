"""Dagster's daemon, as a program of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.programs import in_foreground

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def running_daemon(output: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon on the home and store that the environment names; what it says goes to a file.

    Its code server and its runs are of the same process group, whose id is the process's.
    """
    with output.open("ab") as file:
        process = subprocess.Popen(
            in_foreground([sys.executable, "-m", "dagster._daemon", "run", *arguments]),
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "WAL3_SPARK_MASTER": "local[1]", "PYTHONPATH": str(ROOT)},
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # A test may have killed some of them, or all.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def eventually(seen: Callable[[], bool], output: Path, timeout_s: float = 120) -> None:
    """Wait until something is seen; what the daemon wrote is shown if it never is."""
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, output.read_text()[-4000:]
        time.sleep(0.5)
