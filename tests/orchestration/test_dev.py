"""``make dev`` on the demo's store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.orchestration.daemons import eventually
from tests.programs import in_foreground
from tests.s3_server import free_port

ROOT = Path(__file__).parent.parent.parent


def _serves(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=10):
            return True
    except OSError:
        return False


@pytest.mark.slow
def test_pages_are_served_without_a_warning_and_end_with_ctrl_c(tmp_path: Path) -> None:
    port, output = free_port(), tmp_path / "output"
    command = [sys.executable, "-m", "examples.demo", "--dev", "--folder", str(tmp_path / "demo"), "--port", str(port)]

    with output.open("wb") as file:
        program = subprocess.Popen(
            in_foreground(command),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        eventually(lambda: program.poll() is not None or _serves(port), output, 300)
        assert program.poll() is None, output.read_text()
        # As a terminal does: to all of its processes.
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(120) == 0, output.read_text()
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait(30)
    # At its first start, Dagster says that it retries no runs from before it.
    said = re.sub(r".*WARNING.* No cursor for event type .*, ignoring older events", "", output.read_text())
    assert re.findall(r"(?im)^.*(?:warning|superseded|deprecated).*$", said) == []
