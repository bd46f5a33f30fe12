"""Dagster's runs on the cluster, configured by the environment as a deployment is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import COLLECTED, KEYED, READ
from wal3_core.fleet.assignment import dirty_logs

if TYPE_CHECKING:
    from tests.cluster.conftest import Machines
    from wal3_core.storage.object_store import ObjectStore

ROOT = Path(__file__).parent.parent.parent
RUN_S = 300


def test_dagster_maintains_logs_on_a_cluster_whose_workers_get_the_library_from_its_configuration(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, "verify", "delete", "compact", "roll_up")
    conf = machines.conf()
    master = conf.pop("spark.master")
    environment = {
        **os.environ,
        "WAL3_STORE": store.url,
        "WAL3_SPARK_MASTER": master,
        "WAL3_SPARK_CONF": json.dumps(conf),
        "PYTHONPATH": str(ROOT),
    }

    outcome = subprocess.run(
        [sys.executable, "-m", "tests.cluster.scheduled", ",".join([*READ, *COLLECTED, KEYED])],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )

    assert outcome.returncode == 0, outcome.stderr[-5000:]
    lines = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith("{")]
    found = {name: told for line in lines for name, told in line.items()}
    assert len(found) == 5
    for name, told in found.items():
        assert told["success"], (name, outcome.stderr[-5000:])
        assert told["runs"] == 1, name
        assert told["jobs"], name
        assert told["master"] == master, name
    check("delete", store, [[log, True, True] for log in COLLECTED])
    check("compact", store, 1150)
    assert dirty_logs(store)
