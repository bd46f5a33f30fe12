"""One directory tree belongs to one store: a second URL for a part of it would use locks of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.children import await_word, child
from wal3_core import LogReader, LogWriter, StoreDeniedError, open_store
from wal3_core.store.object_store import Done, ObjectStore, Versioned

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


# Too few for a snapshot, which a writer may still upload while it is closed.
APPENDS = 8
RACES = 40
RAISES = 50


def append_through(connection: Connection, url: str, log: str, tag: str) -> None:
    """Append at each message; send the acknowledged appends, or the refusal."""
    store = open_store(url)
    connection.send(("up", None))
    while connection.recv():
        try:
            with LogWriter.open_or_create(store, log) as writer:
                done = [(writer.append(f"{tag}{index}".encode()).offset, f"{tag}{index}") for index in range(APPENDS)]
            connection.send(("acked", done))
        except StoreDeniedError as error:
            connection.send(("refused", str(error)))


@pytest.mark.slow
@pytest.mark.parametrize("first", ["outer", "inner"])
def test_log_reached_through_two_urls_loses_no_append_since_the_second_is_refused(tmp_path: Path, first: str) -> None:
    names = {"outer": (tmp_path.as_uri(), "teams/x"), "inner": ((tmp_path / "teams").as_uri(), "x")}
    second = "inner" if first == "outer" else "outer"
    with child(append_through, *names[first], "a") as (_, one), child(append_through, *names[second], "b") as (_, two):
        await_word(one, "up")
        await_word(two, "up")
        one.send("go")
        acked = [tuple(each) for each in await_word(one, "acked")]
        before = sorted(tmp_path.rglob("*"))

        two.send("go")
        refusal = str(await_word(two, "refused"))
        after = sorted(tmp_path.rglob("*"))
        one.send("go")
        acked += [tuple(each) for each in await_word(one, "acked")]

    assert f"store {names[second][0].removeprefix('file://')}: " in refusal
    assert f"open {names[first][0]}" in refusal
    if second == "inner":
        assert after == before
    url, log = names[first]
    held = [(record.offset, (record.body or b"").decode()) for record in LogReader.open(open_store(url), log).records()]
    assert held == acked
    assert len(held) == 2 * APPENDS


def make_roots(connection: Connection, folders: list[str], below: str, path: str) -> None:
    """Race for each folder in turn: make a store of it, or of the folder ``below``, and write an object."""
    stores = [open_store((Path(folder) / below).as_uri()) for folder in folders]
    connection.send(("up", None))
    connection.recv()
    outcomes = []
    for store in stores:
        try:
            outcomes.append(type(store.create(path, b"x")).__name__)
        except StoreDeniedError:
            outcomes.append("denied")
    connection.send(("outcomes", outcomes))


def may_write(store: ObjectStore, path: str) -> bool:
    try:
        found = store.get(path)
        return not isinstance(found, Versioned) or isinstance(store.replace(path, found.data + b"y", found.etag), Done)
    except StoreDeniedError:
        return False


@pytest.mark.slow
def test_two_processes_that_make_stores_in_one_another_at_once_do_not_both_write(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number}" for number in range(RACES)]
    for folder in folders:
        folder.mkdir()
    texts = [str(folder) for folder in folders]
    with (
        child(make_roots, texts, "", "teams/x/object") as (_, one),
        child(make_roots, texts, "teams", "x/object") as (_, two),
    ):
        for connection in (one, two):
            await_word(connection, "up")
        for connection in (one, two):
            connection.send("go")
        pairs = list(zip(await_word(one, "outcomes"), await_word(two, "outcomes"), strict=True))

    print(f"outer, inner: {pairs}")
    assert ("Done", "Done") not in pairs
    for folder, outcomes in zip(folders, pairs, strict=True):
        outer, inner = open_store(folder.as_uri()), open_store((folder / "teams").as_uri())
        can = may_write(outer, "teams/x/object"), may_write(inner, "x/object")
        assert sorted(can) == [False, True]
        # The process whose write was acknowledged can write again.
        assert "Done" not in outcomes or can[outcomes.index("Done")]


def attempt(folder: Path, way: tuple[str, str]) -> bool:
    """Write an object through one of two URLs; return whether that was done."""
    try:
        return isinstance(open_store((folder / way[0]).as_uri()).create(way[1], b"x"), Done)
    except StoreDeniedError:
        return False


STEPS = ("mkdir", "rmdir", "link", "fsync")
STEPS_MAX = 200


def step_in(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[int]:
    """Call ``act`` before the system call of this number; return the count so far, as a list of one."""
    count = [0]

    def stepping(call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            count[0] += 1
            if count[0] == number:
                act()
            return call(*arguments, **options)

        return step

    for name in STEPS:
        monkeypatch.setattr(os, name, stepping(getattr(os, name)))
    return count


@pytest.mark.parametrize("outer_first", [True, False], ids=["outer", "inner"])
def test_store_made_while_another_is_being_made_around_or_inside_it_excludes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, outer_first: bool
) -> None:
    ways = {True: ("", "teams/x/object"), False: ("teams", "x/object")}
    outcomes = set()
    for number in range(1, STEPS_MAX):
        folder, other = tmp_path / f"{number}", []
        with monkeypatch.context() as patched:
            count = step_in(patched, number, lambda: other.append(attempt(folder, ways[not outer_first])))  # noqa: B023 - called before the loop goes on
            done = attempt(folder, ways[outer_first])
        if count[0] < number:
            break
        outer, inner = open_store(folder.as_uri()), open_store((folder / "teams").as_uri())
        can = {True: may_write(outer, "teams/x/object"), False: may_write(inner, "x/object")}
        assert sorted(can.values()) == [False, True], f"step {number}"
        assert not (done and other[0]), f"step {number}"
        assert can[outer_first] or not done, f"step {number}"
        assert can[not outer_first] or not other[0], f"step {number}"
        outcomes.add((done, other[0]))

    assert outcomes >= {(True, False), (False, True)}


def test_looking_through_a_second_url_is_refused_too(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path.as_uri()).create("teams/x/object", b"x"), Done)
    inner = open_store((tmp_path / "teams").as_uri())

    for look in (
        lambda: inner.read("x/object"),
        lambda: inner.get("x/object"),
        lambda: inner.head("x/object"),
        lambda: list(inner.list_objects("")),
        lambda: inner.list_folders(""),
        lambda: inner.delete("x/object"),
    ):
        with pytest.raises(StoreDeniedError, match=f"found the store {tmp_path}: .* begin with teams/"):
            look()


def begin_around(folder: Path) -> None:
    """Make a store as one that began at the same time as one inside it may be left, or by an earlier version."""
    (folder / ".wal3" / "locks").mkdir(parents=True)


def test_store_is_not_begun_in_a_folder_that_holds_others_and_these_stay_as_they_are(tmp_path: Path) -> None:
    """A URL one folder too high was once taken, and no new store could be begun beside those below it."""
    below = tmp_path / "teams" / "red"
    assert isinstance(open_store(below.as_uri()).create("x/object", b"x"), Done)
    before = sorted(tmp_path.rglob("*"))
    outer = open_store(tmp_path.as_uri())

    for write in (lambda: outer.create("metrics/object", b"x"), lambda: LogWriter.create(outer, "metrics")):
        with pytest.raises(StoreDeniedError, match=f"no other store inside, found {below}: open {below.as_uri()} "):
            write()

    assert sorted(tmp_path.rglob("*")) == before
    assert isinstance(open_store((tmp_path / "teams" / "green").as_uri()).create("x/object", b"x"), Done)


@pytest.mark.parametrize("later", ["outer", "inner"])
def test_of_two_stores_inside_one_another_the_later_one_is_named_as_the_mistake(tmp_path: Path, later: str) -> None:
    inner = tmp_path / "teams" / "red"
    assert isinstance(open_store(inner.as_uri()).create("x/object", b"x"), Done)
    begin_around(tmp_path)
    os.utime((tmp_path if later == "inner" else inner) / ".wal3", (1, 1))
    advised = f"end all processes that use it, and remove {tmp_path if later == 'outer' else inner}/.wal3$"

    with pytest.raises(StoreDeniedError, match=advised):
        open_store(tmp_path.as_uri()).list_folders("teams/red/")
    with pytest.raises(StoreDeniedError, match=advised):
        open_store((tmp_path / "teams" / "green").as_uri()).create("x/object", b"x")


def test_store_inside_is_named_on_every_access_and_listing(tmp_path: Path) -> None:
    assert isinstance(open_store((tmp_path / "teams").as_uri()).create("x/object", b"x"), Done)
    outer = open_store(tmp_path.as_uri())
    begin_around(tmp_path)
    assert isinstance(outer.create("others/object", b"x"), Done)

    for look in (
        lambda: outer.get("teams/x/object"),
        lambda: list(outer.list_objects("")),
        lambda: outer.list_folders("teams/"),
        lambda: outer.create("teams/other", b"x"),
        lambda: outer.delete("teams/x/object"),
    ):
        with pytest.raises(
            StoreDeniedError, match=f"store {tmp_path}: expected no other store .* {tmp_path / 'teams'}:"
        ):
            look()
    assert outer.read("others/object") == b"x"


def test_store_still_works_after_another_was_made_around_it(tmp_path: Path) -> None:
    inner = open_store((tmp_path / "teams").as_uri())
    made = inner.create("x/object", b"1")
    assert isinstance(made, Done)
    begin_around(tmp_path)
    assert isinstance(open_store(tmp_path.as_uri()).create("others/object", b"x"), Done)

    for store in (inner, open_store((tmp_path / "teams").as_uri())):
        assert isinstance(store.get("x/object"), Versioned)
        assert may_write(store, "x/object")


def test_claim_of_a_dead_process_blocks_no_other_store(tmp_path: Path) -> None:
    """It died between the two steps of making a root."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "teams"
    for folder in (outer, inner):
        (folder / ".wal3").mkdir(parents=True)

    assert isinstance(open_store(outer.as_uri()).create("teams/x/object", b"x"), Done)

    assert not (inner / ".wal3").exists()
    assert open_store(outer.as_uri()).read("teams/x/object") == b"x"


