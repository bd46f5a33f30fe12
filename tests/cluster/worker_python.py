"""A Python as a cluster's workers have it: with what the library needs installed, and without the library."""

from __future__ import annotations

import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

import wal3_core

NAME = "wal3"


def make_worker_python(folder: Path, *extras: str) -> Path:
    """Make an environment that has what ``wal3[extras]`` requires, pyspark and wal3 left out; give its interpreter."""
    venv.create(folder, symlinks=True, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in _required(NAME, frozenset(extras)) - {NAME, "pyspark"}:
        _link(name, site)
    return folder / "bin" / "python"


def zip_library(path: Path) -> Path:
    """Pack the library as ``spark-submit --py-files`` takes it."""
    package = Path(wal3_core.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(package.rglob("*.py")):
            packed.write(file, file.relative_to(package.parent))
    return path


def _required(name: str, extras: frozenset[str]) -> set[str]:
    """Name what a distribution requires, and what that requires."""
    found, waiting = set[str](), [(name, extras)]
    while waiting:
        each, wanted = waiting.pop()
        found.add(each)
        requirements = map(Requirement, distribution(each).requires or ())
        for one in requirements:
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                named = one.name.lower().replace("_", "-")
                if named not in found or one.extras:
                    waiting.append((named, frozenset(one.extras)))
    return found


def _link(name: str, site: Path) -> None:
    """Make a distribution's packages and modules importable there."""
    of = distribution(name)
    for part in {file.parts[0] for file in of.files or () if file.parts[0] not in {"..", "__pycache__"}}:
        target = site / part
        if not target.exists():
            target.symlink_to(Path(str(of.locate_file(part))))
