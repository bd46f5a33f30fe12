"""``cat`` and ``tail`` print what ``append`` appended; a failed append reports which lines are in the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import pytest

from tests.stores import FaultyStore
from wal3_core.cli.types import Time
from wal3_core.format.record import Message
from wal3_core.log.write.writer import LogWriter
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from wal3_core.log.write.commit_results import ResumeReport

    from .conftest import Command

TWO = b'{"key": "k", "body": "one"}\n{"key": "k", "body": null}\n'


def records(printed: bytes) -> list[tuple[int, str | None, str | None]]:
    return [(line["offset"], line.get("key"), line["body"]) for line in map(json.loads, printed.splitlines())]


def bodies(printed: bytes) -> list[str]:
    return [body for _, _, body in records(printed) if body is not None]


def numbered(wal3: Command, count: int, *, batches: int = 1) -> None:
    for start in range(0, count, count // batches):
        lines = "".join(f"{number}\n" for number in range(start + 1, start + count // batches + 1))
        wal3.ok("append", "--create", "--raw", "events", stdin=lines)


def test_appended_lines_are_printed_with_offset_and_time(wal3: Command) -> None:
    wal3.ok("init", "events")

    assert wal3.ok("append", "events", stdin=TWO) == b"2 records appended (offsets 1 to 2) to events\n"
    printed = wal3.json("cat", "events")
    assert [list(line) for line in printed] == [["offset", "timestamp_us", "key", "body"]] * 2
    assert records(wal3.ok("cat", "events")) == [(1, "k", "one"), (2, "k", None)]


def test_summary_is_json_on_request(wal3: Command) -> None:
    summary = wal3.json("append", "--create", "--json", "events", stdin=TWO)

    assert summary == [{"log": "events", "records": 2, "bytes": 5, "lines": 2, "first_offset": 1, "last_offset": 2}]


def test_any_bytes_go_from_one_log_to_another(wal3: Command) -> None:
    sent = [Message(bytes([value]), b"\xff" + bytes([value])) for value in range(256)]
    sent += [Message(b"", b""), Message(None, b"\0"), Message("\u2028\u20ac\n".encode(), None)]
    store = open_store(wal3.url)
    LogWriter.create(store, "a")
    with LogWriter.open(store, "a") as writer:
        writer.append_many(sent)

    wal3.ok("append", "--create", "b", stdin=wal3.ok("cat", "a"))

    strip = ("offset", "timestamp_us")
    a, b = ([{k: v for k, v in line.items() if k not in strip} for line in wal3.json("cat", log)] for log in "ab")
    assert a == b
    assert len(a) == len(sent)


def test_raw_lines_are_bodies_as_they_are(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "events", stdin=b'{"not": parsed}\n\n \r\n\xff\nlast')

    printed = wal3.json("cat", "events")
    assert [line.get("body") or line.get("body_b64") for line in printed] == [
        '{"not": parsed}',
        None,
        " \r",
        "/w==",
        "last",
    ]
    assert printed[1]["body"] == ""


def test_no_input_appends_nothing(wal3: Command) -> None:
    assert wal3.ok("append", "--create", "events", stdin=b"\n") == b"0 records appended to events\n"


def test_bad_line_is_named_and_the_lines_before_it_are_appended(wal3: Command) -> None:
    wal3.ok("init", "events")

    result = wal3("append", "--json", "events", stdin=TWO + b'\n{"body": "good"}\nbad\n{"body": "after"}\n')

    assert result.exit_code == 2
    assert result.stderr.startswith(
        "Error: 3 records appended (offsets 1 to 3); lines 1 to 4 are in the log; line 5 is not, nor is any line after"
        " it: expected a JSON object"
    )
    assert result.stderr.endswith(": --raw appends each line as it is\n")
    assert result.stderr.count("\n") == 1
    assert json.loads(result.stdout)["records"] == 3
    assert records(wal3.ok("cat", "events"))[-1] == (3, None, "good")


def test_append_to_a_missing_log_fails_without_create(wal3: Command) -> None:
    result = wal3("append", "events", stdin=TWO)

    assert result.exit_code == 2
    assert result.stderr.endswith(
        ": create the log first (`wal3 init events`, or `wal3 append --create events`; `wal3 ls` lists the logs)\n"
    )
    wal3.ok("append", "--create", "events", stdin=TWO)


@pytest.fixture
def faulty(wal3: Command, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The store that the command opens; each line of its input is a batch."""
    wal3.ok("init", "events")
    store = FaultyStore(open_store(wal3.url))
    monkeypatch.setattr("wal3_core.cli.shell.session.open_store", lambda _: store)
    monkeypatch.setattr("wal3_core.cli.commands.append._BATCH_LINES_MAX", 1)
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.2)
    return store


def test_failed_line_ends_the_append_and_the_lines_in_the_log_are_the_beginning(
    wal3: Command, faulty: FaultyStore
) -> None:
    """Regression: lines after the failed one were still appended, so it could not be appended in its place."""
    faulty.before = lambda kind, path: _deny_behind(faulty, kind, path)

    # Long enough for several fragments in flight.
    sent = [b"%d" % number * 3_000_000 for number in range(1, 10)]
    result = wal3("append", "--raw", "--json", "events", stdin=b"\n".join(sent))
    faulty.heal()

    lines = json.loads(result.stdout)["lines"]
    assert result.exit_code == 1
    assert 0 < lines < 9
    assert f"line {lines + 1} is not, nor is any line after it: " in result.stderr
    assert "403; they can be appended again" in result.stderr
    assert bodies(wal3.ok("cat", "events")) == [body.decode() for body in sent[:lines]]


