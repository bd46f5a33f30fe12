"""The object store contract, on every store."""

from __future__ import annotations

import concurrent.futures

import pytest

from wal3_core.store.object_store import (
    Done,
    Etag,
    FolderStore,
    NotModified,
    ObjectStore,
    PutOutcome,
    Refused,
    Versioned,
)

WRITERS = 16
RAISES = 10


def etag_of(outcome: PutOutcome) -> Etag:
    assert isinstance(outcome, Done), outcome
    return outcome.etag


def test_created_object_reads_back_whole_and_in_ranges(store: ObjectStore) -> None:
    etag_of(store.create("log/a.bin", bytes(range(100))))

    assert store.read("log/a.bin") == bytes(range(100))
    assert store.read("log/a.bin", start=10, length=5) == bytes(range(10, 15))
    assert store.read("log/a.bin", start=90) == bytes(range(90, 100))
    assert store.read("log/a.bin", start=95, length=50) == bytes(range(95, 100))


def test_range_beyond_the_end_of_an_object_reads_nothing(store: ObjectStore) -> None:
    """Servers answer such a range with an error, which was once reported as an outage."""
    etag_of(store.create("empty", b""))
    etag_of(store.create("short", b"123"))

    assert store.read("empty", length=10) == b""
    assert store.read("empty", start=5, length=10) == b""
    assert store.read("empty", start=5) == b""
    assert store.read("short", start=3, length=10) == b""
    assert store.read("short", start=4) == b""
    assert store.read("missing", start=4, length=10) is None


def test_missing_object_is_none_and_not_an_error(store: ObjectStore) -> None:
    assert store.read("no/such.bin") is None
    assert store.get("no/such.bin") is None
    assert store.head("no/such.bin") is None
    store.delete("no/such.bin")


def test_second_create_is_refused_and_leaves_the_object(store: ObjectStore) -> None:
    etag_of(store.create("a", b"first"))

    assert store.create("a", b"second") == Refused()
    assert store.read("a") == b"first"


def test_replace_needs_the_current_version(store: ObjectStore) -> None:
    old = etag_of(store.create("a", b"1"))
    new = etag_of(store.replace("a", b"2", old))

    assert store.replace("a", b"3", old) == Refused()
    assert store.read("a") == b"2"
    assert new != old
    assert store.replace("missing", b"3", old) == Refused()
    assert store.head("missing") is None


def test_get_reports_an_unchanged_object(store: ObjectStore) -> None:
    etag = etag_of(store.create("a", b"1"))

    assert store.get("a") == Versioned(b"1", etag)
    assert store.get("a", if_none_match=etag) == NotModified()
    changed = etag_of(store.replace("a", b"2", etag))
    assert store.get("a", if_none_match=etag) == Versioned(b"2", changed)


def test_head_gives_size_and_store_time(store: ObjectStore) -> None:
    etag_of(store.create("a/b", b"12345"))

    meta = store.head("a/b")

    assert meta is not None
    assert (meta.path, meta.size) == ("a/b", 5)
    assert meta.last_modified_us > 1_600_000_000_000_000


def test_deleted_object_is_gone_and_can_be_created_again(store: ObjectStore) -> None:
    etag_of(store.create("a", b"1"))

    store.delete("a")
    store.delete("a")

    assert store.read("a") is None
    etag_of(store.create("a", b"2"))


def test_list_goes_in_path_order_below_a_folder(store: ObjectStore) -> None:
    names = ["x/a", "x/b/1", "x/b-c", "x/b/2", "x/z", "y/a"]
    for name in names:
        etag_of(store.create(name, name.encode()))

    assert [meta.path for meta in store.list_objects("x/")] == sorted(n for n in names if n.startswith("x/"))
    assert [meta.path for meta in store.list_objects("")] == sorted(names)
    assert [meta.size for meta in store.list_objects("y/")] == [3]
    assert [meta.path for meta in store.list_objects("x/b/")] == ["x/b/1", "x/b/2"]
    assert list(store.list_objects("none/")) == []


def test_list_starts_after_a_path(store: ObjectStore) -> None:
    names = sorted(["x/a", "x/b/1", "x/b/2", "x/b-c", "x/z"])
    for name in names:
        etag_of(store.create(name, b""))

    for index, name in enumerate(names):
        assert [meta.path for meta in store.list_objects("x/", start_after=name)] == names[index + 1 :]


@pytest.mark.slow
def test_list_goes_over_more_than_one_page(store: ObjectStore) -> None:
    names = [f"many/{index:05d}" for index in range(1100)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for outcome in pool.map(lambda name: store.create(name, b""), names):
            etag_of(outcome)

    assert [meta.path for meta in store.list_objects("many/")] == names


def test_list_folders_names_only_direct_folders(store: ObjectStore) -> None:
    for name in ["a/b/c/1", "a/b/2", "a/d/3", "a/4", "5"]:
        etag_of(store.create(name, b""))

    assert store.list_folders("") == ["a/"]
    assert store.list_folders("a/") == ["a/b/", "a/d/"]
    assert store.list_folders("a/d/") == []
    assert store.list_folders("none/") == []


def test_folder_store_sees_only_its_folder(store: ObjectStore) -> None:
    inside = FolderStore(store, "logs/one/")
    etag = etag_of(inside.create("cursor/a.json", b"1"))
    etag_of(store.create("other", b"2"))
    etag_of(inside.replace("cursor/a.json", b"3", etag))

    assert store.read("logs/one/cursor/a.json") == b"3"
    assert [meta.path for meta in inside.list_objects("")] == ["cursor/a.json"]
    assert inside.list_folders("") == ["cursor/"]
    head = inside.head("cursor/a.json")
    assert head is not None
    assert head.path == "cursor/a.json"


@pytest.mark.slow
def test_counter_raised_by_cas_from_many_threads_loses_no_update(store: ObjectStore) -> None:
    etag_of(store.create("counter", b"0"))

    def raise_counter(_: int) -> None:
        done = 0
        while done < RAISES:
            found = store.get("counter")
            assert isinstance(found, Versioned)
            outcome = store.replace("counter", str(int(found.data) + 1).encode(), found.etag)
            done += isinstance(outcome, Done)

    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(raise_counter, range(WRITERS)))

    assert store.read("counter") == str(WRITERS * RAISES).encode()


def test_only_one_of_many_racing_creates_wins(store: ObjectStore) -> None:
    for attempt in range(10):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda n: store.create(f"race/{attempt}", f"{n}".encode()), range(8)))  # noqa: B023 - the pool ends with the turn

        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Done)]
        assert len(winners) == 1, outcomes
        assert store.read(f"race/{attempt}") == f"{winners[0]}".encode()


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/./b", "", "a/../../b"])
def test_path_that_leaves_the_store_is_refused(store: ObjectStore, path: str) -> None:
    with pytest.raises(AssertionError):
        store.create(path, b"")
