"""What was there all the time is in every listing of a directory store, whatever is replaced meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path

import pytest

from tests.mutations import Mutation, applied
from wal3_core import (
    CollectorOptions,
    CursorStore,
    LogPosition,
    LogReader,
    LogWriter,
    UnavailableError,
    collect,
    list_logs,
)
from wal3_core.store.backends import local_listing
from wal3_core.store.backends.local import LocalStore
from wal3_core.store.object_store import Done, Versioned

WAIT_S_MAX = 30.0
DEFECTS = (
    Mutation("a list locks out no replace", "Listing._scanned", "fcntl.LOCK_EX", "fcntl.LOCK_SH"),
    Mutation("a replace waits for no list", "Listing.held_off", "fcntl.LOCK_SH", "fcntl.LOCK_UN"),
)


class Opened:
    """A folder as of its opening, as btrfs reads it: an entry that was replaced since then is not shown."""

    def __init__(self, path: str | Path, after_opening: Callable[[str | Path], None]) -> None:
        with os.scandir(path) as found:
            entries = [(entry, entry.inode()) for entry in found]
        after_opening(path)
        self._left = iter([entry for entry, inode in entries if self._inode(entry) == inode])

    def _inode(self, entry: os.DirEntry[str]) -> int | None:
        try:
            return os.lstat(entry.path).st_ino
        except FileNotFoundError:
            return None

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._left

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return self._left

    def __exit__(self, *_: object) -> None:
        """Close nothing."""


class OsOf:
    """``os`` for one module, with folders that are read as of their opening."""

    def __init__(self, after_opening: Callable[[str | Path], None]) -> None:
        self._after_opening = after_opening

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def scandir(self, path: str | Path) -> Opened:
        """``os.scandir``."""
        return Opened(path, self._after_opening)


class ReplacedMeanwhile:
    """Replaces an object each time its folder is opened to be read."""

    def __init__(self, root: Path, path: str) -> None:
        self._store, self._path = LocalStore(root), path
        self._folder = (root / path).parent
        self._pool = ThreadPoolExecutor(1)
        self.replaced: list[Future[object]] = []

    def __call__(self, folder: str | Path) -> None:
        if Path(folder) != self._folder:
            return
        self.replaced.append(self._pool.submit(self._replace))
        # It has to wait, or has been done.
        with contextlib.suppress(NotYetError):
            self.replaced[-1].result(0.1)

    def _replace(self) -> object:
        found = self._store.get(self._path)
        assert isinstance(found, Versioned)
        return self._store.replace(self._path, found.data, found.etag)


@contextlib.contextmanager
def replaced_while_listed(root: Path, path: str) -> Iterator[None]:
    """Replace an object each time its folder was opened to be read; at least once, and each replace is done."""
    racing = ReplacedMeanwhile(root, path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_listing, "os", OsOf(racing))
        yield
    assert racing.replaced
    assert all(isinstance(each.result(WAIT_S_MAX), Done) for each in racing.replaced)


def is_listed(root: Path) -> bool:
    """Whether all listings name an object, its folder and its log, each alone in its folder and replaced meanwhile."""
    store = LocalStore(root)
    for path in ("a/manifest/MANIFEST.json", "a/Life=0123456789abcdef0123456789abcdef/cursor/c.json"):
        assert isinstance(store.create(path, b"x"), Done)
    cursors = "a/Life=0123456789abcdef0123456789abcdef/cursor/"
    with replaced_while_listed(root, f"{cursors}c.json"):
        objects = [meta.path for meta in store.list_objects(cursors)]
    with replaced_while_listed(root, "a/manifest/MANIFEST.json"):
        folders = store.list_folders("a/")
    with replaced_while_listed(root, "a/manifest/MANIFEST.json"):
        logs = list(list_logs(store))
    return objects == [f"{cursors}c.json"] and "a/manifest/" in folders and logs == ["a"]


def test_object_that_is_replaced_meanwhile_is_listed(tmp_path: Path) -> None:
    assert is_listed(tmp_path / "store")


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_listing_that_does_not_exclude_replaces_is_found(tmp_path: Path, defect: Mutation) -> None:
    with applied(defect):
        assert not is_listed(tmp_path / "store")


def test_collection_keeps_what_a_cursor_that_is_saved_meanwhile_keeps(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    with LogWriter.open_or_create(store, "a") as writer:
        for number in range(10):
            writer.append(b"%d" % number)
        life = f"a/Life={writer.log_id}/"
    cursors = CursorStore(store, "a")
    cursors.create("slow", LogPosition(2, 0))
    cursors.create("fast", LogPosition(10, 0))

    with replaced_while_listed(tmp_path / "store", f"{life}cursor/slow.json"):
        collect(store, "a", options=CollectorOptions(interval_s=0, fraction_max=1))

    assert next(iter(LogReader.open(store, "a").records(2))).body == b"1"


def test_list_waits_for_a_folder_s_lock_no_longer_than_its_deadline(tmp_path: Path) -> None:
    """A process may be stopped right between the lock and the rename."""
    store = LocalStore(tmp_path / "store", lock_wait_s_max=0.1)
    made = store.create("a/b", b"1")
    assert isinstance(made, Done)
    handle = os.open(tmp_path / "store" / "a", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(UnavailableError, match=r"list .*/a/: expected the lock .*/a/ within 0.1 s, found it held"):
            list(store.list_objects("a/"))
        assert isinstance(store.replace("a/b", b"2", made.etag), Done)
    finally:
        os.close(handle)
    assert [meta.path for meta in store.list_objects("a/")] == ["a/b"]


def test_folder_that_may_only_be_read_is_listed(tmp_path: Path) -> None:
    """Its lock takes no right to write, and leaves nothing behind."""
    store = LocalStore(tmp_path / "store")
    assert isinstance(store.create("a/b", b"1"), Done)
    before = sorted(tmp_path.rglob("*"))

    assert [meta.path for meta in LocalStore(tmp_path / "store").list_objects("")] == ["a/b"]

    assert sorted(tmp_path.rglob("*")) == before
