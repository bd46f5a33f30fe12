"""Writers killed by SIGKILL: no acknowledged record is lost, and the next writer continues."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.children import await_word, child
from tests.processes.journal import Journal, check_promises, read_journals, summary
from tests.processes.workers import LOG, SMALL, Follower, Job, write, write_to
from tests.stores import FaultyStore
from wal3_core import LogReader, LogWriter, open_store
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import PutOutcome

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess


KILLS = int(os.environ.get("WAL3_TEST_KILLS", "100"))
SEED = int(os.environ.get("WAL3_TEST_SEED", "1"))
MOMENTS_MAX = 200
STOPS_MAX = 2000
TWO_DAYS_S = 2 * 24 * 60 * 60
ROLLING = replace(
    SMALL,
    snapshots=SnapshotOptions(
        fragments_per_snapshot=2, fragments_kept=1, snapshots_per_roll=2, snapshot_pointers_max=4
    ),
)


def live_and_die(chance: random.Random, job: Job) -> str:
    """Run a writer and kill it at a random moment of its life; return which part of it that was."""
    part = chance.choice(["starting", "open", "acking", "acking", "acking"])
    with child(write, job) as (process, connection):
        if part == "starting":
            time.sleep(chance.uniform(0, 0.15))
        elif part == "open":
            await_word(connection, "open")
            time.sleep(chance.uniform(0, 0.02))
        else:
            await_word(connection, "acked")
            time.sleep(0.2 * chance.random() ** 2)
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    return part


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_writers_killed_at_random_moments_lose_no_acknowledged_record(store_url: str, journals: Path) -> None:
    print(f"replay: WAL3_TEST_SEED={SEED} WAL3_TEST_KILLS={KILLS} pytest {__file__} -k random_moments")
    chance = random.Random(f"{SEED} {store_url.split(':', 1)[0]}")
    store = open_store(store_url)
    LogWriter.create(store, LOG)

    with Follower(store) as follower:
        lives = Counter(
            live_and_die(chance, Job(url=store_url, journals=journals, number=number)) for number in range(KILLS // 2)
        )
        with child(write, Job(url=store_url, journals=journals, number=KILLS, appends=10)) as (_, connection):
            await_word(connection, "done")
        read = follower.records()

    attempts = read_journals(journals)
    print(f"killed while {dict(lives)}; appends: {summary(attempts)}")
    assert check_promises(store, LOG, attempts) == read
    assert LogReader.open(store, LOG).manifest().snapshots
    # Killed while appending, and not only before or after.
    assert summary(attempts)["pending"] > KILLS // 10
    assert summary(attempts)["acked"] > KILLS // 4


class DyingStore(FaultyStore):
    """Kills its process just before or just after one of its PUTs; the moments are counted from 1."""

    moments_left = 0

    def _pass_moment(self) -> None:
        self.moments_left -= 1
        if self.moments_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _put(self, kind: str, path: str, apply: Callable[[], PutOutcome]) -> PutOutcome:
        self._pass_moment()
        outcome = super()._put(kind, path, apply)
        self._pass_moment()
        return outcome


def write_and_die(connection: Connection, job: Job, moment: int) -> None:
    store = DyingStore(open_store(job.url))
    store.moments_left = moment
    write_to(store, connection, job)


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_kill_just_before_and_just_after_every_put_loses_no_acknowledged_record(store_url: str, tmp_path: Path) -> None:
    """From the first PUT of a new log on, through its fragments, commits and snapshots."""
    store = open_store(store_url)
    met: set[tuple[str, bool]] = set()
    exit_code = None
    # An odd stride meets moments before and moments after a PUT; the crash tables have each.
    for moment in range(1, MOMENTS_MAX, 3):
        log, journals = f"log-{moment}", tmp_path / f"{moment}"
        journals.mkdir()
        job = Job(url=store_url, log=log, journals=journals, number=0, callers=1, appends=7, options=ROLLING)
        with child(write_and_die, job, moment) as (dying, _):
            dying.join(60)
            exit_code = dying.exitcode
        assert exit_code in {0, -signal.SIGKILL}
        journal = Journal(journals / "successor")
        with LogWriter.open_or_create(store, log, options=ROLLING) as writer:
            outcomes = [journal.append(f"successor/{index}", 1, writer.append_many) for index in range(3)]

        assert outcomes == ["acked"] * 3
        attempts = read_journals(journals)
        bodies = {record.body for record in check_promises(store, log, attempts)}
        met |= {(attempt.outcome, attempt.bodies[0] in bodies) for attempt in attempts.values()}
        if exit_code == 0:
            break

    assert exit_code == 0, f"writer: expected fewer than {MOMENTS_MAX} moments"
    assert LogReader.open(store, log).manifest().snapshots
    # Killed before the commit, killed after it but before the acknowledgement, and acknowledged.
    assert met == {("pending", False), ("pending", True), ("acked", True)}


def held_locks(root: Path) -> list[str]:
    """Name the locks of a local store that a process holds alone right now: a shared one holds up no writer."""
    held = []
    for path in sorted((root / ".wal3" / "locks").glob("*")):
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.name)
    return held


@contextlib.contextmanager
def stopped_with_a_lock(root: Path, process: BaseProcess) -> Iterator[None]:
    """Stop a process at a moment when it holds a lock."""
    pid = process.pid
    assert pid is not None
    for _ in range(STOPS_MAX):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.002)
        if held_locks(root):
            # A system call under way still completes.
            time.sleep(0.02)
        if held_locks(root):
            yield
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)
    pytest.fail(f"writer: expected to hold a lock at one of {STOPS_MAX} moments")


@pytest.mark.slow
def test_writer_killed_while_it_holds_a_lock_blocks_no_other_writer(local_url: str, journals: Path) -> None:
    root = Path(local_url.removeprefix("file://"))
    LogWriter.create(open_store(local_url), LOG)
    with (
        child(write, Job(url=local_url, journals=journals, number=0)) as (killed, held_up),
        child(write, Job(url=local_url, journals=journals, number=1, appends=5, waits=True)) as (_, connection),
    ):
        await_word(held_up, "acked")
        await_word(connection, "open")
        with stopped_with_a_lock(root, killed):
            connection.send("go")
            assert not connection.poll(0.2), "expected the other writer to wait for the lock"
            killed.kill()
            killed.join(60)

            await_word(connection, "done")

    attempts = read_journals(journals)
    assert summary({name: each for name, each in attempts.items() if name.startswith("1/")}) == {"acked": 20}
    check_promises(open_store(local_url), LOG, attempts)


@pytest.mark.slow
def test_remains_of_killed_writers_are_deleted_a_day_later_and_disturb_no_writer(
    local_url: str, journals: Path
) -> None:
    chance = random.Random(SEED)
    staging = Path(local_url.removeprefix("file://")) / ".wal3" / "staging"
    LogWriter.create(open_store(local_url), LOG)
    number = 0
    while not list(staging.iterdir()):
        number += 1
        assert number < KILLS
        live_and_die(chance, Job(url=local_url, journals=journals, number=number))
    left_behind = list(staging.iterdir())

    store = open_store(local_url)
    check_promises(store, LOG, read_journals(journals))
    assert not [meta for meta in store.list_objects("") if ".wal3" in meta.path]
    for path in left_behind:
        os.utime(path, (time.time() - TWO_DAYS_S,) * 2)
    with child(write, Job(url=local_url, journals=journals, number=0, appends=1)) as (_, connection):
        await_word(connection, "done")

    assert not [path for path in left_behind if path.exists()]
    check_promises(open_store(local_url), LOG, read_journals(journals))
