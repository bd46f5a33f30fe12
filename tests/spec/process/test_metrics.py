"""Metrics: what OpenTelemetry's own reader collects is what the writer counted and the store was asked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spec.fleet.test_marking import wait_until
from tests.stores import CountingStore, FaultyStore
from tests.world import NOW
from wal3_core import (
    BackPressureError,
    Consumer,
    ConsumerOptions,
    CursorStore,
    Fleet,
    FleetOptions,
    InvalidRequestError,
    LogReader,
    LogWriter,
    MemoryStore,
    NotDurableError,
    UnknownDurabilityError,
    WriterOptions,
    collect,
    enable_metrics,
)
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import RetryOptions
from wal3_core.runtime import SILENT, ThreadRuntime
from wal3_core.store.instrumented import InstrumentedStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.rate_limits import Throttle

metrics = pytest.importorskip("opentelemetry.sdk.metrics", reason="pip install opentelemetry-sdk")
export = pytest.importorskip("opentelemetry.sdk.metrics.export", reason="pip install opentelemetry-sdk")


ROOT = Path(__file__).parents[3]
QUICK = WriterOptions(retry=RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002))
WAIT_S_MAX = 60


class Metered:
    """A runtime with metrics, and what its reader collects."""

    def __init__(self, runtime: ThreadRuntime, *, log_names: bool = False) -> None:
        self.runtime = runtime
        self._reader = export.InMemoryMetricReader()
        provider = metrics.MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        enable_metrics(provider, log_names=log_names, runtime=runtime)

    def points(self) -> dict[str, list[tuple[dict[str, str], float, int]]]:
        """By instrument: the attributes, the sum, and the number of measurements (1 for a counter) of each point."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        [resource] = data.resource_metrics
        [scope] = resource.scope_metrics
        assert scope.scope.name == "wal3"
        self.units = {metric.name: metric.unit for metric in scope.metrics}
        return {
            metric.name: [
                (dict(point.attributes), point.sum, point.count)
                if hasattr(point, "count")
                else (dict(point.attributes), point.value, 1)
                for point in metric.data.data_points
            ]
            for metric in scope.metrics
        }

    def sums(self, name: str, attribute: str = "") -> dict[str, float]:
        """An instrument's sums by one attribute."""
        return {attributes.get(attribute, ""): total for attributes, total, _ in self.points().get(name, [])}

    def counts(self, name: str, attribute: str = "") -> dict[str, int]:
        """An instrument's numbers of measurements by one attribute."""
        counted: Counter[str] = Counter()
        for attributes, _, count in self.points().get(name, []):
            counted[attributes.get(attribute, "")] += count
        return dict(counted)


@pytest.fixture
def metered() -> Iterator[Metered]:
    """A runtime with metrics."""
    with ThreadRuntime() as runtime:
        yield Metered(runtime)


def test_writer_reader_follower_and_collector_are_counted_exactly(store: ObjectStore, metered: Metered) -> None:
    counting = CountingStore(store)
    observed, runtime = InstrumentedStore(counting, metered.runtime), metered.runtime
    LogWriter.create(observed, "a", runtime=runtime)
    with LogWriter.open(observed, "a", options=WriterOptions(batch_records_max=10), runtime=runtime) as writer:
        for number in range(100):
            writer.submit(b"record %d" % number)
        position = writer.append_many([b"x", b"y"])
        stats = writer.stats()
    followed = list(LogReader.open(observed, "a", runtime=runtime).follow(idle_s=0.01))
    CursorStore(observed, "a", runtime=runtime).create("reader", position)
    report = collect(observed, "a", options=NOW, runtime=runtime)

    assert len(followed) == stats.num_records == 102
    assert metered.sums("wal3.append.records", "wal3.append.outcome") == {"durable": 102}
    assert metered.sums("wal3.append.io", "wal3.append.outcome") == {"durable": stats.num_bytes}
    assert metered.counts("wal3.append.duration", "wal3.append.outcome") == {"durable": stats.appends}
    assert metered.counts("wal3.commit.duration", "wal3.commit.outcome") == {"committed": stats.num_commits}
    assert metered.sums("wal3.append.held") == {"": 0}
    assert metered.sums("wal3.follower.lag") == {"": 102}
    assert metered.counts("wal3.follower.lag")[""] >= 2
    assert metered.sums("wal3.collection.records") == {"": report.plan.num_records}
    assert metered.sums("wal3.collection.io") == {"": report.plan.num_bytes}
    assert metered.counts("wal3.request.duration", "wal3.request.kind") == dict(counting.requests)
    assert metered.counts("wal3.request.duration", "wal3.store") == {
        store.url.partition("?")[0]: sum(counting.requests.values())
    }
    assert metered.units == {
        "wal3.append.duration": "s",
        "wal3.append.held": "By",
        "wal3.append.io": "By",
        "wal3.append.records": "{record}",
        "wal3.collection.io": "By",
        "wal3.collection.records": "{record}",
        "wal3.commit.duration": "s",
        "wal3.follower.lag": "{record}",
        "wal3.request.duration": "s",
    }


