"""Completion of names, and the script that a shell loads."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete

from wal3_core.cli.program import cli

if TYPE_CHECKING:
    from .conftest import Command


def completed(url: str, *words: str) -> list[str]:
    """Complete the last word."""
    *before, begun = words
    found = ShellComplete(cli, {}, "wal3", "_WAL3_COMPLETE").get_completions(["--store", url, *before], begun)
    return [item.value for item in found]


def test_names_of_logs_are_completed_in_every_command_that_takes_one(wal3: Command) -> None:
    for log in ("orders", "orders/eu", "tenants/acme", "tenants/beta"):
        wal3.ok("init", log)

    assert completed(wal3.url, "cat", "") == ["orders", "orders/eu", "tenants/acme", "tenants/beta"]
    assert completed(wal3.url, "scrub", "orders", "ten") == ["tenants/acme", "tenants/beta"]
    for command in (["append"], ["inspect"], ["cursor", "list"], ["seal"], ["ls"], ["gc"], ["destroy"], ["copy"]):
        assert completed(wal3.url, *command, "tenants/a") == ["tenants/acme"]


def test_names_of_cursors_and_pins_are_completed(wal3: Command) -> None:
    wal3.ok("init", "a")
    wal3.ok("cursor", "set", "a", "billing", "first")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")

    assert completed(wal3.url, "cursor", "get", "a", "b") == ["billing"]
    assert completed(wal3.url, "cursor", "set", "a", "") == ["billing"]
    assert completed(wal3.url, "pin", "delete", "a", "") == ["audit"]
    assert completed(wal3.url, "cat", "a", "--pin", "") == ["audit"]


@pytest.mark.parametrize("url", ["/dev/null", "nonsense", "/none", "s3://bucket?endpoint=http://127.0.0.1:1"])
def test_store_that_cannot_be_asked_completes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")

    assert completed(url, "cat", "") == []
    assert completed(url, "cursor", "get", "a", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_that_of_the_shell(wal3: Command, shell: str) -> None:
    script = wal3.ok("completion", shell)

    assert b"_WAL3_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, check=True, timeout=600)
