"""A git repository's history as records: each first-parent commit's changed files, oldest first.

Key = the file's path from the top of the repository, body = its bytes; a deletion is a tombstone. The last
record of every key, tombstones dropped, is then what ``git ls-tree -r`` lists for the commit, except
submodules, which have no bytes here. There is no rename detection: a rename is a deletion and
an addition. A symbolic link's body is its target, as git stores it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from wal3_core import AppendError, InvalidRequestError, Limits, LogPosition, LogReader, LogWriter, Message, Record

_READ_BYTES = 2**20
# This many requests of 65 bytes fit into a pipe of 64 KiB: writing them never waits for a reader.
_BLOBS_AHEAD = 256
_BATCH_RECORDS_MAX = 1000
_BATCH_BYTES_MAX = 4 * 2**20
_BATCHES_AHEAD = 16
_SUBMODULE = b"160000"
_SHA1_HEX_DIGITS = 40
_ABSENT = b"000000"
# A commit's first entry follows a newline; its id starts with neither.
_ENTRY_STARTS = (b":", b"\n:")

# Set by git for its hooks; they would point git at another repository than the one named.
_FOREIGN_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)
# The options make the history independent of the user's configuration.
_LOG = (
    *("-c", "log.follow=false", "log", "--first-parent", "--reverse", "--root", "--diff-merges=first-parent"),
    *("--raw", "-z", "--no-abbrev", "--no-renames", "--no-relative", "--ignore-submodules=none", "-O/dev/null"),
    *("--no-color", "--no-show-signature", "--format=%H"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What was appended: ``num_bytes`` of keys and bodies; ``head`` is the newest commit.

    ``num_present`` counts the records of the history that the log had been given before.
    ``submodules`` are the paths that were skipped at some point of the history because a submodule stood there.
    """

    head: str
    num_commits: int
    num_records: int
    num_bytes: int
    num_present: int
    submodules: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """One file's change in a commit, commits counted from 1; ``blob`` is None when the file is gone."""

    commit: int
    path: bytes
    blob: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """The commits to replay, up to ``head``, and the submodules that were skipped."""

    repo: Path
    head: str
    pathspec: tuple[str, ...]
    submodules: set[bytes] = field(default_factory=set)


def fold(changes: Iterable[Message | Record]) -> dict[bytes, bytes]:
    """Return the files that a history leads to; of a compacted one, too, where a deletion may be all that is left."""
    files: dict[bytes, bytes] = {}
    for change in changes:
        assert change.key is not None
        if change.body is None:
            files.pop(change.key, None)
        else:
            files[change.key] = change.body
    return files


def replay(repo: Path, *, folder: str = "") -> Iterator[Message]:
    """Stream the history of the checked-out branch as messages, or that of one folder; keys are whole paths.

    Files are read as they are needed, one at a time; submodules are left out. InvalidRequestError,
    at once, when ``repo`` is no repository, or one without commits.
    """
    history = _history(repo, folder)
    return (message for _, message in _replayed(history, _changes(history)))


