"""The directory store syncs before it acknowledges, in an order that a crash cannot undo."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from wal3_core import LogWriter, NotDurableError, UnavailableError, WriterOptions, open_store
from wal3_core.options import RetryOptions
from wal3_core.store.backends import local_durability
from wal3_core.store.backends.local import LocalStore
from wal3_core.store.object_store import Done, Etag, Unknown

QUICK = WriterOptions(retry=RetryOptions(attempts_max=2, pause_s_min=0.001))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs in order, "file" or the folder's name; they are also done."""
    order: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        mode = os.fstat(handle).st_mode
        order.append(Path(f"/proc/self/fd/{handle}").readlink().name if stat.S_ISDIR(mode) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    return order


def test_create_syncs_the_bytes_then_the_entry_and_new_folders_their_parents(local_url: str, synced: list[str]) -> None:
    store = open_store(local_url)
    assert isinstance(store.create("warm", b""), Done)
    synced.clear()

    assert isinstance(store.create("one/two/object", b"x"), Done)

    assert synced == ["file", "store", "one", "two"]


def test_replace_syncs_the_bytes_then_the_entry(local_url: str, synced: list[str]) -> None:
    store = open_store(local_url)
    made = store.create("object", b"1")
    assert isinstance(made, Done)
    synced.clear()

    assert isinstance(store.replace("object", b"2", made.etag), Done)

    assert synced == ["file", "store"]


def test_folder_that_another_process_made_is_synced_before_it_is_relied_on(local_url: str, synced: list[str]) -> None:
    store = open_store(local_url)
    assert isinstance(store.create("warm", b""), Done)
    (Path(urlsplit(local_url).path) / "made").mkdir()
    synced.clear()

    assert isinstance(store.create("made/object", b"x"), Done)

    assert synced == ["file", "store", "made"]


def test_entry_that_could_not_be_synced_is_not_taken_for_durable(
    local_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(local_url)
    with LogWriter.open_or_create(store, "a", options=QUICK) as writer:
        writer.append(b"1")
        fsync, broken = os.fsync, [True]

        def fail_on_folders(handle: int) -> None:
            if broken[0] and stat.S_ISDIR(os.fstat(handle).st_mode):
                raise OSError(5, "Input/output error")
            fsync(handle)

        monkeypatch.setattr(os, "fsync", fail_on_folders)
        assert isinstance(store.create("object", b"x"), Unknown)
        with pytest.raises(UnavailableError):
            store.read("object")
        with pytest.raises(NotDurableError, match="Input/output error"):
            writer.append(b"2")
        broken[0] = False
        assert writer.append(b"3").offset == 2

    assert store.read("object") == b"x"


def test_folder_that_was_removed_and_made_again_is_synced_before_it_is_relied_on(
    local_url: str, synced: list[str]
) -> None:
    store, other = open_store(local_url), open_store(local_url)
    assert isinstance(store.create("one/two/object", b"x"), Done)
    other.delete("one/two/object")
    (Path(urlsplit(local_url).path) / "one" / "two").mkdir(parents=True)
    synced.clear()

    assert isinstance(store.create("one/two/object", b"x"), Done)

    assert (synced[0], synced[-3:]) == ("file", ["store", "one", "two"])


def test_folder_is_removed_with_its_last_object_and_the_store_stays(local_url: str) -> None:
    store, root = open_store(local_url), Path(urlsplit(local_url).path)
    for path in ("a/one/two/object", "a/one/other", "b/object"):
        assert isinstance(store.create(path, b"x"), Done)

    store.delete("a/one/two/object")
    assert sorted(path.name for path in root.rglob("*") if ".wal3" not in path.parts) == [
        "a",
        "b",
        "object",
        "one",
        "other",
    ]
    store.delete("a/one/other")
    store.delete("b/object")

    assert [path.name for path in root.iterdir()] == [".wal3"]
    assert isinstance(store.create("a/one/two/object", b"y"), Done)


def test_folder_without_an_object_is_not_listed(local_url: str) -> None:
    """A folder may be kept while another object is being created."""
    store, root = open_store(local_url), Path(urlsplit(local_url).path)
    assert isinstance(store.create("a/one/object", b"x"), Done)
    (root / "b" / "two").mkdir(parents=True)

    assert store.list_folders("") == ["a/"]


@pytest.mark.slow
def test_folder_never_vanishes_under_a_create(local_url: str) -> None:
    def create_and_delete(number: int) -> int:
        """Open a store of its own, as a process would; the threads share folders, but no objects."""
        store, done = open_store(local_url), 0
        for index in range(60):
            path = f"shared/{index % 2}/folder/{number}-{index}"
            done += isinstance(store.create(path, b"x"), Done) and store.read(path) == b"x"
            store.delete(path)
        return done

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(create_and_delete, range(6))) == [60] * 6


def test_staging_folder_that_was_cleaned_away_comes_back(local_url: str) -> None:
    store = open_store(local_url)
    assert isinstance(store.create("one", b""), Done)
    (Path(urlsplit(local_url).path) / ".wal3" / "staging").rmdir()

    assert isinstance(store.create("two", b""), Done)


@pytest.mark.parametrize("is_a_mount", [False, True])
def test_store_that_is_gone_is_an_error_and_not_an_empty_store(tmp_path: Path, *, is_a_mount: bool) -> None:
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store = LocalStore(root)
    assert isinstance(store.create("log/cursor", b"1"), Done)
    reader = LocalStore(root)
    assert reader.read("log/cursor") == b"1"

    root.rename(elsewhere)
    if is_a_mount:
        # What lies below a mount point when nothing is mounted.
        root.mkdir()
    for each in (store, reader):
        for use in (
            lambda each=each: each.read("log/cursor"),
            lambda each=each: each.head("log/cursor"),
            lambda each=each: list(each.list_objects("log/")),
            lambda each=each: each.list_folders(""),
            lambda each=each: each.create("log/other", b"2"),
            lambda each=each: each.replace("log/cursor", b"2", Etag("0")),
            lambda each=each: each.delete("log/cursor"),
        ):
            with pytest.raises(UnavailableError, match="expected .wal3/locks, which was there, found none: mount"):
                use()

    assert list(root.iterdir() if is_a_mount else []) == []
    if is_a_mount:
        root.rmdir()
    elsewhere.rename(root)
    assert (store.read("log/cursor"), reader.read("log/other")) == (b"1", None)
    assert isinstance(store.create("log/other", b"2"), Done)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: these tests check memory use."""
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
    monkeypatch.setattr(local_durability, "_FOLDERS_MAX", 1000)
    monkeypatch.setattr(local_durability, "_SEEN_MAX", 1000)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_thousands_of_folders_and_documents_do_not_stay_in_memory(local_url: str) -> None:
    store = LocalStore(Path(urlsplit(local_url).path))
    for number in range(3000):
        made = store.create(f"{number}/object", b"1")
        assert isinstance(made, Done)
        assert isinstance(store.replace(f"{number}/object", b"2", made.etag), Done)

    assert 0 < len(store._durable._folders) <= 1000
    assert 0 < len(store._durable._seen) <= 1000
    assert not store._durable._unsynced


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_folders_that_were_removed_are_forgotten(local_url: str) -> None:
    store = LocalStore(Path(urlsplit(local_url).path))
    for number in range(3000):
        store.create(f"{number}/object", b"1")
        store.delete(f"{number}/object")

    assert len(store._durable._folders) <= 10
