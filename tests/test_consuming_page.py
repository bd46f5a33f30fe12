"""The examples of docs/consuming.md run as they are printed, each twice; only their folder is the test's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import in_foreground
from wal3_core import CursorStore, open_store

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "consuming.md").read_text()
FOLDER = "/tmp/wal3-consuming"
EXAMPLES = [(language or "shell", text) for language, text in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)]
WAL3 = 'wal3() { "$PYTHON" -c "from wal3_core.cli import main; main()" "$@"; }\nset -eo pipefail\n'


def run(folder: Path, language: str, text: str) -> str:
    """Run an example in a process of its own; return what it printed."""
    text = text.replace(FOLDER, str(folder))
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-c", WAL3 + text]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    done = subprocess.run(
        in_foreground(command), capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_page_has_its_examples() -> None:
    assert [language for language, _ in EXAMPLES] == ["python", "python", "python", "python", "shell"]
    assert PAGE.count(FOLDER) >= len(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=["consumer", "asyncio", "table", "files", "shell"])
def test_example_runs_as_printed_twice(tmp_path: Path, example: tuple[str, str]) -> None:
    for _ in range(2):
        run(tmp_path, *example)


@pytest.mark.slow
def test_examples_run_one_after_the_other_in_either_order(tmp_path: Path) -> None:
    for example in [*EXAMPLES, *reversed(EXAMPLES)]:
        run(tmp_path, *example)


@pytest.mark.slow
def test_consumer_of_the_page_processes_what_was_appended_and_continues(tmp_path: Path) -> None:
    shown = [run(tmp_path, *EXAMPLES[0]) for _ in range(2)]

    witness = CursorStore(open_store(f"file://{tmp_path}/logs"), "orders").load("billing")
    assert shown == ["0 records behind\n"] * 2
    assert witness is not None
    assert witness.cursor.position.offset == 5