def test_appends_that_a_fleet_refuses_are_counted(memory_store: MemoryStore, metered: Metered) -> None:
    options = FleetOptions(creates=True, unprocessed_max=1000)
    with Fleet.open(memory_store, options=options, runtime=metered.runtime) as fleet:
        fleet.append_many("a", [b"x"] * 1001)
        wait_until(lambda: fleet.stats().logs_refused == 1)
        for _ in range(3):
            with pytest.raises(BackPressureError):
                fleet.append("a", b"x")

    assert metered.sums("wal3.append.refused") == {"": 3}


def test_records_that_a_consumer_saved_are_counted_once(store: ObjectStore, metered: Metered) -> None:
    with LogWriter.open_or_create(store, "a", runtime=metered.runtime) as writer:
        writer.append_many([b"%d" % number for number in range(10)])
    options = ConsumerOptions(idle_s=0.0, commit_records_max=4)
    counted = []
    for _ in range(2):
        # The first one leaves its block in the middle: the record in work is not processed.
        with Consumer(store, "a", "indexer", options=options, runtime=metered.runtime) as consumer:
            for record in consumer:
                if record.offset == 7 and not counted:
                    break
        counted.append(metered.sums("wal3.consumer.records", "wal3.consumer.name"))

    assert counted == [{"indexer": 7}, {"indexer": 10}]
    assert metered.sums("wal3.consumer.saves", "wal3.consumer.name") == {"indexer": 3}


def test_retries_conflicts_and_failures_are_counted_as_the_writer_does(store: ObjectStore, metered: Metered) -> None:
    faulty = FaultyStore(store)
    observed, runtime = InstrumentedStore(faulty, metered.runtime), metered.runtime
    LogWriter.create(observed, "a", runtime=runtime)
    with (
        LogWriter.open(observed, "a", options=QUICK, runtime=runtime) as one,
        LogWriter.open(observed, "a", options=QUICK, runtime=runtime) as other,
    ):
        faulty.fail("create", "/log/", "unknown")
        one.append(b"1")
        other.append(b"2")
        one.append(b"3")
        faulty.fail("create", "/log/", "denied")
        with pytest.raises(NotDurableError):
            one.append(b"4")
        faulty.fail("replace", "MANIFEST", "unknown", times=1000)
        with pytest.raises(UnknownDurabilityError):
            one.append(b"5")
        faulty.heal()
        stats = [one.stats(), other.stats()]

    retried, lost = sum(each.requests_retried for each in stats), sum(each.contentions for each in stats)
    assert retried >= 3
    assert lost >= 1
    assert metered.sums("wal3.append.retries") == {"": retried}
    assert metered.sums("wal3.commit.conflicts", "wal3.conflict.kind") == {"contention": lost}
    assert metered.counts("wal3.append.duration", "wal3.append.outcome") == {
        "durable": 3,
        "not_durable": 1,
        "unknown": 1,
    }
    ends = metered.counts("wal3.request.duration", "wal3.request.outcome")
    assert (ends["unknown"], ends["denied"]) == (faulty.fired["unknown"], faulty.fired["denied"])


def test_waits_for_a_turn_and_halvings_are_counted_by_place_and_kind(metered: Metered) -> None:
    throttle = Throttle("s3://b", "writes", 100, metered.runtime)
    for _ in range(4):
        throttle.enter(60)
    throttle.slow_down(metered.runtime.monotonic_s())

    stats = throttle.stats()
    assert stats.halvings == 1
    assert metered.counts("wal3.throttle.duration", "wal3.throttle.kind").get("writes", 0) == stats.throttled
    assert metered.sums("wal3.throttle.duration", "wal3.store").get("s3://b", 0) == pytest.approx(stats.throttled_s)
    assert metered.sums("wal3.throttle.halvings", "wal3.store") == {"s3://b": 1}
    assert metered.units["wal3.throttle.halvings"] == "{halving}"


def test_log_s_name_is_an_attribute_only_when_asked_for(memory_store: ObjectStore, metered: Metered) -> None:
    with ThreadRuntime() as runtime:
        named = Metered(runtime, log_names=True)
        for each in (metered, named):
            with LogWriter.open_or_create(memory_store, "team/orders", runtime=each.runtime) as writer:
                writer.append(b"x")

        assert named.sums("wal3.append.records", "wal3.log") == {"team/orders": 1}
        assert metered.sums("wal3.append.records", "wal3.log") == {"": 1}


