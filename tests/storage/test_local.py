"""The directory store syncs before it promises, in an order that a crash can not undo."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from wal3_core import LogWriter, NotDurableError, UnavailableError, WriterOptions, open_store
from wal3_core.options import RetryOptions
from wal3_core.storage.object_store import Done, Unknown

QUICK = WriterOptions(retry=RetryOptions(attempts_max=2, pause_s_min=0.001))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, in order: "file", or the folder's name; the syncing itself goes on."""
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
    with LogWriter.open_or_initialize(store, "a", options=QUICK) as writer:
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


def test_staging_folder_that_was_cleaned_away_comes_back(local_url: str) -> None:
    store = open_store(local_url)
    assert isinstance(store.create("one", b""), Done)
    (Path(urlsplit(local_url).path) / ".wal3" / "staging").rmdir()

    assert isinstance(store.create("two", b""), Done)
