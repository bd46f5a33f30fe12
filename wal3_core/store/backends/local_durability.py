"""What of a local store is on disk, as far as this process knows, and the fsyncs that make it so.

A folder is on disk when its entry in the folder above is. This process does not sync it again until some process
removes a folder. After a failed fsync, a folder is synced before anything is read from it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.store.object_store import Etag

_SEEN_MAX = 100_000
_FOLDERS_MAX = 10_000
# A process that may not write may not be allowed to sync either, and has no writes of its own to lose.
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP})
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_ADVICE = {
    errno.ENOSPC: "free some space on the device",
    errno.EDQUOT: "free some of the quota",
    errno.EACCES: "give this user access",
    errno.EPERM: "make it changeable (chattr -i)",
    errno.EFBIG: "raise the limit on file size (ulimit -f)",
    errno.EROFS: "mount the file system writable",
}
# Errors that may pass in a moment, and what to do about them.
_PASSING = {
    errno.EMFILE: "close some of this process's files, or raise their limit (ulimit -n)",
    errno.ENFILE: "end some processes, or raise this system's limit of open files",
}


class DiskDurability:
    """The folders and versions of one store that are on disk. UnavailableError when the file system fails."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Folders whose own entry is on disk, with the number of removals at that time; and folders with an entry
        # that may not be on disk.
        self._folders: dict[Path, int] = {}
        self._folders_as_of = 0
        self._unsynced: set[Path] = set()
        # The newest version of each document that was read or written here and is on disk, by path.
        self._seen: dict[str, Etag] = {}

    # ------------------------------------------------------------------ folders

    def forget_folders(self) -> None:
        """Take no folder for durable any more: the store's own were removed."""
        self._folders.clear()

    def make_root(self) -> None:
        """Make the store's folder and its parents durable, outermost first."""
        for each in reversed([self._root, *self._root.parents[:-1]]):
            there = each.is_dir()
            if not there:
                each.mkdir(exist_ok=True)
            try:
                sync_folder(each.parent)
            except OSError:
                # This process may not open or sync some parents; those it did not make were made long ago.
                if not there:
                    raise

    def make_folder(self, folder: Path, removals: int = 0) -> None:
        """Make a folder durable, or a crash could lose the objects in it.

        An existing folder may have been made by a process that died before it synced.
        """
        for each in _lineage(self._root, folder):
            if self._folders.get(each) != removals or not each.is_dir():
                each.mkdir(exist_ok=True)
                sync_folder(each.parent)
                self._note_folder(each, removals)

    def has_folder(self, folder: Path, removals: int) -> bool:
        """Return whether a folder is known to be on disk, with ``removals`` folders removed from the store so far."""
        # It was noted after those above it, and is not there without them.
        return self._folders.get(folder) == removals and folder.is_dir()

    def _note_folder(self, folder: Path, removals: int) -> None:
        if removals > self._folders_as_of or len(self._folders) >= _FOLDERS_MAX:
            # Entries from before a removal are void; others that are dropped cost one sync each.
            self._folders.clear()
            self._folders_as_of = removals
        self._folders[folder] = removals

    # ------------------------------------------------------------------ objects

    def sync_written(self, folder: Path) -> str | None:
        """Fsync the folder of an object just written; return why that failed."""
        try:
            sync_folder(folder)
        except FileNotFoundError:
            # The object just written was deleted, and its folder with it: there is nothing to sync.
            return None
        except OSError as error:
            self._unsynced.add(folder)
            return str(error)
        return None

    def sync_again(self, folder: str) -> None:
        """Fsync a folder again after a failed fsync, so that nothing is read that a crash could still undo."""
        if self._unsynced and (unsynced := Path(folder)) in self._unsynced:
            self._sync(unsynced)
            self._unsynced.discard(unsynced)

    def sync_refusing(self, folder: Path) -> None:
        """Make the object that refused a create durable: the caller builds on it, and its writer may have died."""
        self._sync(folder)

    def has_version(self, path: str, etag: Etag) -> bool:
        """Return whether this version is known to be on disk."""
        return self._seen.get(path) == etag

    def sync_seen(self, path: str, etag: Etag, folder: str) -> None:
        """Fsync the folder before anything is built on this version: its writer may have died before doing so."""
        try:
            sync_folder(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise unavailable(self._root, error) from error
        self.note_seen(path, etag)

    def note_seen(self, path: str, etag: Etag) -> None:
        """Note a version that is on disk."""
        while len(self._seen) >= _SEEN_MAX and path not in self._seen:
            # Another thread may remove entries at the same time.
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                self._seen.pop(next(iter(self._seen)))
        self._seen[path] = etag

    def _sync(self, folder: Path) -> None:
        try:
            sync_folder(folder)
        except FileNotFoundError:
            # The folder was removed with its last object: there is nothing to sync.
            return
        except OSError as error:
            raise unavailable(self._root, error) from error


def unavailable(root: Path, error: OSError, needs: str = "") -> UnavailableError:
    """Return the error that says what to do about a file system's error; StoreDeniedError if retrying cannot help.

    ``needs`` says for what there is no space.
    """
    number = error.errno or 0
    if number not in _ADVICE:
        hint = _PASSING.get(number)
        return UnavailableError(f"store {root}: {error}" + (f": {hint}" if hint else ""))
    full = number in NO_SPACE
    return StoreDeniedError(
        f"store {root}: {error}: {f'{needs}: ' if full and needs else ''}{_ADVICE[number]}", full=full
    )


def sync_folder(folder: Path | str) -> None:
    """Fsync a folder's entries."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def sync_file(handle: int) -> None:
    """Fsync an open file, through the drive's cache."""
    # On macOS fsync leaves the bytes there.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(handle)
    else:
        fcntl.fcntl(handle, full)


def _lineage(root: Path, folder: Path) -> list[Path]:
    """List the folders from ``root`` (exclusive) to ``folder`` (inclusive)."""
    lineage = [folder, *folder.parents]
    return lineage[: lineage.index(root)][::-1]
