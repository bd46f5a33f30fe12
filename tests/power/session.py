"""Runs processes on a recorded disk, and records the answer to each call and its step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.power.process import Process
from tests.power.recorder import KilledError, Recorder
from wal3_core import CursorStore, LogError, LogReader, LogWriter, WriterOptions
from wal3_core.format.position import LogPosition
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.store.backends.local import LocalStore
from wal3_core.store.object_store import Buffer, Done, Etag, NotModified, ObjectMeta, PutOutcome, Refused, Versioned

LOG = "a"
RETRY = RetryOptions(attempts_max=2, pause_s_min=0.01, pause_s_max=0.02)
# Small, so that a dozen appends make snapshots of both depths.
SHAPE = SnapshotOptions(
    fragments_per_snapshot=2, fragments_kept=0, snapshots_per_roll=2, snapshot_pointers_max=4, gc_interval_s=1
)
OPTIONS = WriterOptions(batch_age_s_max=0.0, contentions_max=2, retry=RETRY, snapshots=SHAPE, commit_pause_s_max=0.01)


@dataclass
class Change:
    """A request to write ``data`` (None: to delete), between two steps; ``kept`` once the store acknowledged it."""

    path: str
    data: bytes | None
    began: int
    ended: int | None = None
    refused: bool = False

    def kept(self, step: int) -> bool:
        return self.ended is not None and self.ended <= step


@dataclass
class Append:
    """An append of a record; ``offset`` was acknowledged at step ``ended``."""

    body: bytes
    began: int
    ended: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """A record that a reader returned at a step."""

    step: int
    offset: int
    body: bytes


@dataclass
class Session:
    """One recorded run."""

    recorder: Recorder
    # The store's folder, below the recorder's root.
    folder: str = "store"
    changes: list[Change] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)
    # The first step after which the power is cut.
    first: int = 0

    @property
    def now(self) -> int:
        return len(self.recorder.steps)

    @property
    def root(self) -> Path:
        return self.recorder.root / self.folder

    def begin(self) -> None:
        """Cut the power only from here on."""
        self.first = self.now

    def user(self, name: str) -> User:
        return User(self, name)

    def after_step(self, step: int, act: Callable[[], None]) -> None:
        """Let others act right after a step, while the process that took it is paused."""
        self.recorder.at_step[step] = act

    def kill_after_step(self, step: int) -> None:
        """Kill the process that takes this step, right after it."""

        def die() -> None:
            self.recorder.dead = True
            raise KilledError

        self.recorder.at_step[step] = die

    @contextlib.contextmanager
    def until_killed(self) -> Iterator[None]:
        """Run a process until it ends or is killed; other processes stay alive."""
        with contextlib.suppress(KilledError):
            yield
        self.recorder.dead = False
        self.recorder.at_step.clear()


class NotedStore:
    """Records the outcomes of a process's changes."""

    def __init__(self, session: Session, inner: LocalStore) -> None:
        self._session = session
        self._inner = inner

    @property
    def url(self) -> str:
        return "file:///store"

    def _put(self, change: Change, put: Callable[[], PutOutcome]) -> PutOutcome:
        self._session.changes.append(change)
        outcome = put()
        change.refused = isinstance(outcome, Refused)
        change.ended = self._session.now if isinstance(outcome, Done) else None
        return outcome

    def create(self, path: str, data: Buffer) -> PutOutcome:
        change = Change(path, bytes(data), self._session.now)
        return self._put(change, lambda: self._inner.create(path, data))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        change = Change(path, bytes(data), self._session.now)
        return self._put(change, lambda: self._inner.replace(path, data, etag))

    def delete(self, path: str) -> None:
        change = Change(path, None, self._session.now)
        self._session.changes.append(change)
        self._inner.delete(path)
        change.ended = self._session.now

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        return self._inner.read(path, start=start, length=length)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        return self._inner.get(path, if_none_match=if_none_match, length_max=length_max)

    def head(self, path: str) -> ObjectMeta | None:
        return self._inner.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        return self._inner.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        return self._inner.list_folders(folder)


class User:
    """A process that uses the store; errors of the library are ignored."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._session = session
        self.process = Process(name, session.recorder.alive)
        self.store = NotedStore(session, LocalStore(session.root, runtime=self.process))
        self._writer: LogWriter | None = None
        self._appended = 0
        self._cursors = CursorStore(self.store, LOG, runtime=self.process, retry=RETRY)

    def swap(self, path: str, data: bytes) -> None:
        """Replace the current version of an object."""
        found = self.store.get(path)
        assert isinstance(found, Versioned)
        self.store.replace(path, data, found.etag)

    def create(self) -> None:
        with contextlib.suppress(LogError):
            LogWriter.create(self.store, LOG, runtime=self.process)

    def append(self, count: int = 1) -> None:
        with contextlib.suppress(LogError):
            if self._writer is None:
                self._writer = LogWriter.open(self.store, LOG, options=OPTIONS, runtime=self.process)
            for _ in range(count):
                self._append(self._writer)

    def _append(self, writer: LogWriter) -> None:
        self._appended += 1
        append = Append(f"{self.name} {self._appended}".encode(), self._session.now)
        self._session.appends.append(append)
        append.offset = writer.append(append.body).offset
        append.ended = self._session.now
        self.process.finish()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self.process.finish()

    def read(self) -> None:
        with contextlib.suppress(LogError):
            for record in LogReader.open(self.store, LOG, runtime=self.process).records():
                self._session.sights.append(Sight(self._session.now, record.offset, record.body or b""))

    def _limit(self) -> LogPosition:
        return LogReader.open(self.store, LOG, runtime=self.process).manifest().next.position

    def save_cursor(self, name: str = "c") -> None:
        """Put the cursor at the log's end, as a consumer does that has read all records."""
        with contextlib.suppress(LogError):
            witness = self._cursors.load(name)
            if witness is None:
                self._cursors.create(name, self._limit())
            else:
                self._cursors.save(name, self._limit(), witness)

    def delete_cursor(self, name: str = "c") -> None:
        with contextlib.suppress(LogError):
            self._cursors.delete(name)
