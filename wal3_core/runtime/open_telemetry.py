"""Metrics by OpenTelemetry's API, which is an optional package and imported only here, when metrics are enabled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, flag, instance_of, optional, with_methods
from wal3_core.errors import InvalidRequestError
from wal3_core.runtime.extras import missing
from wal3_core.runtime.observer import AppendEnd, CommitEnd, Conflict, Observer, RequestEnd
from wal3_core.runtime.threads import ThreadRuntime, shared_runtime

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter, MeterProvider

_SCOPE = "wal3"
# Bounds from a request within a machine to a store that is away.
_DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_LAG_BOUNDS = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


@checked(
    meter_provider=optional(with_methods("a MeterProvider of OpenTelemetry", "get_meter")),
    log_names=flag,
    runtime=optional(instance_of(ThreadRuntime)),
)
def enable_metrics(
    meter_provider: MeterProvider | None = None, *, log_names: bool = False, runtime: ThreadRuntime | None = None
) -> None:
    """Record metrics with OpenTelemetry from now on; docs/observability.md lists them.

    Uses the global meter provider unless one is given. With ``log_names`` the metrics of logs have the attribute
    ``wal3.log``: one series for each log. Call it before opening logs, once in each process: a fork starts without
    metrics. Logs opened with a ``runtime`` of their own are measured when it is given. InvalidRequestError when
    opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - optional
    except ImportError as error:
        raise InvalidRequestError(f"metrics: {missing('opentelemetry-api', 'metrics')}") from error
    meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
    (runtime or shared_runtime()).observer = OpenTelemetryObserver(meter, log_names=log_names)


class OpenTelemetryObserver(Observer):
    """Records figures with the instruments of one meter."""

    def __init__(self, meter: Meter, *, log_names: bool) -> None:
        self._log_names = log_names
        self._requests = _durations(meter, "wal3.request.duration", "Requests to stores")
        self._throttled = _durations(meter, "wal3.throttle.duration", "Requests that waited for their turn")
        self._slowed = meter.create_counter("wal3.throttle.halvings", "{halving}", "Rates halved for a store")
        self._appends = _durations(meter, "wal3.append.duration", "Appends, from the call to their outcome")
        self._commits = _durations(meter, "wal3.commit.duration", "Commits, each of one or more fragments")
        self._records = meter.create_counter("wal3.append.records", "{record}", "Records appended")
        self._bytes = meter.create_counter("wal3.append.io", "By", "Bytes of keys and bodies appended")
        self._retries = meter.create_counter("wal3.append.retries", "{request}", "Requests of appends sent again")
        self._conflicts = meter.create_counter("wal3.commit.conflicts", "{commit}", "Commits made again")
        self._unrolled = meter.create_counter("wal3.snapshot.failures", "{roll}", "Rolls into snapshots that failed")
        self._held = meter.create_up_down_counter("wal3.append.held", "By", "Memory that waiting appends take")
        self._refused = meter.create_counter("wal3.append.refused", "{append}", "Appends refused: consumers are behind")
        self._lag = meter.create_histogram(
            "wal3.follower.lag", "{record}", "Records to be read", explicit_bucket_boundaries_advisory=_LAG_BOUNDS
        )
        self._consumed = meter.create_counter("wal3.consumer.records", "{record}", "Records processed, as saved")
        self._saves = meter.create_counter("wal3.consumer.saves", "{save}", "Cursors saved")
        self._collected = meter.create_counter("wal3.collection.records", "{record}", "Records pruned")
        self._collected_bytes = meter.create_counter("wal3.collection.io", "By", "Bytes of fragments pruned")

    def _of(self, log: str, **attributes: str) -> dict[str, str]:
        named = {f"wal3.{name}": value for name, value in attributes.items()}
        return {**named, "wal3.log": log} if self._log_names else named

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        self._requests.record(
            seconds, {"wal3.store": store, "wal3.request.kind": kind, "wal3.request.outcome": end.value}
        )

    def throttled(self, store: str, kind: str, seconds: float) -> None:
        self._throttled.record(seconds, {"wal3.store": store, "wal3.throttle.kind": kind})

    def slowed(self, store: str, kind: str) -> None:
        self._slowed.add(1, {"wal3.store": store, "wal3.throttle.kind": kind})

    def appended(self, log: str, end: AppendEnd, *, num_records: int, num_bytes: int, waits_s: Iterable[float]) -> None:
        attributes = self._of(log, **{"append.outcome": end.value})
        self._records.add(num_records, attributes)
        self._bytes.add(num_bytes, attributes)
        for wait_s in waits_s:
            self._appends.record(wait_s, attributes)

    def committed(self, log: str, end: CommitEnd, seconds: float) -> None:
        self._commits.record(seconds, self._of(log, **{"commit.outcome": end.value}))

    def retried(self, log: str) -> None:
        self._retries.add(1, self._of(log))

    def conflicted(self, log: str, conflict: Conflict) -> None:
        self._conflicts.add(1, self._of(log, **{"conflict.kind": conflict.value}))

    def unrolled(self, log: str) -> None:
        self._unrolled.add(1, self._of(log))

    def held(self, log: str, change_bytes: int) -> None:
        self._held.add(change_bytes, self._of(log))

    def refused(self, log: str) -> None:
        self._refused.add(1, self._of(log))

    def followed(self, log: str, lag_records: int) -> None:
        self._lag.record(lag_records, self._of(log))

    def consumed(self, log: str, consumer: str, num_records: int) -> None:
        attributes = self._of(log, **{"consumer.name": consumer})
        self._consumed.add(num_records, attributes)
        self._saves.add(1, attributes)

    def collected(self, log: str, num_records: int, num_bytes: int) -> None:
        self._collected.add(num_records, self._of(log))
        self._collected_bytes.add(num_bytes, self._of(log))


def _durations(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S)
