"""A server that is away for a few seconds: nothing fails, nothing is missing, nothing is out of order."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.workers import LOG
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, open_store

if TYPE_CHECKING:
    from tests.processes.fault_proxy import FaultProxy

PROGRAM = Path(sys.executable).parent / "wal3"
OUTAGE_S = 3.0
ANSWER_S_MAX = 60


@pytest.mark.slow
def test_slow_stream_misses_no_line_and_keeps_order_after_refused_connections(
    proxied_url: str, proxy: FaultProxy
) -> None:
    """Regression: the log held lines 26 and 28, and line 28 came before line 27 when that was appended again."""
    process = subprocess.Popen(
        [PROGRAM, "--store", proxied_url, "append", "--raw", "--create", LOG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert process.stdin is not None
    lines = [b"line %d" % number for number in range(1, 51)]

    def feed(some: list[bytes]) -> None:
        for line in some:
            time.sleep(0.1)
            process.stdin.write(line + b"\n")
            process.stdin.flush()

    feed(lines[:15])
    with proxy.refusing():
        feed(lines[15:45])
    feed(lines[45:])
    output, complaint = process.communicate(timeout=ANSWER_S_MAX)

    assert process.returncode == 0, complaint
    # All that it says is that the store does not answer, if that took long enough.
    assert all(line.startswith(b"waiting for s3://") for line in complaint.splitlines()), complaint
    assert output == f"50 records appended (offsets 1 to 50) to {LOG}\n".encode()
    assert [record.body for record in LogReader.open(open_store(proxied_url), LOG).records()] == lines


@pytest.mark.slow
def test_appends_reads_and_cursors_survive_refused_connections(proxied_url: str, proxy: FaultProxy) -> None:
    store = open_store(proxied_url)
    with LogWriter.open_or_create(store, LOG) as writer, ThreadPoolExecutor(4) as pool:
        writer.append(b"before")
        reader, cursors = LogReader.open(store, LOG), CursorStore(store, LOG)
        witness = cursors.create("c", LogPosition(1, 0))
        with proxy.refusing():
            appended = pool.submit(writer.append, b"during")
            opened = pool.submit(LogWriter.open, store, LOG)
            read = pool.submit(lambda: list(reader.records()))
            loaded = pool.submit(cursors.load, "c")
            time.sleep(OUTAGE_S)
            waiting = writer.stats()

        assert appended.result(ANSWER_S_MAX).offset == 2
        assert loaded.result(ANSWER_S_MAX) == witness
        assert read.result(ANSWER_S_MAX)[0].body == b"before"
        opened.result(ANSWER_S_MAX).close()

    assert (waiting.appends_waiting, waiting.appends_failed) == (1, 0)
    assert waiting.oldest_age_s >= OUTAGE_S - 0.5
    assert waiting.requests_retried > 0
