"""A lock on a file or folder of a directory store; waiting for it has a deadline.

The kernel frees a lock when its holder dies, but not when its holder is stopped (SIGSTOP, a paused
container, a debugger). So a wait ends with an error that names the lock and the processes that may
hold it.

A child that is forked meanwhile inherits the open file, and would hold the lock after its parent's
death. So the child first closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from wal3_core.errors import UnavailableError
from wal3_core.runtime import Runtime

_PAUSE_S_MIN = 0.0005
_PAUSE_S_MAX = 0.02
# The fields of a line of /proc/locks: number, class, mode, access, process, device and inode.
_LOCK_FIELDS = 6
# The handles of this process's files that are locked, or about to be.
_lockable: set[int] = set()
_STATES = {"T": "stopped", "t": "held by a debugger", "Z": "dead", "D": "waiting for its disk"}


@dataclass(frozen=True, slots=True)
class LockWait:
    """A wait for a lock of at most ``s_max`` seconds, by the runtime's clock; messages name ``store``."""

    store: Path
    runtime: Runtime
    s_max: float

    @contextlib.contextmanager
    def locked(self, path: Path, kind: int, *, purpose: str) -> Iterator[BinaryIO]:
        """Hold a lock on the file at ``path``; UnavailableError when others hold it for longer than ``s_max``.

        The file is opened each time: flock is per open file, so threads exclude each other too.
        """
        with path.open("ab") as file, self._held(file, kind, path, purpose):
            yield file

    @contextlib.contextmanager
    def folder_locked(self, path: str, kind: int, *, purpose: str) -> Iterator[None]:
        """Hold a lock on a folder itself, which takes no more than the right to read it; errors as ``locked``."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self._held(handle, kind, path, purpose):
                yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _held(self, file: BinaryIO | int, kind: int, path: Path | str, purpose: str) -> Iterator[None]:
        with this_process_alone(file):
            self._acquire(file, kind, path, purpose)
            try:
                yield
            finally:
                # Closing is not enough: a child forked just now may still have the file open.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _acquire(self, file: BinaryIO | int, kind: int, path: Path | str, purpose: str) -> None:
        limit_s, pause_s = self.runtime.monotonic_s() + self.s_max, _PAUSE_S_MIN
        while not _try(file, kind):
            # After a try: a process that was itself stopped meanwhile takes a lock that is free by now.
            if self.runtime.monotonic_s() >= limit_s:
                raise UnavailableError(
                    f"store {self.store}: {purpose}: expected the lock {path} within {self.s_max:g} s, found it held"
                    f" by {_holder(os.fstat(_handle(file)))}: let it continue, or end it"
                )
            self.runtime.sleep(pause_s * (0.5 + self.runtime.jitter()))
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)


@contextlib.contextmanager
def this_process_alone(file: BinaryIO | int) -> Iterator[None]:
    """Make a child that is forked in the block give up the lock on the file."""
    handle = _handle(file)
    _lockable.add(handle)
    try:
        yield
    finally:
        _lockable.discard(handle)


def _give_up_locks() -> None:
    # By dup2, not by closing the file object: its thread does not exist here, and the handle must not be reused.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for handle in _lockable:
        os.dup2(nowhere, handle, inheritable=False)
    os.close(nowhere)
    _lockable.clear()


os.register_at_fork(after_in_child=_give_up_locks)


def _handle(file: BinaryIO | int) -> int:
    return file if isinstance(file, int) else file.fileno()


def _try(file: BinaryIO | int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(locked: os.stat_result) -> str:
    """Name the processes that hold a lock on a file, as far as this system shows them."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        lines = []
    rows = [fields for fields in map(str.split, lines) if len(fields) > _LOCK_FIELDS]
    flocks = [(fields[5], fields[4]) for fields in rows if fields[1] == "FLOCK"]
    inode = f":{locked.st_ino}"
    file = f"{os.major(locked.st_dev):02x}:{os.minor(locked.st_dev):02x}{inode}"
    held = [process for found, process in flocks if found == file]
    # Some file systems (btrfs, overlayfs) show another device in /proc/locks than in stat.
    held = held or [process for found, process in flocks if found.endswith(inode)]
    return ", ".join(map(_described, held)) or "an unknown process"


def _described(process: str) -> str:
    try:
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(") ")
    except OSError:
        return f"process {process}"
    return f"process {process} ({name}{', ' + _STATES[rest[:1]] if rest[:1] in _STATES else ''})"
