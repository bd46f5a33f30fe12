"""Discovery: the store's logs become partitions, and each changed log gets a run that looks at its manifest.

Of a small store, each tick looks at all logs. Of a larger one, a listing finds those that are new or gone, and the
states of the others are read in a slow round, part by part, in the order in which logs are listed. It fails when the
store is another one, or many logs are gone, until an operator confirms by `accept_store_job` that this was meant.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Self

from dagster import (
    Config,
    Definitions,
    Failure,
    OpExecutionContext,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    in_process_executor,
    job,
    op,
)
from pydantic import Field

from wal3_core import list_logs
from wal3_core.errors import LogNotFoundError, StoreDeniedError, UnavailableError
from wal3_core.fleet.identity import store_identity
from wal3_core.fleet.outcomes import Refusal
from wal3_core.format.paths import QUEUE_CURSOR
from wal3_core.runtime import US_PER_S, shared_runtime
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
    LOGS_AT_A_TIME,
    PERIOD_S_MAX,
    LogSensor,
    SensorCursor,
    TickBudget,
    Workflow,
    is_queued,
    is_quick,
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
# Intervals at which the logs of a store of more than a few are listed; once a day if a listing takes long.
LISTED_S = 60 * 60
QUICK_S_MAX = 5.0
_NAMED_MAX = 100


class DiscoveryCursor(SensorCursor, frozen=True):
    """A going-over also lists the logs; ``reads`` says that it reads the known ones too, since ``read_us``.

    ``gone`` are known logs that it did not find; ``listed_s`` is how long the listing took.
    """

    reads: bool = True
    read_us: int = 0
    gone: tuple[str, ...] = ()
    listed_s: float = 0.0

    def listed_lately(self) -> bool:
        """Return whether the names need not be listed yet: once an hour, or once a day if that takes long."""
        period_s = 0 if is_quick(self.num_logs) else LISTED_S if self.listed_s < QUICK_S_MAX else PERIOD_S_MAX
        return not self.after and 0 <= shared_runtime().now_us() - self.begun_us < period_s * US_PER_S

    def begun(self) -> Self:
        """Return the cursor of a going-over that begins now, unless one is under way."""
        if self.after:
            return self
        now_us = shared_runtime().now_us()
        read = self.model_copy(update={"begun_us": self.read_us}).rests()
        fresh = {"begun_us": now_us, "reads": not read, "read_us": self.read_us if read else now_us}
        return self.model_copy(update={**fresh, "gone": (), "held": (), "listed_s": 0.0})


def discover(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Add partitions for new logs, remove those of vanished logs, and request runs for the logs that changed.

    Fails, and changes nothing, when the store is not the one that it saw logs in before, or many logs are gone at once.
    """
    cursor = DiscoveryCursor.from_cursor(context.cursor)
    if cursor.listed_lately():
        said = f"{cursor.num_logs} logs, the next look at all of them is not due yet"
        return SensorResult(skip_reason=said, cursor=context.cursor)
    return _Discovery(scope, context, cursor).result()


