"""``fleet status`` and ``fleet top`` show the marked logs, how far behind they are, and whose consumer is."""

from __future__ import annotations

import json
import os
import pty
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.programs import Program
from tests.spec.rolling import grow
from tests.stores import damage
from wal3_core import CursorStore, Fleet, FleetOptions, LogPosition, LogWriter, PolicyStore, destroy
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

from .conftest import PROGRAM, Process

if TYPE_CHECKING:
    from .conftest import Command

DEADLINE_S = 60


@pytest.fixture
def store(wal3: Command) -> ObjectStore:
    """Two marked logs: one over the limit of its policy, one that is caught up; and one that is not marked."""
    store = open_store(wal3.url)
    with Fleet.open(store, server="x", options=FleetOptions(creates=True)) as fleet:
        fleet.append_many("big", [b"x"] * 1200)
        fleet.append_many("done", [b"x"] * 10)
        fleet.append_many("small", [b"x"] * 10)
    with LogWriter.open_or_create(store, "unmarked") as writer:
        writer.append(b"x")
    for log, name, offset in (("big", "slow", 101), ("big", "quick", 1201), ("done", "c", 11), ("small", "c", 4)):
        CursorStore(store, log).create(name, LogPosition(offset, 0))
    PolicyStore(store, "big").change(lambda policy: replace(policy, unprocessed_max=1000))
    return store


@pytest.fixture
def process(wal3: Command) -> Process:
    return Process(wal3.url)


def test_status_names_the_marked_logs_behind_and_the_consumer_of_one_over_its_limit(
    wal3: Command, store: ObjectStore
) -> None:
    assert store.url
    [found] = wal3.json("fleet", "status", "--json")
    shown = wal3.ok("fleet", "status").decode()

    assert (found["dirty_logs"], found["marked"]) == ([{"dirty_log": "dirty/x", "markers": 3}], 3)
    assert (found["unprocessed"], found["over"], found["gone"], found["unreadable"]) == (1107, ["big"], [], [])
    logs = {each.pop("log"): each for each in found["logs"]}
    assert all(each.pop("age_us") > 0 for each in logs.values())
    assert logs == {
        "big": {"unprocessed": 1100, "processed": 101, "next": 1201, "over": True, "consumer": "slow", "limit": 1000},
        "small": {"unprocessed": 7, "processed": 4, "next": 11, "over": False, "consumer": "c"},
    }
    assert "3 markers waiting; 2 of 3 marked logs with unprocessed records: 1,107 records" in shown
    assert "log big: expected at most 1000 unprocessed records, found 1100: the consumer slow is farthest" in shown


def test_status_takes_the_limit_of_the_fleets(wal3: Command, store: ObjectStore) -> None:
    PolicyStore(store, "big").change(lambda policy: replace(policy, unprocessed_max=None))

    [found] = wal3.json("fleet", "status", "--json")
    [limited] = wal3.json("fleet", "status", "--unprocessed-max", "1050", "--json")

    assert (found["over"], limited["over"]) == ([], ["big"])


def test_status_says_how_many_logs_it_leaves_out(wal3: Command, store: ObjectStore) -> None:
    assert store.url
    shown = wal3.ok("fleet", "status", "--limit", "1").decode()

    # The line that explains the log over its limit stays.
    assert sum(line.strip().startswith(("big ", "small ")) for line in shown.splitlines()) == 1
    assert "and 1 more: --limit 2 or --json shows them\n" in shown
    assert len(wal3.json("fleet", "status", "--limit", "1", "--json")[0]["logs"]) == 2


def test_log_marked_first_is_shown_first(wal3: Command) -> None:
    store = open_store(wal3.url)
    for log in ("b", "a", "c"):
        grow(store, log)

    [found] = wal3.json("fleet", "status", "--json")

    assert [each["log"] for each in found["logs"]] == ["b", "a", "c"]


def test_logs_that_are_gone_or_unreadable_are_named_beside_the_others(wal3: Command, store: ObjectStore) -> None:
    destroy(store, "done")
    damage(store, "big/manifest/MANIFEST.json", 20)

    result = wal3("fleet", "status", "--json")

    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert "1 unreadable: big: CorruptError" in result.stderr
    assert (found["gone"], [each["log"] for each in found["logs"]]) == (["done"], ["small"])


def test_status_of_a_store_without_dirty_logs_says_so(wal3: Command) -> None:
    wal3.ok("init", "a")

    assert wal3.ok("fleet", "status").startswith(b"no dirty logs")
    assert wal3.ok("--store", "memory:none", "fleet", "status", wal3.url).startswith(b"no dirty logs")


def test_top_sorts_by_unprocessed_records_and_limits_the_rows(wal3: Command, store: ObjectStore) -> None:
    assert store.url
    first, second = wal3.json("fleet", "top", "--looks", "2", "--interval", "0.1", "--limit", "1", "--json")

    assert [[each["log"] for each in look["logs"]] for look in (first, second)] == [["big"], ["big"]]
    assert [look["logs"][0]["appended_per_s"] for look in (first, second)] == [None, 0.0]


@pytest.mark.slow
def test_top_sorts_by_the_records_appended_between_two_looks(process: Process, store: ObjectStore) -> None:
    arguments = ("fleet", "top", "--sort", "rate", "--interval", "0.2", "--json")
    with process.start(*arguments) as top, LogWriter.open(store, "small") as writer:
        assert top.stdout is not None
        rates: dict[str, float] = {}
        while not rates.get("small"):
            look = json.loads(top.stdout.readline())
            rates = {each["log"]: each["appended_per_s"] for each in look["logs"]}
            writer.append(b"x")
        top.send_signal(signal.SIGINT)
        _, complaint = top.communicate(timeout=DEADLINE_S)

    assert list(rates) == ["small", "big"]
    assert (top.returncode, complaint) == (130, b"Interrupted.\n")


@pytest.mark.slow
def test_top_ends_quietly_when_the_reader_of_its_output_stops(process: Process, store: ObjectStore) -> None:
    assert store.url
    with process.start("fleet", "top", "--interval", "0.1") as top:
        assert top.stdout is not None
        assert top.stdout.readline().startswith(b"3 markers waiting")
        top.stdout.close()
        assert top.stderr is not None
        assert (top.wait(DEADLINE_S), top.stderr.read()) == (0, b"")


@pytest.mark.slow
def test_top_on_a_terminal_ends_by_ctrl_c_without_a_traceback(wal3: Command, store: ObjectStore) -> None:
    assert store.url
    ours, theirs = pty.openpty()
    with Program(
        [PROGRAM, "--store", wal3.url, "fleet", "top", "--interval", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    ) as top:
        os.close(theirs)
        shown = b""
        while shown.count(b"markers waiting") < 2:
            shown += os.read(ours, 1000)
        top.send_signal(signal.SIGINT)
        while True:
            try:
                more = os.read(ours, 1000)
            except OSError:
                break
            if not more:
                break
            shown += more
        assert top.wait(DEADLINE_S) == 130
    os.close(ours)
    assert b"big" in shown
    assert b"Interrupted." in shown
    assert b"Traceback" not in shown
