"""Processes that append to one log at once, some of them stopped for a while: each gets true outcomes."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.children import ANSWER_S_MAX, await_word, child
from tests.processes.journal import check_promises, read_journals, summary
from tests.processes.workers import LOG, SMALL, Follower, Job, write
from wal3_core import LogWriter, open_store

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

SEED = int(os.environ.get("WAL3_TEST_SEED", "1"))
APPENDS = int(os.environ.get("WAL3_TEST_APPENDS", "64"))


def start(stack: ExitStack, jobs: list[Job]) -> list[tuple[BaseProcess, Connection]]:
    """Start writers, have all of them open the log, and release them at once."""
    running = [stack.enter_context(child(write, job)) for job in jobs]
    for _, connection in running:
        await_word(connection, "open")
    for _, connection in running:
        connection.send("go")
    return running


def first_to_speak(running: list[tuple[BaseProcess, Connection]]) -> tuple[BaseProcess, Connection]:
    """Wait for the first process that sends something."""
    ready = wait([connection for _, connection in running], ANSWER_S_MAX)
    assert ready, f"expected one of {len(running)} processes to speak within {ANSWER_S_MAX} s, found silence"
    return next((process, connection) for process, connection in running if connection in ready)


@pytest.mark.slow
@pytest.mark.repeat_on("local")
@pytest.mark.parametrize(
    ("writers", "contentions"), [(2, 1000), pytest.param(8, 1000, marks=pytest.mark.repeat), (8, 1)]
)
def test_processes_that_append_at_once_all_finish_with_true_outcomes(
    store_url: str, journals: Path, writers: int, contentions: int
) -> None:
    store = open_store(store_url)
    LogWriter.create(store, LOG)
    options = replace(SMALL, batch_records_max=64, contentions_max=contentions)
    jobs = [
        Job(
            url=store_url,
            journals=journals,
            number=number,
            callers=2,
            appends=APPENDS // writers,
            waits=True,
            options=options,
        )
        for number in range(writers)
    ]

    with Follower(store) as follower, ExitStack() as stack:
        running = start(stack, jobs)
        began_s = time.monotonic()
        for _, connection in running:
            await_word(connection, "done")
        took_s = time.monotonic() - began_s
        read = follower.records()

    attempts = read_journals(journals)
    counts = summary(attempts)
    print(
        f"{writers} writers, contentions_max {contentions}: {counts}, "
        f"{counts['acked'] / took_s:,.0f} acknowledged appends/s"
    )
    assert check_promises(store, LOG, attempts) == read
    assert len(attempts) == writers * 2 * (APPENDS // writers)
    assert set(counts) <= {"acked", "refused"}
    assert ("refused" in counts) == (contentions == 1)


@pytest.mark.slow
@pytest.mark.repeat_on("local")
def test_writer_stopped_in_mid_append_gets_true_outcomes_when_it_continues(store_url: str, journals: Path) -> None:
    """Like a long pause of a virtual machine: others take the log over meanwhile, and its requests are late."""
    print(f"replay: WAL3_TEST_SEED={SEED} pytest {__file__} -k stopped_in_mid_append")
    chance = random.Random(SEED)
    store = open_store(store_url)
    LogWriter.create(store, LOG)
    jobs = [Job(url=store_url, journals=journals, number=number, callers=2, waits=True) for number in range(2)]

    with Follower(store) as follower, ExitStack() as stack:
        running = start(stack, jobs)
        for _ in range(30):
            process, _ = chance.choice(running)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 0.2))
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(chance.uniform(0, 0.05))
        # The slower writer may get no turn while the other continues, so the quicker one is killed first.
        while running:
            process, connection = first_to_speak(running)
            await_word(connection, "acked")
            process.kill()
            process.join(60)
            running.remove((process, connection))
        read = follower.records()

    attempts = read_journals(journals)
    print(f"appends: {summary(attempts)}")
    assert check_promises(store, LOG, attempts) == read
    assert set(summary(attempts)) <= {"acked", "pending"}
