"""What a program that configures logging reads of the library, and that a healthy log is silent."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.stores import FaultyStore
from tests.world import NOW
from wal3_core import (
    CorruptError,
    CursorStore,
    HaltedError,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    UnknownDurabilityError,
    WriterOptions,
    collect,
    destroy,
    seal,
)
from wal3_core.log.write import stats
from wal3_core.options import RetryOptions
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.runtime.loggers import Seldom, without_secrets
from wal3_core.store.instrumented import InstrumentedStore

ROOT = Path(__file__).parents[3]
QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
WAIT_S_MAX = 60


def lines(caplog: pytest.LogCaptureFixture, least: int) -> list[tuple[str, int, str]]:
    """The lines logged at ``least`` or above."""
    return [line for line in caplog.record_tuples if line[0].startswith("wal3") and line[1] >= least]


@pytest.fixture
def faulty(memory_store: MemoryStore) -> FaultyStore:
    """A log behind a store that fails chosen requests."""
    LogWriter.create(memory_store, "a")
    return FaultyStore(memory_store)


def test_healthy_log_that_is_written_read_and_moved_along_logs_nothing_at_info(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = InstrumentedStore(memory_store, shared_runtime())
    with caplog.at_level(logging.INFO, "wal3"), LogWriter.open_or_create(store, "a") as writer:
        for number in range(200):
            writer.submit(b"%d" % number)
        position = writer.append(b"last")
        assert len(list(LogReader.open(store, "a").records())) == 201
        CursorStore(store, "a").create("reader", position)

    assert lines(caplog, logging.INFO) == []


def test_collection_prune_and_delete_are_one_line_each_with_their_counts(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(batch_records_max=1)) as writer:
        for _ in range(3):
            position = writer.append(b"x")
    CursorStore(memory_store, "a").create("reader", position)

    with caplog.at_level(logging.INFO, "wal3"):
        collect(memory_store, "a", options=NOW)

    (_, _, pruned), (_, _, deleted) = lines(caplog, logging.INFO)
    assert {line[0] for line in caplog.record_tuples} == {"wal3.collect"}
    assert "pruned 2 records" in pruned
    assert "begins at offset 3" in pruned
    assert "deleted 2 objects of gc/GARBAGE" in deleted


def test_seal_and_destruction_are_one_line_each(memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    LogWriter.create(memory_store, "a")

    with caplog.at_level(logging.INFO, "wal3"):
        seal(memory_store, "a", reason="moved")
        destroy(memory_store, "a")

    assert [line[0] for line in lines(caplog, logging.INFO)] == ["wal3.maintain"] * 2
    assert "sealed: moved" in caplog.messages[0]
    assert "destroyed" in caplog.messages[1]


def test_writers_that_overtake_each_other_warn_once_and_debug_the_rest(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They never learn that they share the log, so each loses its place again and again.
    monkeypatch.setattr("wal3_core.log.write.pacing._QUIET", 0)
    LogWriter.create(memory_store, "a")
    with (
        caplog.at_level(logging.DEBUG, "wal3.writer"),
        LogWriter.open(memory_store, "a") as one,
        LogWriter.open(memory_store, "a") as other,
    ):
        for _ in range(5):
            one.append(b"one")
            other.append(b"other")
        lost = one.stats().contentions, other.stats().contentions

    taken_over = [line for line in lines(caplog, logging.DEBUG) if "another writer took over at fragment" in line[2]]
    assert len(taken_over) == sum(lost)
    assert sum(line[1] == logging.WARNING for line in taken_over) == sum(count > 0 for count in lost)
    assert all(number > 1 for number in lost)


def test_unknown_outcome_and_the_halt_it_causes_are_errors_that_name_the_log(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.fail("replace", "MANIFEST", "unknown", times=1000)
    with LogWriter.open(faulty, "a", options=WriterOptions(retry=QUICK), ordered=True) as writer:
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"x")
        with pytest.raises(HaltedError):
            writer.append(b"y")
        writer.flush()

    (first, _, halted), (second, _, unknown) = lines(caplog, logging.ERROR)
    assert (first, second) == ("wal3.writer", "wal3.writer")
    assert "1 appends have an unknown outcome: log memory:" in unknown
    assert "the ordered writer halts until resume() is called" in halted


def test_appends_that_fail_are_a_warning(faulty: FaultyStore, caplog: pytest.LogCaptureFixture) -> None:
    faulty.fail("create", "/log/", "denied", times=2)
    with LogWriter.open(faulty, "a", options=WriterOptions(retry=QUICK)) as writer:
        for _ in range(2):
            with pytest.raises(NotDurableError):
                writer.append(b"x")

    [(name, _, text)] = lines(caplog, logging.WARNING)
    assert name == "wal3.writer"
    assert "1 appends failed: log memory:" in text


def test_slow_commit_is_a_warning(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "SLOW_COMMIT_S", 0.0)
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"x")

    [(name, level, text)] = lines(caplog, logging.WARNING)
    assert (name, level) == ("wal3.writer", logging.WARNING)
    assert "a commit of 1 fragments took " in text


def test_damage_is_an_error_that_names_the_log_and_the_object(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"x")
    [path] = [meta.path for meta in memory_store.list_objects("") if "/log/" in meta.path]
    data = memory_store.read(path)
    assert data is not None
    memory_store.delete(path)
    memory_store.create(path, data[:-20] + bytes(20))

    with pytest.raises(CorruptError):
        list(LogReader.open(memory_store, "a").records())

    [(name, _, text)] = lines(caplog, logging.ERROR)
    life, _, fragment = path.partition("/log/")
    assert name == "wal3.store"
    assert text.startswith(f"{memory_store.url}/{life}: damaged: ")
    assert fragment in text


def test_lost_object_is_an_error_that_names_the_log_and_the_object(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"x")
    [path] = [meta.path for meta in memory_store.list_objects("") if "/log/" in meta.path]
    memory_store.delete(path)

    with pytest.raises(CorruptError):
        list(LogReader.open(memory_store, "a").records())

    [(name, _, text)] = lines(caplog, logging.ERROR)
    assert name == "wal3.reader"
    assert path.removeprefix("a/") in text


@pytest.mark.slow
def test_store_that_is_silent_for_two_seconds_is_reported_once_while_it_is(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    gate, reported = threading.Event(), threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _: reported.set()
    logging.getLogger("wal3.store.waiting").addHandler(handler)
    faulty.before = lambda _kind, _path: gate.wait(WAIT_S_MAX) and None
    store = InstrumentedStore(faulty, shared_runtime())

    with caplog.at_level(logging.INFO, "wal3"):
        asking = [threading.Thread(target=store.head, args=(path,)) for path in ("a/one", "a/two")]
        for thread in asking:
            thread.start()
        assert reported.wait(WAIT_S_MAX)
        gate.set()
        for thread in asking:
            thread.join(WAIT_S_MAX)
        logging.getLogger("wal3.store.waiting").removeHandler(handler)

    (name, level, waiting), (_, info, again) = lines(caplog, logging.INFO)
    assert (name, level, info) == ("wal3.store.waiting", logging.WARNING, logging.INFO)
    assert waiting.startswith(f"waiting for {store.url}: HEAD a/one: no answer for 2.")
    assert "answers again after 2." in again


@pytest.mark.slow
def test_writes_that_keep_failing_are_reported_though_reads_are_answered(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.fail("create", "/log/", "unknown", times=1000)
    store = InstrumentedStore(faulty, shared_runtime())
    options = WriterOptions(retry=RetryOptions(timeout_s=3.0, pause_s_max=0.1), delivery_timeout_s=3.0)

    with caplog.at_level(logging.DEBUG, "wal3.store"), LogWriter.open(store, "a", options=options) as writer:
        with pytest.raises(NotDurableError):
            writer.append(b"x")
        retried = writer.stats().requests_retried

    [(_, _, text)] = [line for line in lines(caplog, logging.WARNING) if line[0] == "wal3.store.waiting"]
    assert f"waiting for {store.url}: PUT a/" in text
    assert text.endswith(", last error: the request was dropped")
    tries = [line for line in lines(caplog, logging.DEBUG) if line[1] == logging.DEBUG and "not answered" in line[2]]
    assert len(tries) == faulty.fired["unknown"] >= retried > 0


def test_failures_with_long_pauses_between_them_are_not_one_silence(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Clock(ThreadRuntime):
        now_s = 0.0

        def monotonic_s(self) -> float:
            return self.now_s

    runtime = Clock()
    store = InstrumentedStore(faulty, runtime)
    for now_s in (0.0, 100.0, 103.0, 105.0):
        faulty.fail("create", "a/x", "unknown")
        runtime.now_s = now_s
        store.create("a/x", b"")

    [(_, _, text)] = lines(caplog, logging.WARNING)
    assert ": no answer for 3.0 s, try 2, last error: " in text


def test_program_without_logging_prints_nothing() -> None:
    program = textwrap.dedent(
        """
        from wal3_core.runtime.loggers import STORE, WRITER
        WRITER.warning("another writer")
        STORE.error("damaged")
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S_MAX, cwd=ROOT, check=True
    )

    assert (run.stdout, run.stderr) == ("", "")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("store s3://b?endpoint=http://me:pw@host:1/x: gone", "store s3://b?endpoint=http://***@host:1/x: gone"),
        ("s3://b?endpoint=https%3A%2F%2Fme%3Apw%40host", "s3://b?endpoint=https%3A%2F%2F***%40host"),
        ("GET https://h/c?sv=1&sig=abc%3D&se=2 failed", "GET https://h/c?sv=1&sig=***&se=2 failed"),
        ("https://h/o?X-Amz-Signature=ab&X-Amz-Date=1", "https://h/o?X-Amz-Signature=***&X-Amz-Date=1"),
        ("log s3://bucket/prefix/orders: fragment 7", "log s3://bucket/prefix/orders: fragment 7"),
        ("mail me: a@b.example, file:///tmp/a:b@c", "mail me: a@b.example, file:///tmp/a:b@c"),
    ],
)
def test_passwords_and_signatures_are_left_out(
    text: str, clean: str, faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    Seldom(shared_runtime(), logging.getLogger("wal3.writer")).warn("%s", text)

    assert faulty.url
    assert without_secrets(text) == clean
    assert caplog.messages == [clean]


def test_handler_that_raises_leaves_appends_their_outcomes(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.getMessage())

    handler, printed = Broken(), threading.Event()
    monkeypatch.setattr(sys, "excepthook", lambda *_: printed.set())
    monkeypatch.setattr(stats, "SLOW_COMMIT_S", -1.0)
    store = InstrumentedStore(faulty, shared_runtime())
    logging.getLogger("wal3").addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG, "wal3"), LogWriter.open(store, "a") as writer:
            faulty.fail("create", "/log/", "unknown", times=1)
            position = writer.submit(b"x").result(WAIT_S_MAX)
    finally:
        logging.getLogger("wal3").removeHandler(handler)

    assert position.offset == 1
    assert [record.body for record in LogReader.open(faulty, "a").records()] == [b"x"]
    assert printed.is_set()
