"""The broker of a delay queue is killed by SIGKILL at random moments, under load: what it has answered holds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.processes.children import await_word, child
from tests.processes.queue_broker import LOG, Service, read_account, serve
from tests.world import QUICK, SMALL
from wal3_core import KeyCompactor, KeyCompactorOptions, open_store, scrub
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.loading import read_queue_stats

# `make queue-kills` has 100.
KILLS = int(os.environ.get("WAL3_TEST_QUEUE_KILLS", "12"))
SEED = int(os.environ.get("WAL3_TEST_SEED", "1"))
COMPACTED_EVERY = 5


def live_and_die(chance: random.Random, service: Service) -> str:
    """Run a broker and kill it at a random moment of its life; return which part of it that was."""
    part = chance.choice(["starting", "open", "working", "working", "working"])
    with child(serve, service) as (process, connection):
        if part == "starting":
            time.sleep(chance.uniform(0, 0.3))
        else:
            await_word(connection, part)
            time.sleep(chance.uniform(0, 0.05 if part == "open" else 0.8))
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    return part


@pytest.mark.slow
def test_brokers_killed_at_random_moments_lose_repeat_and_reorder_nothing(local_url: str, journals: Path) -> None:
    print(f"replay: WAL3_TEST_SEED={SEED} WAL3_TEST_QUEUE_KILLS={KILLS} pytest {__file__}")
    chance, store = random.Random(SEED), open_store(local_url)
    DelayQueue.create(store, LOG)
    compactor = KeyCompactor(store, LOG, options=KeyCompactorOptions(snapshots=SMALL, retry=QUICK))
    lives = Counter[str]()

    for number in range(1, KILLS + 1):
        lives[live_and_die(chance, Service(url=local_url, journals=journals, number=number))] += 1
        if number % COMPACTED_EVERY == 0:
            compactor.compact(force=True)
    with child(serve, Service(url=local_url, journals=journals, number=KILLS + 1, drains=True)) as (_, connection):
        await_word(connection, "done")

    account = read_account(journals)
    unanswered = sum(len(batch) for batch in account.batches) - len(account.ids)
    print(
        f"killed while {dict(lives)}; {len(account.ids)} items enqueued, {unanswered} without an answer,"
        f" {len(account.leases)} leases, {len(account.released)} released"
    )
    account.check()
    assert read_queue_stats(store, LOG).last_id >= max(account.ids.values())
    assert scrub(store, LOG).sound
    # Killed in the middle of it all, and not only before or after.
    assert unanswered
    assert len(account.leases) > len({lease["id"] for lease in account.leases})