def test_bytes_that_wait_are_held_until_they_have_their_outcome(memory_store: ObjectStore, metered: Metered) -> None:
    faulty = FaultyStore(memory_store)
    with LogWriter.open_or_create(faulty, "a", runtime=metered.runtime) as writer:
        faulty.fail("create", "/log/", "unavailable", times=1_000_000)
        future = writer.submit(b"x" * 1000)
        until = time.monotonic() + WAIT_S_MAX
        while metered.sums("wal3.append.held") != {"": writer.stats().bytes_held} and time.monotonic() < until:
            time.sleep(0.01)
        held, waiting = metered.sums("wal3.append.held"), writer.stats().bytes_held
        faulty.heal()
        future.result(WAIT_S_MAX)

        assert held == {"": waiting}
        assert waiting > 1000
        assert metered.sums("wal3.append.held") == {"": 0}


def test_writer_s_statistics_name_the_log_s_end_and_count_what_it_repeats(
    memory_store: ObjectStore,
) -> None:
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(batch_records_max=1)) as writer:
        before = writer.stats()
        for _ in range(40):
            writer.append(b"x")
        SnapshotCompactor(memory_store, "a").compact()
        with LogWriter.open(memory_store, "a") as other:
            other.append(b"y")
        behind = writer.stats()
        writer.append(b"z")
        after = writer.stats()

    assert (before.next_offset, behind.next_offset, after.next_offset) == (1, 41, 43)
    assert (before.commit_s_p50, before.commit_s_max, before.last_commit_age_s) == (0.0, 0.0, None)
    assert 0 < after.commit_s_p50 <= after.commit_s_max
    assert after.last_commit_age_s is not None
    assert 0 <= after.last_commit_age_s < WAIT_S_MAX
    assert (after.contentions, before.rebases) == (1, 0)


def test_roll_into_snapshots_that_fails_is_counted(memory_store: ObjectStore, metered: Metered) -> None:
    faulty = FaultyStore(memory_store)
    faulty.fail("create", "/snapshot/", "denied", times=1_000_000)
    options = WriterOptions(batch_records_max=1)
    with LogWriter.open_or_create(faulty, "a", options=options, runtime=metered.runtime) as writer:
        for _ in range(40):
            writer.append(b"x")

    assert writer.stats().rolls_failed > 0
    assert metered.sums("wal3.snapshot.failures") == {"": writer.stats().rolls_failed}


@pytest.mark.parametrize("orphans_max", [0, 1000], ids=["manifest changed", "fence moved during the upload"])
def test_commit_made_again_after_maintenance_is_a_rebase(
    memory_store: ObjectStore, metered: Metered, orphans_max: int
) -> None:
    faulty = FaultyStore(memory_store)
    LogWriter.create(memory_store, "a")
    with LogWriter.open(faulty, "a", runtime=metered.runtime) as writer:
        writer.append(b"x")

        def maintain(kind: str, path: str) -> None:
            if kind == "replace" and path.endswith("MANIFEST.json"):
                faulty.before = lambda _kind, _path: None
                CursorStore(memory_store, "a").create("reader", position)
                collect(memory_store, "a", options=replace(NOW, orphans_max=orphans_max))

        position = writer.append(b"y")
        faulty.before = maintain
        writer.append(b"z")
        stats = writer.stats()

    assert (stats.rebases, stats.contentions) == (1, 0)
    assert metered.sums("wal3.commit.conflicts", "wal3.conflict.kind") == {"rebase": 1}


def test_metrics_are_off_and_opentelemetry_is_not_imported_until_they_are_enabled() -> None:
    program = "import sys, wal3_core; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S_MAX, cwd=ROOT, check=True
    )

    assert run.stdout == "[]\n"
    with ThreadRuntime() as runtime:
        assert runtime.observer is SILENT


def test_enabling_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with ThreadRuntime() as runtime, pytest.raises(InvalidRequestError, match="pip install 'opentelemetry-api>="):
        enable_metrics(runtime=runtime)


def test_instruments_that_raise_leave_appends_their_outcomes(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """A provider, its meter, and each of its instruments."""

        def get_meter(self, *_: object, **__: object) -> Broken:
            return self

        create_counter = create_histogram = create_up_down_counter = get_meter

        def add(self, *_: object) -> None:
            raise RuntimeError("no room for another series")

        record = add

    printed: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error))
    with ThreadRuntime() as runtime:
        enable_metrics(Broken(), runtime=runtime)
        store = InstrumentedStore(memory_store, runtime)
        with LogWriter.open_or_create(store, "a", runtime=runtime) as writer:
            position = writer.submit(b"x").result(WAIT_S_MAX)

        assert position.offset == 1
        assert [record.body for record in LogReader.open(store, "a", runtime=runtime).records()] == [b"x"]
    assert printed
