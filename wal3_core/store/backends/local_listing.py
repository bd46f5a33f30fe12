"""Reading the folders of a directory store so that what is there all the time is seen.

While a name is replaced (renamed over), a folder that is read at the same time may show neither the old entry nor the
new one: btrfs and tmpfs do that, and POSIX allows it. It lets no other name be missed. So a folder is read with a lock
on it that holds off the replaces in it.

The lock is on the folder itself: taking it needs the right to read the folder, and no right to write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from wal3_core.errors import UnavailableError
from wal3_core.store.backends.file_lock import LockWait
from wal3_core.store.backends.local_durability import unavailable
from wal3_core.store.backends.local_roots import OWN_FOLDER, Root
from wal3_core.store.object_store import check_path

Entries = Iterator[os.DirEntry[str]]


class Listing:
    """The folders below one store's root. UnavailableError for one that cannot be read."""

    def __init__(self, root: Path, known: Root, wait: LockWait) -> None:
        self._root = root
        self._known = known
        self._wait = wait

    @contextlib.contextmanager
    def held_off(self, folder: str, *, purpose: str) -> Iterator[None]:
        """Let no list read a folder in the block, in which a name is replaced."""
        # Shared: replaces do not wait for each other.
        with self._wait.folder_locked(folder, fcntl.LOCK_SH, purpose=purpose):
            yield

    @contextlib.contextmanager
    def _scanned(self, folder: str) -> Iterator[Entries]:
        """Read a folder's entries; in the block no name in it is replaced."""
        # Opened after the lock was taken: what is read may be as of its opening.
        with self._wait.folder_locked(folder, fcntl.LOCK_EX, purpose=f"list {folder}"), os.scandir(folder) as found:
            yield found

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        """List what is in a folder, without the store's own, in the order of the objects' paths."""
        if folder:
            check_path(folder.removesuffix("/"))
        self._known.check_reading(folder.rstrip("/"))
        try:
            with self._scanned(f"{self._root}/{folder}") as found:
                entries = [entry for entry in found if entry.name != OWN_FOLDER]
            # A folder sorts as its objects' paths do: with a slash after its name. Some systems tell what is one only
            # when they are asked.
            entries.sort(key=lambda entry: entry.name + "/" * entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            check_leads_somewhere(self._root, self._root / folder)
            entries = []
        except OSError as error:
            raise unavailable(self._root, error) from error
        if not entries:
            self._known.check_there()
        return entries

    def holds_object(self, folder: os.DirEntry[str]) -> bool:
        """Return whether a file is, or may be, in or below a folder; links to folders are not followed."""
        # What is seen is there. That nothing is there is only seen with the locks.
        return self._shows_object(folder.path, os.scandir) or self._shows_object(folder.path, self._scanned)

    def _shows_object(self, folder: str, scan: Callable[[str], AbstractContextManager[Entries]]) -> bool:
        folders = []
        try:
            with scan(folder) as found:
                for entry in found:
                    if not entry.is_dir():
                        return True
                    if not entry.is_symlink():
                        folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            # It was removed meanwhile.
            return False
        except PermissionError:
            # What is in it is unknown: it is named, and a caller that looks into it gets the error.
            return True
        except OSError as error:
            raise unavailable(self._root, error) from error
        return any(self._shows_object(each, scan) for each in folders)


def check_leads_somewhere(root: Path, place: Path) -> None:
    """Raise UnavailableError for a link to nothing: what it leads to may be on a file system that is not mounted."""
    if place.is_symlink() and not place.exists():
        message = f"store {root}: expected {place} to lead to a file or folder, found a link to nothing: mount the file"
        raise UnavailableError(f"{message} system that it leads to, or remove the link")
