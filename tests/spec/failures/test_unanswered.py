"""A change was applied, its answer was lost, and another process built on it before the outcome was determined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

from tests.stores import FaultyStore, OvertakenStore
from wal3_core import (
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PolicyStore,
    Record,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
    bootstrap,
    copy,
    create_successor,
    seal,
)
from wal3_core.format.paths import MANIFEST, POLICY
from wal3_core.format.policy import Policy
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

RECORDS = [Record(offset, 0, None, b"%d" % offset) for offset in (1, 2, 3)]


def copied(store: ObjectStore, to: ObjectStore) -> None:
    copy(LogAt(store, "a"), LogAt(to, "b"))


def followed(store: ObjectStore, to: ObjectStore) -> None:
    seal(store, "a", reason="full", successor="b")
    create_successor(to, "a")


BEGINNINGS: dict[str, Callable[[ObjectStore, ObjectStore], object]] = {
    "create": lambda _, to: LogWriter.create(to, "b"),
    "bootstrap": lambda _, to: bootstrap(to, "b", RECORDS),
    "copy": copied,
    "successor": followed,
}


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_log_that_another_appends_to_before_its_creation_was_answered_is_created(
    memory_store: MemoryStore, begin: str
) -> None:
    """Regression: the creator got an error that another log has taken the name, permanently."""

    def append() -> LogPosition:
        with LogWriter.open(memory_store, "b") as writer:
            return writer.append(b"waited for it")

    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"1")

    BEGINNINGS[begin](memory_store, OvertakenStore(memory_store, path=f"b/{MANIFEST}", overtake=append))

    assert [record.body for record in LogReader.open(memory_store, "b").records()][-1] == b"waited for it"


def test_policy_change_is_not_applied_twice(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    other = PolicyStore(memory_store, "a")
    other.change(lambda policy: replace(policy, retention_s=3600))
    path = next(meta.path for meta in memory_store.list_objects("a/") if meta.path.endswith(POLICY))
    store = OvertakenStore(
        memory_store, path=path, overtake=lambda: other.change(lambda policy: replace(policy, percent_max=50))
    )

    def an_hour_more(policy: Policy) -> Policy:
        return replace(policy, retention_s=(policy.retention_s or 0) + 3600)

    with pytest.raises(UnavailableError, match="policy.json: not known to be changed: the reply was dropped"):
        PolicyStore(store, "a").change(an_hour_more)

    assert (other.load().retention_s, other.load().percent_max) == (7200, 50)


@pytest.mark.parametrize("reads", ["denied", "unavailable"])
def test_commit_refused_after_it_was_applied_is_not_called_lost_unread(
    memory_store: MemoryStore, reads: Literal["denied", "unavailable"]
) -> None:
    LogWriter.create(memory_store, "a")
    faulty = FaultyStore(memory_store)

    def send_twice(kind: str, path: str) -> None:
        """Apply the commit, as a proxy does that loses the first answer, sends it again and passes the refusal on."""
        if kind == "replace" and path.endswith(MANIFEST):
            faulty.before = lambda _kind, _path: None
            faulty.fail("replace", MANIFEST, "applied-refused")
            faulty.fail("get", MANIFEST, reads, times=1000)

    quick = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
    with LogWriter.open(faulty, "a", options=WriterOptions(retry=quick)) as writer:
        faulty.before = send_twice
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"x")

    assert [record.body for record in LogReader.open(memory_store, "a").records()] == [b"x"]
