"""``repair`` writes a log's bad files again, from a copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.stores import life_store
from wal3_core import LogReader, open_store

if TYPE_CHECKING:
    from .conftest import Command


def damaged(wal3: Command, backup: Path) -> list[str]:
    """Back up a log of four fragments by updates, and damage two of them; return their paths."""
    for number in range(4):
        wal3.ok("append", "--create", "--raw", "a", stdin=f"{number}\n")
        wal3.ok("copy", "a", "kept/a", "--to-store", str(backup), "--update")
    store = open_store(wal3.url)
    bad = [pointer.path for pointer in LogReader.open(store, "a").scan()][1::2]
    for path in bad:
        life_store(store, "a").delete(path)
    return bad


def test_repair_names_each_file_and_the_log_is_sound_again(wal3: Command, tmp_path: Path) -> None:
    bad = damaged(wal3, tmp_path / "backup")
    source = ("--from", str(tmp_path / "backup"), "--from-log", "kept/a")

    planned = wal3.ok("repair", "a", *source, "--dry-run").decode()
    unsound = wal3("scrub", "a").exit_code
    printed = wal3.ok("repair", "a", *source).decode()
    again = wal3.ok("repair", "a", *source).decode()

    assert planned.splitlines() == [
        *(f"would repair {path}" for path in bad),
        "a: 2 files can be repaired; 4 records in 4 fragments would be sound",
    ]
    assert unsound == 1
    assert printed.splitlines() == [
        *(f"repaired {path}" for path in bad),
        "a: 2 files repaired; 4 records in 4 fragments are sound",
    ]
    assert again == "a: 0 files repaired; 4 records in 4 fragments are sound\n"
    assert wal3("scrub", "a").exit_code == 0


def test_what_cannot_be_repaired_is_named_and_the_exit_code_is_one(wal3: Command, tmp_path: Path) -> None:
    damaged(wal3, tmp_path / "backup")
    wal3.ok("append", "--create", "--raw", "b", stdin="other\n" * 4)

    result = wal3("repair", "a", "--from", wal3.url, "--from-log", "b")

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert all(line.startswith("not repaired: fragment ") for line in lines[:2])
    assert all(" is no copy of this log: " in line for line in lines[:2])
    assert lines[2] == "a: 0 files repaired, 2 not; 2 records in 2 fragments are sound"


def test_missing_copy_and_the_log_itself_are_invalid_requests(wal3: Command, tmp_path: Path) -> None:
    damaged(wal3, tmp_path / "backup")

    missing = wal3("repair", "a", "--from", str(tmp_path / "backup"))
    assert missing.exit_code == 2
    assert "/backup/a: expected a copy to repair from, found no log: name the copy's store and log" in missing.stderr
    assert wal3("repair", "a", "--from", wal3.url).exit_code == 2
    assert wal3("repair", "a").exit_code == 2
