"""A consumer's process is killed between processing and saving: no record is skipped."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from tests.programs import Program
from wal3_core import CursorStore, LogWriter, open_store

ROOT = Path(__file__).parent.parent.parent
NUM_RECORDS = 3000
KILLS = 5
DEADLINE_S = 60.0
# Processing a record is one write to a file, which outlives the process.
CONSUMER = """
import os, sys
from wal3_core import Consumer, ConsumerOptions, open_store
journal = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
options = ConsumerOptions(idle_s=0, commit_records_max=3)
with Consumer(open_store(sys.argv[1]), "a", "c", options=options) as consumer:
    for record in consumer:
        os.write(journal, b"%08d" % record.offset)
"""


def started(url: str, journal: Path) -> Program:
    command = [sys.executable, "-c", CONSUMER, url, str(journal)]
    return Program(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, deadline_s=DEADLINE_S)


def processed(journal: Path) -> list[int]:
    written = journal.read_bytes()
    return [int(written[at : at + 8]) for at in range(0, len(written), 8)]


@pytest.mark.slow
def test_killed_consumer_skips_no_record(local_url: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("WAL3_TEST_SEED", random.randrange(2**32)))
    print(f"replay: WAL3_TEST_SEED={seed}")
    chance = random.Random(seed)
    store, journal = open_store(local_url), tmp_path / "journal"
    journal.touch()
    with LogWriter.open_or_create(store, "a") as writer:
        for _ in range(NUM_RECORDS // 100):
            writer.append_many([b"x"] * 100)

    for _ in range(KILLS):
        size = journal.stat().st_size + 8 * chance.randrange(1, NUM_RECORDS // KILLS)
        consumer, deadline_s = started(local_url, journal), time.monotonic() + DEADLINE_S
        while journal.stat().st_size < size and consumer.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.0005)
        consumer.kill()
        consumer.wait(timeout=DEADLINE_S)
        witness = CursorStore(store, "a").load("c")
        assert witness is not None
        assert set(range(1, witness.cursor.position.offset)) <= set(processed(journal))
    assert started(local_url, journal).wait(timeout=DEADLINE_S) == 0

    found = processed(journal)
    assert sorted(set(found)) == list(range(1, NUM_RECORDS + 1))
    # At most what lies between two saves comes again after each kill.
    assert len(found) <= NUM_RECORDS + 3 * KILLS
