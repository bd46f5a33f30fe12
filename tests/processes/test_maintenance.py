"""Maintenance in one process while another appends: no append fails, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.children import await_word, child
from tests.processes.journal import check_promises, read_journals, summary
from tests.processes.maintainer import CHANGES, Upkeep, maintain
from tests.processes.workers import LOG, Follower, Job, write
from wal3_core import LogReader, LogWriter, WriterOptions, open_store


@pytest.mark.slow
def test_no_append_fails_while_another_process_changes_the_manifest(store_url: str, journals: Path) -> None:
    store = open_store(store_url)
    LogWriter.create(store, LOG)
    upkeep = Upkeep(url=store_url, log=LOG, pause_s=0.002, fence_pause_s=0.2)
    # The default limits: nothing is made easier for the writer.
    job = Job(url=store_url, journals=journals, number=0, appends=80, options=WriterOptions())

    with child(maintain, upkeep) as (_, maintaining), Follower(store) as follower:
        await_word(maintaining, "begun")
        with child(write, job) as (_, writing):
            await_word(writing, "done")
        maintaining.send("enough")
        installed = await_word(maintaining, "installed")
        read = follower.records()

    attempts = read_journals(journals)
    print(f"changes: {installed}; appends: {summary(attempts)}")
    assert summary(attempts) == {"acked": 320}
    assert check_promises(store, LOG, attempts) == read
    assert isinstance(installed, dict)
    assert set(installed) == set(CHANGES)
    manifest = LogReader.open(store, LOG).manifest()
    assert manifest.fence == installed["fence"]
    assert manifest.snapshots
    # By one writer, in one term unless the fence moved.
    assert manifest.last_epoch <= 1 + installed["fence"]
