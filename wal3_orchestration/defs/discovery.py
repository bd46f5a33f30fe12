"""Discovery: the store's logs become partitions, and each changed log gets a run that looks at it.

A slow sweep: what it looks at follows the number of logs. Of a small store, each tick looks at all logs.
"""

from dataclasses import replace

from dagster import Definitions, SensorEvaluationContext, SensorResult

from wal3_core import list_logs
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.attempts import next_attempts, sweep_is_queued
from wal3_orchestration.defs import manifests
from wal3_orchestration.jobs import LOGS_PER_RUN_MAX, request_runs
from wal3_orchestration.log_records import NOTHING, LogRecord, LogRecords
from wal3_orchestration.log_state import read_states
from wal3_orchestration.outcomes import fingerprint
from wal3_orchestration.pace import QUICK_LOGS_MAX, Pace
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known, remember_first, require_few_lost
from wal3_orchestration.triggers import LogSensor, build_sensor

REASON = "discovery: the log changed"


def discover(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Add partitions for new logs, remove those of vanished logs, and request runs for the logs that changed.

    Fails, and changes nothing, when the store is not the one that it saw logs in before, or many logs are gone at once.
    """
    pace, known = Pace.from_cursor(context.cursor), scope.known_logs(context.instance)
    if pace.rests(len(known)):
        return SensorResult(skip_reason=pace.resting(len(known)), cursor=pace.to_cursor())
    opened = open_known(scope, context)
    # The later slices of a going-over look at what its first one listed.
    logs = sorted(known) if pace.under_way else list(list_logs(opened))
    found = set(logs)
    new, vanished = sorted(found - set(known)), [log for log in known if log not in found]
    require_few_lost(scope, opened, known, vanished, scope.store(context))
    if found:
        remember_first(scope, context.instance, opened)
    some, after = pace.step(sorted(logs))
    # A log that an earlier tick of this round found changed is looked at again now, for the key of its run.
    keys = _changes(scope, context, opened, sorted({*pace.held, *some} & found))
    _forget(scope, context, vanished)
    if after.under_way and len(keys) < LOGS_PER_RUN_MAX:
        after, keys = replace(after, held=tuple(keys)), {}
    requests = next_attempts(context.instance, request_runs(scope, manifests.JOB, keys, REASON, alone_max=1))
    if len(logs) <= QUICK_LOGS_MAX and sweep_is_queued(context.instance, requests):
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


def _changes(scope: Scope, context: SensorEvaluationContext, store: ObjectStore, logs: list[str]) -> dict[str, str]:
    """Return the logs whose state is not the one recorded last, each with the key of its change.

    A repeated tick finds the same keys. The same change at another time has another key, since Dagster starts
    only one run per key, and a log may be lost, restored, and lost again.
    """
    records = LogRecords(scope, context.instance, manifests.MANIFEST.name).load(logs)
    states = {state.log: fingerprint(state.fingerprint) for state in read_states(store, logs)}
    return {
        log: f"{log}/{records.get(log, NOTHING).number}/{state}"
        for log, state in states.items()
        if records.get(log, NOTHING).state != state
    }


def _forget(scope: Scope, context: SensorEvaluationContext, vanished: list[str]) -> None:
    """Look at a log again that comes back, whatever its state is then."""
    records = LogRecords(scope, context.instance, manifests.MANIFEST.name)
    before = records.load(vanished)
    records.save({log: LogRecord(number=record.number + 1) for log, record in before.items()})


DISCOVERY = LogSensor(
    name="discovery",
    tick=discover,
    jobs=(manifests.JOB,),
    period_s=30,
    description=(
        "Adds a partition for each new log, removes those of logs that are gone, and looks at each log that changed:"
        " at each tick while there are at most 100 logs, then a log a second, and all of them within an hour."
        " Fails, and changes nothing, when the store is another one than before, or many logs are gone at once."
    ),
)


def workflow(scope: Scope) -> Definitions:
    """Return the sensor."""
    return Definitions(sensors=[build_sensor(scope, DISCOVERY)])
