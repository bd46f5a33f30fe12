"""Discovery: the store's logs become partitions, and each changed log gets a run that looks at it."""

import hashlib
from collections.abc import Mapping, Sequence

from dagster import DefaultSensorStatus, RunRequest, SensorEvaluationContext, SensorResult, sensor

from wal3_core import list_logs
from wal3_core.fleet.identity import store_identity
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.defs.manifests import manifest_job
from wal3_orchestration.fleet_seen import FleetSeen
from wal3_orchestration.log_state import read_states
from wal3_orchestration.partitions import LOGS, LOGS_NAME, cover, run_request
from wal3_orchestration.resources import StoreResource
from wal3_orchestration.store_guard import remember, remembered, require_few_lost

RUNS_PER_TICK_MAX = 4
_FINGERPRINT_CHARS = 16


@sensor(job=manifest_job, minimum_interval_seconds=30, default_status=DefaultSensorStatus.RUNNING)
def discovery(context: SensorEvaluationContext, store: StoreResource) -> SensorResult:
    """Add partitions for new logs, remove those of vanished logs, and request a run for each log that changed.

    Fails, and changes nothing, when the store is not the one that it saw logs in before, or many logs are gone at once.
    """
    opened = store.open_known(context.instance)
    found = _fingerprints(opened)
    known = context.instance.get_dynamic_partitions(LOGS_NAME)
    new, vanished = sorted(found.keys() - set(known)), [log for log in known if log not in found]
    require_few_lost(opened, known, vanished, lost_max=store.logs_lost_max, fraction_max=store.logs_lost_fraction_max)
    if found and remembered(context.instance) is None:
        remember(context.instance, _identity(opened))
    before = FleetSeen.from_cursor(context.cursor)
    requests = _requests([log for log in known if log in found] + new, before, found)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(found)} logs, none changed",
        cursor=before.then(found).to_cursor(),
        dynamic_partitions_requests=[LOGS.build_add_request(new), LOGS.build_delete_request(vanished)],
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


def _requests(keys: Sequence[str], before: FleetSeen, found: Mapping[str, str]) -> list[RunRequest]:
    changed = {log for log in keys if before.logs.get(log) != found[log]}
    return [
        run_request(first, last, run_key=before.run_key(keys[keys.index(first) : keys.index(last) + 1], found))
        for first, last in cover(keys, changed, runs_max=RUNS_PER_TICK_MAX)
    ]
