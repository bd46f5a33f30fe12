"""The program as its users run it: a process, its pipes, its signals and its exit codes."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from wal3_core.cli.program import cli

from .conftest import PROGRAM

if TYPE_CHECKING:
    from .conftest import Command, Process

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.slow
@pytest.mark.repeat_on("local")
def test_every_command_works_on_one_log(wal3_process: Process) -> None:
    lines = b"".join(b'{"key": "%d", "body": "b"}\n' % number for number in range(50))

    assert wal3_process("init", "events").returncode == 0
    assert wal3_process("append", "events", stdin=lines).stdout == b"50 records appended (offsets 1 to 50) to events\n"
    printed = wal3_process("cat", "events").stdout
    assert [json.loads(line)["key"] for line in printed.splitlines()] == [str(number) for number in range(50)]
    assert json.loads(wal3_process("ls", "--json").stdout)["records"] == 50
    assert wal3_process("cursor", "set", "events", "reader", "first").returncode == 0
    assert b"reader" in wal3_process("inspect", "events").stdout
    assert wal3_process("scrub", "--all").returncode == 0
    assert wal3_process("doctor").returncode == 0
    assert wal3_process("cat", "events").stdout == printed


@pytest.mark.slow
def test_error_is_one_line_without_traceback(wal3_process: Process) -> None:
    missing = wal3_process("cat", "no-such-log")

    assert (missing.returncode, missing.stdout) == (2, b"")
    assert re.fullmatch(rb"Error: log .*no-such-log: expected .*\n", missing.stderr)


@pytest.mark.slow
def test_unreachable_store_is_one_line_too(s3_bucket_url: str) -> None:
    del s3_bucket_url
    result = CliRunner().invoke(cli, ["--store", "s3://no-such-bucket", "init", "events"])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: store s3://no-such-bucket")
    assert result.stderr.count("\n") == 1


def test_command_without_store_says_how_to_name_one() -> None:
    result = CliRunner().invoke(cli, ["ls"], env={"WAL3_STORE": None})

    assert result.exit_code == 2
    assert "WAL3_STORE" in result.stderr


def test_store_may_be_named_by_environment_or_path(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["--store", str(tmp_path), "init", "events"], catch_exceptions=False)

    result = CliRunner().invoke(cli, ["ls", "--json"], env={"WAL3_STORE": tmp_path.as_uri()})

    assert json.loads(result.stdout)["log"] == "events"


def test_help_of_every_command_shows_examples() -> None:
    names = [("cursor", name) for name in ("list", "get", "set", "delete")]
    names += [(name,) for name in cli.commands]

    for name in names:
        text = CliRunner().invoke(cli, [*name, "--help"]).stdout
        assert f"  wal3 {' '.join(name)}" in text or f"| wal3 {' '.join(name)}" in text


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_reader_that_stops_early_is_not_an_error(wal3_process: Process) -> None:
    wal3_process("append", "--create", "--raw", "events", stdin=b"a line that fills the pipe\n" * 20_000)

    with wal3_process.start("cat", "events") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["offset"] == 1
        process.stdout.close()
        complaint = process.stderr.read()

    assert (process.returncode, complaint) == (0, b"")


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_full_output_is_one_line_and_no_traceback(wal3_process: Process) -> None:
    wal3_process("append", "--create", "--raw", "events", stdin=b"a line\n" * 20_000)

    with Path("/dev/full").open("wb") as full:
        process = wal3_process.start("cat", "events", stdout=full)
        _, complaint = process.communicate(timeout=600)

    assert process.returncode == 1
    assert complaint.startswith(b"Error: ")
    assert b"No space left" in complaint
    assert b"Traceback" not in complaint


@pytest.mark.slow
def test_closed_output_is_refused_before_anything_is_done(local_url: str) -> None:
    closed = wal3_with("init events >&-", local_url)
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert closed.stderr.startswith(b"wal3: expected standard output, found it closed")

    assert wal3_with("init events", local_url).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_closed_stderr_is_written_to_by_nobody(local_url: str, closed: str) -> None:
    assert wal3_with(f"init events {closed}", local_url).stdout == b"created events\n"

    failed = wal3_with(f"cat missing {closed}", local_url)
    assert (failed.returncode, failed.stdout, failed.stderr) == (2, b"", b"")


def wal3_with(words: str, url: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program from a shell, which can close its streams."""
    return subprocess.run(
        ["sh", "-c", f"exec {PROGRAM} {words}"],
        env=os.environ | {"WAL3_STORE": url},
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_tail_follows_until_interrupted(wal3_process: Process) -> None:
    wal3_process("append", "--create", "--raw", "events", stdin=b"1\n2\n3\n")

    with wal3_process.start("tail", "events", "-n", "2", "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        before = [json.loads(process.stdout.readline())["body"] for _ in range(2)]
        wal3_process("append", "--raw", "events", stdin=b"4\n")
        after = json.loads(process.stdout.readline())["body"]
        process.send_signal(signal.SIGINT)
        rest, complaint = process.stdout.read(), process.stderr.read()

    assert (before, after) == (["2", "3"], "4")
    assert (process.returncode, rest, complaint) == (130, b"", b"Interrupted.\n")


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_follower_started_in_the_background_is_not_interrupted_and_ends_by_sigterm(wal3_process: Process) -> None:
    """A shell ignores SIGINT for programs started with &: Ctrl-C is for the foreground program."""
    wal3_process("append", "--create", "--raw", "events", stdin=b"1\n")

    with wal3_process.start("tail", "events", "--follow", background=True) as process:
        assert process.stdout is not None
        before = json.loads(process.stdout.readline())["body"]
        process.send_signal(signal.SIGINT)
        wal3_process("append", "--raw", "events", stdin=b"2\n")
        after = json.loads(process.stdout.readline())["body"]
        process.terminate()

    assert (before, after) == ("1", "2")
    assert process.returncode in {-signal.SIGTERM, 128 + signal.SIGTERM}


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
@pytest.mark.parametrize(
    ("number", "exit_code", "report"), [(signal.SIGINT, 130, b"interrupted"), (signal.SIGTERM, 143, b"terminated")]
)
def test_slow_input_is_appended_as_it_arrives_and_a_signal_ends_it_with_a_count(
    wal3_process: Process, number: signal.Signals, exit_code: int, report: bytes
) -> None:
    wal3_process("init", "events")

    with (
        wal3_process.start("append", "--raw", "events") as process,
        wal3_process.start("tail", "--follow", "events") as follower,
    ):
        assert process.stdin is not None
        assert process.stderr is not None
        assert follower.stdout is not None
        process.stdin.write(b"first\nsecond\n")
        process.stdin.flush()
        seen = [json.loads(follower.stdout.readline())["body"] for _ in range(2)]
        process.send_signal(number)
        complaint = process.stderr.read()
        follower.send_signal(signal.SIGINT)

    assert seen == ["first", "second"]
    assert process.returncode == exit_code
    assert complaint == b"Error: 2 records appended (offsets 1 to 2); %b; lines 1 to 2 are in the log\n" % report


def test_progress_stays_off_pipes(wal3: Command) -> None:
    result = wal3("append", "--create", "--raw", "events", stdin=b"1\n")

    assert result.stderr == ""


def test_repository_history_folds_to_its_tree(wal3: Command) -> None:
    """Rows of a repository's history: the last blob of every path is what its newest commit lists."""
    rows = [json.loads(line) for line in gzip.decompress((DATA / "slatedb_history.jsonl.gz").read_bytes()).splitlines()]
    tree = json.loads(gzip.decompress((DATA / "slatedb_history_tree.json.gz").read_bytes()))
    lines = "".join(json.dumps({"key": row["path"], "body": row["blob"]}) + "\n" for row in rows)

    wal3.ok("append", "--create", "history", stdin=lines)

    printed = wal3.json("cat", "history")
    assert len(printed) == len(rows) == 7768
    last = {line["key"]: line["body"] for line in printed}
    assert {key: body for key, body in last.items() if body is not None} == tree


@pytest.mark.slow
def test_command_needs_no_spark() -> None:
    code = "import sys, wal3_core.cli; sys.exit(any(name.split('.')[0] == 'pyspark' for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0
