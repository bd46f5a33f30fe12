"""Discovery: the store's logs become partitions, and each changed log gets a run that looks at it."""

import hashlib
from collections.abc import Mapping, Sequence

from dagster import Definitions, RunRequest, SensorEvaluationContext, SensorResult

from wal3_core import list_logs
from wal3_core.fleet.identity import store_identity
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.building import LogSensor, build_sensor
from wal3_orchestration.fleet_seen import FleetSeen
from wal3_orchestration.log_state import read_states
from wal3_orchestration.partitions import cover, run_request
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known, remember, remembered, require_few_lost

RUNS_PER_TICK_MAX = 4
_FINGERPRINT_CHARS = 16


def discover(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Add partitions for new logs, remove those of vanished logs, and request a run for each log that changed.

    Fails, and changes nothing, when the store is not the one that it saw logs in before, or many logs are gone at once.
    """
    opened, limits = open_known(scope, context), scope.store(context)
    found = _fingerprints(opened)
    known = scope.known_logs(context.instance)
    new, vanished = sorted(found.keys() - set(known)), [log for log in known if log not in found]
    require_few_lost(scope, opened, known, vanished, limits)
    if found and remembered(scope, context.instance) is None:
        remember(scope, context.instance, _identity(opened))
    before = FleetSeen.from_cursor(context.cursor)
    requests = _requests(scope, [log for log in known if log in found] + new, before, found)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(found)} logs, none changed",
        cursor=before.then(found).to_cursor(),
        dynamic_partitions_requests=[
            scope.logs.build_add_request(new),
            scope.logs.build_delete_request(vanished),
        ],
    )


def _identity(store: ObjectStore) -> str:
    identity = store_identity(store, create=True)
    assert identity is not None
    return identity


def _fingerprints(store: ObjectStore) -> dict[str, str]:
    """Fingerprint the state of every log; short, because the sensor's cursor holds them all."""
    return {
        state.log: hashlib.sha256(state.fingerprint.encode()).hexdigest()[:_FINGERPRINT_CHARS]
        for state in read_states(store, list_logs(store))
    }


def _requests(scope: Scope, keys: Sequence[str], before: FleetSeen, found: Mapping[str, str]) -> list[RunRequest]:
    changed = {log for log in keys if before.logs.get(log) != found[log]}
    return [
        run_request(
            first,
            last,
            run_key=before.run_key(keys[keys.index(first) : keys.index(last) + 1], found),
            store_name=scope.name,
        )
        for first, last in cover(keys, changed, runs_max=RUNS_PER_TICK_MAX)
    ]


DISCOVERY = LogSensor(
    name="discovery",
    tick=discover,
    job="manifest_job",
    period_s=30,
    description=(
        "Adds a partition for each new log, removes those of logs that are gone, and looks at each log that changed."
        " Fails, and changes nothing, when the store is another one than before, or many logs are gone at once."
    ),
)


def workflow(scope: Scope) -> Definitions:
    """Return the sensor."""
    return Definitions(sensors=[build_sensor(scope, DISCOVERY)])
