"""Without the Java that Spark needs, a run says so at once; what needs no Spark works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wal3_orchestration.framework.scope import LOGS_NAME
from wal3_orchestration.resources import java_problem

if TYPE_CHECKING:
    from conftest import Write
    from dagster import DagsterInstance

ROOT = Path(__file__).parent.parent.parent
# A process of its own: in this one, Spark may have started.
SWEEP = """
from dagster import DagsterInstance
from wal3_orchestration.definitions import defs
from tests.orchestration.run_requests import range_tags
from wal3_orchestration.framework.scope import LOGS_NAME
with DagsterInstance.get() as instance:
    logs = instance.get_dynamic_partitions(LOGS_NAME)
    result = defs().resolve_job_def("verification_sweep").execute_in_process(
        instance=instance,
        tags=range_tags(logs[0], logs[-1]),
        run_config={"resources": {"collection": {"config": {"spark_work_s_min": 0.0}}}},
        raise_on_error=False,
    )
events = result.all_node_events
print(len([event for event in events if event.is_step_up_for_retry]), "retries")
print(*[event.step_failure_data.user_failure_data.description for event in events if event.is_step_failure])
"""


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)


def test_missing_java_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    problem = java_problem()

    assert problem is not None
    assert problem.startswith("java: expected Java, found none. ")
    assert "apt-get install openjdk-17-jre-headless" in problem


@pytest.mark.parametrize(
    ("printed", "accepted"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_392"', False),
        ('openjdk version "11.0.2"', False),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", False),
    ],
)
def test_java_is_judged_by_its_version(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    accepted: bool,  # noqa: FBT001 - the table's column
) -> None:
    _program(tmp_path / "bin" / "java", f"#!/bin/sh\ncat >&2 <<'END'\n{printed}\nEND\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    problem = java_problem()

    assert (problem is None) is accepted


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_run_that_needs_spark_fails_at_once_and_says_how_to_install_java(
    instance: DagsterInstance, write: Write, tmp_path: Path
) -> None:
    write("alpha")
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])

    done = subprocess.run(
        [sys.executable, "-c", SWEEP],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0 retries"
    assert f"Spark did not start: {tmp_path}/bin/java: expected Java, found none. Spark needs Java 17" in done.stdout
    assert "set JAVA_HOME" in done.stdout
    assert "`spark_work_s_min`" in done.stdout
