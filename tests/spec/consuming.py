"""Shared by the tests of consumers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from wal3_core import ConsumedRecord, Consumer, ConsumerOptions, CursorStore, ReaderOptions
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

DEADLINE_S = 20.0
READER = ReaderOptions(poll_s_min=0.005, poll_s_max=0.01, retry=RetryOptions(attempts_max=3, pause_s_min=0.001))
# Ends at the log's end; saves after every record.
ONCE = ConsumerOptions(idle_s=0, commit_records_max=1, reader=READER)
SELDOM = replace(ONCE, commit_records_max=10**6, commit_s_max=3600)
BY_HAND = replace(ONCE, auto_commit=False)


class FailedError(Exception):
    """What a record's processing raises."""


def cursor_of(store: ObjectStore, log: str = "a", name: str = "c") -> int | None:
    witness = CursorStore(store, log).load(name)
    return None if witness is None else witness.cursor.position.offset


def offsets(records: Iterable[ConsumedRecord]) -> list[int]:
    return [record.offset for record in records]


def consumed(store: ObjectStore, logs: str | list[str] = "a", options: ConsumerOptions = ONCE) -> list[int]:
    with Consumer(store, logs, "c", options=options) as consumer:
        return offsets(consumer)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "still consuming"
