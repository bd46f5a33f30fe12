"""Appends to a keyed log on the condition of a key's last record."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from tests.spec.compacting import append, compactor, keyed_log
from tests.stores import FaultyStore
from tests.views.keyed_queries import LOG, OPTIONS, TREE, restored_under
from tests.world import QUICK, Later
from wal3_core import (
    ClosedError,
    ContentionError,
    InvalidRequestError,
    KeyedLog,
    KeyedOptions,
    LogPosition,
    LogWriter,
    MemoryStore,
    OverloadedError,
    ReaderOptions,
    TailMismatchError,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
)
from wal3_core.runtime import ThreadRuntime

WAIT_S = 30
# Larger than what is read whole, also when it is compressed.
LARGE = random.Random(7).randbytes(70_000)


def test_conditional_append_lands_only_behind_the_expected_record(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        log.append(b"other", b"x")
        first = log.append(b"k", b"1", expect_tail=0)
        log.append(b"other", b"y")

        with pytest.raises(TailMismatchError, match="expected no record, found it at 2") as refused:
            log.append(b"k", b"2", expect_tail=0)
        assert refused.value.tail == first.offset == log.tail(b"k")
        second = log.append(b"k", b"2", expect_tail=first.offset, await_durable=False).result(WAIT_S)
        with pytest.raises(TailMismatchError) as stale:
            log.append(b"k", b"3", expect_tail=first.offset)
        assert stale.value.tail == second.offset
        with pytest.raises(TailMismatchError, match="expected its last record at offset 9, found none"):
            log.append(b"k\0", b"3", expect_tail=9)
        assert [record.body for record in log.scan(b"k")] == [b"1", b"2"]


def test_batch_is_appended_only_if_every_expected_tail_holds(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        log.append_batch([(b"a", b"1"), (b"b", b"1")])

        with pytest.raises(TailMismatchError):
            log.append_batch([(b"c", b"1")], expect_tails={b"a": 1, b"b": 1})
        assert log.append_batch([(b"c", b"1"), (b"a", b"2")], expect_tails={b"a": 1, b"b": 2}).offset == 3
        assert log.count(b"c") == 1


def test_conditional_append_is_repeated_while_only_other_keys_got_records(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    with (
        KeyedLog.open_or_create(store, LOG) as log,
        LogWriter.open(memory_store, LOG) as other,
    ):
        log.append(b"k", b"1")
        later = Later(store, 2, lambda: other.append(b"x", key=b"other"))

        assert log.append(b"k", b"2", expect_tail=1).offset == 3

        assert later.happened


@pytest.mark.parametrize("request_number", range(1, 6))
def test_record_of_the_key_that_comes_between_refuses_the_append(
    memory_store: MemoryStore, request_number: int
) -> None:
    """Whichever request the other writer is faster than."""
    store = FaultyStore(memory_store)
    with KeyedLog.open_or_create(store, LOG) as log, LogWriter.open(memory_store, LOG) as other:
        log.append(b"k", b"1")
        Later(store, request_number, lambda: other.append(b"theirs", key=b"k"))

        future = log.append(b"k", b"ours", expect_tail=1, await_durable=False)
        error = future.exception(WAIT_S)

        bodies = [record.body for record in log.scan(b"k")]
        if error is None:
            # The other came behind it, if it has come.
            assert bodies in ([b"1", b"ours"], [b"1", b"ours", b"theirs"])
        else:
            assert isinstance(error, TailMismatchError)
            assert (error.tail, bodies) == (2, [b"1", b"theirs"])


def hanging(store: MemoryStore, *, at: Callable[[str, str], bool]) -> tuple[FaultyStore, threading.Event]:
    """A store that answers some requests only when it is let."""
    go_on = threading.Event()

    def hold(kind: str, path: str) -> None:
        if at(kind, path):
            assert go_on.wait(WAIT_S)

    return FaultyStore(store, before=hold), go_on


@pytest.mark.parametrize("expect_tail", [None, 0])
def test_append_not_awaited_ends_when_the_store_is_silent_at_its_first_request(
    memory_store: MemoryStore, expect_tail: int | None
) -> None:
    KeyedLog.open_or_create(memory_store, LOG).close()
    is_silent, asked = threading.Event(), []

    def asks(_kind: str, path: str) -> bool:
        if is_silent.is_set():
            asked.append(path)
        return is_silent.is_set()

    store, go_on = hanging(memory_store, at=asks)
    with KeyedLog.open(store, LOG) as log:
        is_silent.set()
        for _ in range(3):
            with pytest.raises(UnavailableError, match="nothing was appended"):
                log.append(b"k", b"never", expect_tail=expect_tail, await_durable=False, timeout_s=0.05)
        # Its writer is opened once, however many have asked for it.
        assert len(asked) == 1
        go_on.set()

        future = log.append_batch([(b"k", b"1")], await_durable=False, timeout_s=WAIT_S)
        assert future.result(WAIT_S).offset == 1
        assert [record.body for record in log.scan(b"k")] == [b"1"]


def test_conditional_append_whose_caller_waits_no_longer_is_not_appended_later(memory_store: MemoryStore) -> None:
    is_silent = threading.Event()
    store, go_on = hanging(memory_store, at=lambda _kind, _path: is_silent.is_set())
    with KeyedLog.open_or_create(store, LOG) as log:
        log.append(b"k", b"1")
        is_silent.set()
        with pytest.raises(UnavailableError, match="nothing was appended"):
            log.append(b"k", b"never", expect_tail=1, await_durable=False, timeout_s=0.05)
        go_on.set()

        assert log.append(b"k", b"2", expect_tail=1).offset == 2
    assert KeyedLog.open(memory_store, LOG).count(b"k") == 2


def test_append_that_is_not_awaited_ends_when_there_is_no_room(memory_store: MemoryStore) -> None:
    store, go_on = hanging(memory_store, at=lambda kind, path: kind == "create" and "FragmentSeqNo" in path)
    options = KeyedOptions(writer=WriterOptions(bytes_held_max=1000), append_timeout_s=0.05)
    with KeyedLog.open_or_create(store, LOG, options=options) as log:
        first = log.append(b"k", bytes(900), await_durable=False, timeout_s=WAIT_S)
        for more in ({}, {b"other": 0}):
            with pytest.raises(OverloadedError):
                # It is raised at once, or where the try is waited for that came too late.
                log.append_batch([(b"k", bytes(900))], expect_tails=more, await_durable=False).result(WAIT_S)
        go_on.set()

        assert first.result(WAIT_S).offset == 1
        with pytest.raises(InvalidRequestError, match="expected none for an append that is awaited"):
            log.append(b"k", b"2", timeout_s=1)  # type: ignore[call-overload]  # of a wrong kind
    assert KeyedLog.open(memory_store, LOG).count(b"k") == 1


def test_conditional_append_gives_up_after_its_tries(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    with (
        KeyedLog.open_or_create(store, LOG, options=KeyedOptions(tries_max=3)) as log,
        LogWriter.open(memory_store, LOG) as other,
    ):
        log.append(b"k", b"1")
        fragments = []

        def crowd(kind: str, path: str) -> None:
            if kind == "create" and "FragmentSeqNo" in path:
                fragments.append(path)
                other.append(b"x", key=b"other")

        store.before = crowd
        with pytest.raises(ContentionError, match="other keys"):
            log.append(b"k", b"2", expect_tail=1)
        assert len(fragments) == 3
        assert log.count(b"k") == 1


def test_unanswered_conditional_append_says_so_and_is_not_repeated(
    memory_store: MemoryStore,
) -> None:
    store = FaultyStore(memory_store)
    brief = KeyedOptions(writer=WriterOptions(delivery_timeout_s=0.05, retry=QUICK))
    with KeyedLog.open_or_create(store, LOG, options=brief) as log:
        log.append(b"k", b"1")
        store.fail("replace", "MANIFEST", "unknown", times=10**6)

        with pytest.raises(UnknownDurabilityError):
            log.append(b"k", b"2", expect_tail=1)

        store.heal()
    assert [record.body for record in KeyedLog.open(memory_store, LOG).scan(b"k")] == [b"1"]


def begun_together(log: KeyedLog) -> list[Future[LogPosition]]:
    """Begin conditional appends that all expect the same end of the log, so that all but one need another try."""
    return [log.append(b"%d" % number, b"x", expect_tail=0, await_durable=False) for number in range(8)]


def test_closing_waits_for_conditional_appends_that_need_another_try(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        log.append(b"k", b"1")
        begun = begun_together(log)

    assert all(future.done() for future in begun)
    assert sorted(future.result().offset for future in begun) == list(range(2, 10))


def test_closing_does_not_wait_for_a_conditional_append_that_was_not_begun(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    brief = KeyedOptions(reader=ReaderOptions(retry=QUICK))
    log = KeyedLog.open_or_create(store, LOG, options=brief)
    log.append(b"k", b"1")
    store.fail("get", "MANIFEST", "unavailable", times=10**6)
    with pytest.raises(UnavailableError) as caught:
        log.append(b"k", b"2", expect_tail=1)
    store.heal()

    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(WAIT_S)

    assert not closing.is_alive()
    assert caught.value.__traceback__ is not None


def test_forked_process_closes_nothing_and_does_not_wait_for_the_parent_s_appends(memory_store: MemoryStore) -> None:
    """Regression: a child that left the log's block waited for ever, as none of the parent's threads is there."""
    store, forked = FaultyStore(memory_store), threading.Event()
    log = KeyedLog.open_or_create(store, LOG)
    log.append(b"k", b"1")

    def until_forked(kind: str, path: str) -> None:
        if kind == "create" and "/log/" in path:
            forked.wait(WAIT_S)

    store.before = until_forked
    under_way = log.append(b"k", b"2", expect_tail=1, await_durable=False)
    pid = os.fork()
    if not pid:
        signal.alarm(WAIT_S)
        code = 1
        try:
            for call in (log.close, lambda: log.append(b"k", b"of the child")):
                with pytest.raises(ClosedError):
                    call()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    forked.set()
    assert under_way.result(WAIT_S).offset == 2
    log.close()


def test_callback_of_a_conditional_append_may_wait_for_other_conditional_appends(memory_store: MemoryStore) -> None:
    log = KeyedLog.open_or_create(memory_store, LOG)
    log.append(b"k", b"1")
    begun = begun_together(log)
    offsets: list[list[int]] = []
    called = threading.Semaphore(0)

    def wait_for_all(_: object) -> None:
        offsets.append([future.result(WAIT_S).offset for future in begun])
        called.release()

    for future in begun:
        future.add_done_callback(wait_for_all)

    assert all(called.acquire(timeout=WAIT_S) for _ in begun)
    assert [sorted(each) for each in offsets] == [list(range(2, 10))] * 8


def test_callbacks_of_plain_appends_may_all_wait_for_conditional_ones() -> None:
    """Regression: with every worker of the log's callbacks busy with them, none was left to pass an outcome on."""
    runtime = ThreadRuntime(workers_max=4)
    log = KeyedLog.open_or_create(MemoryStore(runtime), LOG, runtime=runtime)
    offsets: SimpleQueue[int] = SimpleQueue()
    all_begun = threading.Event()

    def append_and_wait(key: bytes) -> None:
        all_begun.wait(WAIT_S)
        offsets.put(log.append(key, b"2", expect_tail=0).offset)

    for number in range(8):
        future = log.append(b"plain", b"1", await_durable=False)
        future.add_done_callback(lambda _, key=b"%d" % number: append_and_wait(key))  # type: ignore[misc]  # of a default
        future.result(WAIT_S)
    all_begun.set()
    assert sorted(offsets.get(timeout=WAIT_S) for _ in range(8)) == list(range(9, 17))
    log.close()


