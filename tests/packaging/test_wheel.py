"""A wheel holds the packages as they are in the tree; building it leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("wal3_core", "wal3_orchestration")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_wheel_holds_the_files_of_the_packages_and_no_module_of_an_earlier_build(tmp_path: Path) -> None:
    """Fetches the build backend from the package index, as `pip wheel` does."""
    checkout, wheels = tmp_path / "checkout", tmp_path / "wheels"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, checkout)
    left = checkout / "build" / "lib" / "wal3_core" / "removed_since.py"
    left.parent.mkdir(parents=True)
    left.write_text("")
    before = files(checkout)

    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(wheels), str(checkout)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)

    [wheel] = wheels.iterdir()
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {name for name in before if name.startswith(PACKAGES)}
    # Python keeps the bytecode of the build's own module beside it, as of any module.
    shutil.rmtree(checkout / "__pycache__", ignore_errors=True)
    assert files(checkout) == before
