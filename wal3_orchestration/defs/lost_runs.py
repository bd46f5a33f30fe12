"""Runs whose processes are gone: of a machine that went down, or a container that was replaced.

Dagster's own launcher starts a run as a process of a code server, and it is this server that reports a run whose
process has died. If the server dies too, the run counts as started for ever, and keeps its place in its pool and the
place of its logs: no later run of these begins. Launchers for Kubernetes and the like look for themselves. A server
with an address of its own, as those of the templates, is there again after a restart: it is asked for the run.
"""

from __future__ import annotations

import json
import socket

from dagster import (
    DagsterRun,
    DagsterRunStatus,
    RunsFilter,
    SensorEvaluationContext,
    SensorResult,
)
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster_shared.serdes import deserialize_value

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.defs.alerts import is_of
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.triggers import LogSensor, Workflow

# Where Dagster's launcher says which server has the run.
SERVER_TAG = ".dagster/grpc_info"
CONNECT_S_MAX = 2.0
# Time in which a run that has changed last may not be known to its server yet.
LAUNCH_S_MAX = 60.0
_LAUNCHED = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
LOST = "the code server that had this run is gone, and its process with it. What it left half done, the next run does"


def fail_lost_runs(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Mark runs as failed whose code server is gone, so that others can begin."""
    lost = []
    now_s = shared_runtime().now_us() / US_PER_S
    for record in context.instance.get_run_records(RunsFilter(statuses=_LAUNCHED)):
        run, age_s = record.dagster_run, now_s - record.update_timestamp.timestamp()
        if not is_of(scope, run) or not _server_is_gone(run, age_s):
            continue
        # It may have ended since.
        now = context.instance.get_run_by_id(run.run_id)
        if now is not None and not now.is_finished:
            context.instance.report_run_failed(now, LOST)
            lost.append(run.run_id)
    return SensorResult(skip_reason=f"{len(lost)} runs were lost: {', '.join(lost)}" if lost else "no run was lost")


def _server_is_gone(run: DagsterRun, age_s: float) -> bool:
    """Return whether nothing listens where the run's server did, or another one; False when that cannot be known."""
    server = json.loads(run.tags.get(SERVER_TAG, "{}"))
    path, host, port = server.get("socket"), server.get("host"), server.get("port")
    try:
        if path:
            # A server of its own for each start of a webserver or daemon, or for each reload of the code.
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(CONNECT_S_MAX)
                link.connect(path)
        elif host and port:
            socket.create_connection((host, port), timeout=CONNECT_S_MAX).close()
            client = DagsterGrpcClient(host=host, port=port, use_ssl=bool(server.get("use_ssl")))
            asked = CanCancelExecutionRequest(run_id=run.run_id)
            answer = client.can_cancel_execution(asked, timeout=int(CONNECT_S_MAX))
            return age_s > LAUNCH_S_MAX and not deserialize_value(answer, CanCancelExecutionResult).can_cancel
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except (OSError, DagsterUserCodeUnreachableError):
        return False
    return False


LOST_RUNS = LogSensor(
    name="lost_runs",
    tick=fail_lost_runs,
    jobs=(),
    period_s=60,
    description=(
        "Marks runs as failed whose processes are gone together with their code server, as after a machine went down:"
        " otherwise they keep others waiting for ever."
    ),
    uses=(),
)


workflow = Workflow(sensors=(LOST_RUNS,))
