"""A server that does not answer: the command and the library say what they wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.fault_proxy import Fault, FaultProxy
from wal3_core import LogWriter, open_store

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-c", "from wal3_core.cli import main; main()"]
WAIT_S_MAX = 60


def started(url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--store", url, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_command_says_once_what_it_waits_for_while_one_request_hangs(proxied_url: str, proxy: FaultProxy) -> None:
    LogWriter.create(open_store(proxied_url), "a")
    proxy.fail(Fault.HANG, "GET", "MANIFEST")
    process = started(proxied_url, "cat", "a")
    assert process.stderr is not None
    waiting = process.stderr.readline()
    proxy.heal()
    output, rest = process.communicate(timeout=WAIT_S_MAX)

    assert waiting.startswith(
        f"waiting for {proxied_url.partition('?')[0]}: GET a/manifest/MANIFEST.json: no answer for 2."
    )
    assert waiting.endswith(" s, try 1\n")
    assert (process.returncode, output, rest) == (0, "", "")


@pytest.mark.slow
def test_command_says_once_what_it_waits_for_while_connections_are_refused(proxied_url: str, proxy: FaultProxy) -> None:
    LogWriter.create(open_store(proxied_url), "a")
    with proxy.refusing():
        process = started(proxied_url, "cat", "a")
        assert process.stderr is not None
        waiting = process.stderr.readline()
    output, rest = process.communicate(timeout=WAIT_S_MAX)

    assert waiting.startswith("waiting for s3://")
    assert "GET a/manifest/MANIFEST.json: no answer for " in waiting
    assert (process.returncode, output, rest) == (0, "", "")


@pytest.mark.slow
def test_very_verbose_command_shows_each_request_without_an_answer(proxied_url: str, proxy: FaultProxy) -> None:
    LogWriter.create(open_store(proxied_url), "a")
    proxy.fail(Fault.SLOW_DOWN, "PUT", "/log/", times=2)
    run = subprocess.run(
        [*COMMAND, "--store", proxied_url, "-vv", "append", "a", "--raw"],
        input="one\n",
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        cwd=ROOT,
        check=False,
    )

    assert run.returncode == 0
    shown = run.stderr.splitlines()
    slowed = [line for line in shown if ": asks to slow down: 1750 writes a second" in line]
    unanswered = [line for line in shown if " DEBUG wal3.store: store s3://" in line and ": PUT a/" in line]
    assert len(unanswered) == proxy.fired[Fault.SLOW_DOWN] == 2
    assert len(slowed) == 1
    assert len(shown) == 3
