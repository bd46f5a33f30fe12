"""The examples in the documentation run as they are printed, twice, and on a machine that has run them before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    "README.md",
    "docs/guide.md",
    "docs/consuming.md",
    "docs/keyed.md",
    "docs/feeds.md",
    "docs/queue.md",
    "docs/cli.md",
    "docs/spark.md",
    "docs/fleet.md",
    "docs/observability.md",
    "docs/dagster.md",
    "docs/maintenance.md",
]
# Blocks of these languages are examples; a block without a language shows a form or an output.
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What examples import, and neither the library nor an extra installs: by module, the package.
OUTSIDE = {"opentelemetry.sdk": "opentelemetry-sdk", "duckdb": "duckdb", "pandas": "pandas", "polars": "polars"}
COMMANDS = {"python": [sys.executable], "sh": ["bash", "-euo", "pipefail"]}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("attempts", [1, pytest.param(2, marks=pytest.mark.repeat)])
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run_as_printed_and_run_again(page: str, attempts: int, tmp_path: Path) -> None:
    examples = dict.fromkeys(COMMANDS, "")
    for language, text in BLOCK.findall((ROOT / page).read_text()):
        examples[language] += text
    assert any(examples.values()), f"{page} has no example"

    for attempt in range(1, attempts + 1):
        for language, text in examples.items():
            program = tmp_path / f"{Path(page).stem}.{language}"
            # The one change: two test runs on a machine do not share a folder.
            program.write_text(text.replace("/tmp/", f"{tmp_path}/"))
            ran = subprocess.run(
                [*COMMANDS[language], program],
                check=False,
                cwd=ROOT,
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert ran.returncode == 0, f"{page}, {language}, attempt {attempt}:\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_page_names_the_packages_that_its_examples_need_beside_the_library(page: str) -> None:
    """The tests' environment has them all, so that running the examples does not show it."""
    text = (ROOT / page).read_text()
    programs = "".join(program for language, program in BLOCK.findall(text) if language == "python")

    for module, package in OUTSIDE.items():
        if re.search(rf"^(import|from) {re.escape(module)}\b", programs, re.MULTILINE):
            assert f"pip install {package}`" in text, f"{page}: {module}"


def _environment() -> dict[str, str]:
    """The environment after ``source .venv/bin/activate``, with no store named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WAL3_", "DAGSTER_", "AWS_"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
