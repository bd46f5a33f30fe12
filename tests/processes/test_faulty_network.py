"""A network and a server that fail, over real sockets: no record is lost, doubled or invented."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes.children import await_word, child
from tests.processes.fault_proxy import READ_FAULTS, WRITE_FAULTS, Fault, FaultProxy
from tests.processes.journal import Journal, check_promises, read_journals, summary
from tests.processes.workers import LOG, SMALL, Follower, Job, write
from wal3_core import (
    CursorConflictError,
    CursorStore,
    LogPosition,
    LogReader,
    LogWriter,
    Record,
    StoreDeniedError,
    UnavailableError,
    open_store,
)
from wal3_core.store.object_store import ObjectStore

SEED = int(os.environ.get("WAL3_TEST_SEED", "1"))
SEEDS = int(os.environ.get("WAL3_TEST_SEEDS", "2"))


def fill(store: ObjectStore, count: int) -> list[Record]:
    with LogWriter.open_or_create(store, LOG, options=SMALL) as writer:
        for index in range(count):
            writer.append(b"%d " % index * 100)
    return list(LogReader.open(store, LOG).records())


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=lambda fault: fault.name)
def test_append_is_in_the_log_once_whatever_happens_to_its_put(
    proxied_url: str, proxy: FaultProxy, journals: Path, fault: Fault, target: str
) -> None:
    """The writer recovers from all but a denial; a denial is reported at once, and the record is not in the log."""
    store, journal = open_store(proxied_url), Journal(journals / "only")
    with LogWriter.open_or_create(store, LOG, options=SMALL) as writer:
        assert journal.append("before", 1, writer.append_many) == "acked"
        proxy.fail(fault, "PUT", target)

        during = journal.append("during", 2, writer.append_many)

        assert proxy.fired == {fault: 1}
        assert during == ("refused" if fault is Fault.DENY else "acked")
        proxy.heal()
        assert journal.append("after", 1, writer.append_many) == "acked"
    check_promises(store, LOG, read_journals(journals))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
@pytest.mark.parametrize("fault", READ_FAULTS, ids=lambda fault: fault.name)
def test_read_recovers_from_one_failed_request_and_is_complete(
    proxied_url: str, proxy: FaultProxy, fault: Fault, target: str
) -> None:
    store = open_store(proxied_url)
    written = fill(store, 10)
    proxy.fail(fault, "GET", target)

    try:
        read = list(LogReader.open(store, LOG).records())
    except StoreDeniedError:
        assert fault is Fault.DENY
    else:
        assert read == written
        assert fault is not Fault.DENY
    assert proxy.fired == {fault: 1}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
@pytest.mark.parametrize("fault", sorted(set(READ_FAULTS) - {Fault.DELAY}), ids=lambda fault: fault.name)
def test_read_that_is_never_answered_is_an_error_and_never_a_short_list(
    proxied_url: str, proxy: FaultProxy, fault: Fault, target: str
) -> None:
    store = open_store(f"{proxied_url}&timeout_s=0")
    written = fill(store, 10)
    read: list[Record] = []
    # An unchanged manifest is answered without a body, so its first GET has to fail.
    proxy.fail(fault, "GET", target, spared=1 if target == "/log/" else 0, times=float("inf"))

    with pytest.raises(UnavailableError) as caught:
        for record in LogReader.open(store, LOG).records():
            read.append(record)  # noqa: PERF402 - the records before the error count

    assert isinstance(caught.value, StoreDeniedError) == (fault is Fault.DENY)
    assert read == written[: len(read)]
    assert proxy.fired[fault] < 50
    proxy.heal()
    assert list(LogReader.open(store, LOG).records()) == written


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_hanging_request_is_abandoned_after_a_while_and_nothing_is_lost(
    proxied_url: str, proxy: FaultProxy, journals: Path, method: str, target: str
) -> None:
    store, journal = open_store(f"{proxied_url}&request_timeout_s=1"), Journal(journals / "only")
    fill(store, 0)
    proxy.fail(Fault.HANG, method, target)

    with LogWriter.open(store, LOG, options=SMALL) as writer:
        assert journal.append("during", 1, writer.append_many) == "acked"
    records = check_promises(store, LOG, read_journals(journals))

    assert len(records) == 1
    assert proxy.fired == {Fault.HANG: 1}


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=lambda fault: fault.name)
def test_cursor_is_where_its_mover_was_promised_whatever_happens_to_the_put(
    proxied_url: str, proxy: FaultProxy, fault: Fault
) -> None:
    store = open_store(proxied_url)
    records, cursors = fill(store, 4), CursorStore(store, LOG)
    offset, generation = 0, 0
    for record in records:
        position = LogPosition(record.offset, record.timestamp_us)
        witness = cursors.load("mine")
        proxy.fail(fault, "PUT", "cursor/")
        try:
            witness = cursors.save("mine", position, witness) if witness else cursors.create("mine", position)
        except StoreDeniedError:
            assert fault is Fault.DENY
            proxy.heal()
            witness = cursors.save("mine", position, witness) if witness else cursors.create("mine", position)
        offset, generation = record.offset, generation + 1

        assert cursors.load("mine") == witness
        assert (witness.cursor.position.offset, witness.cursor.generation) == (offset, generation)

    proxy.heal()
    assert proxy.fired == {fault: 4}
    with pytest.raises(CursorConflictError):
        cursors.create("mine", position)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_two_processes_and_a_reader_survive_a_mix_of_faults(
    proxied_url: str, proxy: FaultProxy, journals: Path, seed: int
) -> None:
    print(f"replay: WAL3_TEST_SEED={seed} WAL3_TEST_SEEDS=1 pytest {__file__} -k mix_of_faults")
    store = open_store(proxied_url)
    fill(store, 0)

    with Follower(store) as follower, ExitStack() as stack:
        jobs = [
            Job(url=proxied_url, journals=journals, number=number, callers=2, appends=30, waits=True)
            for number in (1, 2)
        ]
        connections = [stack.enter_context(child(write, job))[1] for job in jobs]
        for connection in connections:
            await_word(connection, "open")
        proxy.mix(seed, 0.1)
        for connection in connections:
            connection.send("go")
        for connection in connections:
            await_word(connection, "done")
        proxy.heal()
        with child(write, Job(url=proxied_url, journals=journals, number=3, appends=5)) as (_, connection):
            await_word(connection, "done")
        read = follower.records()

    attempts = read_journals(journals)
    print(f"appends: {summary(attempts)}; faults: { {fault.name: n for fault, n in proxy.fired.items()} }")
    print(f"requests: {dict(proxy.requests)}; the reader was not answered {follower.unanswered} times")
    assert check_promises(store, LOG, attempts) == read
    assert set(proxy.fired) == {*WRITE_FAULTS, *READ_FAULTS}
    assert {each.outcome for each in attempts.values() if each.name.startswith("3/")} == {"acked"}
    assert summary(attempts)["acked"] > 60
