"""A user's type checker sees the types of every public name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import wal3_core

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests" / "typing"
NAMES = ("consumer.py", "mistakes.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python into which the library is installed as from a wheel, which holds all files of the package."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    package = Path(str(wal3_core.__file__)).parent
    shutil.copytree(package, site / "wal3_core", ignore=shutil.ignore_patterns("__pycache__"))
    # The packages that it depends on.
    (site / "others.pth").write_text(str(Path(pytest.__file__).parents[1]))
    return folder / "bin" / "python"


def wrong_lines() -> set[tuple[str, int]]:
    return {
        (name, number)
        for name in NAMES
        for number, line in enumerate((PROJECT / name).read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }


@pytest.mark.repeat
def test_mypy_finds_the_mistakes_of_a_project_and_no_others(python: Path, tmp_path: Path) -> None:
    files = [shutil.copy(PROJECT / name, tmp_path) for name in NAMES]
    command = [sys.executable, "-m", "mypy", "--strict", "--output=json", f"--python-executable={python}"]
    command += ["--config-file=", f"--cache-dir={tmp_path / 'cache'}", *map(str, files)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)

    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    errors = {(Path(each["file"]).name, each["line"]) for each in found if each["severity"] == "error"}
    assert errors == wrong_lines(), ended.stdout + ended.stderr


@pytest.mark.slow
def test_pyright_finds_the_mistakes_of_a_project_and_no_others(python: Path, tmp_path: Path) -> None:
    files = [shutil.copy(PROJECT / name, tmp_path) for name in NAMES]
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={python}", *map(str, files)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)

    found = json.loads(ended.stdout)["generalDiagnostics"]
    errors = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"
    }
    assert errors == wrong_lines(), ended.stdout + ended.stderr