def _deny_behind(faulty: FaultyStore, kind: str, path: str) -> None:
    """Deny all uploads but the first fragment's."""
    if kind == "create" and "/log/" in path and "0000000000000001.parquet" not in path:
        faulty.fail("create", "/log/", "denied")


@pytest.mark.parametrize("fault", ["unknown", "applied-unknown"])
def test_undetermined_append_is_resolved_by_reading_the_log(
    wal3: Command,
    faulty: FaultyStore,
    monkeypatch: pytest.MonkeyPatch,
    fault: Literal["unknown", "applied-unknown"],
) -> None:
    """The store does not answer while the writer retries, and answers afterwards."""
    resume = LogWriter.resume

    def heal_and_resume(writer: LogWriter) -> ResumeReport:
        faulty.before = lambda _kind, _path: None
        faulty.heal()
        return resume(writer)

    monkeypatch.setattr(LogWriter, "resume", heal_and_resume)
    faulty.before = lambda kind, path: _lose_sight(faulty, kind, path)
    faulty.fail("replace", "MANIFEST", fault, times=10_000)

    result = wal3("append", "--raw", "--json", "events", stdin=b"1\n")

    found = bodies(wal3.ok("cat", "events"))
    assert result.exit_code == 1
    assert "read from the log after an unanswered commit" in result.stderr
    assert json.loads(result.stdout)["lines"] == len(found) == (fault == "applied-unknown")


@pytest.mark.slow
def test_undetermined_append_that_cannot_be_resolved_names_its_lines(wal3: Command, faulty: FaultyStore) -> None:
    faulty.before = lambda kind, path: _lose_sight(faulty, kind, path)
    faulty.fail("replace", "MANIFEST", "unknown", times=10_000)

    result = wal3("append", "--raw", "events", stdin=b"1\n")
    faulty.heal()

    assert result.exit_code == 1
    assert "no line is in the log; lines 1 to 1 may or may not be, and no line after them is" in result.stderr
    assert "read the log before appending them again" in result.stderr


def _lose_sight(faulty: FaultyStore, kind: str, path: str) -> None:
    """From the first CAS on, do not answer reads of the manifest."""
    if kind == "replace" and "MANIFEST" in path:
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)


def test_cat_begins_at_an_offset_and_ends_at_a_limit(wal3: Command) -> None:
    numbered(wal3, 40, batches=4)

    assert bodies(wal3.ok("cat", "events", "--from-offset", "8", "--limit", "20")) == [str(n) for n in range(8, 28)]
    assert bodies(wal3.ok("cat", "events", "--from-offset", "41")) == []
    assert bodies(wal3.ok("cat", "events", "--limit", "0")) == []


def test_cat_begins_at_a_time_in_either_form(wal3: Command) -> None:
    numbered(wal3, 20, batches=2)
    lines = wal3.json("cat", "events")
    timestamp_us = lines[10]["timestamp_us"]
    assert isinstance(timestamp_us, int)

    assert wal3.json("cat", "events", "--from-time", str(timestamp_us)) == lines[10:]
    assert wal3.json("cat", "events", "--from-time", str(timestamp_us + 1)) == []
    for moment in ("1970-01-01", "1970-01-01T02:00:00+02:00"):
        assert wal3.json("cat", "events", "--from-time", moment) == lines
    assert wal3.json("cat", "events", "--from-time", "2999-01-01T00:00:00Z") == []


def test_time_is_exact_to_the_microsecond_and_utc_by_default() -> None:
    assert Time().convert("2026-01-31T12:00:00.123457", None, None) == 1_769_860_800_123_457
    assert Time().convert("2026-01-31T13:00:00.123457+01:00", None, None) == 1_769_860_800_123_457
    assert Time().convert("1769860800123457", None, None) == 1_769_860_800_123_457


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--from-offset", "1", "--from-time", "1"), "give only one of them"),
        (("--from-time", "yesterday"), "expected ISO 8601 like 2026-11-01"),
        (("--from-offset", "9"), "expected an offset from 1 to 4, found 9"),
    ],
)
def test_invalid_start_is_refused(wal3: Command, arguments: tuple[str, ...], complaint: str) -> None:
    numbered(wal3, 3)

    result = wal3("cat", "events", *arguments)

    assert result.exit_code == 2
    assert complaint in result.stderr


def test_tail_prints_the_last_records(wal3: Command) -> None:
    numbered(wal3, 30, batches=3)

    assert bodies(wal3.ok("tail", "events")) == [str(n) for n in range(21, 31)]
    assert bodies(wal3.ok("tail", "events", "-n", "15")) == [str(n) for n in range(16, 31)]
    assert bodies(wal3.ok("tail", "events", "-n", "1000")) == [str(n) for n in range(1, 31)]
    assert bodies(wal3.ok("tail", "events", "-n", "0")) == []


@pytest.mark.parametrize("most", [2**63 - 1, 2**63, 2**64])
def test_count_beyond_a_machine_integer_prints_all_records(wal3: Command, most: int) -> None:
    numbered(wal3, 30)

    for command in (("tail", "events", "-n"), ("cat", "events", "--limit")):
        assert bodies(wal3.ok(*command, str(most))) == [str(n) for n in range(1, 31)]


def test_tail_of_an_empty_log_prints_nothing(wal3: Command) -> None:
    wal3.ok("init", "events")

    assert wal3.ok("tail", "events") == b""
    assert wal3.ok("cat", "events") == b""
