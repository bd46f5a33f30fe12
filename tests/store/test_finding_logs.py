"""However a store is listed, every log is found once, in order, and a listing goes on where another one was left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from wal3_core import LogWriter, MemoryStore, StoreDeniedError, destroy, list_logs
from wal3_core.fleet import discovery
from wal3_core.format.paths import MANIFEST
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import Done, ObjectMeta, ObjectStore, StoreWrapper

LIFE = f"Life={'0' * 32}"


class CountingStore(StoreWrapper):
    """Counts the listings of folders, and pages of a listing of objects; objects below ``denied`` are not shown."""

    def __init__(self, store: ObjectStore, *, denied: str | None = None) -> None:
        super().__init__(store)
        self.sent: Counter[str] = Counter()
        self._denied = denied

    def list_folders(self, folder: str) -> list[str]:
        self.sent["folders"] += 1
        return super().list_folders(folder)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        for number, meta in enumerate(super().list_objects(folder, start_after=start_after)):
            self.sent["pages"] += number % discovery._PAGE == 0
            if self._denied is not None and meta.path.startswith(self._denied):
                message = f"{meta.path}: denied"
                raise StoreDeniedError(message)
            yield meta


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, and few folders at a time, so that few logs need many of them."""
    monkeypatch.setattr(discovery, "_PAGE", 7)
    monkeypatch.setattr(discovery, "_FOLDERS_AT_ONCE", 3)
    monkeypatch.setattr(discovery, "_LOGS_OF_A_PAGE", 2)


def _put(store: MemoryStore, *paths: str) -> None:
    for path in paths:
        assert isinstance(store.create(path, b"x"), Done)


def _random_store(seed: int) -> tuple[MemoryStore, list[str]]:
    """Return a store of logs beside and below each other, of all sizes, among what is none; and the logs in order."""
    chosen, store, folders = random.Random(seed), MemoryStore(shared_runtime()), set[str]()
    for _ in range(chosen.randint(0, 60)):
        parts = chosen.choices(["A", "0", "Z", "a", "a-b", "ab", "z", "_"], k=chosen.randint(1, 3))
        folders.add("".join(f"{part}/" for part in parts))
    for folder in folders:
        size = chosen.choice([0, 0, 1, 2, 30])
        _put(store, *(f"{folder}{LIFE}/log/{number}" for number in range(size)))
        if not size or chosen.random() < 0.9:
            _put(store, f"{folder}{MANIFEST}")
    for path in ("wal3-store.json", "odd.d/x", f"odd.d/{MANIFEST}", "plain/x", "a/plain/y", f"m/cursor/{MANIFEST}"):
        store.create(path, b"x")
    return store, [folder.removesuffix("/") for folder in sorted(folders)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(40))
def test_all_logs_are_found_once_and_in_order(seed: int) -> None:
    store, logs = _random_store(seed)

    assert list(list_logs(store)) == logs
    for prefix in ("a", "a/Z", "none"):
        assert list(list_logs(store, prefix)) == [log for log in logs if f"{log}/".startswith(f"{prefix}/")]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(10))
def test_listing_goes_on_behind_the_log_at_which_another_was_left(seed: int) -> None:
    store, logs = _random_store(seed)

    for after in ("a", "a/0", "none", *logs):
        assert list(list_logs(store, start_after=after)) == [log for log in logs if f"{log}/" > f"{after}/"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(10))
def test_listing_of_objects_that_is_denied_midway_loses_no_log(seed: int) -> None:
    store, logs = _random_store(seed)

    for denied in ("", "a", "a-b", "odd.d", "z"):
        assert list(list_logs(CountingStore(store, denied=denied))) == logs


def test_small_logs_take_a_request_for_hundreds_of_them() -> None:
    store = MemoryStore(shared_runtime())
    for number in range(600):
        _put(store, f"log-{number:03}/{MANIFEST}", *(f"log-{number:03}/{LIFE}/log/{each}" for each in "abc"))
    counted = CountingStore(store)

    assert len(list(list_logs(counted))) == 600
    assert counted.sent == {"pages": 3}


def test_large_logs_take_a_listing_of_their_folder_each_and_few_pages() -> None:
    store = MemoryStore(shared_runtime())
    for number in range(40):
        _put(store, f"log-{number:02}/{MANIFEST}", *(f"log-{number:02}/{LIFE}/log/{each:04}" for each in range(1_500)))
    counted = CountingStore(store)

    assert len(list(list_logs(counted))) == 40
    assert counted.sent["folders"] <= 41
    assert counted.sent["pages"] <= 4


def test_names_of_the_most_parts_are_found() -> None:
    store, deepest = MemoryStore(shared_runtime()), "/".join("a" * 250)
    _put(store, f"{deepest}/{LIFE}/log/x", *(f"b-{number}/{LIFE}/log/{each}" for number in range(9) for each in "ab"))
    without_objects = CountingStore(store, denied="")

    assert next(list_logs(without_objects)) == deepest
    assert len(list(list_logs(store))) == 10


def test_name_that_was_destroyed_is_no_log_in_a_listing_of_objects() -> None:
    store = MemoryStore(shared_runtime())
    for log in ("a", "b", "c"):
        LogWriter.open_or_create(store, log).close()
    destroy(store, "b")

    assert list(list_logs(store)) == ["a", "c"]
