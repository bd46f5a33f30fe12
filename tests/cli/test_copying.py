"""``copy`` creates another log with the same records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.stores import FaultyStore
from wal3_core import StoreDeniedError, open_store

from .conftest import Command

if TYPE_CHECKING:
    import pytest


def appended(wal3: Command, log: str, count: int) -> None:
    """Append fragments of one record each."""
    for number in range(count):
        wal3.ok("append", "--create", "--raw", log, stdin=f"{number}\n")


def test_copy_within_a_store(wal3: Command) -> None:
    appended(wal3, "a", 3)

    printed = wal3.ok("copy", "a", "backup/a").decode()

    assert printed.startswith("copied a as of 20")
    assert " to backup/a: 3 records (offsets 1 to 3), " in printed
    assert ", 3 fragments; setsum " in printed
    assert " verified\nits policy is that of a: backup/a: collected only below its cursors; no retention\n" in printed
    assert wal3.ok("cat", "backup/a") == wal3.ok("cat", "a")
    assert wal3("scrub", "backup/a").exit_code == 0


def test_copy_to_another_store_from_an_offset_with_cursors(wal3: Command, tmp_path: Path) -> None:
    appended(wal3, "a", 4)
    wal3.ok("cursor", "set", "a", "old", "1")
    wal3.ok("cursor", "set", "a", "reader", "3")
    other = Command((tmp_path / "other").as_uri())

    arguments = ("--to-store", str(tmp_path / "other"), "--from-offset", "3", "--with-cursors", "--json")
    [copied] = wal3.json("copy", "a", "a", *arguments)

    assert {name: copied[name] for name in ("source", "log", "first_offset", "next_offset", "num_records")} == {
        "source": "a",
        "log": "a",
        "first_offset": 3,
        "next_offset": 5,
        "num_records": 2,
    }
    assert (copied["num_cursors"], copied["num_fragments"], copied["resumed"]) == (1, 2, False)
    assert other.json("cat", "a") == wal3.json("cat", "a", "--from-offset", "3")
    assert [cursor["cursor"] for cursor in other.json("cursor", "list", "a", "--json")] == ["reader"]


def test_update_makes_a_copy_and_then_appends_what_is_new(wal3: Command, tmp_path: Path) -> None:
    other = Command((tmp_path / "other").as_uri())
    backup = ("copy", "a", "a", "--to-store", str(tmp_path / "other"), "--update", "--with-cursors")
    appended(wal3, "a", 3)
    wal3.ok("cursor", "set", "a", "reader", "2")

    made = wal3.ok(*backup).decode()
    appended(wal3, "a", 4)
    wal3.ok("cursor", "set", "a", "reader", "5")
    updated = wal3.ok(*backup).decode()
    [again] = wal3.json(*backup, "--json")

    assert made.startswith("copied a as of ")
    assert f" to a in {other.url}: 3 records" in made
    assert updated.startswith(f"updated a in {other.url} from a: 4 records (offsets 4 to 7), ")
    assert ", 4 fragments, 1 cursor moved; setsum " in updated
    assert (again["num_records"], again["from_offset"], again["next_offset"], again["num_cursors"]) == (0, 8, 8, 0)
    assert b"0 records (nothing was missing), 0 bytes, 0 fragments, 0 cursors moved" in wal3.ok(*backup)
    assert other.ok("cat", "a") == wal3.ok("cat", "a")
    assert [row["offset"] for row in other.json("cursor", "list", "a", "--json")] == [5]


def test_update_of_another_log_or_from_an_offset_is_refused(wal3: Command) -> None:
    appended(wal3, "a", 2)
    appended(wal3, "b", 1)

    for arguments, message in (
        (("a", "b", "--update"), "expected a copy of log"),
        (("a", "b", "--update", "--from-offset", "1"), "leave out --from-offset"),
        (("none", "b", "--update"), "create the log first"),
    ):
        result = wal3("copy", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr


def test_copy_of_an_empty_log_says_so(wal3: Command) -> None:
    wal3.ok("init", "a")

    assert b"to b: 0 records (no offsets), 0 bytes, 0 fragments, 0 cursors;" in wal3.ok(
        "copy", "a", "b", "--with-cursors"
    )


def test_copy_over_a_log_or_of_a_missing_log_or_offset_is_refused(wal3: Command) -> None:
    appended(wal3, "a", 2)
    appended(wal3, "b", 1)

    for arguments in (("a", "b"), ("a", "a"), ("none", "c"), ("a", "c", "--from-offset", "9"), ("a", "log")):
        result = wal3("copy", *arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)

    assert [row["log"] for row in wal3.json("ls", "--json")] == ["a", "b"]


def test_copy_over_a_log_is_refused_with_advice(wal3: Command) -> None:
    appended(wal3, "a", 1)
    appended(wal3, "b", 1)

    refused = wal3("copy", "a", "b")

    assert refused.stderr.endswith(": choose another name, or destroy that log first\n")


def test_copy_of_a_damaged_log_fails_and_creates_no_log(wal3: Command, tmp_path: Path) -> None:
    appended(wal3, "a", 2)
    fragment = next((tmp_path / "store" / "a").glob("Life=*/log/**/*.parquet"))
    fragment.write_bytes(fragment.read_bytes()[:-1])

    result = wal3("copy", "a", "b")

    assert result.exit_code == 1
    assert "fragment" in result.stderr
    assert wal3("cat", "b").exit_code == 2


def test_copy_whose_pin_remains_is_complete_and_names_the_command_that_deletes_it(
    wal3: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(wal3, "a", 2)

    def opened(url: str) -> FaultyStore:
        store = FaultyStore(open_store(url))

        def before(kind: str, path: str) -> None:
            whole = '"vacant"' not in (store.inner.read("b/manifest/MANIFEST.json") or b'"vacant"').decode()
            if "/pin/" in path and kind in {"delete", "replace"} and whole:
                message = f"{path}: expected access, found 403"
                raise StoreDeniedError(message)

        store.before = before
        return store

    with monkeypatch.context() as patched:
        patched.setattr("wal3_core.cli.shell.session.open_store", opened)
        result = wal3("copy", "a", "b")

    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert result.stdout.startswith("copied a as of 20")
    found = re.search(r"the copy is complete, but a is still pinned as (copy-\w+), .* pin delete a \1\n", result.stderr)
    assert found is not None
    wal3.ok("pin", "delete", "a", found[1], "--yes")
    assert wal3.json("pin", "list", "a", "--json") == []
