"""Dagster's runs on the cluster, configured by the environment as a deployment is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.cluster.conftest import Machines, finished, printed
from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import COLLECTED, KEYED, READ, done
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.store.object_store import ObjectStore

ROOT = Path(__file__).parent.parent.parent


def test_dagster_maintains_logs_on_a_cluster_whose_configuration_gives_the_library(
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

    # The first run is a verification.
    with machines.in_the_middle("GET", "/log/", machines.kill_executor):
        command = [sys.executable, "-m", "tests.cluster.scheduled", ",".join([*READ, *COLLECTED, KEYED])]
        outcome = finished(command, environment, tmp_path)

    found = printed(line for line in outcome.stdout.splitlines() if line.startswith("{"))
    assert len(found) == 5
    for name, reported in found.items():
        assert reported["success"], (name, outcome.stderr[-5000:])
        assert reported["runs"] == 1, name
        assert reported["jobs"], name
        assert reported["master"] == master, name
        assert len(reported["retried"]) == 1, (name, reported)
    (verified,) = found["verification_sweep"]["retried"]
    assert verified["executors lost"] == 1
    assert verified["tasks retried"] >= 1
    assert verified["retried because"].startswith("ExecutorLostFailure (executor ")
    for name in found.keys() - {"verification_sweep"}:
        assert found[name]["retried"] == [{"tasks retried": 0, "executors lost": 0}], found[name]
    check("delete", store, done([[log, True, True] for log in COLLECTED]))
    check("compact", store, done(1150))
    assert dirty_logs(store)
