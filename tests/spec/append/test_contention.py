"""Concurrent writers: threads, and processes on stores that processes share."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.programs import Program
from wal3_core import ContentionError, LogReader, LogWriter, open_store, scrub
from wal3_core.store.object_store import ObjectStore

APPENDER = textwrap.dedent(
    """
    import json, sys
    from wal3_core import ContentionError, LogWriter, NotDurableError, UnknownDurabilityError, WriterOptions, open_store
    url, name, count, contentions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    outcomes = {"acked": {}, "refused": [], "unknown": []}
    with LogWriter.open(open_store(url), "a", options=WriterOptions(contentions_max=contentions)) as writer:
        print("ready", flush=True)
        sys.stdin.readline()
        for index in range(count):
            body = f"{name}/{index}"
            try:
                outcomes["acked"][body] = writer.append(body.encode()).offset
            except NotDurableError:
                outcomes["refused"].append(body)
            except UnknownDurabilityError:
                outcomes["unknown"].append(body)
    print(json.dumps(outcomes))
    """
)

Outcomes = dict[str, dict[str, int] | list[str]]


def contend(url: str, *, writers: int, count: int, contentions: int) -> list[Outcomes]:
    """Let several processes append to one log at once; return the outcomes of each."""
    processes = [
        Program(
            [sys.executable, "-c", APPENDER, url, f"writer{number}", str(count), str(contentions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(writers)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0
        outputs.append(json.loads(output))
    return outputs


def check(store: ObjectStore, outcomes: list[Outcomes]) -> dict[str, int]:
    """Every acknowledged record is there once at its offset, no refused one is, and unknown ones at most once."""
    found: dict[str, int] = {}
    for record in LogReader.open(store, "a").records():
        body = (record.body or b"").decode()
        assert body not in found, f"{body} exists twice"
        found[body] = record.offset
    for each in outcomes:
        acked, refused = each["acked"], each["refused"]
        assert isinstance(acked, dict)
        assert {body: found.get(body) for body in acked} == acked
        assert not [body for body in refused if body in found]
    accounted = {body for each in outcomes for body in [*each["acked"], *each["unknown"]]}
    assert set(found) <= accounted
    assert scrub(store, "a").sound
    return found


@pytest.mark.slow
def test_two_processes_on_one_log_each_append_every_record_once(store_url: str) -> None:
    store = open_store(store_url)
    LogWriter.create(store, "a")

    outcomes = contend(store_url, writers=2, count=40, contentions=1000)

    found = check(store, outcomes)
    assert len(found) == 80
    assert all(not each["refused"] and not each["unknown"] for each in outcomes)


@pytest.mark.slow
def test_two_processes_without_contentions_get_true_outcomes(store_url: str) -> None:
    store = open_store(store_url)
    LogWriter.create(store, "a")

    outcomes = contend(store_url, writers=2, count=60, contentions=0)

    found = check(store, outcomes)
    refused = sum(len(each["refused"]) for each in outcomes)
    assert refused > 0
    assert len(found) + refused == 120


@pytest.mark.slow
def test_many_writers_in_one_process_append_every_record_once(store: ObjectStore) -> None:
    LogWriter.create(store, "a")

    def append(number: int) -> list[int]:
        offsets = []
        with LogWriter.open(store, "a") as writer:
            for index in range(10):
                while True:
                    try:
                        offsets.append(writer.append(b"%d/%d" % (number, index)).offset)
                    except ContentionError:
                        continue
                    break
        return offsets

    with ThreadPoolExecutor(4) as pool:
        acked = list(pool.map(append, range(4)))

    found = [record.body for record in LogReader.open(store, "a").records()]
    assert len(found) == len(set(found)) == 40
    for number, offsets in enumerate(acked):
        assert [found[offset - 1] for offset in offsets] == [b"%d/%d" % (number, index) for index in range(10)]
