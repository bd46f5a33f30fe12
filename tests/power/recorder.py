"""Records every call by which the local store changes the disk, while really making it.

The store's modules are given stand-ins for ``os``, ``io``, ``tempfile`` and ``fcntl`` with a list of
known calls. An unknown call ends the run, and so does a disk that differs in the end from the
recorded one: no change is missed.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Self

from tests.power.volume import Entry, Lock, Step, Sync, Tree, Volume, Write
from wal3_core.store.backends import file_lock, local, local_durability, local_listing, local_roots
from wal3_core.store.object_store import Buffer

StrPath = str | os.PathLike[str]
# Calls and names that change nothing.
_HARMLESS = {
    "fspath",
    "path",
    "stat",
    "lstat",
    "fstat",
    "major",
    "minor",
    "scandir",
    "listdir",
    "strerror",
    "sep",
    "altsep",
    "PathLike",
}
_HARMLESS |= {"fsencode", "walk", "DirEntry", "name", "getcwd", "curdir", "error"}
_LOCKS = {"LOCK_EX", "LOCK_SH", "LOCK_UN", "LOCK_NB"}


class UnknownCallError(BaseException):
    """The store changes the disk by a call that the recorder does not know: add it, or the check misses it."""


class KilledError(BaseException):
    """The process that made this call is dead."""


class Recorder:
    """A folder in which the store works, and every step it took there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.volume = Volume(local_roots.OWN_FOLDER)
        self.steps: list[Step] = []
        self.made: list[list[tuple[int, bool]]] = []
        self.dead = False
        self.at_step: dict[int, Callable[[], None]] = {}
        self._inodes = 0
        self._names = 0
        self._open: dict[int, int] = {}
        self._outside: set[int] = set()
        self._new: list[tuple[int, bool]] = []
        self._waiting = False

    def __enter__(self) -> Self:
        """Install the stand-ins."""
        system = _System(self)
        files = SimpleNamespace(open=self.open_file, text_encoding=io.text_encoding)
        temporary = SimpleNamespace(mkstemp=self.mkstemp, NamedTemporaryFile=self.named_temporary_file)
        self._kept = [(module, name, vars(module).get(name)) for module, name in _PLACES]
        stand_ins = {"os": system, "io": files, "tempfile": temporary, "fcntl": _Locks(self), "open": self.open_file}
        for module, name in _PLACES:
            setattr(module, name, stand_ins[name])
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the stand-ins, and close the files that are still open."""
        for module, name, kept in self._kept:
            if kept is None:
                delattr(module, name)
            else:
                setattr(module, name, kept)
        for handle in list(self._open):
            with contextlib.suppress(OSError):
                os.close(handle)

    def check_complete(self) -> None:
        """Raise UnknownCallError if the disk differs from the recorded one."""
        real, recorded = _disk(self.root), self.volume.tree()
        if real != recorded:
            differing = sorted(path for path in {*real, *recorded} if real.get(path, 0) != recorded.get(path, 0))
            raise UnknownCallError(f"{self.root}: changed by calls that were not recorded: {differing}")

    def alive(self) -> None:
        """Raise KilledError in a process that is dead."""
        if self.dead:
            raise KilledError

    def step(self, call: str, *changes: Entry | Write | Sync | Lock) -> None:
        """Record a call that was just made."""
        step = Step(call, changes)
        for inode, folder in self._new:
            self.volume.add(inode, folder=folder)
        self.made.append(self._new)
        self._new = []
        self.volume.apply(step)
        self.steps.append(step)
        action = self.at_step.pop(len(self.steps), None)
        if action is not None:
            self._waiting = True
            try:
                action()
            finally:
                self._waiting = False

    def replay(self) -> Iterator[tuple[int, Volume]]:
        """Yield the disk after each number of steps."""
        volume = Volume(local_roots.OWN_FOLDER)
        yield 0, volume
        for number, (step, made) in enumerate(zip(self.steps, self.made, strict=True), 1):
            for inode, folder in made:
                volume.add(inode, folder=folder)
            volume.apply(step)
            yield number, volume

    def place(self, path: StrPath) -> tuple[int, str]:
        """Return the folder of a path, and the name in it."""
        below = self.below(path)
        folder = self.volume.find(below.rpartition("/")[0])
        if folder is None:
            raise UnknownCallError(f"{path}: its folder was made by a call that was not recorded")
        return folder, below.rpartition("/")[2]

    def below(self, path: StrPath) -> str:
        below = os.path.relpath(os.fspath(path), self.root)
        if below.startswith(".."):
            raise UnknownCallError(f"{path}: expected a path below {self.root}")
        return "" if below == "." else str(below)

    def new(self, path: StrPath, *, folder: bool) -> Entry:
        self._inodes += 1
        self._new.append((self._inodes, folder))
        return Entry(*self.place(path), self._inodes)

    def present(self, path: StrPath) -> int:
        inode = self.volume.find(self.below(path))
        if inode is None:
            raise UnknownCallError(f"{path}: made by a call that was not recorded")
        return inode

    def opened(self, handle: int) -> int:
        if handle not in self._open:
            raise UnknownCallError(f"handle {handle}: opened by a call that was not recorded")
        return self._open[handle]

    def open_handle(self, path: StrPath, flags: int, mode: int = 0o777) -> int:
        """``os.open``."""
        self.alive()
        if flags & os.O_DIRECTORY and not Path(path).is_relative_to(self.root):
            # Folders from before the run are durable.
            handle = os.open(os.fspath(path), flags, mode)
            self._outside.add(handle)
            return handle
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(os.fspath(path))
        handle = os.open(os.fspath(path), flags, mode)
        if is_new:
            entry = self.new(path, folder=False)
            assert entry.inode is not None
            self._open[handle] = entry.inode
            self.step(f"create {self.below(path)}", entry)
        else:
            self._open[handle] = self.present(path)
            if flags & os.O_TRUNC:
                self.step(f"truncate {self.below(path)}", Write(self._open[handle], 0, b"", size=0))
        return handle

    def close_handle(self, handle: int) -> None:
        """``os.close``; the system also closes the files of a dead process."""
        self._open.pop(handle, None)
        self._outside.discard(handle)
        os.close(handle)

    def sync(self, handle: int) -> None:
        """``os.fsync``."""
        self.alive()
        if handle in self._outside:
            return
        inode = self.opened(handle)
        self.step(f"sync {self.volume.path(inode)}", Sync(inode))

    def forget(self, handle: int) -> None:
        self._open.pop(handle, None)

    def open_file(self, path: StrPath | int, mode: str = "r", *args: object, **options: object) -> object:
        """``open``, by path or handle."""
        self.alive()
        if not set(mode) & set("wax+"):
            return io.open(path, mode, *args, **options)  # noqa: UP020 (the caller closes it; the name open is replaced by this)
        if mode not in {"wb", "ab", "xb", "w+b"}:
            raise UnknownCallError(f"open({path}, {mode!r})")
        if not isinstance(path, int):
            flags = {"w": os.O_TRUNC, "a": os.O_APPEND, "x": os.O_EXCL}[mode[0]]
            path = self.open_handle(path, os.O_WRONLY | os.O_CREAT | flags, 0o666)
        return io.BufferedWriter(_File(self, path, mode[0]))

    def mkstemp(self, *, dir: Path) -> tuple[int, str]:  # noqa: A002 (tempfile's name)
        """``tempfile.mkstemp``, with deterministic names."""
        self._names += 1
        name = str(dir / f"staged{self._names}")
        return self.open_handle(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), name

    @contextlib.contextmanager
    def named_temporary_file(self, *, dir: Path) -> Iterator[SimpleNamespace]:  # noqa: A002 (tempfile's name)
        """``tempfile.NamedTemporaryFile``."""
        handle, name = self.mkstemp(dir=dir)
        try:
            yield SimpleNamespace(name=name)
        finally:
            self.close_handle(handle)
            _System(self).unlink(name)

    def lock(self, file: io.BufferedWriter | int, operation: int) -> None:
        """``fcntl.flock``; a process that interrupts the lock's holder gets an error instead of waiting for ever."""
        self.alive()
        fcntl.flock(file, operation | (fcntl.LOCK_NB if self._waiting else 0))
        name = file if isinstance(file, int) else file.name
        self.step(f"lock {Path(name).name}" if isinstance(name, str) else "lock", Lock())


