"""A real S3 server that answers 503 SlowDown: the rate gives way and comes back, and outcomes stay true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

import pytest

from tests.processes.fault_proxy import Fault, FaultProxy, fault_proxy
from wal3_core import (
    InvalidRequestError,
    LogReader,
    LogWriter,
    NotDurableError,
    RetryOptions,
    UnavailableError,
    WriterOptions,
    open_store,
)
from wal3_core.options import S3_READS_PER_S, S3_WRITES_PER_S
from wal3_core.runtime import Observer, RequestEnd, ThreadRuntime, shared_runtime
from wal3_core.store.object_store import Done, Unknown
from wal3_core.store.rate_limits import Throttle, ThrottledStore, throttle_stats

T = TypeVar("T")

SPEED = 20
TRIES_MAX = 2000


class Sent(Observer):
    """What the library says it has sent, and what slowed it."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.slowed_kinds: Counter[str] = Counter()
        self.throttled_kinds: Counter[str] = Counter()

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        del store, end, seconds
        self.requests[kind] += 1

    def slowed(self, store: str, kind: str) -> None:
        del store
        self.slowed_kinds[kind] += 1

    def throttled(self, store: str, kind: str, seconds: float) -> None:
        del store, seconds
        self.throttled_kinds[kind] += 1


class HurriedRuntime(ThreadRuntime):
    """The real one, whose clock and waits are quicker."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() * SPEED

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        return super().wait(future, None if timeout_s is None else timeout_s / SPEED)


@pytest.fixture
def runtime() -> Iterator[ThreadRuntime]:
    with HurriedRuntime() as running:
        running.observer = Sent()
        yield running


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    if not s3_endpoint.startswith("http://"):
        pytest.skip("the proxy speaks plain HTTP: name a server in WAL3_TEST_S3_ENDPOINT that does too")
    with fault_proxy(s3_endpoint) as running:
        yield running


@pytest.fixture
def url(s3_url: str, proxy: FaultProxy) -> str:
    """An empty store through the proxy."""
    return f"{s3_url}{'&' if '?' in s3_url else '?'}endpoint={proxy.endpoint}"


def sent_by(runtime: ThreadRuntime) -> Sent:
    assert isinstance(runtime.observer, Sent)
    return runtime.observer


@pytest.mark.slow
def test_slow_down_halves_the_rate_of_writes_and_success_restores_it(
    url: str, proxy: FaultProxy, runtime: ThreadRuntime
) -> None:
    store = open_store(f"{url}&writes_per_s=400", runtime=runtime)
    proxy.fail(Fault.SLOW_DOWN, "PUT", times=3)

    outcomes = [store.create(f"refused/{number}", b"") for number in range(3)]

    assert all(isinstance(outcome, Unknown) and outcome.slow_down for outcome in outcomes)
    assert proxy.requests == {"PUT": 3}
    slowed = throttle_stats(store)["writes"]
    assert 1 <= slowed.halvings <= 3
    assert slowed.rate_per_s == 400 / 2**slowed.halvings
    assert sent_by(runtime).slowed_kinds == {"writes": slowed.halvings}
    assert throttle_stats(store)["reads"].halvings == 0

    tries = 0
    while throttle_stats(store)["writes"].rate_per_s < 400:
        tries += 1
        assert tries < TRIES_MAX
        assert isinstance(store.create(f"done/{tries}", b""), Done)
    assert proxy.requests == {"PUT": 3 + tries}
    assert throttle_stats(store)["writes"].requests == 3 + tries


def test_slow_down_on_a_read_is_seen_and_the_read_is_sent_once(
    url: str, proxy: FaultProxy, runtime: ThreadRuntime
) -> None:
    """A client that retried it by itself would hide the refusal, and send more than the rate."""
    store = open_store(url, runtime=runtime)
    proxy.fail(Fault.SLOW_DOWN, "GET")

    with pytest.raises(UnavailableError, match="503 SlowDown") as refused:
        store.read("a")

    assert refused.value.slow_down
    assert proxy.requests == {"GET": 1}
    stats = throttle_stats(store)
    assert (stats["reads"].halvings, stats["reads"].rate_per_s) == (1, S3_READS_PER_S / 2)
    assert (stats["writes"].halvings, stats["writes"].rate_per_s) == (0, S3_WRITES_PER_S)


@pytest.mark.slow
def test_appends_through_bursts_of_slow_down_are_there_once_and_no_put_is_repeated(
    url: str, proxy: FaultProxy, runtime: ThreadRuntime
) -> None:
    store = open_store(f"{url}&writes_per_s=200&reads_per_s=200", runtime=runtime)
    options = WriterOptions(retry=RetryOptions(pause_s_min=0.001, pause_s_max=0.01))
    with LogWriter.open_or_create(store, "a", options=options, runtime=runtime) as writer:
        for burst in range(4):
            proxy.fail(Fault.SLOW_DOWN, "PUT", times=3)
            proxy.fail(Fault.SLOW_DOWN, "GET", times=2)
            for number in range(5):
                writer.append(b"%d" % (5 * burst + number))

    proxy.heal()
    bodies = [record.body for record in LogReader.open(store, "a", runtime=runtime).records()]
    assert bodies == [b"%d" % number for number in range(20)]
    assert proxy.fired == {Fault.SLOW_DOWN: 20}
    sent = sent_by(runtime).requests
    assert proxy.requests["PUT"] == sent["create"] + sent["replace"]
    stats = throttle_stats(store)
    assert proxy.requests["PUT"] + sent["list"] + sent["delete"] == stats["writes"].requests
    assert proxy.requests["GET"] + proxy.requests["HEAD"] - sent["list"] == stats["reads"].requests
    assert stats["writes"].halvings >= 1


def test_put_whose_turn_does_not_come_is_certainly_not_applied(url: str, proxy: FaultProxy) -> None:
    runtime = shared_runtime()
    inner = open_store(f"{url}&writes_per_s=0&reads_per_s=0")
    # So slow that no second turn comes within any test.
    slow = Throttle("s3://b", "writes", 0.001, runtime)
    store = ThrottledStore(inner, runtime, writes=slow, reads=None, wait_s_max=0.05)
    assert isinstance(store.create("a", b"1"), Done)

    with pytest.raises(UnavailableError, match="throttled: writes are limited to"):
        store.create("b", b"1")
    with pytest.raises(UnavailableError, match="throttled"):
        list(store.list_objects(""))

    assert proxy.requests["PUT"] == 1
    assert store.read("b") is None
    assert slow.stats().expired == 2


@pytest.mark.slow
def test_append_that_is_throttled_to_its_end_is_not_durable(url: str) -> None:
    LogWriter.create(open_store(url), "a")
    runtime = shared_runtime()
    slow = Throttle("s3://b", "writes", 0.001, runtime)
    slow.enter(0)
    store = ThrottledStore(open_store(url), runtime, writes=slow, reads=None, wait_s_max=0.05)

    with (
        LogWriter.open(store, "a", options=WriterOptions(delivery_timeout_s=0.2)) as writer,
        pytest.raises(NotDurableError, match="throttled"),
    ):
        writer.append(b"1")

    assert list(LogReader.open(open_store(url), "a").records()) == []


@pytest.mark.slow
def test_stores_of_one_place_share_their_throttles(url: str, runtime: ThreadRuntime) -> None:
    address, _, options = url.partition("?")
    first = open_store(url, runtime=runtime)
    again = open_store(f"{address}/?{options}&timeout_s=3&region=us-east-1", runtime=runtime)
    other = open_store(f"{address}/other?{options}", runtime=runtime)

    for number in range(3):
        first.create(f"first/{number}", b"")
    again.create("again", b"")

    assert throttle_stats(first) == throttle_stats(again)
    assert throttle_stats(first)["writes"].requests == 4
    assert throttle_stats(other)["writes"].requests == 0
    open_store(f"{url}&writes_per_s=7", runtime=runtime)
    open_store(url, runtime=runtime)
    assert throttle_stats(first)["writes"].rate_per_s == 7


@pytest.mark.slow
def test_stores_on_s3_are_throttled_unless_the_url_says_otherwise(url: str, local_url: str) -> None:
    limits = {kind: stats.rate_per_s_max for kind, stats in throttle_stats(open_store(url)).items()}
    assert limits == {"writes": 3500, "reads": 5500}
    assert set(throttle_stats(open_store(f"{url}&writes_per_s=0"))) == {"reads"}
    assert throttle_stats(open_store(f"{url}&writes_per_s=0&reads_per_s=0")) == {}
    assert throttle_stats(open_store(local_url)) == throttle_stats(open_store("memory:a")) == {}


@pytest.mark.parametrize("rate", ["-1", "0.5", "many", "1000001", "nan", "1e3"])
def test_rate_out_of_range_is_refused(url: str, rate: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="store URL: expected writes_per_s to be 0, or requests a second from"
    ):
        open_store(f"{url}&writes_per_s={rate}")