def test_one_of_many_rivals_wins_each_place_behind_a_key_s_last_record(memory_store: MemoryStore) -> None:
    rounds = 6
    KeyedLog.open_or_create(memory_store, LOG).close()

    def rival(number: int) -> list[int]:
        won = []
        with KeyedLog.open(memory_store, LOG) as log:
            while (tail := log.tail(b"k")) < 10**9 and log.count(b"k") < rounds:
                log.append(b"noise %d" % number, b"x")
                try:
                    won.append(log.append(b"k", b"%d behind %d" % (number, tail), expect_tail=tail).offset)
                except (TailMismatchError, ContentionError):
                    continue
        return won

    with ThreadPoolExecutor(3) as pool:
        won = sorted(offset for offsets in pool.map(rival, range(3), timeout=WAIT_S) for offset in offsets)

    log = KeyedLog.open(memory_store, LOG)
    records = list(log.scan(b"k"))
    assert [record.offset for record in records] == won
    tails = [0, *won]
    assert [record.body.split()[-1] for record in records if record.body] == [b"%d" % tail for tail in tails[:-1]]


def test_conditional_append_to_a_log_restored_meanwhile_compares_what_it_holds(
    memory_store: MemoryStore,
) -> None:
    log = KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS)
    with LogWriter.open(memory_store, LOG) as writer:
        writer.append(b"1", key=b"k")

    def gone() -> None:
        with LogWriter.open(memory_store, LOG) as writer:
            for _ in range(3):
                writer.append(b"x", key=b"other")
        assert log.tail(b"k") == 1

    restored_under(memory_store, gone)
    with LogWriter.open(memory_store, LOG) as writer:
        writer.append(b"2", key=b"k")

    with pytest.raises(TailMismatchError):
        log.append(b"k", b"3", expect_tail=1)


