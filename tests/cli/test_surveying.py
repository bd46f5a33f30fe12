"""``ls``, ``inspect``, ``cursor``, ``scrub`` and ``doctor`` show logs and what is wrong with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.stores import damage, life_store
from wal3_core import FeedSubscription, FeedWriter, KeyedLog, SubscriptionOptions
from wal3_core.format.manifest import Seal
from wal3_core.log.collect.collector import Collector
from wal3_core.log.read.reader import LogReader
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import SnapshotOptions, WriterOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store import doctor
from wal3_core.store.doctor import DoctorReport
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store
from wal3_core.store.open_store import open_store

from .conftest import on_terminal

if TYPE_CHECKING:
    from .conftest import Command

FEW = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2)


RUNBOOK = (Path(__file__).parent.parent.parent / "docs" / "operations.md").read_text()
SECTIONS = {
    re.sub("[^a-z -]", "", line.lstrip("# ").lower()).replace(" ", "-")
    for line in RUNBOOK.splitlines()
    if line.startswith("## ")
}


def appended(wal3: Command, log: str, count: int) -> None:
    wal3.ok("append", "--create", "--raw", log, stdin="".join(f"{number}\n" for number in range(count)))


def deep(wal3: Command, log: str) -> int:
    """Make a log with snapshots of both depths; return how many fragments of one record it has."""
    store = open_store(wal3.url)
    LogWriter.create(store, log)
    reader = LogReader.open(store, log)
    with LogWriter.open(store, log, options=WriterOptions(snapshots=FEW)) as writer:
        for number in range(1, 1000):
            writer.append(b"%d" % number)
            depths = {snapshot.depth for snapshot in reader.manifest().snapshots}
            if depths == {1, 2}:
                return number
    pytest.fail("a thousand fragments made no tree of both depths")


def files(wal3: Command, pattern: str) -> list[Path]:
    return sorted(Path(urlsplit(wal3.url).path).glob(pattern))


def cells(printed: bytes) -> list[list[str]]:
    return [line.split() for line in printed.decode().splitlines() if line.strip(" ─")]


def test_ls_lists_logs_with_what_they_hold(wal3: Command) -> None:
    wal3.ok("init", "empty")
    appended(wal3, "team/orders", 1234)
    store = log_store(open_store(wal3.url), "empty")
    manifests = ManifestStore(store, shared_runtime())
    installed = manifests.load()
    seal = Seal(reason="moved", sealed_by="a test", timestamp_us=1)
    manifests.install(installed.manifest.apply_seal(seal), installed)

    rows = cells(wal3.ok("ls"))

    assert rows[0] == ["log", "records", "bytes", "fragments", "first", "next", "sealed"]
    assert rows[1][0] == "empty"
    assert rows[1][-1] == "sealed"
    assert rows[2][:2] == ["team/orders", "1,234"]
    assert rows[2][-2:] == ["1", "1,235"]


def test_ls_as_json_below_a_prefix(wal3: Command) -> None:
    appended(wal3, "team/orders", 3)
    appended(wal3, "teams", 1)

    [row] = wal3.json("ls", "--json", "team")

    assert row.pop("bytes") == sum(path.stat().st_size for path in files(wal3, "team/orders/Life=*/log/**/*.parquet"))
    assert row == {
        "log": "team/orders",
        "records": 3,
        "fragments": 1,
        "first_offset": 1,
        "next_offset": 4,
        "sealed": False,
        "destroying": False,
    }


def test_ls_counts_fragments_in_snapshots_without_reading_them(wal3: Command) -> None:
    fragments = deep(wal3, "events")
    for path in files(wal3, "events/Life=*/snapshot/*"):
        path.unlink()

    assert wal3.json("ls", "--json")[0]["fragments"] == fragments


def test_ls_of_a_store_without_logs_says_so(wal3: Command) -> None:
    wal3.ok("init", "a")
    wal3.ok("destroy", "a", "--yes")

    assert wal3.ok("ls") == b"no logs: `wal3 init LOG` creates one\n"
    assert wal3.ok("ls", "--json") == b""


def test_ls_is_in_the_order_of_names(wal3: Command) -> None:
    for log in ("orders", "orders-2027", "history", "orders/eu"):
        wal3.ok("init", log)

    rows = [row["log"] for row in wal3.json("ls", "--json")]

    assert rows == ["history", "orders", "orders-2027", "orders/eu"]


def test_ls_names_an_unreadable_log_and_lists_the_others(wal3: Command) -> None:
    appended(wal3, "bad", 1)
    appended(wal3, "good", 1)
    files(wal3, "bad/manifest/MANIFEST.json")[0].write_bytes(b"{}")

    result = wal3("ls")

    assert result.exit_code == 1
    assert "good" in result.stdout
    assert "1 unreadable: bad: " in result.stderr


def test_ls_names_a_log_whose_manifest_is_lost(wal3: Command) -> None:
    appended(wal3, "lost", 1)
    appended(wal3, "good", 1)
    files(wal3, "lost/manifest/MANIFEST.json")[0].unlink()

    result = wal3("ls")

    assert result.exit_code == 1
    assert "good" in result.stdout
    assert "lost/manifest/MANIFEST.json" not in result.stdout
    assert "expected manifest/MANIFEST.json beside Life=" in result.stderr


def test_inspect_shows_a_collection_that_is_under_way(wal3: Command) -> None:
    appended(wal3, "events", 3)
    appended(wal3, "events", 3)
    wal3.ok("cursor", "set", "events", "reader", "4")
    collector = Collector(open_store(wal3.url), "events")
    path = collector.announce(collector.plan())

    shown = wal3.ok("inspect", "events").decode()
    [document] = wal3.json("inspect", "events", "--json")

    assert f"up to offset 4: {path}" in shown
    assert document["collecting"]["garbage"] == path


def test_inspect_shows_tree_epochs_and_cursors(wal3: Command) -> None:
    held = deep(wal3, "events")
    wal3.ok("cursor", "set", "events", "reader", "4")

    printed = wal3.ok("inspect", "events", "--full").decode()

    assert "in the manifest" in printed
    assert "snapshots, fragments 1 to" in printed
    assert all(
        f"fragment {number}: offsets {number} to {number}, 1 record," in printed for number in range(1, held + 1)
    )
    assert printed.count("more: --full shows them") == 0
    cursor = next(row for row in cells(printed.encode()) if row[0] == "reader")
    assert cursor[1] == "4"


def test_inspect_as_json_holds_every_fragment_once(wal3: Command) -> None:
    held = deep(wal3, "events")
    wal3.ok("cursor", "set", "events", "reader", "4")

    [document] = wal3.json("inspect", "events", "--full", "--json")

    def fragments(pointers: list[dict[str, object]]) -> list[object]:
        found: list[object] = []
        for pointer in pointers:
            below = pointer.get("pointers")
            found += fragments(below) if isinstance(below, list) else [pointer["fragment_seq_no"]]
        return found

    pointers, cursors = document["pointers"], document["cursors"]
    assert isinstance(pointers, list)
    assert isinstance(cursors, list)
    assert fragments(pointers) == list(range(1, held + 1))
    assert [(cursor["cursor"], cursor["offset"], cursor["lag"]) for cursor in cursors] == [("reader", 4, held - 3)]
    assert document["manifest_bytes"] == files(wal3, "events/manifest/*")[0].stat().st_size


def test_stored_text_cannot_control_the_terminal(wal3: Command) -> None:
    wal3.ok("init", "events")
    manifests = ManifestStore(log_store(open_store(wal3.url), "events"), shared_runtime())
    installed = manifests.load()
    seal = Seal(reason="\x1b[2J[bold]gone", sealed_by="a test", timestamp_us=1)
    manifests.install(installed.manifest.apply_seal(seal), installed)

    printed = wal3.ok("inspect", "events").decode()

    assert "\x1b" not in printed
    assert "[2J[bold]gone" in printed


def test_cursor_is_created_moved_shown_and_deleted(wal3: Command) -> None:
    appended(wal3, "events", 10)
    appended(wal3, "events", 10)
    records = wal3.json("cat", "events")

    assert wal3.ok("cursor", "set", "events", "reader", "first") == b"created reader at 1\n"
    assert wal3.ok("cursor", "set", "events", "reader", "15") == b"moved reader from 1 to 15\n"

    [shown] = wal3.json("cursor", "get", "events", "reader", "--json")
    assert (shown["offset"], shown["timestamp_us"], shown["lag"], shown["generation"]) == (
        15,
        records[14]["timestamp_us"],
        6,
        2,
    )
    assert wal3.ok("cursor", "set", "events", "reader", "next") == b"moved reader from 15 to 21\n"
    assert wal3.json("cursor", "list", "events", "--json")[0]["lag"] == 0
    assert wal3.ok("cursor", "delete", "events", "reader", "--yes") == b"deleted reader at 21\n"
    assert wal3.ok("cursor", "list", "events", "--json") == b""


@pytest.mark.slow
def test_deleting_a_cursor_asks_first(wal3: Command) -> None:
    appended(wal3, "events", 1)
    wal3.ok("cursor", "set", "events", "reader", "first")

    code, shown = on_terminal(wal3.url, b"n\n", "cursor", "delete", "events", "reader")

    assert code == 1
    assert "Error: log events, cursor reader: not deleted" in shown
    assert wal3("cursor", "get", "events", "reader").exit_code == 0
    assert on_terminal(wal3.url, b"y\n", "cursor", "delete", "events", "reader")[0] == 0
    assert wal3("cursor", "get", "events", "reader").exit_code == 2


@pytest.mark.parametrize("answer", ["", "y\n"])
def test_deleting_a_cursor_without_a_terminal_requires_yes(wal3: Command, answer: str) -> None:
    """Regression: it printed only that it was aborted."""
    appended(wal3, "events", 1)
    wal3.ok("cursor", "set", "events", "reader", "first")

    refused = wal3("cursor", "delete", "events", "reader", stdin=answer)

    assert refused.exit_code == 2
    assert refused.stderr == (
        "Error: log events, cursor reader: expected --yes, or a terminal to ask for a yes, found neither\n"
    )
    assert wal3("cursor", "get", "events", "reader").exit_code == 0


def test_cursor_below_what_a_log_holds_is_refused_with_both_named(wal3: Command) -> None:
    for number in range(3):
        wal3.ok("append", "--create", "--raw", "events", stdin=f"{number}\n")
    wal3.ok("cursor", "set", "events", "reader", "3")
    wal3.ok("gc", "events")

    refused = wal3("cursor", "set", "events", "reader", "1")

    assert refused.exit_code == 2
    assert refused.stderr.startswith("Error: log events, cursor reader: expected an offset the log still holds, from ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("set", "events", "reader", "0"), "0 is not in the range"),
        (("set", "events", "reader", "99"), "log events, cursor reader: expected an offset from 1 to 4, found 99"),
        (("set", "events", "reader", "-1"), ""),
        (("set", "events", "reader", "soon"), "expected an offset, first or next, found 'soon'"),
        (("set", "events", "no/name", "1"), "cursor name"),
        (("get", "events", "reader"), "expected a cursor reader, found none"),
        (("delete", "events", "reader", "--yes"), "expected a cursor reader, found none"),
        (("list", "other"), "create the log first"),
    ],
)
def test_invalid_cursor_request_is_refused(wal3: Command, arguments: tuple[str, ...], complaint: str) -> None:
    appended(wal3, "events", 3)

    result = wal3("cursor", *arguments)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert wal3.ok("cursor", "list", "events", "--json") == b""


def test_scrub_of_sound_logs_says_so(wal3: Command) -> None:
    appended(wal3, "a", 5)
    held = deep(wal3, "b")

    rows = cells(wal3.ok("scrub", "--all"))

    assert [row[:3] for row in rows[1:]] == [["a", "sound", "5"], ["b", "sound", str(held)]]


def test_scrub_names_every_bad_object_and_fails(wal3: Command) -> None:
    appended(wal3, "good", 5)
    deep(wal3, "bad")
    flipped, gone = files(wal3, "bad/Life=*/log/**/*.parquet")[:2]
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    gone.unlink()
    [life] = (Path(urlsplit(wal3.url).path) / "bad").glob("Life=*")
    names = {str(path.relative_to(life)) for path in (flipped, gone)}

    table, programs = wal3("scrub", "good", "bad"), wal3("scrub", "--all", "--json")

    assert (table.exit_code, programs.exit_code) == (1, 1)
    assert "2 BAD" in table.stdout
    assert all(name in table.stdout for name in names)
    reports = {report["log"]: report for report in map(json.loads, programs.stdout.splitlines())}
    assert reports["good"]["sound"]
    assert {problem["path"] for problem in reports["bad"]["problems"]} == names


def test_scrub_shows_each_bad_object_once_as_it_is_stored_and_where_to_read_on(wal3: Command) -> None:
    deep(wal3, "bad")
    wal3.ok("cursor", "set", "bad", "billing", "first")
    cut, gone = files(wal3, "bad/Life=*/log/**/*.parquet")[:2]
    cut.write_bytes(cut.read_bytes()[:-1])
    gone.unlink()
    [cursor] = files(wal3, "bad/Life=*/cursor/*.json")
    cursor.write_bytes(b"nothing")

    lines = wal3("scrub", "bad").stdout.splitlines()

    unsound = "a-check-turns-red-the-log-is-unsound"
    for file, section in ((cut, unsound), (gone, unsound), (cursor, "a-cursor-is-damaged")):
        stored = f"{wal3.url}/{file.relative_to(urlsplit(wal3.url).path)}"
        [place] = [number for number, line in enumerate(lines) if file.name in line]
        assert lines[place - 1 : place + 1] == ["bad: bad object", f"  {stored}"]
        block = lines[place + 1 : lines.index("", place)]
        assert block[-1] == f"  next: docs/operations.md#{section}"
        assert max(map(len, block)) <= 100
        assert section in SECTIONS
    [what] = [lines[number + 1] for number, line in enumerate(lines) if cut.name in line]
    assert re.fullmatch(r"  fragment (\d+), offsets \1 to \1: the file's bytes changed: expected \d+ bytes, .*", what)


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("command", ["cat", "tail"])
def test_damage_met_by_another_command_is_named_as_stored_with_the_next_command(
    wal3: Command, command: str, how: str
) -> None:
    appended(wal3, "team/orders", 5)
    [file] = files(wal3, "team/orders/Life=*/log/**/*.parquet")
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(data if how == "flipped" else data[:-1])

    result = wal3(command, "team/orders")

    assert result.exit_code == 1
    error, following = result.stderr.splitlines()
    where = f"{wal3.url}/{file.relative_to(urlsplit(wal3.url).path)}"
    assert error.startswith(f"Error: fragment 1, offsets 1 to 5 ({where}): ")
    section = "a-check-turns-red-the-log-is-unsound"
    assert following == f"  next: `wal3 scrub team/orders` shows all that is damaged; docs/operations.md#{section}"


@pytest.mark.parametrize("arguments", [(), ("events", "--all")])
def test_scrub_requires_logs_or_all(wal3: Command, arguments: tuple[str, ...]) -> None:
    assert wal3("scrub", *arguments).exit_code == 2


@pytest.mark.slow
def test_doctor_passes_the_store_it_is_given(wal3: Command, tmp_path: Path) -> None:
    other = tmp_path / "other"

    printed = wal3.ok("doctor").decode()
    [report] = wal3.json("doctor", other.as_uri(), "--json")

    assert "this store can hold logs" in printed
    assert (report["suitable"], report["url"]) == (True, other.as_uri())
    assert [path.name for path in other.iterdir()] == [".wal3"]


def test_doctor_fails_on_a_store_that_breaks_a_promise(wal3: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def examine_broken(store: ObjectStore, **_: object) -> DoctorReport:
        broken = doctor.Check("a second create is refused", passed=False, found="done")
        return doctor.DoctorReport(
            url=store.url, checks=(broken,), put_us=1, get_us=1, cas_us=1, clock_difference_us=0, advice=("run",)
        )

    monkeypatch.setattr("wal3_core.cli.commands.doctor.examine", examine_broken)

    result = wal3("doctor")

    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "this store CANNOT hold logs" in result.stdout
    assert "advice: run" in result.stdout


@pytest.mark.parametrize("command", [("cursor", "list", "events"), ("inspect", "events")])
@pytest.mark.parametrize("as_json", [False, True])
def test_damaged_cursor_is_reported_and_the_others_are_shown(
    wal3: Command, command: tuple[str, ...], *, as_json: bool
) -> None:
    appended(wal3, "events", 1)
    for name in ("first", "second", "third"):
        wal3.ok("cursor", "set", "events", name, "first")
    damage(life_store(open_store(wal3.url), "events"), "cursor/second.json")

    result = wal3(*command, *(["--json"] if as_json else []))

    assert result.exit_code == 1
    assert "first" in result.stdout
    assert "third" in result.stdout
    assert "second" not in result.stdout
    assert "1 unreadable: cursor/second.json: " in result.stderr


def test_cursors_of_subscriptions_and_consumers_by_key_say_what_else_they_have(
    wal3: Command,
) -> None:
    store = open_store(wal3.url)
    with FeedWriter.open_or_create(store, "a") as feed:
        for number in range(4):
            feed.publish("chat/\x1b[31m", number)
    options = SubscriptionOptions(pins=False)
    with FeedSubscription.open(store, "a", "client", topics=["chat/*", "x"], options=options) as subscription:
        received = [subscription.recv(0) for _ in range(4)]
        for delivery in received[1:]:
            assert delivery is not None
            subscription.acknowledge(delivery)
    with KeyedLog.open(store, "a") as keyed:
        keyed.append_batch([(b"k", b"1"), (b"l", b"2")])
        consumer = keyed.consumer("workers", start="beginning")
        consumer.finish(next(iter(keyed.scan(b"l"))))
        consumer.save()

    listed, inspected = wal3.ok("cursor", "list", "a").decode(), wal3.ok("inspect", "a").decode()

    for shown in (listed, inspected):
        assert "client: a subscription to chat/*, x, with 3 offsets done ahead; it keeps no records" in shown
        assert "workers: a consumer by key, with 1 key ahead" in shown
    found = {each["cursor"]: each for each in wal3.json("cursor", "list", "a", "--json")}
    assert (found["client"]["topics"], found["client"]["done_ahead"], found["client"]["pins"]) == (
        ["chat/*", "x"],
        3,
        False,
    )
    assert (found["workers"]["keys_ahead"], found["workers"]["pins"]) == (1, True)


def test_logs_are_listed_with_the_lag_of_their_consumers_the_largest_first(wal3: Command) -> None:
    for log, count in {"a": 2, "b": 9, "c": 5}.items():
        appended(wal3, log, count)
    wal3.ok("cursor", "set", "b", "fast", "next")
    wal3.ok("cursor", "set", "b", "slow", "6")

    by_lag = wal3.json("ls", "--sort", "lag", "--json")
    largest = wal3.json("ls", "--sort", "records", "--limit", "1", "--json")
    table = wal3.ok("ls", "--lag", "--limit", "2").decode().splitlines()

    assert [(row["log"], row["lag"], row["consumer"]) for row in by_lag] == [
        ("c", 5, None),
        ("b", 4, "slow"),
        ("a", 2, None),
    ]
    assert [row["log"] for row in largest] == ["b"]
    assert "lag" not in largest[0]
    assert [line.split()[0] for line in table if line.startswith((" a", " b", " c"))] == ["a", "b"]
    assert (table[-1], "no cursor" in table[3]) == ("and 1 more", True)


def test_lag_that_cannot_be_read_is_named_and_hides_no_log(wal3: Command) -> None:
    for log in ("a", "b"):
        appended(wal3, log, 2)
        wal3.ok("cursor", "set", log, "reader", "1")
    damage(life_store(open_store(wal3.url), "a"), "cursor/reader.json")

    done = wal3("ls", "--lag", "--json")

    assert done.exit_code == 1
    assert [json.loads(line)["lag"] for line in done.stdout.splitlines()] == [None, 2]
    assert "1 unreadable: a: " in done.stderr
