"""The store does not answer for a while, and the sensors go on ticking: nothing wedges, and nothing piles up.

    WAL3_TEST_OUTAGE_S=120 .venv/bin/pytest -rP tests/abuse/test_unreachable_store.py

lasts two minutes, with the timeouts and the pauses between ticks that a deployment has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterInstance, RunRequest
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus

from tests.abuse.daemon import eager_daemon, ended, eventually, under_way
from tests.orchestration.daemons import running_daemon
from tests.processes.fault_proxy import FaultProxy, fault_proxy
from tests.s3_server import new_s3_url
from wal3_core import LogWriter, open_store
from wal3_orchestration.framework.scope import LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run


REAL_S = float(os.environ.get("WAL3_TEST_OUTAGE_S", "0"))
OUTAGE_S = REAL_S or 20.0
# What a deployment has, or less.
TIMEOUTS = "" if REAL_S else "&timeout_s=12&request_timeout_s=10"
# Sensors that ask the store; pruning and lost_runs ask Dagster alone.
ASKING = {"discovery", "deletion", "delay_queues", "dirty_logs", "key_compaction", "lopsided_snapshots"}
ON = {"discovery", "deletion", "delay_queues"} if REAL_S else ASKING
LOGS = [f"log-{number}" for number in range(4)]


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint) as proxy:
        yield proxy


@pytest.fixture
def s3_fleet(proxy: FaultProxy, s3_bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store's URL without the proxy; the code location's leads through it."""
    url = new_s3_url(s3_bucket_url)
    monkeypatch.setenv("WAL3_STORE", f"{url}?endpoint={proxy.endpoint}{TIMEOUTS}")
    return url


def _daemon(output: Path) -> AbstractContextManager[object]:
    return running_daemon(output, "--workspace", "workspace.yaml") if REAL_S else eager_daemon(output)


def _write(url: str, logs: Sequence[str]) -> None:
    for log in logs:
        with LogWriter.open_or_create(open_store(url), log) as writer:
            writer.append(b"a record")


def _end(tick: InstigatorTick) -> str:
    """Return why a tick failed, or nothing."""
    return "" if tick.status is not TickStatus.FAILURE else "failed" if tick.error is None else tick.error.message[:300]


def _ticks(instance: DagsterInstance) -> Mapping[str, list[tuple[float, str]]]:
    """Return the ended ticks of each sensor that asks the store, oldest first: when each began, and why it failed."""
    states = [state for state in instance.all_instigator_state() if state.instigator_name in ON]
    found = {}
    for state in states:
        ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
        over = [(tick.timestamp, _end(tick)) for tick in ticks if tick.status is not TickStatus.STARTED]
        found[state.instigator_name] = sorted(over, key=lambda each: each[0])
    return found


def _eventually_known(instance: DagsterInstance, logs: Sequence[str], output: Path) -> None:
    key = AssetKey("manifest")
    eventually(lambda: set(logs) <= instance.get_materialized_partitions(key), output)
    assert set(logs) <= set(instance.get_dynamic_partitions(LOGS_NAME))


def _since(began_s: float, ticks: Sequence[tuple[float, str]]) -> list[str]:
    return [failure for at_s, failure in ticks if at_s > began_s]


def test_sensors_and_runs_go_on_within_two_ticks_of_an_outage(
    s3_fleet: str, proxy: FaultProxy, instance: DagsterInstance, run: Run, tmp_path: Path
) -> None:
    """Also a run that begins while nothing answers: it waits, and is repeated."""
    output = tmp_path / "daemon.log"
    _write(s3_fleet, LOGS)
    with _daemon(output):
        _eventually_known(instance, LOGS, output)
        eventually(lambda: set(_ticks(instance)) == ON and under_way(instance) == [], output)
        before = ended(instance)
        with ThreadPoolExecutor(1) as threads:
            with proxy.refusing():
                began_s = time.time()
                # The writers reach the store.
                _write(s3_fleet, ["new", *LOGS])
                begun = threads.submit(run, "", RunRequest(job_name="garbage_plan_sweep"))
                time.sleep(OUTAGE_S)
            over_s, during = time.time(), ended(instance)
            assert begun.result(600).success
        _eventually_known(instance, ["new"], output)
        eventually(lambda: all(len(_since(over_s, each)) >= 3 for each in _ticks(instance).values()), output)
        eventually(lambda: under_way(instance) == [], output)
        normal_s, after, seen = time.time() - over_s, ended(instance), _ticks(instance)

    failed = {name: sum(map(bool, _since(began_s, each))) for name, each in seen.items()}
    print(f"an outage of {over_s - began_s:.0f} s: failed ticks {failed}, runs begun in it {during - before}")
    print(f"all normal {normal_s:.0f} s after it, with the runs {after - during}")
    for name, each in seen.items():
        # The first one may have begun while the last connections were refused.
        assert not any(_since(over_s, each)[1:]), (name, each)
    assert [job for (job, status) in after if status == "FAILURE"] == []
    # The test's own run, and what a tick had asked for just before; none for each tick.
    assert sum((during - before).values()) <= 3