@pytest.mark.parametrize("num_later", [2, 3, 4, 12])
def test_tail_a_restored_log_never_had_is_not_believed_beyond_its_generation(
    memory_store: MemoryStore, num_later: int
) -> None:
    log = KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS)
    with LogWriter.open(memory_store, LOG, options=TREE) as writer:
        for number in range(8):
            writer.append(b"1", key=b"k" if number == 3 else b"other")

    def gone() -> None:
        with LogWriter.open(memory_store, LOG) as writer:
            writer.append(b"2", key=b"k")
            writer.append(b"3", key=b"new")
        assert (log.tail(b"k"), log.tail(b"new"), log.tail(b"other")) == (9, 10, 8)

    restored_under(memory_store, gone)
    # No look comes before the log is as long, and its manifest as new, as those that are gone.
    with LogWriter.open(memory_store, LOG, options=TREE) as writer:
        for _ in range(num_later):
            writer.append(b"2", key=b"other")

    with pytest.raises(TailMismatchError) as refused:
        log.append(b"k", b"3", expect_tail=9)
    assert refused.value.tail == 4
    assert (log.tail(b"k"), log.tail(b"new"), log.tail(b"other")) == (4, 0, 8 + num_later)
    assert log.append(b"k", b"3", expect_tail=4).offset == 9 + num_later


def test_tail_after_a_pass_that_was_restored_away_is_not_believed_after_another_pass(memory_store: MemoryStore) -> None:
    keyed_log(memory_store, delete_retention_s=0)
    append(memory_store, [(b"other", b"1")], [(b"k", None)], [(b"other", b"2")])
    log = KeyedLog.open(memory_store, LOG, options=OPTIONS)
    assert compactor(memory_store).compact(force=True).installed

    def gone() -> None:
        assert compactor(memory_store).compact(force=True).num_expired == 1
        assert log.tail(b"k") == 0

    restored_under(memory_store, gone)
    # As many passes, and the same records: but this one stays below the tombstone.
    assert compactor(memory_store).compact(limit_offset=2, force=True).installed

    assert log.tail(b"k") == 2
