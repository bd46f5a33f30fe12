"""``gc`` collects, shows beforehand exactly what it would delete, and refuses with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from tests.stores import FaultyStore
from wal3_core import Collector, CursorStore, LogPosition, LogWriter, StoreDeniedError, open_store
from wal3_core.cli.program import cli

if TYPE_CHECKING:
    from .conftest import Command, Process

SINCE = "cursor reader is at offset 3"


def appended(wal3: Command, log: str, count: int = 4) -> None:
    """Append fragments of one record each."""
    for number in range(count):
        wal3.ok("append", "--create", "--raw", log, stdin=f"{number}\n")


def collectable(wal3: Command, log: str = "a") -> None:
    """Make a log of four fragments, two of which are behind every cursor."""
    appended(wal3, log)
    wal3.ok("cursor", "set", log, "reader", "3")


def life(wal3: Command, log: str = "a") -> Path:
    """Return the folder that holds all of the log but its manifest."""
    [folder] = (Path(urlsplit(wal3.url).path) / log).glob("Life=*")
    return folder


def files(wal3: Command, log: str = "a") -> set[str]:
    """Return the paths of the log's data objects."""
    root = life(wal3, log)
    return {
        str(path.relative_to(root))
        for folder in ("log", "snapshot")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


def offsets(wal3: Command, log: str = "a") -> list[object]:
    return [record["offset"] for record in wal3.json("cat", log)]


def collected(wal3: Command, *arguments: str) -> dict[str, object]:
    [line] = wal3.json("gc", *arguments, "--json")
    return line


# ---------------------------------------------------------------------- what it does


def test_gc_prunes_now_and_deletes_when_the_interval_has_passed(wal3: Command) -> None:
    collectable(wal3)
    before = files(wal3)

    first = collected(wal3, "a")
    second = collected(wal3, "a", "--interval-s", "0")

    expected = {"log": "a", "num_records": 2, "num_fragments": 2, "num_deleted": 0, "num_held": 0, "problems": []}
    assert {name: first[name] for name in expected} == expected
    assert first["reason"] == SINCE
    assert first["wait_s"] == pytest.approx(86_400, abs=600)
    assert (second["num_records"], second["num_deleted"], second["wait_s"]) == (0, 2, 0)
    assert offsets(wal3) == [3, 4]
    assert len(before - files(wal3)) == 2


def test_gc_shows_a_table_for_people(wal3: Command) -> None:
    collectable(wal3)

    _, heading, _, row = wal3.ok("gc", "a").decode().splitlines()[:4]

    assert heading.split("  ")[0].strip() == "log"
    assert all(
        word in heading
        for word in ("pruned records", "pruned bytes", "orphans", "deleted objects", "held by pins", "why", "to wait")
    )
    assert row.split()[:2] == ["a", "2"]
    assert SINCE in row
    assert row.split()[-1] == "1d"


@pytest.mark.parametrize(("interval", "shown"), [("2h", "2h"), ("36h", "1d12h")])
def test_gc_shows_the_wait_in_units_that_fit_it(wal3: Command, interval: str, shown: str) -> None:
    collectable(wal3)

    row = wal3.ok("gc", "a", "--interval", interval).decode().splitlines()[3]
    begun = wal3.ok("gc", "a", "--interval", interval, "--dry-run").decode()

    assert row.split()[-1] == shown
    assert f"to be deleted in {shown}" in begun


def test_repeated_gc_finds_nothing(wal3: Command) -> None:
    collectable(wal3)
    wal3.ok("gc", "a", "--interval-s", "0")
    before = files(wal3)

    again = collected(wal3, "a", "--interval-s", "0")

    assert (again["num_records"], again["num_deleted"], again["num_orphans"]) == (0, 0, 0)
    assert files(wal3) == before


def test_gc_takes_several_logs_and_prints_each(wal3: Command) -> None:
    for log in ("a", "b/c", "d"):
        collectable(wal3, log)

    lines = wal3.json("gc", "a", "b/c", "--interval-s", "0", "--json")

    assert [(line["log"], line["num_deleted"]) for line in lines] == [("a", 2), ("b/c", 2)]
    assert offsets(wal3, "d") == [1, 2, 3, 4]


def test_gc_holds_what_a_pin_keeps_and_says_how_much(wal3: Command) -> None:
    collectable(wal3)
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")

    held = collected(wal3, "a", "--interval-s", "0")
    wal3.ok("pin", "delete", "a", "audit", "--yes")
    taken = collected(wal3, "a", "--interval-s", "0")

    assert (held["num_deleted"], held["num_held"]) == (0, 2)
    assert (taken["num_deleted"], taken["num_held"]) == (2, 0)
    assert len(files(wal3)) == 2


def test_gc_keeps_everything_from_the_offset_given(wal3: Command) -> None:
    collectable(wal3)

    done = collected(wal3, "a", "--up-to-offset", "2", "--interval-s", "0")

    assert done["reason"] == "the limit given is at offset 2"
    assert offsets(wal3) == [2, 3, 4]


# ---------------------------------------------------------------------- dry run


def test_dry_run_prints_what_would_be_deleted_and_why_and_changes_nothing(wal3: Command) -> None:
    collectable(wal3)
    before = files(wal3)
    root = Path(urlsplit(wal3.url).path)
    manifest = (root / "a" / "manifest" / "MANIFEST.json").read_bytes()

    [plan] = wal3.json("gc", "a", "--dry-run", "--json")
    shown = wal3.ok("gc", "a", "--dry-run").decode().splitlines()

    assert files(wal3) == before
    assert (root / "a" / "manifest" / "MANIFEST.json").read_bytes() == manifest
    assert [path.name for path in (life(wal3) / "gc").glob("GARBAGE*")] == []
    assert (plan["num_records"], plan["num_fragments"], plan["reason"], plan["orphans"]) == (2, 2, SINCE, [])
    assert shown[0].startswith("a: would prune 2 records in 2 fragments (")
    assert SINCE in shown[0]
    assert "the log would begin at offset 3" in shown[0]
    assert shown[1:] == [f"  {path}" for path in plan["objects"]]

    wal3.ok("gc", "a", "--interval-s", "0")
    assert before - files(wal3) == set(plan["objects"])
    assert offsets(wal3) == [3, 4]


def test_dry_run_names_orphans_as_such(wal3: Command) -> None:
    collectable(wal3)
    root = life(wal3)
    [some] = [path for path in files(wal3) if path.endswith("01.parquet")]
    orphan = some.replace("FragmentSeqNo=0000000000000001", "FragmentSeqNo=0000000000000009")
    (root / orphan).write_bytes(b"of an append that never was")

    [plan] = wal3.json("gc", "a", "--dry-run", "--json", "--interval-s", "0")
    shown = wal3.ok("gc", "a", "--dry-run", "--interval-s", "0").decode()

    assert plan["orphans"] == [orphan]
    assert orphan not in plan["objects"]
    assert f"  {orphan} (nothing refers to it)\n" in shown
    assert "1 orphan," in shown
    assert (root / orphan).exists()


def test_dry_run_does_not_show_pruned_objects_as_orphans(wal3: Command) -> None:
    collectable(wal3)
    wal3.ok("gc", "a")

    [plan] = wal3.json("gc", "a", "--dry-run", "--json", "--interval-s", "0")

    assert plan["orphans"] == []


def test_dry_run_does_not_list_objects_that_a_pin_holds(wal3: Command) -> None:
    collectable(wal3)
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")
    before = files(wal3)

    [plan] = wal3.json("gc", "a", "--dry-run", "--json", "--interval-s", "0")
    wal3.ok("gc", "a", "--interval-s", "0")

    assert set(plan["objects"]) == before - files(wal3)


def test_dry_run_says_how_many_objects_pins_hold_and_which_pins(wal3: Command) -> None:
    """Regression: it named no object and no pin, where the run counted them as held."""
    appended(wal3, "a", 2)
    wal3.ok("pin", "create", "a", "early", "--reason", "a test")
    appended(wal3, "a", 2)
    wal3.ok("pin", "create", "a", "late", "--reason", "a test")
    wal3.ok("cursor", "set", "a", "reader", "4")
    wal3.ok("pin", "create", "a", "whole", "--reason", "a test")

    [plan] = wal3.json("gc", "a", "--dry-run", "--json", "--fraction-max", "1")
    shown = wal3.ok("gc", "a", "--dry-run", "--fraction-max", "1").decode().splitlines()

    assert (plan["objects"], plan["num_held"]) == ([], 3)
    assert plan["pins"] == {"early": 2, "late": 3, "whole": 3}
    assert shown[1:] == ["  held by pins until they are deleted: 3 objects: early (2), late (3), whole (3)"]


@pytest.mark.parametrize("interval_s", ["0", "86400"])
def test_dry_run_counts_as_held_what_the_run_counts(wal3: Command, interval_s: str) -> None:
    """Also objects that were pruned before and that a pin holds."""
    collectable(wal3)
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")
    wal3.ok("gc", "a", "--interval-s", interval_s)

    [plan] = wal3.json("gc", "a", "--dry-run", "--json", "--interval-s", "0")
    run = collected(wal3, "a", "--interval-s", "0")

    assert plan["num_held"] == run["num_held"] == 2
    assert plan["pins"] == {"audit": 2}


def test_dry_run_does_not_count_objects_of_the_log_as_held_by_a_pin(wal3: Command) -> None:
    """After a collection died before its announcement; otherwise the user would delete a pin in vain."""
    collectable(wal3)
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")
    store = FaultyStore(open_store(wal3.url))
    store.fail("replace", "MANIFEST", "denied", times=9)
    collector = Collector(store, "a")
    with pytest.raises(StoreDeniedError):
        collector.announce(collector.plan())
    wal3.ok("cursor", "set", "a", "reader", "1")

    [plan] = wal3.json("gc", "a", "--dry-run", "--json")

    assert (plan["num_held"], plan["pins"]) == (0, {})


def test_dry_run_without_pins_does_not_mention_pins(wal3: Command) -> None:
    collectable(wal3)

    [plan] = wal3.json("gc", "a", "--dry-run", "--json")

    assert (plan["num_held"], plan["pins"]) == (0, {})
    assert "pins" not in wal3.ok("gc", "a", "--dry-run").decode()


def test_dry_run_is_refused_for_the_same_reason_as_the_run(wal3: Command) -> None:
    appended(wal3, "a")

    dry, run = wal3("gc", "a", "--dry-run"), wal3("gc", "a")

    assert (dry.exit_code, run.exit_code) == (1, 1)
    assert dry.stderr == run.stderr
    assert "expected a cursor to say what is no longer needed, found none" in dry.stderr
    assert "(`wal3 cursor set LOG NAME first`, `wal3 policy LOG --retention 7d --without-cursors`, or" in dry.stderr


# ---------------------------------------------------------------------- refusals


@pytest.mark.slow
def test_dry_run_shows_what_is_refused_and_then_refuses_it(wal3: Command) -> None:
    appended(wal3, "a", 20)

    result = wal3("gc", "a", "--dry-run", "--without-cursors", "--up-to-offset", "21")

    assert result.exit_code == 1
    assert "would prune 20 records" in result.stdout
    assert "no consumer's cursor says that they were read, found 100.0%" in result.stderr


@pytest.mark.slow
def test_refused_log_does_not_stop_the_other_named_logs(wal3: Command) -> None:
    appended(wal3, "without", 20)
    appended(wal3, "with", 20)
    wal3.ok("cursor", "set", "with", "reader", "11")

    result = wal3("gc", "without", "with", "--interval-s", "0")

    assert result.exit_code == 1
    assert "without: " in result.stderr
    assert [record["offset"] for record in wal3.json("cat", "with")] == list(range(11, 21))


@pytest.mark.slow
def test_foreign_file_among_the_fragments_is_named_with_its_log(wal3: Command) -> None:
    appended(wal3, "a", 20)
    wal3.ok("cursor", "set", "a", "reader", "11")
    (life(wal3) / "log" / "notes").write_text("foreign")

    result = wal3("gc", "a")

    assert result.exit_code == 1
    assert "/a: nothing is collected while a foreign file lies there: 'log/notes'" in result.stderr
    assert "move it away" in result.stderr


@pytest.mark.slow
def test_log_that_would_lose_nearly_everything_is_refused_until_allowed(wal3: Command) -> None:
    appended(wal3, "a", 20)
    options = ("--interval-s", "0", "--without-cursors", "--up-to-offset", "21")

    refused = wal3("gc", "a", *options)

    assert refused.exit_code == 1
    assert "no consumer's cursor says that they were read, found 100.0%" in refused.stderr
    assert refused.stdout == ""
    held = files(wal3)
    assert sum(path.startswith("log/") for path in held) == 20
    assert collected(wal3, "a", *options, "--fraction-max", "1")["num_deleted"] == len(held)
    assert files(wal3) == set()


@pytest.mark.parametrize("arguments", [("a",), ("a", "--dry-run"), ("a", "b", "--dry-run"), ("--all",)])
def test_refusal_to_collect_nearly_everything_names_the_option_that_allows_it(
    wal3: Command, arguments: tuple[str, ...]
) -> None:
    for log in ("a", "b"):
        appended(wal3, log, 2)

    refused = wal3("gc", *arguments, "--without-cursors", "--up-to-offset", "3")

    assert refused.exit_code == 1
    for line in refused.stderr.splitlines():
        assert line.endswith("then allow it (`--fraction-max 1`, or `wal3 policy LOG --percent-max 100`)")


def test_log_without_cursors_is_collected_up_to_an_offset_when_allowed(wal3: Command) -> None:
    appended(wal3, "a")

    refused = wal3("gc", "a", "--up-to-offset", "3")
    done = collected(wal3, "a", "--without-cursors", "--up-to-offset", "3", "--interval-s", "0")

    assert refused.exit_code == 1
    assert "expected a cursor" in refused.stderr
    assert done["num_deleted"] == 2
    assert offsets(wal3) == [3, 4]


def test_log_with_a_damaged_cursor_is_refused_by_the_cursor_s_name(wal3: Command) -> None:
    collectable(wal3)
    (life(wal3) / "cursor" / "reader.json").write_bytes(b"{}")

    refused = wal3("gc", "a", "--interval-s", "0")

    assert refused.exit_code == 1
    assert "cursor/reader.json" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert len(files(wal3)) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name the logs to collect, or give --all"),
        (("a", "--all"), "name the logs to collect, or give --all"),
        (("a", "--without-cursors"), "--without-cursors needs --up-to-offset"),
        (("a", "--up-to-offset", "0"), "--up-to-offset"),
        (("a", "--interval-s", "-1"), "--interval-s"),
        (("a", "--fraction-max", "1.5"), "--fraction-max"),
        (("none",), "create the log first"),
        (("../a",), "log name"),
    ],
)
def test_invalid_request_is_refused(wal3: Command, arguments: tuple[str, ...], complaint: str) -> None:
    collectable(wal3)

    refused = wal3("gc", *arguments)

    assert refused.exit_code == 2
    assert complaint in refused.stderr
    assert offsets(wal3) == [1, 2, 3, 4]


