"""A replayed history folds to what git lists for its newest commit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.git_history.history import ingest, replay
from tests.compacted_logs import compact
from wal3_core.errors import ConditionNotMetError, InvalidRequestError
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message, Record
from wal3_core.log.collect.collector import collect
from wal3_core.log.read.reader import LogReader
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import CollectorOptions, WriterOptions
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from wal3_core import MemoryStore

LOG = "history"
IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


class Repository:
    """A repository with files and commits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, check=True, env={**os.environ, **IDENTITY}, timeout=600
        )
        return done.stdout

    def write(self, name: str | bytes, content: bytes) -> None:
        target = self.path / os.fsdecode(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def commit(self, text: str = "change") -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", text)

    def tree(self, *pathspec: str) -> dict[bytes, bytes]:
        """Paths and blob ids of HEAD, submodules left out."""
        found = {}
        for line in self.git("ls-tree", "-r", "-z", "HEAD", *pathspec).split(b"\0")[:-1]:
            described, path = line.split(b"\t", 1)
            _, kind, blob = described.split(b" ")
            if kind == b"blob":
                found[path] = blob
        return found

    def blob_ids(self, files: dict[bytes, bytes]) -> dict[bytes, bytes]:
        return {
            path: self.git("hash-object", "--stdin", "-t", "blob", stdin=body).strip() for path, body in files.items()
        }


def fold(messages: Iterable[Message | Record]) -> dict[bytes, bytes]:
    files: dict[bytes, bytes] = {}
    for message in messages:
        assert message.key is not None
        if message.body is None:
            del files[message.key]
        else:
            files[message.key] = message.body
    return files


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A history with renames, links, deletions, odd names, type changes and a merge."""
    repository = Repository(tmp_path / "repository")
    repository.write("kept.txt", b"one\n")
    repository.write("renamed.txt", b"same bytes\n" * 20)
    repository.write("folder/deleted.txt", b"gone\n")
    repository.write("folder/changed.bin", bytes(range(256)))
    repository.write("empty", b"")
    repository.write(b"caf\xe9 \n\t\"'\\.txt", b"not UTF-8 in the name")
    repository.write(":100644 looks like an entry", b"x")
    repository.write("file-then-link", b"a file first")
    repository.write("file-then-folder", b"a file first")
    repository.write("link-then-file", b"")
    (repository.path / "link-then-file").unlink()
    (repository.path / "link-then-file").symlink_to("kept.txt")
    repository.commit("root")

    (repository.path / "renamed.txt").rename(repository.path / "new name.txt")
    (repository.path / "folder/deleted.txt").unlink()
    repository.write("folder/changed.bin", bytes(reversed(range(256))))
    (repository.path / "file-then-link").unlink()
    (repository.path / "file-then-link").symlink_to("nowhere/at all")
    (repository.path / "link-then-file").unlink()
    repository.write("link-then-file", b"a file now")
    (repository.path / "file-then-folder").unlink()
    repository.write("file-then-folder/inside", b"a folder now")
    repository.commit("types")

    repository.git("checkout", "--quiet", "-b", "side")
    repository.write("side/one", b"1")
    repository.commit("side 1")
    repository.write("side/one", b"2")
    (repository.path / "empty").unlink()
    repository.commit("side 2")
    repository.git("checkout", "--quiet", "main")
    repository.write("kept.txt", b"two\n")
    repository.commit("main meanwhile")
    repository.git("merge", "--quiet", "--no-ff", "--no-edit", "side")
    repository.commit("nothing changed")
    return repository


def test_folded_replay_is_the_tree_of_head(repository: Repository) -> None:
    files = fold(replay(repository.path))

    assert repository.blob_ids(files) == repository.tree()
    assert files[b"file-then-link"] == b"nowhere/at all"
    assert files[b"caf\xe9 \n\t\"'\\.txt"] == b"not UTF-8 in the name"
    assert b"empty" not in files


def test_merge_counts_once_with_what_it_changed_on_the_first_parent(repository: Repository) -> None:
    bodies = [message.body for message in replay(repository.path) if message.key == b"side/one"]

    assert bodies == [b"2"]


def test_ingested_log_folds_to_the_tree_of_head(store: ObjectStore, repository: Repository) -> None:
    LogWriter.create(store, LOG)
    reported: list[tuple[int, int]] = []

    with LogWriter.open(store, LOG) as writer:
        report = ingest(repository.path, writer, progress=lambda done, total: reported.append((done, total)))

    records = list(LogReader.open(store, LOG).records())
    assert repository.blob_ids(fold(records)) == repository.tree()
    assert report.num_records == len(records)
    assert report.num_bytes == sum(len(record.key or b"") + len(record.body or b"") for record in records)
    assert report.num_commits == 5
    assert report.head == repository.git("rev-parse", "HEAD").decode().strip()
    assert reported[-1] == (5, 5)
    assert reported == sorted(reported)


def test_second_ingest_appends_what_is_new_and_nothing_else(store: ObjectStore, repository: Repository) -> None:
    with LogWriter.open_or_create(store, LOG) as writer:
        first = ingest(repository.path, writer, reader=LogReader.open(store, LOG))
        again = ingest(repository.path, writer, reader=LogReader.open(store, LOG))
        repository.write("new.txt", b"new")
        repository.commit()
        last = ingest(repository.path, writer, reader=LogReader.open(store, LOG))

    assert (first.num_present, again.num_present, last.num_present) == (0, first.num_records, first.num_records)
    assert (again.num_records, last.num_records) == (0, 1)
    assert ingested(store) == list(replay(repository.path))


def ingested(store: ObjectStore) -> list[Message]:
    return [Message(record.body, record.key) for record in LogReader.open(store, LOG).records()]


@pytest.mark.slow
def test_interrupted_ingest_continues_at_every_record(memory_store: MemoryStore, repository: Repository) -> None:
    history = list(replay(repository.path))
    for number in range(len(history) + 1):
        log = f"{LOG}/{number}"
        with LogWriter.open_or_create(memory_store, log) as writer:
            for message in history[:number]:
                writer.append_many([message])
            ingest(repository.path, writer, reader=LogReader.open(memory_store, log))

        records = list(LogReader.open(memory_store, log).records())
        assert [Message(record.body, record.key) for record in records] == history


@pytest.mark.parametrize("others", [[Message(b"x", b"other")], [Message(b"other content", b"kept.txt")]])
def test_log_with_other_records_is_refused_and_left_alone(
    memory_store: MemoryStore, repository: Repository, others: list[Message]
) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_many(others)

        with pytest.raises(InvalidRequestError, match="found another record at offset 1 .*: its history was rewritten"):
            ingest(repository.path, writer, reader=LogReader.open(memory_store, LOG))

    assert ingested(memory_store) == others


@pytest.mark.slow
def test_log_with_more_records_than_the_history_is_refused(memory_store: MemoryStore, repository: Repository) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_many([*replay(repository.path), Message(b"x", b"more")])

        with pytest.raises(InvalidRequestError, match="found another record"):
            ingest(repository.path, writer, reader=LogReader.open(memory_store, LOG))


def test_second_ingest_skips_what_was_collected(memory_store: MemoryStore, repository: Repository) -> None:
    history = list(replay(repository.path))
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        for message in history[:4]:
            writer.append_many([message])
        CursorStore(memory_store, LOG).create("reader", LogPosition(4, 0))
        collect(memory_store, LOG, options=CollectorOptions(interval_s=0, fraction_max=1))
        report = ingest(repository.path, writer, reader=LogReader.open(memory_store, LOG))

    assert report.num_present == 4
    assert ingested(memory_store) == history[3:]


def test_second_ingest_skips_what_was_compacted_away(memory_store: MemoryStore, repository: Repository) -> None:
    history = list(replay(repository.path))
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        for message in history[:4]:
            writer.append_many([message])
        compact(memory_store, LOG, {1, 4}, [(0, 2), (2, 4)])
        report = ingest(repository.path, writer, reader=LogReader.open(memory_store, LOG))

    assert report.num_present == 4
    assert ingested(memory_store) == [*history[1:3], *history[4:]]


def test_records_of_another_writer_meanwhile_are_not_interleaved(
    memory_store: MemoryStore, repository: Repository
) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        reader = LogReader.open(memory_store, LOG)

        def intrude(_: int, __: int) -> None:
            if not list(LogReader.open(memory_store, LOG).records()):
                writer.append(b"intruder")

        with pytest.raises(ConditionNotMetError, match="after the first 0 records of the history"):
            ingest(repository.path, writer, reader=reader, progress=intrude)

    assert [message.body for message in ingested(memory_store)] == [b"intruder"]


def test_one_folder_replays_alone_under_whole_paths(repository: Repository) -> None:
    files = fold(replay(repository.path, folder="folder/"))

    assert list(files) == [b"folder/changed.bin"]
    assert repository.blob_ids(files) == repository.tree("folder/")


def test_submodule_is_skipped_and_reported_and_deletes_the_file_it_replaced(
    memory_store: MemoryStore, repository: Repository
) -> None:
    commit = repository.git("rev-parse", "HEAD").decode().strip()
    for path in ("kept.txt", "vendor/only-ever-a-submodule"):
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    repository.git("commit", "--quiet", "--message", "submodules")

    with LogWriter.open_or_create(memory_store, LOG) as writer:
        report = ingest(repository.path, writer)

    assert report.submodules == (b"kept.txt", b"vendor/only-ever-a-submodule")
    files = fold(LogReader.open(memory_store, LOG).records())
    assert repository.blob_ids(files) == repository.tree()
    assert b"kept.txt" not in files


def test_user_configuration_and_environment_change_nothing(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(replay(repository.path))

    for setting in ("diff.renames=copies", "log.follow=true", "log.diffMerges=off", "log.showRoot=false"):
        repository.git("config", *setting.split("="))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert list(replay(repository.path)) == expected


def test_bare_repository_replays_too(repository: Repository, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    repository.git("clone", "--quiet", "--bare", str(repository.path), str(bare))

    assert list(replay(bare)) == list(replay(repository.path))


def test_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="not a git repository"):
        replay(tmp_path)


def test_folder_inside_a_repository_is_refused(repository: Repository) -> None:
    with pytest.raises(InvalidRequestError, match="found the folder 'folder/' of one"):
        replay(repository.path / "folder")


def test_repository_without_commits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="expected a commit at HEAD, found none"):
        replay(Repository(tmp_path / "fresh").path)


@pytest.mark.slow
def test_abandoned_replay_leaves_no_process(repository: Repository) -> None:
    messages = replay(repository.path)
    next(messages)
    before = children()

    messages.close()

    assert before
    assert children() == []


def children() -> list[str]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [pid for pid in listed.read_text().split() if b"git" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
def test_missing_blob_is_named(repository: Repository) -> None:
    blob = repository.tree()[b"kept.txt"].decode()
    (repository.path / ".git/objects" / blob[:2] / blob[2:]).unlink()

    with pytest.raises(InvalidRequestError, match=r"'kept\.txt': expected its blob"):
        list(replay(repository.path))


@pytest.mark.slow
def test_file_beyond_the_record_limit_is_named(memory_store: MemoryStore, repository: Repository) -> None:
    repository.write("large.bin", b"x" * 2000)
    repository.commit()
    LogWriter.create(memory_store, LOG)

    options = WriterOptions(record_bytes_max=1000)
    with (
        LogWriter.open(memory_store, LOG, options=options) as writer,
        pytest.raises(InvalidRequestError, match=r"'large\.bin'"),
    ):
        ingest(repository.path, writer)


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.git_history", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_program_appends_a_history_once_and_names_submodules(tmp_path: Path, local_url: str) -> None:
    repository = Repository(tmp_path / "repo")
    repository.write("file", b"hello")
    repository.commit()
    head = repository.git("rev-parse", "HEAD").decode().strip()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},module")
    repository.git("commit", "--quiet", "--message", "2")

    first, second = (run_example(str(repository.path), local_url, "events") for _ in range(2))

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout.startswith("1 records, 9 bytes, of 2 commits up to ")
    assert first.stderr == "skipped the submodule 'module'\n"
    assert second.stdout.endswith("already there: 1 records\n")
    records = list(LogReader.open(open_store(local_url), "events").records())
    assert [(record.key, record.body) for record in records] == [(b"file", b"hello")]


@pytest.mark.slow
def test_program_refuses_a_folder_without_a_repository_before_it_creates_a_log(tmp_path: Path, local_url: str) -> None:
    done = run_example(str(tmp_path), local_url, "events")

    assert done.returncode == 2
    assert "not a git repository" in done.stderr
    assert list(open_store(local_url).list_objects("")) == []
