"""What the repository's host and a developer's commits run is what the project declares and the Makefile runs."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def loaded(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_workflow_runs_all_tests_on_each_python_that_the_package_names() -> None:
    jobs = loaded(".github/workflows/tests.yml")["jobs"]
    declared = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]

    assert jobs["all"]["strategy"]["matrix"]["python"] == declared
    assert ".ci/run" in commands(jobs["all"])
    assert "make check" in commands(jobs["quick"])
    assert re.search(r"^check: ", MAKEFILE, re.MULTILINE)
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_commit_hooks_are_commands_of_the_makefile() -> None:
    # $(BIN) is .venv/bin there.
    made = MAKEFILE.replace("$(BIN)", ".venv/bin")

    (repository,) = loaded(".pre-commit-config.yaml")["repos"]
    entries = [shlex.split(hook["entry"]) for hook in repository["hooks"]]

    for entry in entries:
        # Without the option that makes ruff heed its exclusions for files that are named.
        assert " ".join(word for word in entry if word != "--force-exclude") in made
    assert [entry[0].removeprefix(".venv/bin/") for entry in entries] == ["ruff", "ruff", "mypy"]
