"""Discovery: the store's logs become partitions, and each changed log gets a run that looks at its manifest.

A slow sweep: what it looks at follows the number of logs. Of a small store, each tick looks at all logs. It fails when
the store is another one, or many logs are gone, until an operator confirms by `accept_store_job` that this was meant.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from dagster import (
    Config,
    Definitions,
    Failure,
    OpExecutionContext,
    SensorEvaluationContext,
    SensorResult,
    in_process_executor,
    job,
    op,
)
from pydantic import Field

from wal3_core import list_logs
from wal3_core.errors import LogNotFoundError
from wal3_core.fleet.identity import store_identity
from wal3_core.fleet.outcomes import Refusal
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.dirty_logs.assets import RoundKind, Rounds
from wal3_orchestration.framework.assets import LOGS_PER_RUN_MAX, LogAsset, LogJob, request_runs
from wal3_orchestration.framework.log_records import LogRecord, LogRecords
from wal3_orchestration.framework.recorder import LogResult, Recorder, fingerprint
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.step import Step
from wal3_orchestration.framework.store import (
    ACCEPT_JOB,
    ACCEPT_OP,
    LogState,
    UnreadableLog,
    open_known,
    read_states,
    remember,
    remember_first,
    remembered,
    require_few_lost,
)
from wal3_orchestration.framework.triggers import (
    QUICK_LOGS_MAX,
    LogSensor,
    SensorCursor,
    Workflow,
    is_queued,
    next_attempts,
)


def record_manifests(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Record the numbers of each log of the step."""
    seen = {state.log: _result(state.log, state) for state in read_states(store, step.logs)}
    recorder.add([seen.get(log) or _result(log, None) for log in step.logs])


def _result(log: str, state: LogState | UnreadableLog | None) -> LogResult:
    if state is None:
        gone = Refusal(kind=LogNotFoundError.__name__, message="expected a log, found none")
        return LogResult(log=log, refusal=gone)
    if isinstance(state, UnreadableLog):
        # Its state counts as recorded, so that discovery asks for one run, not for one at each tick.
        return LogResult(log=log, refusal=Refusal(kind="", message=state.message), state=state.fingerprint)
    return LogResult(
        log=log,
        metadata=state.metadata(),
        state=state.fingerprint,
        implied=("setsum", "generation"),
        data_version=state.data_version,
        figures=state.figures,
    )


MANIFEST = LogAsset(
    name="manifest",
    group="discovery",
    do=record_manifests,
    description=(
        "What a log holds, read from its manifest and cursors: records, bytes, fragments, snapshots, the time of the"
        " last append, and the lag of each cursor.\n\nPlots by partition compare the logs; while there are at most 50,"
        " plots by event follow each log over time."
    ),
    pool="wal3_manifest",
    section=Section.DISCOVERY,
)
JOB = LogJob(name="manifest", assets=(MANIFEST,), description="Looks at the manifests and cursors of logs.")

REASON = "discovery: the log changed"
_NAMED_MAX = 100


def discover(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Add partitions for new logs, remove those of vanished logs, and request runs for the logs that changed.

    Fails, and changes nothing, when the store is not the one that it saw logs in before, or many logs are gone at once.
    """
    cursor, known = SensorCursor.from_cursor(context.cursor), scope.known_logs(context.instance)
    if cursor.rests(len(known)):
        return SensorResult(
            skip_reason=f"{len(known)} logs, the next look at all of them is not due yet", cursor=cursor.to_cursor()
        )
    opened = open_known(scope, context)
    # The later slices of a going-over look at what its first one listed.
    logs = sorted(known) if cursor.after else list(list_logs(opened))
    found = set(logs)
    new, vanished = sorted(found - set(known)), [log for log in known if log not in found]
    require_few_lost(scope, opened, known, vanished, scope.store(context))
    if found:
        remember_first(scope, context.instance, opened)
    some, after = cursor.step(sorted(logs))
    # A log that an earlier tick of this round found changed is looked at again now, for the key of its run.
    states = {
        state.log: fingerprint(state.fingerprint)
        for state in read_states(opened, sorted({*cursor.held, *some} & found))
    }
    records = LogRecords(scope, context.instance, MANIFEST.name)
    keys = records.changed(states)
    # A log that comes back is recorded again, whatever its state is then.
    records.save({log: LogRecord(number=known.number + 1) for log, known in records.load(vanished).items()})
    if after.after and len(keys) < LOGS_PER_RUN_MAX:
        after, keys = after.model_copy(update={"held": tuple(keys)}), {}
    requests = next_attempts(context.instance, request_runs(scope, JOB, keys, REASON, alone_max=1))
    if len(logs) <= QUICK_LOGS_MAX and any(is_queued(context.instance, each.job_name) for each in requests):
        # Each change asks for another run. When the queue is full, one waits, and a later tick asks for the rest.
        requests = []
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(some)} logs, none changed",
        cursor=after.to_cursor(),
        dynamic_partitions_requests=[
            scope.logs.build_add_request(new),
            scope.logs.build_delete_request(vanished),
        ],
    )


DISCOVERY = LogSensor(
    name="discovery",
    tick=discover,
    jobs=(JOB,),
    period_s=30,
    description=(
        "Adds a partition for each new log, removes those of logs that are gone, and looks at each log that changed:"
        " at each tick while there are at most 100 logs, then a log a second, and all of them within an hour."
        " Fails, and changes nothing, when the store is another one than before, or many logs are gone at once."
    ),
)


class Accepted(Config):
    """What the operator confirms."""

    store_id: str = Field(description="What wal3 store-id prints for the intended store.")
    vanished: int = Field(default=0, ge=0, description="How many of the known logs are no longer in it.")


def _acceptance(scope: StoreScope) -> Definitions:
    """Return the job that looks after another store from then on, and forgets logs that are gone.

    Only if both are as the operator says.
    """

    @op(
        name=scope.named(ACCEPT_OP),
        description="Accepts the store and the loss that its configuration names, if they are what is found.",
        required_resource_keys={scope.named("store")},
    )
    def accepted_store(context: OpExecutionContext, config: Accepted) -> None:
        opened = scope.store(context).open()
        found = store_identity(opened)
        if found != config.store_id:
            message = f"store {opened.url}: expected store {config.store_id}, found {found or 'no identity'}"
            raise Failure(message, allow_retries=False)
        there = set(list_logs(opened))
        vanished = [log for log in scope.known_logs(context.instance) if log not in there]
        if len(vanished) != config.vanished:
            message = f"store {opened.url}: expected {config.vanished} known logs to be gone, found {len(vanished)}"
            raise Failure(f"{message}: {vanished[:_NAMED_MAX]}", allow_retries=False)
        if remembered(scope, context.instance) != found:
            # They name logs of the other store, and would make partitions of them.
            for kind in RoundKind:
                Rounds(scope, context.instance).save(kind, None)
        remember(scope, context.instance, found)
        for log in vanished:
            context.instance.delete_dynamic_partition(scope.logs_name, log)
        context.log.info("store %s, %d logs forgotten: %s", found, len(vanished), vanished)

    @job(
        name=scope.named(ACCEPT_JOB),
        description="Accepts another store, or the loss of many logs, that discovery has refused.",
        tags=scope.tags,
        metadata=scope.metadata,
        executor_def=in_process_executor,
    )
    def accept_store_job() -> None:
        accepted_store()

    return Definitions(jobs=[accept_store_job])


workflow = Workflow(assets=(MANIFEST,), jobs=(JOB,), sensors=(DISCOVERY,), further=_acceptance)
