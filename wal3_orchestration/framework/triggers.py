"""What starts runs: sensors and schedules; how fast a sensor goes over all logs, and when a run is tried again.

What is reported to a sensor, such as by events of runs, it looks at when it is due. The round over all logs is a net
below that: it finds what was not reported. A tick stops when its time is over, and the next one goes on behind the last
log that was done. Each tick is counted as it begins: so one that was cut short, by whatever, is known to have failed.

Dagster starts one run for each key. A sensor names the run of a log by what it found there, so a run that was killed,
cancelled, or ended while the store did not answer would be the last one until the log changes. So another attempt has
a key of its own, and is asked for later each time. A run that is executed again, by someone or by Dagster's own
retries, has the key of the one that it repeats: it is the same attempt.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    schedule,
    sensor,
)
from pydantic import BaseModel, ValidationError

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.assets import LogAsset, LogJob, StoreJob, request_runs
from wal3_orchestration.framework.scope import LOG_TAG, RUN_KEY_TAG, StoreScope
from wal3_orchestration.framework.store import open_known

# Time of a tick: Dagster ends one after a minute, and one request may take 20 s.
TICK_S = 20.0
# Stores of at most this many logs are looked at whole by every tick.
QUICK_LOGS_MAX = 100
LOGS_PER_TICK_MAX = 2_000
# Logs between two looks at the time.
LOGS_AT_A_TIME = 128
# Time to go over all logs of a larger store: ten seconds for each log, a day at most.
PERIOD_S_PER_LOG = 10.0
PERIOD_S_MAX = 24 * 60 * 60
_BEGUN = "wal3/tick"


def is_quick(num_logs: int) -> bool:
    """Return whether a store has so few logs that each tick looks at all of them."""
    return num_logs <= QUICK_LOGS_MAX


class SensorCursor(BaseModel, frozen=True):
    """When the going-over began, and the last log that it looked at; empty at its begin and at its end.

    ``held`` are logs that it found something about, for which runs are asked for together at its end. ``num_logs`` is
    how many logs there were, ``ticks`` how many ticks were begun when the last one ended well.
    """

    begun_us: int = 0
    after: str = ""
    held: tuple[str, ...] = ()
    num_logs: int = 0
    ticks: int = 0

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Self:
        """Read what the last tick wrote; an unknown form counts as nothing, so that all logs are looked at."""
        try:
            return cls.model_validate_json(cursor or "{}")
        except ValidationError:
            return cls()

    def to_cursor(self) -> str:
        """Format as a sensor's cursor."""
        return self.model_dump_json()

    def rests(self, num_logs: int | None = None, *, period_s: float = 0.0) -> bool:
        """Return whether the next going-over is not due yet; it begins ``period_s`` after the last one, or later."""
        if self.after:
            return False
        num_logs = self.num_logs if num_logs is None else num_logs
        if not is_quick(num_logs):
            period_s = max(period_s, min(PERIOD_S_MAX, num_logs * PERIOD_S_PER_LOG))
        return 0 <= shared_runtime().now_us() - self.begun_us < period_s * US_PER_S

    def begun(self) -> Self:
        """Return the cursor of a going-over that begins now, unless one is under way."""
        return self if self.after else self.model_copy(update={"begun_us": shared_runtime().now_us()})


AnyCursor = TypeVar("AnyCursor", bound=SensorCursor)


