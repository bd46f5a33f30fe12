from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from examples.demo.input import log_of, read_input
from wal3_core import Message
from wal3_core.format.paths import RESERVED_PARTS, check_log_name


def _git(repo: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, "-C", str(repo), *arguments], check=True, capture_output=True, timeout=600)


def test_repository_becomes_a_log_for_each_top_level_folder(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("one")
    (tmp_path / "README").write_text("read me")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    _git(tmp_path, "rm", "-q", "src/code.py")
    _git(tmp_path, "commit", "-q", "-m", "second")

    # A submodule has no bytes here: one that takes a file's place deletes it.
    _git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    _git(tmp_path, "commit", "-q", "-m", "third")
    _git(tmp_path, "update-index", "--cacheinfo", f"160000,{'1' * 40},README")
    _git(tmp_path, "commit", "-q", "-m", "fourth")

    origin, messages = read_input(tmp_path)

    assert origin == f"the git history of {tmp_path}"
    assert messages == {
        "root": [Message(b"read me", b"README"), Message(None, b"README")],
        "src": [Message(b"one", b"src/code.py"), Message(None, b"src/code.py")],
    }


def test_sample_replaces_a_missing_repository(tmp_path: Path) -> None:
    origin, messages = read_input(tmp_path)

    assert origin.startswith("the bundled sample (")
    assert sum(map(len, messages.values())) == 2500


def test_sample_replaces_missing_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "install git" in read_input(tmp_path)[0]


@pytest.mark.parametrize(
    ("path", "log"),
    [
        (b"README", "root"),
        (b"src/main.rs", "src"),
        (b".github/workflows/a.yaml", "github"),
        (b"my folder/x", "my_folder"),
        (b"b\xc3\xbccher/x", "b_cher"),
        (b"\xff\xfe/x", "_"),
        (b".../x", "_"),
        *((f"{part}/x".encode(), f"{part}_") for part in sorted(RESERVED_PARTS)),
    ],
)
def test_folder_name_becomes_a_log_name(path: bytes, log: str) -> None:
    assert log_of(path) == log
    assert check_log_name(log) == log
