"""A real git history, compacted while it is appended, folds to the repository's tree at every step."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.git_history.history import fold, ingest
from tests.examples.test_git_history import Repository
from tests.spec.compacting import DAY_S
from tests.world import QUICK, ClockStore
from wal3_core import LogReader, LogWriter, MemoryStore, Message, WriterOptions
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.options import KeyCompactorOptions
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

LOG = "history"
DATA = Path(__file__).parent.parent / "data"
OPTIONS = KeyCompactorOptions(retry=QUICK)


def read_history() -> list[Message]:
    """The changes of files of a repository's history: path, and blob id or deletion."""
    lines = gzip.decompress((DATA / "slatedb_history.jsonl.gz").read_bytes()).splitlines()
    rows = [json.loads(line) for line in lines]
    return [Message(row["blob"].encode() if row["blob"] else None, row["path"].encode()) for row in rows]


def read_tree() -> dict[bytes, bytes]:
    """Paths and blob ids of its newest commit."""
    found = json.loads(gzip.decompress((DATA / "slatedb_history_tree.json.gz").read_bytes()))
    return {path.encode(): blob.encode() for path, blob in found.items()}


def begin(store: ObjectStore) -> None:
    LogWriter.open_or_create(store, LOG).close()
    PolicyStore(store, LOG).change(lambda _: Policy(cleanup=Cleanup.COMPACT, delete_retention_s=DAY_S))


@pytest.mark.slow
def test_real_history_compacted_while_it_is_appended_folds_to_its_tree_at_every_step(
    memory_store: MemoryStore,
) -> None:
    store = ClockStore(memory_store)
    begin(store)
    history = read_history()
    writing = threading.Thread(target=append_in_small_batches, args=(store, history))
    writing.start()
    dropped = passes = 0
    while writing.is_alive() or not passes:
        report = KeyCompactor(store, LOG, options=OPTIONS).compact(force=True)
        passes += report.installed
        dropped += report.num_superseded
        check_prefix(store, history)
    writing.join(60)
    dropped += KeyCompactor(store, LOG, options=OPTIONS).compact(force=True).num_superseded
    check_prefix(store, history)

    store.pass_s(DAY_S + 60)
    last = KeyCompactor(store, LOG, options=OPTIONS).compact()

    left = list(LogReader.open(store, LOG).records())
    assert passes > 1
    assert fold(left) == read_tree()
    assert {record.key for record in left if record.body is not None} == read_tree().keys()
    # Each live path once, and of the deletions at most one, if it is the last record of all.
    assert len(left) - len(read_tree()) <= 1
    assert dropped + last.num_expired + len(left) == len(history)
    verified = KeyCompactor(store, LOG, options=OPTIONS).verify()
    assert verified is not None
    assert verified.holds, verified.findings


def append_in_small_batches(store: ObjectStore, history: Sequence[Message]) -> None:
    options = WriterOptions(batch_records_max=64)
    with LogWriter.open(store, LOG, options=options) as writer:
        for at in range(0, len(history), 64):
            writer.append_many(history[at : at + 64])


def check_prefix(store: ObjectStore, history: Sequence[Message]) -> None:
    """What the log holds folds to what was appended up to its end."""
    reader = LogReader.open(store, LOG)
    manifest = reader.manifest()
    limit = manifest.next.position.offset
    records = [record for record in reader.records() if record.offset < limit]
    assert fold(records) == fold(history[: limit - 1])


def test_ingested_repository_is_compacted_commit_by_commit(memory_store: MemoryStore, tmp_path: Path) -> None:
    begin(memory_store)
    repository = Repository(tmp_path / "repository")
    for number in range(6):
        repository.write("changed", b"%d" % number)
        repository.write(f"file {number}", b"")
        if number > 1:
            (repository.path / f"file {number - 2}").unlink()
        repository.commit()
        with LogWriter.open(memory_store, LOG) as writer:
            ingest(repository.path, writer, reader=LogReader.open(memory_store, LOG))

        KeyCompactor(memory_store, LOG, options=OPTIONS).compact(force=True)

        left = list(LogReader.open(memory_store, LOG).records())
        assert repository.blob_ids(fold(left)) == repository.tree()
        assert len({record.key for record in left}) == len(left)


def test_fold_of_the_data_is_the_tree() -> None:
    assert fold(read_history()) == read_tree()
