"""What is imported when: a package that takes long to import, or is an extra, only where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from wal3_core.runtime.extras import PACKAGES

PROJECT = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
HEAVY = (
    *("pyarrow", "numpy", "pandas", "obstore", "boto3", "botocore"),
    *("rich", "click", "fastapi", "uvicorn", "pyspark", "dagster", "llvmlite", "numba"),
)
LIBRARY = "from wal3_core import LogReader, LogWriter, collect, open_store; open_store('memory:a')"
CLI = "from wal3_core.cli import main; import sys; sys.argv = ['wal3', *{arguments}]; main()"


def imported_by(code: str, **environment: str) -> set[str]:
    """Return which of the heavy packages a program imports."""
    report = f"import atexit, sys; atexit.register(lambda: print([n for n in {HEAVY} if n in sys.modules][:]))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{report}\n{code}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(eval(ended.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "imported"),
    [
        ("import wal3_core", set[str]()),
        ("import wal3_core; wal3_core.InvalidRequestError", set[str]()),
        ("from wal3_core import open_store; open_store('file:///tmp')", set[str]()),
        ("from wal3_core import FleetOptions, Pressure", set[str]()),
        (LIBRARY, {"pyarrow", "numpy"}),
        (CLI.format(arguments=["--help"]), {"click"}),
        (CLI.format(arguments=["--version"]), {"click"}),
    ],
)
def test_program_imports_only_what_it_uses(code: str, imported: set[str]) -> None:
    assert imported_by(code) == imported


@pytest.mark.slow
def test_completion_imports_no_command(tmp_path: Path) -> None:
    words = {"_WAL3_COMPLETE": "bash_complete", "COMP_WORDS": "wal3 s", "COMP_CWORD": "1"}
    code = "from wal3_core.cli.program import cli; cli(prog_name='wal3')"

    assert imported_by(code, WAL3_STORE=str(tmp_path), **words) == {"click"}


@pytest.mark.slow
def test_list_of_logs_reads_manifests_without_arrow(tmp_path: Path) -> None:
    code = CLI.format(arguments=["--store", str(tmp_path), "init", "events"])
    imported_by(code)

    code = CLI.format(arguments=["--store", str(tmp_path), "ls"])
    assert imported_by(code) == {"click", "rich"}


@pytest.mark.slow
def test_only_a_queue_server_imports_its_packages(tmp_path: Path) -> None:
    code = CLI.format(arguments=["--store", str(tmp_path), "queue", "create", "jobs"])

    assert imported_by(code).isdisjoint({"fastapi", "uvicorn"})


# Makes a package look as if it were not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Missing())
"""


SERVE = "from wal3_core.cli.program import cli; cli(['queue', 'serve'])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        (["obstore"], "from wal3_core import open_store; open_store('s3://bucket')", "s3"),
        (["boto3", "botocore"], "from wal3_core import open_store; open_store('s3://bucket')", "s3"),
        (["obstore"], "from wal3_core import open_store; open_store('gs://bucket')", "gs"),
        (["obstore"], "from wal3_core import open_store; open_store('az://container')", "az"),
        (["click"], "from wal3_core.cli import main; main()", "cli"),
        (["pyspark"], "import wal3_core.spark", "spark"),
        (["fastapi"], SERVE, "queue"),
        (["uvicorn"], SERVE, "queue"),
    ],
)
def test_missing_extra_is_an_error_that_names_the_command_to_install_it(
    missing: list[str], code: str, extra: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT.format(names=missing)}\n{code}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ended.returncode == (2 if code == SERVE else 1)
    packages = " ".join(f"'{each}'" for each in EXTRAS[extra])
    assert ended.stderr.splitlines()[-1].endswith(f": pip install {packages} (wal3's extra {extra})")


@pytest.mark.parametrize(
    "code", ["import wal3_core", "from wal3_core.cli import main; main()", "import wal3_core.spark"]
)
def test_import_on_windows_says_where_wal3_runs(code: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT.format(names=['fcntl'])}\n{code}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: wal3: expected Linux or macOS, found a system without fcntl: on Windows, run it in WSL"
        " (wsl --install)"
    )


def test_errors_about_missing_extras_name_the_packages_that_the_project_declares() -> None:
    assert {extra: list(packages) for extra, packages in PACKAGES.items()} == {
        extra: packages for extra, packages in EXTRAS.items() if extra not in {"orchestration", "postgres"}
    }


@pytest.mark.slow
def test_library_works_without_its_extras(tmp_path: Path) -> None:
    code = f"""
from wal3_core import LogReader, LogWriter, collect, open_store

store = open_store({tmp_path.as_uri()!r})
with LogWriter.open_or_create(store, "events") as writer:
    writer.append(b"a")
print([record.body for record in LogReader.open(store, "events").records()])
"""
    missing = ["obstore", "boto3", "botocore", "click", "rich", "fastapi", "uvicorn", "pyspark", "pandas", "dagster"]
    ended = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT.format(names=missing)}\n{code}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )

    assert ended.stdout == "[b'a']\n"
