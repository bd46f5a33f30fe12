"""Manifests: what each log holds, as numbers that plot over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import Definitions

from wal3_core.errors import LogNotFoundError
from wal3_core.fleet.outcomes import Refusal
from wal3_orchestration.building import LogAsset
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.log_state import LogState, UnreadableLog, read_states
from wal3_orchestration.outcomes import Outcome
from wal3_orchestration.recording import Recorder
from wal3_orchestration.runbook import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_orchestration.recording import Event
    from wal3_orchestration.scope import Scope
    from wal3_orchestration.work import Work


def look(work: Work) -> Iterator[Event]:
    """Record the numbers of each log of the step."""
    recorder = Recorder(work)
    with retried_only_when_unavailable(work.context):
        opened = work.open()
        for some in work.slices():
            seen = {state.log: _outcome(state.log, state) for state in read_states(opened, some.logs)}
            recorder.add([seen.get(log) or _outcome(log, None) for log in some.logs])
    yield from recorder.finish()
    recorder.failures.raise_together(len(work.logs))


def _outcome(log: str, state: LogState | UnreadableLog | None) -> Outcome:
    if state is None:
        gone = Refusal(kind=LogNotFoundError.__name__, message="expected a log, found none")
        return Outcome(log=log, refusal=gone)
    if isinstance(state, UnreadableLog):
        # Its state counts as recorded, so that discovery asks for one run, not for one at each tick.
        return Outcome(log=log, refusal=Refusal(kind="", message=state.message), state=state.fingerprint)
    return Outcome(
        log=log,
        metadata=state.metadata(),
        state=state.fingerprint,
        implied=("setsum", "generation"),
        data_version=state.data_version,
    )


MANIFEST = LogAsset(
    name="manifest",
    step=look,
    description=(
        "What a log holds, read from its manifest and cursors: records, bytes, fragments, snapshots, the time of the"
        " last append, and the lag of each cursor.\n\nPlots by partition compare the logs; while there are at most 50,"
        " plots by event follow each log over time."
    ),
    pool="wal3_manifest",
    section=Section.DISCOVERY,
)
JOB = LogJob(name="manifest", assets=(MANIFEST,), description="Looks at the manifests and cursors of logs.")


def workflow(scope: Scope) -> Definitions:
    """Return the asset and its job."""
    return Definitions.merge(Definitions(assets=[MANIFEST.build(scope)]), build_jobs(scope, [JOB]))
