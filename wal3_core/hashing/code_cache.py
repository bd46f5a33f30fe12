"""Compiled code on disk: in ``$WAL3_CACHE_DIR``, else in the user's cache directory, else in a temporary one.

Code is what a process runs, so it is read only from a file of this user, or of root, that no other may write, and
whose checksum holds. Files are replaced as a whole: of several processes that write one, the last wins.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "WAL3_CACHE_DIR"
_CODE_BYTES_MAX = 2**20
_DIGEST_BYTES = 32
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def folders() -> list[Path]:
    """Return the folders in which code may lie, the preferred one first."""
    named = os.environ.get(_VARIABLE)
    if named:
        return [Path(named)]
    users = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises nothing
    candidates = [Path(users, "wal3"), Path(tempfile.gettempdir(), f"wal3-{os.getuid()}")]
    # Without a home directory, "~" stays as it is.
    return [folder for folder in candidates if folder.is_absolute()]


def read(name: str) -> bytes | None:
    """Return some code; None if there is none that can be trusted."""
    for folder in folders():
        with contextlib.suppress(OSError):
            content = _read_own(folder / name)
            code = content[_DIGEST_BYTES:]
            if hashlib.sha256(code).digest() == content[:_DIGEST_BYTES]:
                return code
    return None


def write(name: str, code: bytes) -> Path:
    """Keep some code in the first folder that can be written; OSError when none can be."""
    refused: list[OSError] = []
    for folder in folders():
        try:
            _replace(folder / name, hashlib.sha256(code).digest() + code)
        except OSError as error:
            refused.append(error)
        else:
            return folder / name
    raise refused[0]


@contextlib.contextmanager
def alone(name: str) -> Iterator[bool]:
    """Say whether no other process on this machine makes this code at the moment."""
    with contextlib.ExitStack() as stack:
        try:
            folder = folders()[0]
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            file = stack.enter_context((folder / f"{name}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            # It is only made twice.
            pass
        yield True


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(content)
            # It is no secret: in an image, root writes it and others read it.
            os.fchmod(descriptor, _FILE_MODE)
        Path(made).replace(path)
    except BaseException:
        Path(made).unlink()
        raise


def _read_own(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, so that what was checked is what is read
        found = os.fstat(descriptor)
        trusted = stat.S_ISREG(found.st_mode) and found.st_uid in {0, os.geteuid()}
        if not trusted or found.st_mode & _OTHERS_WRITE:
            raise PermissionError(f"{path}: expected a file that only this user may write, found another")
        return file.read(_CODE_BYTES_MAX)