def ingest(
    repo: Path,
    writer: LogWriter,
    *,
    folder: str = "",
    reader: LogReader | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IngestReport:
    """Append the history to a log, and wait until it is durable.

    With a ``reader`` of the same log, its record at offset N is compared with the Nth of the history, and only those
    that follow its last one are appended, each at its own offset: ingesting twice, or again after an interruption,
    doubles nothing and leaves nothing out. InvalidRequestError when the log holds anything else, for instance because
    the history was rewritten; ConditionNotMetError when something else is appended meanwhile.

    ``progress`` is called with the commits done and their total. Raises what ``replay`` and
    ``LogWriter.append`` raise; an AppendError says how many records came before it.
    """
    history = _history(repo, folder)
    num_commits = int(_ask(repo, "rev-list", "--count", "--first-parent", history.head, *history.pathspec))
    changes = _changes(history)
    next_offset = None if reader is None else _skip_present(history, changes, reader)
    appender = _Appender(writer, next_offset)
    for change, message in _replayed(history, changes):
        appender.add(message)
        if progress is not None:
            progress(change.commit, num_commits)
    appender.finish()
    if progress is not None:
        progress(num_commits, num_commits)
    return IngestReport(
        head=history.head,
        num_commits=num_commits,
        num_records=appender.num_records,
        num_bytes=appender.num_bytes,
        num_present=0 if next_offset is None else next_offset - 1,
        submodules=tuple(sorted(history.submodules)),
    )


def _skip_present(history: _History, changes: Iterator[_Change], reader: LogReader) -> int:
    """Advance past the changes whose records the log holds, comparing them; return the log's next offset."""
    next_offset = reader.manifest().next.position.offset
    number = 0
    for record in reader.records(None, Limits(offset=next_offset)):
        change = None
        # Records that were collected, or compacted away, are skipped.
        skipped = islice(changes, record.offset - number)
        for number, change in enumerate(skipped, start=number + 1):  # noqa: B007, B020 - the last turn's are used below
            pass
        if change is None or number != record.offset or not _is_record_of(change, record):
            raise _differs(history, record)
    left = next_offset - 1 - number
    if sum(1 for _ in islice(changes, left)) < left:
        message = f"repository {history.repo}: expected {next_offset - 1} changes, as the log has records, found fewer"
        raise InvalidRequestError(message)
    return next_offset


def _is_record_of(change: _Change, record: Record) -> bool:
    if record.key != change.path or (record.body is None) != (change.blob is None):
        return False
    if record.body is None or change.blob is None:
        return True
    kind = hashlib.sha1 if len(change.blob) == _SHA1_HEX_DIGITS else hashlib.sha256
    found = kind(b"blob %d\0" % len(record.body), usedforsecurity=False)
    found.update(record.body)
    return found.hexdigest().encode() == change.blob


def _differs(history: _History, record: Record) -> InvalidRequestError:
    key = "no key" if record.key is None else repr(os.fsdecode(record.key))
    return InvalidRequestError(
        f"repository {history.repo}: expected the log to hold the beginning of its history, found another record at"
        f" offset {record.offset} ({key}): its history was rewritten, or the log is of something else: ingest it into a"
        f" new log"
    )


class _Appender:
    """Appends messages in batches, several in flight at a time; from ``next_offset`` on and nowhere else, if given."""

    def __init__(self, writer: LogWriter, next_offset: int | None) -> None:
        self.num_records = 0
        self._next_offset = next_offset
        self.num_bytes = 0
        self._writer = writer
        self._batch: list[Message] = []
        self._batch_bytes = 0
        self._sent: deque[tuple[int, int, Future[LogPosition]]] = deque()

    def add(self, message: Message) -> None:
        """Take a message; blocks while too many are in flight."""
        self._batch.append(message)
        self._batch_bytes += len(message.key or b"") + len(message.body or b"")
        if len(self._batch) >= _BATCH_RECORDS_MAX or self._batch_bytes >= _BATCH_BYTES_MAX:
            self._send()

    def finish(self) -> None:
        """Send what is left and wait for everything."""
        if self._batch:
            self._send()
        while self._sent:
            self._await_oldest()

    def _send(self) -> None:
        try:
            future = self._writer.submit_many(self._batch, expect_next=self._next_offset)
        except InvalidRequestError as error:
            largest = max(self._batch, key=lambda message: len(message.body or b""))
            message = f"{error}; the largest file among them is {os.fsdecode(largest.key or b'')!r}"
            raise InvalidRequestError(message) from error
        if self._next_offset is not None:
            self._next_offset += len(self._batch)
        self._sent.append((len(self._batch), self._batch_bytes, future))
        self._batch, self._batch_bytes = [], 0
        if len(self._sent) > _BATCHES_AHEAD:
            self._await_oldest()

    def _await_oldest(self) -> None:
        count, num_bytes, future = self._sent.popleft()
        try:
            future.result()
        except AppendError as error:
            message = f"after the first {self.num_records} records of the history: {error}"
            raise type(error)(message) from error
        self.num_records += count
        self.num_bytes += num_bytes


def _history(repo: Path, folder: str) -> _History:
    prefix = _ask(repo, "rev-parse", "--show-prefix")
    if prefix:
        message = f"repository {repo}: expected its top, found the folder {prefix!r} of one: name the top, and a folder"
        raise InvalidRequestError(message)
    head = _ask(repo, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        message = f"repository {repo}: expected a commit at HEAD, found none: commit something first"
        raise InvalidRequestError(message)
    folder = folder.strip("/")
    return _History(repo=repo, head=head, pathspec=("--", f":(top,literal){folder}/") if folder else ("--",))


def _replayed(history: _History, changes: Generator[_Change]) -> Iterator[tuple[_Change, Message]]:
    arguments = ("cat-file", "--batch")
    with closing(changes), _git(history.repo, *arguments, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while ahead := list(islice(changes, _BLOBS_AHEAD)):
            process.stdin.write(b"".join(change.blob + b"\n" for change in ahead if change.blob is not None))
            process.stdin.flush()
            for change in ahead:
                body = None if change.blob is None else _read_blob(process.stdout, history, change)
                yield change, Message(body, change.path)
        process.stdin.close()


def _read_blob(output: IO[bytes], history: _History, change: _Change) -> bytes:
    header = output.readline().split()
    if len(header) != 3 or header[1] != b"blob":  # noqa: PLR2004 - "<id> blob <size>", as git documents it
        found = b" ".join(header).decode(errors="replace")
        message = f"repository {history.repo}: {os.fsdecode(change.path)!r}: expected its blob, found {found!r}"
        raise InvalidRequestError(message)
    size = int(header[2])
    return output.read(size + 1)[:size]


def _changes(history: _History) -> Generator[_Change]:
    commit = 0
    with _git(history.repo, *_LOG, history.head, *history.pathspec) as process:
        assert process.stdout is not None
        tokens = _tokens(process.stdout)
        for token in tokens:
            if not token.startswith(_ENTRY_STARTS):
                commit += 1
                continue
            path = next(tokens)
            modes_and_ids = token.lstrip(b"\n:").split(b" ")
            if _SUBMODULE in modes_and_ids:
                history.submodules.add(path)
            change = _change(commit, modes_and_ids, path)
            if change is not None:
                yield change


def _change(commit: int, entry: Sequence[bytes], path: bytes) -> _Change | None:
    """Read ``<old mode> <new mode> <old id> <new id> <status>``; None when no file was there and none is."""
    without_bytes = (_ABSENT, _SUBMODULE)
    if entry[1] not in without_bytes:
        return _Change(commit, path, entry[3])
    return None if entry[0] in without_bytes else _Change(commit, path, None)


def _tokens(output: IO[bytes]) -> Iterator[bytes]:
    """Split git's output at its NULs; it ends in one, or in the newline after the last commit."""
    rest = b""
    while chunk := output.read(_READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
    if rest.strip():
        yield rest


def _ask(repo: Path, *arguments: str) -> str:
    with _git(repo, *arguments) as process:
        assert process.stdout is not None
        return os.fsdecode(process.stdout.read()).strip()


@contextmanager
def _git(repo: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """Run git; InvalidRequestError with git's own message when it fails. No process is left behind."""
    command = ("git", "--no-replace-objects", "-C", str(repo), *arguments)
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES}
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(  # noqa: S603 - a list, no shell; the user names the repository to read
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=complaints, env={**environment, "LC_ALL": "C"}
            )
        except FileNotFoundError as error:
            message = "git: expected the program on the PATH, found none: install git"
            raise InvalidRequestError(message) from error
        try:
            yield process
        except BrokenPipeError:
            # git ended early; its message says why.
            _end(process)
            _check_end(repo, arguments, process, complaints)
            raise
        except BaseException:
            process.kill()
            raise
        finally:
            _end(process)
        _check_end(repo, arguments, process, complaints)


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
    process.wait()


def _check_end(repo: Path, arguments: Iterable[str], process: subprocess.Popen[bytes], complaints: IO[bytes]) -> None:
    quiet = "--quiet" in arguments and process.returncode == 1
    if process.returncode == 0 or quiet:
        return
    complaints.seek(0)
    said = " ".join(os.fsdecode(complaints.read(2000)).split())
    message = f"repository {repo}: expected git to read it, found: {said or f'exit code {process.returncode}'}"
    raise InvalidRequestError(message)
