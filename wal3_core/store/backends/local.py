"""A directory as an object store: the embedded default.

Objects are plain files, so that other tools read them in place: docs/protocol/stores.md, "The directory store".
A version is named by the hash of its bytes, as an S3 ETag is. For local file systems, not for NFS.

A folder is removed with its last object, unless a create is under way: creates take a shared lock, removals an
exclusive one. Folders known to be on disk are known until any process removes a folder: it then appends a byte to the
lock's file. ``.wal3`` beside the objects belongs to the store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from wal3_core.errors import UnavailableError, UnsuitableStoreError
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.backends.file_lock import LockWait, this_process_alone
from wal3_core.store.backends.local_durability import NO_SPACE, DiskDurability, sync_file, unavailable
from wal3_core.store.backends.local_listing import Listing, check_leads_somewhere
from wal3_core.store.backends.local_roots import (
    LOCKS,
    OWN_FOLDER,
    Root,
    check_above,
    check_below,
    check_between,
    without_links,
)
from wal3_core.store.object_store import (
    Buffer,
    Done,
    Etag,
    NotModified,
    ObjectMeta,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
    check_length,
    check_path,
)

LOCK_WAIT_S_MAX = 20.0
# Lock files are never deleted; paths are hashed onto this many.
_LOCK_FILES = 256
_STAGING_AGE_S_MAX = 24 * 60 * 60
_NS_PER_US = 1000
_LINK_TRIES = 4
# Errors of systems without hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


class LocalStore:
    """Objects as files below ``root``, which is made by the first write.

    UnavailableError when a lock is held by others for ``lock_wait_s_max`` seconds.
    """

    def __init__(self, root: Path, *, runtime: Runtime | None = None, lock_wait_s_max: float = LOCK_WAIT_S_MAX) -> None:
        self._root = root.resolve()
        # A Path interns its parts: Python makes the table of these again after some reads, in the heap of some thread.
        self._below = f"{str(self._root).rstrip('/')}/"
        self._wait = LockWait(self._root, runtime or shared_runtime(), lock_wait_s_max)
        self._staging = self._root / OWN_FOLDER / "staging"
        self._locks = self._root / OWN_FOLDER / LOCKS
        self._folders_lock = self._locks / "folders"
        self._swept, self._known = False, Root(self._root)
        self._durable = DiskDurability(self._root)
        self._listing = Listing(self._root, self._known, self._wait)

    @property
    def url(self) -> str:
        """The directory as a file URL."""
        waits = self._wait.s_max
        return self._root.as_uri() + (f"?lock_wait_s={waits:g}" if waits != LOCK_WAIT_S_MAX else "")

    def _prepare(self) -> None:
        try:
            if not self._swept or not self._staging.is_dir() or not self._locks.is_dir():
                # Never made again elsewhere: what is appended there would be hidden, or left behind.
                self._known.check_there()
                self._durable.forget_folders()
                self._sweep_staging()
                self._swept = True
        except OSError as error:
            # On a full disk a write will say so; a delete needs only the folder of locks.
            if error.errno not in NO_SPACE or not self._locks.is_dir():
                raise self._unavailable(error) from error

    def _sweep_staging(self) -> None:
        """Make the store's own folders; remove staged files a day old, left by killed writers."""
        check_above(self._root)
        check_below(self._root)
        self._durable.make_root()
        self._known.claim()
        self._durable.make_folder(self._locks)
        self._durable.make_folder(self._staging)
        with tempfile.NamedTemporaryFile(dir=self._staging) as probe:
            now_s = Path(probe.name).stat().st_mtime
            for entry in os.scandir(self._staging):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime < now_s - _STAGING_AGE_S_MAX:
                        Path(entry.path).unlink()

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        target = self._file(path)
        self._durable.sync_again(target.rpartition("/")[0])
        try:
            with open(target, "rb") as file:  # noqa: PTH123 - see __init__
                file.seek(start)
                # read(length) would allocate the whole length, however small the file is.
                left = max(0, os.fstat(file.fileno()).st_size - start)
                return file.read() if length is None else file.read(min(length, left))
        except (FileNotFoundError, NotADirectoryError):
            self._known.check_there()
            return None
        except OSError as error:
            raise self._unavailable(error) from error

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        data = self.read(path, length=None if length_max is None else length_max + 1)
        if data is None:
            return None
        check_length(self, path, len(data), length_max)
        etag = _etag(data)
        if not self._durable.has_version(path, etag):
            self._durable.sync_seen(path, etag, self._file(path).rpartition("/")[0])
        return NotModified() if etag == if_none_match else Versioned(data, etag)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        with self._staged(path, data) as staged:
            target = self._place(path)
            try:
                is_new = self._link(staged, target)
            except OSError as error:
                raise self._unavailable(error) from error
        if is_new:
            return self._synced(target.parent, data)
        self._durable.sync_refusing(target.parent)
        return Refused()

    def _link(self, staged: Path, target: Path) -> bool:
        """Give a file its name unless that is taken; holding the folders' lock keeps its folder from being removed."""
        for left in reversed(range(_LINK_TRIES)):
            with self._wait.locked(self._folders_lock, fcntl.LOCK_SH, purpose=f"create {target}") as folders:
                removals = os.fstat(folders.fileno()).st_size
                if not left:
                    # Folders kept being removed: under the lock none is.
                    self._durable.make_folder(target.parent, removals)
                if not left or self._durable.has_folder(target.parent, removals):
                    return _link_new(staged, target)
            # Without the lock, since this syncs. A folder that others remove meanwhile is made in the next round.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                self._durable.make_folder(target.parent, removals)
        raise AssertionError

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        with self._staged(path, data) as staged:
            target = self._place(path)
            self._durable.sync_again(str(target.parent))
            with self._locked(target, "replace"):
                if _etag_of_file(target) != etag:
                    return Refused()
                with self._listing.held_off(str(target.parent), purpose=f"replace {path}"):
                    staged.rename(target)
        # Others may see it by now. A process that builds on it syncs the folder as well (Durability.sync_seen).
        outcome = self._synced(target.parent, data)
        if isinstance(outcome, Done):
            self._durable.note_seen(path, outcome.etag)
        return outcome

    def head(self, path: str) -> ObjectMeta | None:
        target = self._file(path)
        return self._described(path, target.rpartition("/")[0], partial(os.stat, target))

    def _described(self, path: str, folder: str, stat: Callable[[], os.stat_result]) -> ObjectMeta | None:
        self._durable.sync_again(folder)
        try:
            found = stat()
        except (FileNotFoundError, NotADirectoryError):
            self._known.check_there()
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        return ObjectMeta(path, found.st_size, found.st_mtime_ns // _NS_PER_US)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        # It is checked here, not for each object.
        at = f"{self._below}{folder}"
        for entry in self._listing.entries(folder):
            path = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                # Skips folders before start_after, but not those that contain it.
                if f"{path}/" >= start_after[: len(path) + 1]:
                    yield from self.list_objects(f"{path}/", start_after=start_after)
            elif path > start_after:
                meta = self._described(check_path(path), at, entry.stat)
                if meta is not None:
                    yield meta
                elif entry.is_symlink():
                    check_leads_somewhere(self._root, Path(entry.path))

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder; one without an object in or below it is left out, as in any store.

        One that this process may not look into is named.
        """
        folders = (entry for entry in self._listing.entries(folder) if entry.is_dir(follow_symlinks=False))
        return [f"{folder}{entry.name}/" for entry in folders if self._listing.holds_object(entry)]

    def delete(self, path: str) -> None:
        if self.head(path) is None:
            return
        self._prepare()
        target = self._place(path)
        # A replace that has already compared versions must not overwrite an object created after this delete.
        with self._locked(target, "delete"):
            target.unlink(missing_ok=True)
            self._remove_empty_above(target)

    def _remove_empty_above(self, target: Path) -> None:
        """Remove the folders that are empty now; they are kept while any create in the store is under way."""
        with contextlib.suppress(OSError), self._folders_lock.open("ab") as lock, this_process_alone(lock):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                for folder in target.parents[: len(target.relative_to(self._root).parts) - 1]:
                    with os.scandir(folder) as found:
                        if next(found, None) is not None:
                            return
                    # Counted before the removal: this process may die in between.
                    lock.write(b".")
                    lock.flush()
                    folder.rmdir()
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _file(self, path: str) -> str:
        """Return the file of an object to read, as text; StoreDeniedError when it belongs to another store."""
        target = f"{self._below}{check_path(path)}"
        self._known.check_reading(path.rpartition("/")[0])
        return target

    def _place(self, path: str) -> Path:
        """Return the file of an object to write, without symbolic links; StoreDeniedError if it is another store's."""
        folder, _, name = check_path(path).rpartition("/")
        folder = without_links(self._root, folder)
        check_between(self._root, folder, writes=True)
        return self._root / folder / name

    @contextlib.contextmanager
    def _staged(self, path: str, data: Buffer) -> Iterator[Path]:
        """Write the bytes to a synced file in the staging folder, removed after the block."""
        staged = None
        try:
            try:
                self._prepare()
                handle, name = tempfile.mkstemp(dir=self._staging)
                staged = Path(name)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)
                    sync_file(file.fileno())
            except OSError as error:
                raise unavailable(self._root, error, f"{path} needs {len(data)} bytes") from error
            yield staged
        finally:
            if staged is not None:
                # A file left behind is swept a day later.
                with contextlib.suppress(OSError):
                    staged.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, target: Path, purpose: str) -> Iterator[None]:
        """Exclude every other replace and delete of an object, in this process and others."""
        path = target.relative_to(self._root).as_posix()
        number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big") % _LOCK_FILES
        try:
            with self._wait.locked(self._locks / f"{number:03d}", fcntl.LOCK_EX, purpose=f"{purpose} {path}"):
                yield
        except OSError as error:
            raise self._unavailable(error) from error

    def _synced(self, folder: Path, data: Buffer) -> PutOutcome:
        failure = self._durable.sync_written(folder)
        return _Written(data) if failure is None else Unknown(failure)

    def _unavailable(self, error: OSError) -> UnavailableError:
        return unavailable(self._root, error)


