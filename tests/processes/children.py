"""Processes of a test: quick to start, and killed when the test ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

ANSWER_S_MAX = 120

# Forked from a server that has the imports loaded and uses none of them: the object store's client starts
# threads when it is used, and they do not survive a fork. The first append of a process imports pandas, by way of
# pyarrow.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "pandas", "tests.processes.workers", "tests.processes.queue_broker"])


@contextlib.contextmanager
def child(work: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``work(connection, *arguments)`` in a process of its own, in this process's environment."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_begin, args=(dict(os.environ), work, theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join(60)
        process.close()
        ours.close()


def _begin(environment: dict[str, str], work: Callable[..., None], connection: Connection, *arguments: object) -> None:
    os.environ.update(environment)
    # The parent may ignore SIGINT, as in the background of a shell; the fork server always does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        work(connection, *arguments)
    except BaseException:  # noqa: BLE001 - any exception ends the process
        # At once, because a thread that continues would hide the failure.
        traceback.print_exc()
        os._exit(1)


def await_word(connection: Connection, word: str) -> object:
    """Receive until the process sends ``(word, value)``; return the value."""
    until_s = time.monotonic() + ANSWER_S_MAX
    while connection.poll(max(0.0, until_s - time.monotonic())):
        said, value = connection.recv()
        if said == word:
            return value
    message = f"child: expected {word!r} within {ANSWER_S_MAX} s, found silence"
    raise AssertionError(message)