class TickBudget:
    """A tick of a sensor: its time, and how many logs it may look at. It halves with each tick before it that failed.

    When even one log was too much, ``leave_out`` is true: that log is left to the next round.
    """

    def __init__(self, scope: StoreScope, context: SensorEvaluationContext, sensor: str, cursor: SensorCursor) -> None:
        self._until_s = shared_runtime().monotonic_s() + TICK_S
        self._warning = context.log.warning
        storage, key = context.instance.daemon_cursor_storage, f"{_BEGUN}/{scope.name}/{sensor}"
        begun = int(storage.get_cursor_values({key}).get(key, "0"))
        failed = max(0, begun - cursor.ticks)
        self.number = max(begun, cursor.ticks) + 1
        storage.set_cursor_values({key: str(self.number)})
        self.left = max(1, LOGS_PER_TICK_MAX >> failed)
        self.leave_out = failed > LOGS_PER_TICK_MAX.bit_length()

    @property
    def over(self) -> bool:
        """Whether its time is over, or it has looked at as many logs as it may."""
        return self.left <= 0 or shared_runtime().monotonic_s() > self._until_s

    def take(self, num_logs: int) -> None:
        """Count logs as looked at."""
        self.left -= num_logs

    def go_over(
        self,
        cursor: AnyCursor,
        logs: Sequence[str],
        look: Callable[[list[str]], None],
        *,
        count: int = LOGS_AT_A_TIME,
    ) -> AnyCursor:
        """Look at logs, which are in order, behind the cursor; return the cursor behind the last one that is done.

        ``look`` takes ``count`` of them at a time. The store's silence ends the tick behind what was done before it, if
        that is something.
        """
        cursor = cursor.begun()
        start = begin = bisect_right(logs, cursor.after) if cursor.after else 0
        if self.leave_out and start < len(logs):
            self._warning("%s: left out, as no tick that looked at it has ended", logs[start])
            start += 1
        while start < len(logs) and (start == begin or not self.over):
            some = list(logs[start : start + min(count, max(1, self.left))])
            try:
                look(some)
            except StoreDeniedError:
                raise
            except UnavailableError as error:
                if start == begin:
                    raise
                self._warning("the tick ends before %s: %s", some[0], error)
                break
            self.take(len(some))
            start += len(some)
        after = logs[start - 1] if begin < start < len(logs) else "" if start >= len(logs) else cursor.after
        return cursor.model_copy(update={"after": after, "held": (), "num_logs": len(logs), "ticks": self.number})


# Tag with the key of the first attempt, on each attempt.
ASKED_TAG = "wal3/asked"
AGAIN_S_MIN = 60
AGAIN_S_MAX = 24 * 60 * 60
# Factor of the pauses between attempts, a minute to a day: a run that fails for good causes few alerts.
_FACTOR = 8
# Newest runs of a key, among which the last attempt is.
_RUNS_MAX = 10
_ATTEMPT = "/attempt "
_ENDED_IN_VAIN = {DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}


def next_attempts(instance: DagsterInstance, requests: Iterable[RunRequest]) -> list[RunRequest]:
    """Return the requests under the keys of their next attempts, without those that are not due yet.

    A request for a log of which a run of that job waits in the queue is left out: that run sees what this one would.
    A tick that is repeated, or evaluated twice at once, returns the same keys. A request whose run is under way or has
    succeeded keeps that run's key: Dagster starts it once.
    """
    keyed = ((each, each.tags.get(LOG_TAG)) for each in requests)
    left = (each for each, log in keyed if log is None or not is_queued(instance, each.job_name, {LOG_TAG: log}))
    return [again for each in left for again in _next(instance, each)]


def is_queued(instance: DagsterInstance, job_name: str | None, tags: Mapping[str, str] | None = None) -> bool:
    """Return whether a run of a job waits in the queue that has these tags."""
    found = RunsFilter(job_name=job_name, tags=dict(tags or {}), statuses=[DagsterRunStatus.QUEUED])
    return bool(instance.get_run_records(found, limit=1))


def attempt_s(number: int) -> float:
    """Return the pause after an attempt that failed, the first one having number 1."""
    return float(min(AGAIN_S_MAX, AGAIN_S_MIN * _FACTOR ** (number - 1)))


def _next(instance: DagsterInstance, request: RunRequest) -> list[RunRequest]:
    asked = request.run_key
    assert asked is not None
    runs = instance.get_run_records(RunsFilter(job_name=request.job_name, tags={ASKED_TAG: asked}), limit=_RUNS_MAX)
    tags = (each.dagster_run.tags.get(RUN_KEY_TAG, "") for each in runs)
    numbers = [tag.removeprefix(asked).removeprefix(_ATTEMPT) for tag in tags]
    number = max((int(each) for each in numbers if each.isdecimal()), default=1)
    if runs and runs[0].dagster_run.status in _ENDED_IN_VAIN:
        ended_s = runs[0].end_time or runs[0].update_timestamp.timestamp()
        age_s = shared_runtime().now_us() / US_PER_S - ended_s
        # A negative age is that of a clock that was set back since then.
        if 0 <= age_s < attempt_s(number):
            return []
        number += 1
    key = f"{asked}{_ATTEMPT}{number}" if number > 1 else asked
    return [request.with_replaced_attrs(run_key=key, tags={**request.tags, ASKED_TAG: asked})]