class _Written(Done):
    """Names the version when it is asked for: hashing a fragment takes long, and nothing asks for its version."""

    __slots__ = ("_data",)
    _data: Buffer

    def __init__(self, data: Buffer) -> None:
        object.__setattr__(self, "_data", data)

    @property
    def etag(self) -> Etag:
        return _etag(self._data)


def _etag(data: Buffer) -> Etag:
    return Etag(hashlib.sha256(data).hexdigest()[:32])


def _link_new(staged: Path, target: Path) -> bool:
    try:
        os.link(staged, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINKS and not _can_link_beside(staged):
            raise UnsuitableStoreError(
                f"store {target.parent}: expected a file system with hard links, which a create needs, found none"
                f" ({error.strerror}): keep the store on a local one that has them, as ext4, XFS, btrfs or APFS, and"
                f" not on exFAT, SMB or a folder shared with a virtual machine"
            ) from error
        raise
    return True


def _can_link_beside(staged: Path) -> bool:
    """Return whether the file system has hard links: the folder of a target may refuse what is written to it."""
    probe = staged.with_name(f"{staged.name}.link")
    try:
        os.link(staged, probe)
    except OSError:
        return False
    probe.unlink(missing_ok=True)
    return True


def _etag_of_file(path: Path) -> Etag | None:
    try:
        with path.open("rb") as file:
            return Etag(hashlib.file_digest(file, "sha256").hexdigest()[:32])
    except (FileNotFoundError, NotADirectoryError):
        return None