# ---------------------------------------------------------------------- all logs


@pytest.mark.slow
def test_failing_log_does_not_stop_the_others_from_being_collected(wal3: Command) -> None:
    for log in ("a", "b", "d"):
        collectable(wal3, log)
    appended(wal3, "c")
    (Path(urlsplit(wal3.url).path) / "b" / "manifest" / "MANIFEST.json").write_bytes(b"{}")

    result = wal3("gc", "--all", "--interval-s", "0", "--json")

    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["log"], line.get("skipped")) for line in lines] == [("a", None), ("c", "no cursor"), ("d", None)]
    [error] = result.stderr.splitlines()
    assert error.startswith("b: ")
    assert "MANIFEST.json" in error
    assert [len(files(wal3, log)) for log in ("a", "b", "c", "d")] == [2, 4, 4, 2]


def test_all_logs_that_can_be_collected_are_a_success(wal3: Command) -> None:
    for log in ("a", "b/c"):
        collectable(wal3, log)

    lines = wal3.json("gc", "--all", "--json")

    assert [line["log"] for line in lines] == ["a", "b/c"]


def test_dry_run_of_all_logs_skips_one_without_a_cursor(wal3: Command) -> None:
    appended(wal3, "a")
    collectable(wal3, "b")

    lines = wal3.json("gc", "--all", "--dry-run", "--json")

    assert lines[0] == {"log": "a", "skipped": "no cursor"}
    assert [line["log"] for line in lines] == ["a", "b"]
    assert wal3.ok("gc", "--all", "--dry-run").startswith(b"a: skipped: no cursor\nb: would prune 2 records")


