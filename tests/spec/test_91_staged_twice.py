"""What is staged and installed twice, with other names or other parts: nothing of the log is deleted or left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.spec.logs import bodies
from wal3_core import FeedSubscription, LogWriter, NotDurableError, UnknownDurabilityError
from wal3_core.log.write.staged_install import Once, install_staged
from wal3_core.log.write.staging import MESSAGE_SCHEMA, Stager
from wal3_core.storage.documents.cursor_store import CursorStore

if TYPE_CHECKING:
    from wal3_core.storage.backends.memory import MemoryStore

ONCE = Once("writer-nightly", "batch 7")


@pytest.fixture
def log(memory_store: MemoryStore) -> MemoryStore:
    LogWriter.initialize(memory_store, "a")
    return memory_store


def table(*rows: bytes) -> pa.Table:
    return pa.table([[None] * len(rows), rows], schema=MESSAGE_SCHEMA)


def test_append_that_was_installed_without_a_name_is_not_made_again_under_one(log: MemoryStore) -> None:
    staged = Stager(log, "a").stage(table(b"1", b"2"))
    install_staged(log, "a", staged)

    with pytest.raises(UnknownDurabilityError, match="installed before without its name"):
        install_staged(log, "a", staged, once=ONCE)

    assert bodies(log) == [b"1", b"2"]


def test_repeated_append_deletes_nothing_that_was_installed_without_its_name(log: MemoryStore) -> None:
    install_staged(log, "a", Stager(log, "a").stage(table(b"1")), once=ONCE)
    staged = Stager(log, "a").stage(table(b"1"))
    install_staged(log, "a", staged)

    assert install_staged(log, "a", staged, once=ONCE).repeated
    assert bodies(log) == [b"1", b"1"]


@pytest.mark.parametrize("others", [[], [b"other"]])
def test_append_of_which_a_part_was_installed_by_itself_is_refused(log: MemoryStore, others: list[bytes]) -> None:
    stager = Stager(log, "a")
    first, second = stager.stage(table(b"1")), stager.stage(table(b"2"))
    install_staged(log, "a", first)
    with LogWriter.open(log, "a") as writer:
        for body in others:
            writer.append(body)

    with pytest.raises(UnknownDurabilityError, match="found 1 of them"):
        install_staged(log, "a", first + second)
    install_staged(log, "a", second)

    assert bodies(log) == [b"1", *others, b"2"]


def test_writer_does_not_take_the_cursor_of_a_subscription(log: MemoryStore) -> None:
    FeedSubscription.open(log, "a", ONCE.cursor).close()
    before = CursorStore(log, "a").list()

    with pytest.raises(NotDurableError, match="found that of a subscription to a feed"):
        install_staged(log, "a", Stager(log, "a").stage(table(b"1")), once=ONCE)

    assert CursorStore(log, "a").list() == before
    assert bodies(log) == []