Evaluate = Callable[[StoreScope, SensorEvaluationContext], SensorResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSensor:
    """A sensor that starts jobs for few logs, or their sweeps for many; ``uses`` names its resources."""

    name: str
    tick: Evaluate
    jobs: tuple[LogJob | StoreJob, ...]
    period_s: int
    description: str
    uses: tuple[str, ...] = ("store",)
    running: bool = True

    def build(self, scope: StoreScope) -> SensorDefinition:
        """Return the sensor of one store."""
        under_way = threading.Lock()

        @sensor(
            name=scope.named(self.name),
            jobs=[built for job in self.jobs for built in job.build(scope)],  # type: ignore[misc]  # see assets.Job
            minimum_interval_seconds=self.period_s,
            default_status=DefaultSensorStatus.RUNNING if self.running else DefaultSensorStatus.STOPPED,
            description=self.description,
            tags=scope.tags,
            metadata=scope.metadata,
            required_resource_keys={scope.named(name) for name in self.uses},
        )
        def evaluate(context: SensorEvaluationContext) -> SensorResult:
            # Dagster ends a tick that takes too long, but not its evaluation.
            if not under_way.acquire(blocking=False):
                said = "the evaluation before this one has not ended yet"
                return SensorResult(skip_reason=said, cursor=context.cursor)
            try:
                return self.tick(scope, context)
            finally:
                under_way.release()

        return evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchedule:
    """A schedule of one sweep over every log; it is off until someone turns it on."""

    name: str
    job: LogJob
    cron: str
    description: str
    tags: Mapping[str, str] = field(default_factory=dict)

    def build(self, scope: StoreScope) -> ScheduleDefinition:
        """Return the schedule of one store."""

        @schedule(
            name=scope.named(self.name),
            job_name=self.job.sweep_name(scope),
            cron_schedule=self.cron,
            description=self.description,
            default_status=DefaultScheduleStatus.STOPPED,
            metadata=scope.metadata,
        )
        def request(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
            if not scope.known_logs(context.instance):
                return SkipReason("no logs: the discovery sensor has found none yet")
            return RunRequest(tags=dict(self.tags))

        return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """What a module or package of ``defs`` declares as ``workflow``; ``further`` builds what fits no other field."""

    assets: tuple[LogAsset, ...] = ()
    jobs: tuple[LogJob | StoreJob, ...] = ()
    sensors: tuple[LogSensor, ...] = ()
    schedules: tuple[LogSchedule, ...] = ()
    further: Callable[[StoreScope], Definitions] = lambda _scope: Definitions()

    def build(self, scope: StoreScope) -> Definitions:
        """Return the definitions of one store."""
        return Definitions.merge(
            Definitions(
                assets=[each.build(scope) for each in self.assets],
                jobs=[built for job in self.jobs for built in job.build(scope)],  # type: ignore[misc]  # see Job
                sensors=[each.build(scope) for each in self.sensors],
                schedules=[each.build(scope) for each in self.schedules],
            ),
            self.further(scope),
        )


# Compacting one log is work enough for a run: so many get runs of their own.
COMPACTED_ALONE_MAX = 16


def go_over_logs(
    scope: StoreScope,
    context: SensorEvaluationContext,
    find: Callable[[ObjectStore, list[str]], Mapping[str, str]],
    *,
    job: LogJob,
    reason: str,
    nothing: str,
) -> SensorResult:
    """Look at as many logs as are due in this tick; ask for the runs that ``find`` says they need, by log and key."""
    cursor = SensorCursor.from_cursor(context.cursor)
    if cursor.rests():
        said = f"{cursor.num_logs} logs, the next look at all of them is not due yet"
        return SensorResult(skip_reason=said, cursor=context.cursor)
    tick, logs = TickBudget(scope, context, job.name, cursor), sorted(scope.known_logs(context.instance))
    store, found, num_read = open_known(scope, context), dict[str, str](), 0

    def look(some: list[str]) -> None:
        nonlocal num_read
        found.update(find(store, some))
        num_read += len(some)

    after = tick.go_over(cursor, logs, look)
    requests = next_attempts(context.instance, request_runs(scope, job, found, reason, alone_max=COMPACTED_ALONE_MAX))
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{num_read} logs, {nothing}",
        cursor=after.to_cursor(),
    )
