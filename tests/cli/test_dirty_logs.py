"""``dirty show`` changes nothing, and ``dirty rollup`` hands out only what it is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.spec.rolling import begun, grow, mark, marked, place_of
from tests.stores import damage
from wal3_core import CursorStore, LogPosition, UnavailableError
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from .conftest import Command


@pytest.fixture
def store(wal3: Command) -> ObjectStore:
    """Two servers, which have marked three logs between them."""
    store = open_store(wal3.url)
    grow(store, "a", 3)
    grow(store, "b", 1)
    grow(store, "a", 2, dirty_log="dirty/y")
    grow(store, "c", 1, dirty_log="dirty/y")
    return store


def test_show_names_what_is_marked_by_each_server_and_changes_nothing(wal3: Command, store: ObjectStore) -> None:
    mark(store, begun(store, "b"))

    rows, [one, *_] = wal3.json("dirty", "show", "--json"), wal3.json("dirty", "show", "y", "--json")

    assert [(row["dirty_log"], row["log"], row["decision"], row["records"]) for row in rows] == [
        ("dirty/x", "a", "kept", 3),
        ("dirty/x", "b", "kept", 1),
        ("dirty/y", "a", "kept", 2),
        ("dirty/y", "c", "kept", 1),
    ]
    assert (one["dirty_log"], one["log"]) == ("dirty/y", "a")
    assert [place_of(store, log) for log in ("dirty/x", "dirty/y")] == [None, None]
    table = wal3.ok("dirty", "show", "x")
    assert b"dirty/x: 3 markers, 2 marked logs, 0 selected" in table


def test_rollup_hands_nothing_out_unless_it_is_asked_to(wal3: Command, store: ObjectStore) -> None:
    for _ in range(3):
        grow(store, "a")

    assert b"rolled up to offset 6: 5 markers became 2" in wal3.ok("dirty", "rollup", "x")
    assert marked(store) == {"a": (1, 9), "b": (1, 2)}
    assert b"dirty/x: nothing to do" in wal3.ok("dirty", "rollup", "x")


def test_rollup_hands_out_the_logs_that_are_named_or_all(wal3: Command, store: ObjectStore) -> None:
    dry = wal3.json("dirty", "rollup", "--all", "--dry-run", "--json")
    assert {row["decision"] for row in dry} == {"selected"}
    assert place_of(store) is None

    rows = wal3.json("dirty", "rollup", "--handled", "a", "--json")

    assert [(row["log"], row["handed_out"]) for row in rows] == [("a", True), ("b", False), ("a", True), ("c", False)]
    assert (marked(store), marked(store, "dirty/y")) == ({"b": (1, 2)}, {"c": (1, 2)})
    rows = wal3.json("dirty", "rollup", "x", "--all", "--json")
    assert [(row["log"], row["handed_out"]) for row in rows] == [("b", True)]
    assert (marked(store), marked(store, "dirty/y")) == ({}, {"c": (1, 2)})


def test_unreadable_log_is_named_and_the_others_are_shown(wal3: Command, store: ObjectStore) -> None:
    damage(store, "a/manifest/MANIFEST.json", 20)

    result = wal3("dirty", "rollup", "x", "--all", "--json")

    assert result.exit_code == 1
    assert "1 unreadable: a: CorruptError" in result.stderr
    assert '"log": "b", "decision": "selected"' in result.stdout
    assert marked(store) == {"a": (1, 4)}


def test_wrong_requests_are_refused_and_no_dirty_logs_are_no_error(wal3: Command, store: ObjectStore) -> None:
    both = wal3("dirty", "rollup", "x", "--all", "--handled", "a")
    missing = wal3("dirty", "show", "no-such-server")

    assert (both.exit_code, missing.exit_code) == (2, 2)
    assert "expected --handled or --all, found both" in both.stderr
    assert "expected a server with a dirty log (x, y), found 'no-such-server'" in missing.stderr
    assert place_of(store) is None


def test_log_that_is_not_marked_is_not_handed_out_and_nothing_is_changed(wal3: Command, store: ObjectStore) -> None:
    wal3.ok("init", "quiet")

    result = wal3("dirty", "rollup", "--handled", "a", "--handled", "quiet", "--handled", "tenants/zzz")

    assert result.exit_code == 2
    assert "found no marker of quiet, tenants/zzz" in result.stderr
    assert [place_of(store, log) for log in ("dirty/x", "dirty/y")] == [None, None]


def test_log_that_is_handed_out_is_shown_as_that(wal3: Command, store: ObjectStore) -> None:
    def shown(*arguments: str) -> dict[str, str]:
        lines = wal3.ok("dirty", "rollup", "--handled", "c", *arguments).decode().splitlines()
        cells = [re.split(r" {2,}", line.strip()) for line in lines if "not due yet" in line]
        return {row[0]: row[1] for row in cells}

    assert shown("--dry-run") == {"c": "to be handed out", "a": "kept", "b": "kept"}
    assert shown() == {"c": "handed out", "a": "kept", "b": "kept"}
    assert marked(store, "dirty/y") == {"a": (4, 6)}


def test_server_may_be_given_by_the_name_of_its_dirty_log_or_of_a_lane(wal3: Command, store: ObjectStore) -> None:
    grow(store, "a", dirty_log="dirty/x/1")

    def shown(name: str) -> list[tuple[object, object]]:
        return [(row["dirty_log"], row["log"]) for row in wal3.json("dirty", "show", name, "--json")]

    assert shown("x") == shown("dirty/x") == [("dirty/x", "a"), ("dirty/x", "b"), ("dirty/x/1", "a")]
    assert shown("dirty/x/1") == [("dirty/x/1", "a")]


def test_each_marked_log_is_shown_once_for_all_lanes_and_servers(wal3: Command, store: ObjectStore) -> None:
    grow(store, "b", 4, dirty_log="dirty/x/1")

    table = wal3.ok("dirty", "show").decode()

    assert "dirty/x: 3 markers in 2 lanes, 2 marked logs, 0 selected\ndirty/y: 2 markers, 2 marked logs" in table
    rows = [line.split()[:3] for line in table.splitlines() if "not due yet" in line]
    assert sorted(rows) == [["a", "kept", "5"], ["b", "kept", "5"], ["c", "kept", "1"]]
    CursorStore(store, "b").create("done", LogPosition(2, 0))
    with_cursor = wal3.ok("dirty", "show", "x", "--cursor", "done").decode()
    assert [line.split()[2] for line in with_cursor.splitlines() if line.strip().startswith("b ")] == ["4"]


def test_long_tables_are_cut_with_what_is_due_first(wal3: Command, store: ObjectStore) -> None:
    for _ in range(2):
        grow(store, "z", 20)

    table = wal3.ok("dirty", "show", "--records", "20", "--limit", "1").decode()

    assert [line.split()[:2] for line in table.splitlines() if "too big" in line] == [["z", "selected"]]
    assert table.endswith("and 3 more: --limit 4 or --json shows them\n")
    assert len(wal3.json("dirty", "show", "--limit", "1", "--json")) == 5


@pytest.mark.parametrize(
    ("option", "why"), [(("--age", "0"), "too old"), (("--records", "5"), "too big"), (("--bytes", "1"), "too big")]
)
def test_thresholds_decide_which_logs_are_due(
    wal3: Command, store: ObjectStore, option: tuple[str, str], why: str
) -> None:
    grow(store, "big", 5)

    for command in ("show", "rollup"):
        rows = wal3.json("dirty", command, "x", *option, "--json")
        [big] = [row for row in rows if row["log"] == "big"]
        assert (big["decision"], str(big["reason"]).partition(":")[0]) == ("selected", why)


def test_store_without_dirty_logs_says_so(wal3: Command) -> None:
    wal3.ok("init", "a")

    assert wal3.ok("dirty", "show").startswith(b"no dirty logs")
    assert wal3.ok("dirty", "rollup", "--json") == b""
    assert "expected a server with a dirty log, of which there is none, found 'x'" in wal3("dirty", "show", "x").stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_logs_are_named_if_the_store_fails_just_after_they_were_handed_out(
    wal3: Command, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    """Regression: they were no longer marked, and nothing said which they were."""

    def silent(*_: object, **_options: object) -> None:
        message = "no answer"
        raise UnavailableError(message)

    with monkeypatch.context() as patch:
        # The last request of a cursor's move.
        patch.setattr(CursorStore, "_check_still_held", silent)
        result = wal3("dirty", "rollup", "x", "--all", *form)

    assert marked(store) == {}
    assert result.exit_code == 1
    assert all(re.search(name, result.stdout) for name in (r"\ba\b", r"\bb\b"))
    assert "dirty/x: not known whether its logs were handed out: maintain those shown" in result.stderr
