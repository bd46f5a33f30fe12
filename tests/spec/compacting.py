"""Shared by the tests of key compaction: a keyed log, its passes, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from tests.world import QUICK, SMALL
from wal3_core import LogReader, LogWriter, Message, WriterOptions
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.format.record import Record
from wal3_core.options import KeyCompactorOptions
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

LOG = "a"
# A fragment of each append; the smallest tree.
TINY = WriterOptions(snapshots=SMALL)
OPTIONS = KeyCompactorOptions(snapshots=SMALL, retry=QUICK)
DAY_S = 24 * 60 * 60
Change = tuple[bytes | None, bytes | None]


def keyed_log(store: ObjectStore, **terms: int) -> None:
    """Begin a log that is compacted."""
    LogWriter.open_or_create(store, LOG, options=TINY).close()
    PolicyStore(store, LOG).change(lambda _: Policy(cleanup=Cleanup.COMPACT, **terms))


def append(store: ObjectStore, *batches: Sequence[Change]) -> None:
    """Append each batch as a fragment of its own."""
    with LogWriter.open(store, LOG, options=TINY) as writer:
        for batch in batches:
            writer.append_many([Message(body, key) for key, body in batch])


def compactor(store: ObjectStore) -> KeyCompactor:
    return KeyCompactor(store, LOG, options=OPTIONS)


def records(store: ObjectStore) -> list[Record]:
    return list(LogReader.open(store, LOG).records())


def held(store: ObjectStore) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and body of every record."""
    return [(record.offset, record.key, record.body) for record in records(store)]