def test_log_without_a_cursor_is_skipped_among_all_and_refused_by_name(wal3: Command) -> None:
    appended(wal3, "a")
    collectable(wal3, "b")

    everything, named = wal3.ok("gc", "--all").decode(), wal3("gc", "a", "b")

    row = next(line for line in everything.splitlines() if line.split()[:1] == ["a"])
    assert "skipped: no cursor" in row
    assert named.exit_code == 1
    assert "a: " in named.stderr
    assert "expected a cursor" in named.stderr


def test_store_without_logs_has_nothing_to_collect(wal3: Command) -> None:
    collectable(wal3)
    wal3.ok("destroy", "a", "--yes")

    assert wal3.ok("gc", "--all") == b"no logs: `wal3 init LOG` creates one\n"
    assert wal3.ok("gc", "--all", "--json") == b""


# ---------------------------------------------------------------------- the program


@pytest.mark.slow
def test_gc_runs_as_a_program_on_every_store(wal3_process: Process) -> None:
    store = open_store(wal3_process.url)
    with LogWriter.open_or_create(store, "a") as writer:
        for number in range(4):
            writer.append(b"%d" % number)
    CursorStore(store, "a").create("reader", LogPosition(3, 0))

    done = wal3_process("gc", "a", "--interval-s", "0", "--json")

    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["num_deleted"] == 2


def test_help_shows_examples() -> None:
    shown = CliRunner().invoke(cli, ["gc", "--help"]).stdout

    assert "  wal3 gc orders --dry-run" in shown
    assert "  wal3 gc --all" in shown