class _Discovery:
    """One evaluation of the sensor: it lists some of the logs, and reads the states of those that are new or due."""

    def __init__(self, scope: StoreScope, context: SensorEvaluationContext, cursor: DiscoveryCursor) -> None:
        self._scope = scope
        self._context = context
        self._cursor = cursor.begun()
        self._tick = TickBudget(scope, context, DISCOVERY.name, cursor)
        # In the order in which logs are listed.
        self._known = sorted(scope.known_logs(context.instance), key=_folder)
        self._records = LogRecords(scope, context.instance, MANIFEST.name)
        self._store = open_known(scope, context)
        self._new: list[str] = []
        self._gone = list(self._cursor.gone)
        self._states: dict[str, LogState | UnreadableLog] = {}
        self._num_listed = 0

    def result(self) -> SensorResult:
        scope, instance = self._scope, self._context.instance
        begun_s = shared_runtime().monotonic_s()
        after = self._list()
        require_few_lost(scope, self._store, self._known, self._gone, scope.store(self._context))
        if self._num_listed:
            remember_first(scope, instance, self._store)
        requests, held = self._requests(ended=not after)
        queues, known_queues = self._queues()
        num_logs = len(self._known) + len(self._new) - len(self._gone)
        gone = [] if after else self._gone
        # A log that comes back is recorded again, whatever its state is then.
        self._records.save({log: LogRecord(number=last.number + 1) for log, last in self._records.load(gone).items()})
        listed_s = self._cursor.listed_s + shared_runtime().monotonic_s() - begun_s
        done = {"after": after, "held": held, "gone": tuple(self._gone) if after else (), "num_logs": num_logs}
        cursor = self._cursor.model_copy(update={**done, "ticks": self._tick.number, "listed_s": listed_s})
        return SensorResult(
            run_requests=requests,
            skip_reason=None if requests else f"{self._num_listed} logs, none changed",
            cursor=cursor.to_cursor(),
            dynamic_partitions_requests=[
                scope.logs.build_add_request(self._new),
                scope.logs.build_delete_request(gone),
                scope.queues.build_add_request(sorted(queues - known_queues)),
                scope.queues.build_delete_request(sorted(known_queues & ((self._states.keys() - queues) | {*gone}))),
            ],
        )

    def _list(self) -> str:
        """List logs until the tick's time is over; return the last one, or nothing at the end of all.

        The store's silence ends the tick behind what was done before it, if that is something.
        """
        after, known = self._cursor.after, set(self._known)
        listing = list_logs(self._store, start_after=after)
        if self._tick.leave_out:
            after = self._leave_out(next(listing, ""), after)
        while True:
            try:
                some = list(islice(listing, min(LOGS_AT_A_TIME, max(1, self._tick.left))))
                to_read = [log for log in some if self._cursor.reads or log not in known]
                self._states.update({state.log: state for state in read_states(self._store, to_read)})
            except StoreDeniedError:
                raise
            except UnavailableError as error:
                if not self._num_listed:
                    raise
                self._context.log.warning("the tick ends behind %s: %s", after, error)
                return after
            ended, found = not some, set(some)
            self._new += [log for log in some if log not in known]
            self._gone += [log for log in self._between(after, None if ended else some[-1]) if log not in found]
            if ended:
                return ""
            self._tick.take(len(to_read))
            self._num_listed += len(some)
            after = some[-1]
            if self._tick.over:
                return after

    def _leave_out(self, log: str, after: str) -> str:
        """Leave a log to the next round; return the log behind which this one goes on."""
        if not log:
            return after
        self._context.log.warning("%s: left out, as no tick that looked at it has ended", log)
        self._gone += [each for each in self._between(after, log) if each != log]
        self._new += [log] if log not in self._known else []
        return log

    def _between(self, after: str, last: str | None) -> Iterator[str]:
        """Yield the known logs behind a log, up to another one."""
        begin = bisect_right(self._known, _folder(after), key=_folder) if after else 0
        end = len(self._known) if last is None else bisect_right(self._known, _folder(last), key=_folder)
        return islice(self._known, begin, end)

    def _requests(self, *, ended: bool) -> tuple[list[RunRequest], tuple[str, ...]]:
        """Ask for runs for the logs that changed; or hold these until the round has ended, so that they share runs."""
        held = [log for log in self._cursor.held if log not in self._states]
        keys = self._records.changed(_fingerprints(self._states.values()))
        if not ended and len(keys) + len(held) < LOGS_PER_RUN_MAX:
            return [], tuple(sorted({*keys, *held}))
        # Looked at again now, for the keys of their runs.
        keys |= self._records.changed(_fingerprints(read_states(self._store, held)))
        keys = dict(sorted(keys.items()))
        requests = next_attempts(self._context.instance, request_runs(self._scope, JOB, keys, REASON, alone_max=1))
        quick = is_quick(len(self._known) + len(self._new))
        if quick and any(is_queued(self._context.instance, each.job_name) for each in requests):
            # Each change asks for another run. When the queue is full, one waits, and a later tick asks for the rest.
            requests = []
        return requests, ()

    def _queues(self) -> tuple[set[str], set[str]]:
        """Return which of the logs that were read are delay queues, and which logs are known to be."""
        states = [state for state in self._states.values() if isinstance(state, LogState)]
        queues = {state.log for state in states if QUEUE_CURSOR in state.cursors}
        return queues, set(self._scope.known_queues(self._context.instance))


def _folder(log: str) -> str:
    return f"{log}/"


def _fingerprints(states: Iterable[LogState | UnreadableLog]) -> dict[str, str]:
    return {state.log: fingerprint(state.fingerprint) for state in states}


DISCOVERY = LogSensor(
    name="discovery",
    tick=discover,
    jobs=(JOB,),
    period_s=30,
    description=(
        "Adds a partition for each new log, removes those of logs that are gone, and looks at each log that changed:"
        " at each tick while there are at most 100 logs. Of more, it lists the names once an hour (once a day if that"
        " takes more than a few seconds), and reads all logs within a day."
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
