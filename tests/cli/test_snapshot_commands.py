"""``snapshot show`` distinguishes a lopsided tree from a good one, and ``snapshot compact`` repacks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import SnapshotCompactorOptions, SnapshotOptions, WriterOptions
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from .conftest import Command, Process

FEW = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)
# A writer that rolls no snapshots.
UNROLLED = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=1000))


def lopsided(wal3: Command | Process, log: str) -> None:
    """Make a log whose snapshots are much too small."""
    store = open_store(wal3.url)
    with LogWriter.open_or_create(store, log, options=UNROLLED) as writer:
        for number in range(60):
            writer.append(b"%d" % number)
    SnapshotCompactor(store, log, options=SnapshotCompactorOptions(snapshots=FEW)).compact()


def stored(wal3: Command) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(urlsplit(wal3.url).path).rglob("*") if path.is_file()}


@pytest.mark.slow
def test_show_distinguishes_a_lopsided_tree_from_a_good_one(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "good", stdin="1\n2\n")
    lopsided(wal3, "bad")

    [good], [bad], [exact] = (
        wal3.json("snapshot", "show", *arguments, "--json") for arguments in (["good"], ["bad"], ["bad", "--full"])
    )

    assert (good["needs_compaction"], good["fragments"], good["exact"]) == (False, 1, True)
    assert (bad["needs_compaction"], bad["fragments"], bad["exact"]) == (True, 60, False)
    assert (exact["needs_compaction"], exact["fragments"], exact["exact"]) == (True, 60, True)
    assert [level["depth"] for level in exact["levels"]] == [1, 2, 3]
    assert exact["levels"][0]["largest"] == 2
    assert b"lopsided" in wal3.ok("snapshot", "show", "bad")
    assert b"good" in wal3.ok("snapshot", "show", "good")


@pytest.mark.slow
def test_dry_run_says_what_and_why_and_changes_nothing(wal3: Command) -> None:
    lopsided(wal3, "bad")
    before = stored(wal3)

    [plan] = wal3.json("snapshot", "compact", "bad", "--dry-run", "--json")
    printed = wal3.ok("snapshot", "compact", "bad", "--dry-run").decode()

    assert plan["findings"]
    for finding in plan["findings"]:
        assert finding["reason"] in printed
        assert finding["where"] in printed
    assert stored(wal3) == before


@pytest.mark.slow
def test_compact_makes_the_tree_good_and_then_finds_nothing_to_do(wal3: Command) -> None:
    lopsided(wal3, "bad")
    records = wal3.ok("cat", "bad")

    [done] = wal3.json("snapshot", "compact", "bad", "--json")
    before = stored(wal3)
    again = wal3.ok("snapshot", "compact", "bad")
    planned = wal3.ok("snapshot", "compact", "bad", "--dry-run").decode()

    assert (done["before"]["needs_compaction"], done["after"]["needs_compaction"]) == (True, False)
    assert done["snapshots_written"] > 0
    assert again == b"bad: nothing to pack\n"
    assert planned.endswith("nothing to pack\n")
    assert stored(wal3) == before
    assert wal3.ok("cat", "bad") == records
    wal3.ok("scrub", "bad")


@pytest.mark.slow
def test_manifest_that_no_writer_rolled_is_rolled_and_reported(wal3: Command) -> None:
    with LogWriter.open_or_create(open_store(wal3.url), "bad", options=UNROLLED) as writer:
        for _ in range(100):
            writer.append(b"x")

    printed = wal3.ok("snapshot", "compact", "bad").decode()

    assert printed.startswith("bad: 0 snapshots became 6; a manifest of ")
    assert "96 pointers packed into 6 snapshots of " in printed


def test_missing_log_is_a_one_line_error(wal3: Command) -> None:
    for arguments in (("show", "none"), ("compact", "none"), ("compact", "none", "--dry-run")):
        result = wal3("snapshot", *arguments)

        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("Error: log ")


@pytest.mark.slow
def test_installed_program_compacts_on_every_kind_of_store(wal3_process: Process) -> None:
    lopsided(wal3_process, "bad")
    records = wal3_process("cat", "bad").stdout

    done = wal3_process("snapshot", "compact", "bad", "--json")

    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["after"]["needs_compaction"] is False
    assert wal3_process("cat", "bad").stdout == records != b""


@pytest.mark.slow
def test_manifest_that_rolls_have_left_behind_is_shown(wal3: Command) -> None:
    with LogWriter.open_or_create(open_store(wal3.url), "a", options=UNROLLED) as writer:
        for _ in range(101):
            writer.append(b"x")

    assert b"not rolled" in wal3.ok("inspect", "a")
    assert b"101 pointers: rolls into snapshots fail" in wal3.ok("inspect", "a")
