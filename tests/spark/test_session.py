"""Sessions that read logs, however they were started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.logs import fill
from wal3_core import LogReader, LogWriter, Message, open_store
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.spark import session_conf, use_this_python
from wal3_core.store.documents.policy_store import PolicyStore

SCRIPT = Path(__file__).parent / "plain_session.py"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.repeat
def test_plain_session_without_activation_reads_and_compacts_local_and_s3_logs(
    local_url: str, s3_url: str, tmp_path: Path
) -> None:
    for url in (local_url, s3_url):
        fill(open_store(url), "a", fragments=3)
        with LogWriter.open_or_create(open_store(url), "keyed") as writer:
            writer.append_many([Message(b"%d" % number, b"%d" % (number % 7)) for number in range(20)])
        PolicyStore(open_store(url), "keyed").change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    java = shutil.which("java")
    assert java is not None
    away = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "JAVA_"))}

    outcome = subprocess.run(
        [sys.executable, str(SCRIPT), local_url, s3_url],
        # Only Java and the system's own Python, if there is one.
        env={**away, "PATH": f"/usr/bin:/bin:{Path(java).parent}", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert outcome.returncode == 0, outcome.stderr[-3000:]
    bodies = [r.body.decode() for r in LogReader.open(open_store(local_url), "a").records() if r.body is not None]
    expected = {"bodies": bodies, "sound": True, "records": 30, "superseded": 13}
    assert [json.loads(line) for line in outcome.stdout.splitlines()] == [expected, expected]


def test_only_a_local_session_is_bound_to_this_machine() -> None:
    local, cluster = session_conf("local[2]"), session_conf("spark://master:7077")

    assert local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in cluster
    assert cluster["spark.sql.session.timeZone"] == local["spark.sql.session.timeZone"] == "UTC"
    # With it Spark gives wrong results from a frame that is used twice.
    assert "spark.sql.python.filterPushdown.enabled" not in {*local, *cluster}


def test_workers_run_the_python_that_the_environment_or_the_configuration_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {"spark.pyspark.python": "/opt/workers/bin/python"}
    found = []
    for before in ("", "/opt/other/bin/python"):
        for conf in ({}, named):
            monkeypatch.setenv("PYSPARK_PYTHON", before)
            if not before:
                monkeypatch.delenv("PYSPARK_PYTHON")
            use_this_python(conf)
            found.append(os.environ["PYSPARK_PYTHON"])

    assert found == [sys.executable, "/opt/workers/bin/python", "/opt/other/bin/python", "/opt/other/bin/python"]
