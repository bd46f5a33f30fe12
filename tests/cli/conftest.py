"""The command, run in this process and in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from tests.programs import Program, in_foreground
from wal3_core.cli.program import cli

if TYPE_CHECKING:
    from io import BufferedWriter
    from typing import IO

PROGRAM = Path(sys.executable).parent / "wal3"


@dataclass(frozen=True)
class Command:
    """``wal3 --store URL``, in this process."""

    url: str

    def __call__(self, *arguments: str, stdin: bytes | str | IO[bytes] | None = None) -> Result:
        return CliRunner().invoke(cli, ["--store", self.url, *arguments], input=stdin, catch_exceptions=False)

    def ok(self, *arguments: str, stdin: bytes | str | None = None) -> bytes:
        """Run a command that succeeds; return its output."""
        result = self(*arguments, stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout_bytes

    def json(self, *arguments: str, stdin: bytes | str | None = None) -> list[dict[str, object]]:
        """Run a command that succeeds; return the objects it printed."""
        return [json.loads(line) for line in self.ok(*arguments, stdin=stdin).splitlines()]


@dataclass(frozen=True)
class Process:
    """``wal3 --store URL``, as a process."""

    url: str

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.PIPE,
        stdout: int | BufferedWriter = subprocess.PIPE,
        background: bool = False,
    ) -> Program:
        return Program(
            [PROGRAM, "--store", self.url, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            background=background,
        )

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [PROGRAM, "--store", self.url, *arguments]
        return subprocess.run(in_foreground(command), input=stdin, capture_output=True, check=False, timeout=600)


def on_terminal(url: str, answer: bytes, *arguments: str) -> tuple[int, str]:
    """Run the program on a terminal and answer it once; return its exit code and output."""
    ours, theirs = pty.openpty()
    with Program(
        [PROGRAM, "--store", url, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as process:
        os.close(theirs)
        os.write(ours, answer)
        shown = b""
        # Reading a terminal that no process holds open is an error.
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:
            pass
        process.wait(timeout=600)
    os.close(ours)
    return process.returncode, shown.decode()


@pytest.fixture
def wal3(local_url: str) -> Command:
    """The command on an empty local store."""
    return Command(local_url)


@pytest.fixture
def wal3_process(store_url: str) -> Process:
    """The installed program on an empty store of each kind that processes share."""
    return Process(store_url)
