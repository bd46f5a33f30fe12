"""`wal3 exercise`: what it prints, what it refuses, and what it leaves behind."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wal3_core import LogWriter, open_store
from wal3_core.cli.commands.exercise import progress_line, verdict_line
from wal3_core.errors import UnavailableError
from wal3_core.exercise.ledger import AppendOutcome
from wal3_core.exercise.load import LoadShape
from wal3_core.exercise.report import Checked, Figures, Summary
from wal3_core.exercise.running import ExercisePlan, ExerciseProgress
from wal3_core.fleet.discovery import list_logs

from .conftest import Command, Process

if TYPE_CHECKING:
    from tests.programs import Program

DOCS = Path(__file__).parent.parent.parent / "docs"
RUN = "run-20260101T120000Z-a1b2c3"
SHORT = ("--duration", "3", "--logs", "6", "--rate", "60", "--late", "60")


@pytest.mark.slow
def test_exercise_reports_its_records_and_leaves_other_logs_alone(local_url: str, tmp_path: Path) -> None:
    store = open_store(local_url)
    LogWriter.create(store, "mine")
    LogWriter.create(store, "exercise/mine")

    ended = Process(local_url)("exercise", *SHORT, "--summary", str(tmp_path / "summary.json"))

    assert ended.returncode == 0, ended
    assert b"the store kept every promise" in ended.stdout
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["sound"]
    assert found["appends"]["durable"] > 0
    assert found["records_read"] >= found["appends"]["durable"]
    assert list(list_logs(store)) == ["exercise/mine", "mine"]
    assert {each.path.split("/")[0] for each in store.list_objects("")} == {"exercise", "mine"}


@pytest.mark.slow
def test_json_alone_is_on_stdout_and_every_field_is_documented(local_url: str) -> None:
    ended = Process(local_url)("exercise", *SHORT, "--json")

    found = json.loads(ended.stdout)
    page = (DOCS / "exercise.md").read_text()
    assert [name for name in found if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_ctrl_c_ends_a_soak_whose_records_are_then_checked(local_url: str) -> None:
    with Process(local_url).start("exercise", "--soak", "--logs", "6", "--rate", "60", "--json") as program:
        await_records(program, Path(local_url.removeprefix("file://")))
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=600)

    assert program.returncode == 0, stderr
    assert json.loads(stdout)["sound"]


@pytest.mark.slow
def test_lost_fragment_is_a_finding_with_its_own_exit_code_and_keeps_the_evidence(local_url: str) -> None:
    command = ("exercise", "--soak", "--no-kills", "--logs", "6", "--rate", "60", "--json")
    with Process(local_url).start(*command) as program:
        fragment = await_records(program, Path(local_url.removeprefix("file://")))
        # By then it is committed.
        time.sleep(2)
        fragment.unlink()
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=600)

    found = json.loads(stdout)
    logs, ledgers = found["kept"]
    assert (program.returncode, found["sound"]) == (3, False), stderr
    assert found["findings"]["missing"] > 0, found
    assert {each["log"] for each in found["shown"]} == {
        fragment.relative_to(local_url.removeprefix("file://")).parts[2]
    }
    assert list(list_logs(open_store(local_url), logs))
    shutil.rmtree(ledgers)


@pytest.mark.repeat
def test_summary_is_shown_although_the_logs_cannot_be_removed(local_url: str) -> None:
    """Regression: it was shown after the removal, and an error there lost it."""
    with Process(local_url).start("exercise", "--soak", "--logs", "6", "--rate", "60", "--json") as program:
        fragment = await_records(program, Path(local_url.removeprefix("file://")))
        run = "/".join(fragment.relative_to(local_url.removeprefix("file://")).parts[:2])
        LogWriter.create(open_store(local_url), f"{run}/mine")
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=600)

    assert json.loads(stdout)["sound"]
    assert program.returncode == 2
    assert b"expected only the logs of an exercise, found 'mine'" in stderr
    assert f"left {run} in the store".encode() in stderr
    shutil.rmtree(stderr.decode().partition("ledgers: ")[2].split()[0])


def test_progress_names_refusals_by_a_condition_apart_from_failures() -> None:
    load = LoadShape(seed=1, rate_per_s=60, logs=6, processes=2, body_bytes_max=100, bytes_per_s=1e6)
    counts = {"durable": 40, "not_durable": 55, "unknown": 2, "error ConditionNotMetError": 52, "error LogError": 5}
    now = ExerciseProgress(at_s=10, rate_per_s=60, figures=Figures(Counter(counts)))

    line = progress_line(now, ExercisePlan(load, duration_s=60, bytes_max=1000))

    assert "40 durable, 52 refused by their condition, 5 failed or unknown" in line


def test_exercise_in_which_nothing_became_durable_says_nothing_for_the_store() -> None:
    summary = Summary(
        run="run-1", store="file:///s", seed=1, logs=2, load_s=61.0, checked=Checked(), figures=Figures(), kept=()
    )

    with pytest.raises(UnavailableError, match="found none in 61 s: nothing is known of the store"):
        summary.check_tried()
    summary.checked.outcomes[AppendOutcome.DURABLE] += 1
    summary.check_tried()


def test_verdict_tells_where_the_acknowledged_records_are() -> None:
    """Regression: `46 acknowledged records, 24 read back` looked like a loss; the others were collected."""
    summary = Summary(
        run="run-1", store="file:///s", seed=1, logs=2, load_s=61.0, checked=Checked(), figures=Figures(), kept=()
    )
    summary.checked.outcomes[AppendOutcome.DURABLE] += 46
    summary.checked.sizes["read"] += 46

    without = verdict_line(summary)
    summary.checked.sizes["read"] -= 22
    summary.figures.counts["records_collected"] += 22

    assert without == "46 acknowledged records, 46 read back at the end: the store kept every promise"
    assert verdict_line(summary).startswith("46 acknowledged records, 24 read back at the end and 22 collected before:")


def await_records(program: Program, folder: Path) -> Path:
    """Wait until a log has a fragment; return its file."""
    for _ in range(600):
        for fragment in folder.glob("exercise/*/log-*/**/*.parquet"):
            return fragment
        assert program.poll() is None
        time.sleep(0.1)
    pytest.fail("no record after a minute")


def test_store_that_processes_do_not_share_is_refused() -> None:
    result = Command("memory:exercised")("exercise")

    assert result.exit_code == 2
    assert "expected a store that processes share" in result.stderr


def test_store_that_cannot_be_used_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    result = Command(f"file://{tmp_path}/file/store")("exercise", *SHORT)

    assert result.exit_code not in {0, 3}
    assert "Error" in result.stderr


def test_clean_removes_exercises_and_refuses_a_folder_with_another_log(wal3: Command) -> None:
    store = open_store(wal3.url)
    for log in (f"exercise/{RUN}/log-0001", f"exercise/{RUN}/dirty/p01/2", f"exercise/{RUN}/mine", "exercise/mine"):
        LogWriter.create(store, log)

    refused = wal3("exercise", "--clean")
    left = list(list_logs(store))
    wal3.ok("destroy", "--yes", f"exercise/{RUN}/mine")
    for found in list(store.list_objects(f"exercise/{RUN}/mine/")):
        store.delete(found.path)
    cleaned = wal3.ok("exercise", "--clean")

    assert refused.exit_code == 2
    assert "expected only the logs of an exercise, found 'mine'" in refused.stderr
    assert f"exercise/{RUN}/log-0001" in left
    assert re.fullmatch(f"removed exercise/{RUN}: 2 logs\n", cleaned.decode())
    assert list(list_logs(store)) == ["exercise/mine"]
    assert wal3.ok("exercise", "--clean") == b"no exercise has left anything\n"
