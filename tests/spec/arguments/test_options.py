"""Senseless options are refused by name when they are constructed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wal3_core import (
    CollectorOptions,
    DelayQueue,
    DirtyLog,
    FeedWriter,
    Fleet,
    InvalidRequestError,
    KeyedLog,
    LogWriter,
    MemoryStore,
    ReaderOptions,
    WriterOptions,
)
from wal3_core.log.read.following import Waiting
from wal3_core.options import (
    FRAGMENT_BYTES_MAX,
    FRAGMENT_RECORDS_MAX,
    RetryOptions,
    SnapshotCompactorOptions,
    SnapshotOptions,
)
from wal3_core.runtime import shared_runtime
from wal3_core.store.retrying import attempts


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (RetryOptions, "attempts_max", 0),
        (RetryOptions, "pause_s_min", -0.1),
        (RetryOptions, "pause_s_max", float("nan")),
        (SnapshotOptions, "fragments_per_snapshot", 0),
        (SnapshotOptions, "fragments_kept", -1),
        (SnapshotOptions, "snapshots_per_roll", 0),
        (SnapshotOptions, "gc_interval_s", 0),
        (WriterOptions, "batch_bytes_max", 0),
        (WriterOptions, "batch_bytes_max", FRAGMENT_BYTES_MAX + 1),
        (WriterOptions, "fragment_bytes_max", FRAGMENT_BYTES_MAX + 1),
        (WriterOptions, "record_bytes_max", FRAGMENT_BYTES_MAX + 1),
        (WriterOptions, "batch_records_max", 0),
        (WriterOptions, "batch_records_max", FRAGMENT_RECORDS_MAX + 1),
        (WriterOptions, "batch_age_s_max", float("inf")),
        (WriterOptions, "uploads_max", 0),
        (WriterOptions, "fragments_in_flight_max", -3),
        (WriterOptions, "bytes_held_max", 0),
        (WriterOptions, "rebases_max", 0),
        (ReaderOptions, "reloads_max", 0),
        (ReaderOptions, "fragment_expanded_bytes_max", 0),
        (ReaderOptions, "prefetch_snapshots", -1),
        (ReaderOptions, "poll_s_min", -1),
        (CollectorOptions, "interval_s", -1),
        (CollectorOptions, "fraction_max", 1.5),
        (CollectorOptions, "deletes_per_s", 0),
        (CollectorOptions, "deletes_ahead", 0),
        (CollectorOptions, "rounds_max", 0),
        (CollectorOptions, "orphans_max", -1),
        (SnapshotCompactorOptions, "pointers_per_step_max", 0),
        (SnapshotCompactorOptions, "requests_ahead", 0),
    ],
)
def test_senseless_option_is_refused_by_name(kind: Callable[..., object], name: str, value: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"option {name}: expected a number from .* to .*, found {value}"):
        kind(**{name: value})


def test_options_at_their_limits_are_accepted() -> None:
    WriterOptions(batch_bytes_max=FRAGMENT_BYTES_MAX, bytes_held_max=1, contentions_max=0, batch_age_s_max=0)
    ReaderOptions(prefetch_fragments=0, prefetch_snapshots=0, snapshots_loaded_max=0)
    RetryOptions(attempts_max=1, pause_s_min=0, pause_s_max=0)
    CollectorOptions(interval_s=0, fraction_max=1, orphans_max=0)


def test_polls_grow_slower_also_after_a_first_pause_of_0() -> None:
    """With ``poll_s_min`` 0 a follower of a log at rest once sent requests without a pause, for ever."""
    waiting = Waiting(shared_runtime(), ReaderOptions(poll_s_min=0), idle_s=None)

    pauses = [waiting.pause_s() for _ in range(14)]

    assert pauses[:4] == [0, 0.001, 0.002, 0.004]
    assert pauses[-1] == ReaderOptions().poll_s_max


def test_pauses_between_tries_grow_also_after_a_first_one_of_0() -> None:
    tries = list(attempts(RetryOptions(timeout_s=0.1, pause_s_min=0), shared_runtime()))

    # A hundred thousand before.
    assert len(tries) < 20


@pytest.mark.parametrize(
    "make",
    [
        lambda store, options: LogWriter.open_or_create(store, "a", options=options),
        lambda store, options: FeedWriter.open_or_create(store, "a", options=options),
        lambda store, options: KeyedLog.open_or_create(store, "a", options=options),
        lambda store, options: DelayQueue.open_or_create(store, "a", options=options),
        lambda store, options: DirtyLog.open_or_create(store, "a", options=options),
        lambda store, options: Fleet.open(store, server="a", options=options),
    ],
    ids=["writer", "feed", "keyed", "queue", "dirty log", "fleet"],
)
def test_options_of_another_kind_leave_nothing_in_the_store(
    memory_store: MemoryStore, make: Callable[[MemoryStore, object], object]
) -> None:
    """Regression: a log was made first, and then its options failed."""
    with pytest.raises((InvalidRequestError, TypeError)):
        make(memory_store, CollectorOptions())

    assert list(memory_store.list_objects("")) == []