class _File(io.FileIO):
    """A file that records writes to the system, not to its buffer."""

    def __init__(self, recorder: Recorder, handle: int, mode: str) -> None:
        super().__init__(handle, "ab" if mode == "a" else "wb")
        self._recorder = recorder

    def write(self, data: Buffer, /) -> int:
        self._recorder.alive()
        inode = self._recorder.opened(self.fileno())
        data = bytes(data)
        at = len(self._recorder.volume.files[inode]) if "a" in self.mode else self.tell()
        count = super().write(data)
        self._recorder.step(f"write {self._recorder.volume.path(inode)}", Write(inode, at, data[:count]))
        return count

    def truncate(self, size: int | None = None, /) -> int:
        raise UnknownCallError(f"truncate to {size}")

    def close(self) -> None:
        if not self.closed:
            self._recorder.forget(self.fileno())
        super().close()


class _System:
    """Stands in for ``os``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.open, self.close, self.fsync = recorder.open_handle, recorder.close_handle, recorder.sync
        self.fdopen = recorder.open_file

    def __getattr__(self, name: str) -> object:
        if name in _HARMLESS or name.startswith(("O_", "supports_")):
            return getattr(os, name)
        raise UnknownCallError(f"os.{name}: tests/power/recorder.py does not know whether it changes the disk")

    def link(self, source: Path, target: Path) -> None:
        self._recorder.alive()
        os.link(source, target)
        inode = self._recorder.present(source)
        self._recorder.step(f"link {self._recorder.below(target)}", Entry(*self._recorder.place(target), inode))

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._recorder.alive()
        inode = self._recorder.present(source)
        source_path = self._recorder.below(source)
        arrival, departure = self._recorder.place(target), self._recorder.place(source)
        os.rename(os.fspath(source), os.fspath(target))  # noqa: PTH104 (Path would call this again)
        entries = Entry(*arrival, inode), Entry(*departure, None, moved_to=arrival)
        self._recorder.step(f"rename {source_path} to {self._recorder.below(target)}", *entries)

    replace = rename

    def unlink(self, path: StrPath, **options: object) -> None:
        self._remove("unlink", path, os.unlink, **options)

    remove = unlink

    def rmdir(self, path: StrPath, **options: object) -> None:
        self._remove("rmdir", path, os.rmdir, **options)

    def _remove(self, call: str, path: StrPath, remove: Callable[[str], None], **options: object) -> None:
        self._recorder.alive()
        if any(value is not None for value in options.values()):
            raise UnknownCallError(f"{call} {path}: {options}")
        place = self._recorder.place(path) if os.path.lexists(os.fspath(path)) else None
        remove(os.fspath(path))
        assert place is not None
        self._recorder.step(f"{call} {self._recorder.below(path)}", Entry(*place, None))

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        self._recorder.alive()
        os.mkdir(os.fspath(path), mode)  # noqa: PTH102 (Path would call this again)
        self._recorder.step(f"mkdir {self._recorder.below(path)}", self._recorder.new(path, folder=True))

    def fchmod(self, handle: int, mode: int) -> None:
        """Not recorded: the model has no access rights."""
        self._recorder.alive()
        os.fchmod(handle, mode)


class _Locks:
    """Stands in for ``fcntl``."""

    def __init__(self, recorder: Recorder) -> None:
        self.flock = recorder.lock

    def __getattr__(self, name: str) -> object:
        if name == "F_FULLFSYNC":
            # It exists on macOS only; the model assumes that fsync is complete.
            raise AttributeError(name)
        if name in _LOCKS:
            return getattr(fcntl, name)
        raise UnknownCallError(f"fcntl.{name}: tests/power/recorder.py does not know whether it changes the disk")


_PLACES: list[tuple[object, str]] = [(local, name) for name in ("os", "tempfile", "fcntl", "open")]
_PLACES += [(module, name) for module in (file_lock, local_durability, local_listing) for name in ("os", "fcntl")]
# From Python 3.13 on, pathlib is a package: the calls are those of the module that defines Path.
_PATHS = inspect.getmodule(Path)
_PLACES += [(_PATHS, "os"), (_PATHS, "io")]


def _disk(root: Path) -> Tree:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in sorted(root.rglob("*"))
    }