def test_abandoned_claim_above_blocks_no_other_store(tmp_path: Path) -> None:
    (tmp_path / ".wal3").mkdir()

    assert isinstance(open_store((tmp_path / "teams").as_uri()).create("x/object", b"x"), Done)


def test_symbolic_link_is_no_second_way_to_a_folder(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "teams").mkdir(parents=True)
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(root / "teams")
    (root / "out").symlink_to(elsewhere)
    store = open_store(root.as_uri())
    assert isinstance(store.create("teams/x/object", b"x"), Done)

    with pytest.raises(StoreDeniedError, match=f"found the store {root}:"):
        open_store((tmp_path / "link").as_uri()).create("x/object", b"y")
    with pytest.raises(
        StoreDeniedError, match=f"expected its folders inside, found {root / 'out'} to lead to {elsewhere}"
    ):
        store.create("out/object", b"y")
    assert isinstance(open_store(elsewhere.as_uri()).create("object", b"z"), Done)
    with pytest.raises(StoreDeniedError, match=f"expected no other store inside, found {root / 'out'}"):
        store.get("out/object")
    assert sorted(elsewhere.iterdir()) == [elsewhere / ".wal3", elsewhere / "object"]
    assert store.read("teams/x/object") == b"x"


def test_link_to_the_store_itself_leads_to_its_own_objects(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(tmp_path)
    store = open_store(tmp_path.as_uri())

    assert isinstance(store.create("self/object", b"x"), Done)

    assert store.read("object") == b"x"
    assert may_write(store, "self/object")


def test_counter_with_two_names_in_one_store_loses_no_update(tmp_path: Path) -> None:
    """A link that stays within the store gives its objects two names, and one lock."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert isinstance(open_store(tmp_path.as_uri()).create("a/counter", b"[]"), Done)

    def raise_counter(path: str) -> None:
        store, done = open_store(tmp_path.as_uri()), 0
        while done < RAISES:
            found = store.get(path)
            assert isinstance(found, Versioned)
            data = json.dumps([*json.loads(found.data), f"{path}{done}"]).encode()
            done += isinstance(store.replace(path, data, found.etag), Done)

    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(raise_counter, path) for path in ("a/counter", "b/counter")]:
            ended.result(timeout=600)

    raised = json.loads(open_store(tmp_path.as_uri()).read("a/counter") or b"")
    assert len(raised) == len(set(raised)) == 2 * RAISES
