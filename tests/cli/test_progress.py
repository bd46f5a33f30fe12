"""Progress on a terminal: count, rate and the time left."""

from __future__ import annotations

import re

import pytest
from rich.progress import Progress, Task

from wal3_core.cli.shell.output import _RateColumn

from .conftest import Process, on_terminal


def paced(total: float | None) -> str:
    """Do 100 a second for ten seconds."""
    now_s = [0.0]
    column = _RateColumn()
    bar = Progress(column, get_time=lambda: now_s[0], disable=True)
    bar.add_task("", total=total)
    task: Task = bar.tasks[0]
    for done in range(0, 1001, 100):
        now_s[0] = done / 100
        bar.update(task.id, completed=done)
    return column.render(task).plain


def test_progress_has_count_rate_and_time_left() -> None:
    assert paced(5000) == "1,000/5,000  100/s  0:00:40 left"


def test_progress_without_a_total_has_count_and_rate() -> None:
    assert paced(None) == "1,000  100/s"


@pytest.mark.slow
def test_long_command_shows_progress_on_a_terminal_and_not_on_a_pipe(local_url: str) -> None:
    process = Process(local_url)
    process("append", "--create", "--raw", "a", stdin=b"a line\n" * 1000)

    piped = process("scrub", "a")
    code, shown = on_terminal(local_url, b"", "scrub", "a")

    assert (piped.returncode, piped.stderr) == (0, b"")
    assert code == 0
    assert re.search("scrub a .*1 of 1.*1,000/1,000", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
