"""Latency and price of appends at S3's latencies, in simulated time: the machine's speed has no part in the figures.

python -m benchmarks.latency [--spread SIGMA] [--seconds N] [--ages SECONDS ...] [--rates N ...] [--callers N ...]

Closed loops: callers that each append again when their append is durable. Open loop: appends arrive at random (Poisson)
at a rate, whatever the store does. Latencies are log-normal around the published medians; the limit beside a latency is
one PUT and one conditional PUT. Prices are the list prices of S3 Standard for the requests of these appends alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import product

from rich.console import Console
from rich.table import Table

from benchmarks.slow_store import CAS_S, PUT_S, SlowStore
from tests.faults.simulator import SimProcess, Simulation
from wal3_core import LogPosition, LogWriter, WriterOptions
from wal3_core.exercise.report import price_usd

LIMIT_S = PUT_S + CAS_S
BODY = bytes(100)
# The writer learns how long its store takes.
WARM_S = 5.0
STEPS_MAX = 10**9
KINDS = {"PUT": "create", "CAS": "replace", "GET": "get"}
console = Console(width=140)


class Measured:
    """Appends of one writer in a world of its own: how long each waited, and the requests of all."""

    def __init__(self, spread: float, age_s: float) -> None:
        self._simulation = Simulation(seed=1, steps_max=STEPS_MAX)
        self._process = SimProcess(self._simulation, "writer", steady=True)
        self._store = SlowStore(spread, runtime=self._process)
        self._options = WriterOptions(batch_age_s_max=age_s)
        self._num_requests = 0
        self._warm = False
        self.waits_s: list[float] = []
        self.lasted_s = 0.0

    @property
    def requests_each(self) -> float:
        return self._store.requests.total() / len(self.waits_s)

    @property
    def usd_per_million(self) -> float:
        requests = {KINDS[name.split()[0]]: count for name, count in self._store.requests.items()}
        return price_usd(requests) / len(self.waits_s) * 1e6

    def percentile_ms(self, share: float) -> float:
        waits_s = sorted(self.waits_s)
        return waits_s[int(share * (len(waits_s) - 1))] * 1000

    def run(self, load: Callable[[LogWriter, float], None], seconds: float) -> Measured:
        main = self._simulation.spawn(self._process, "main", lambda: self._load(load, seconds))
        self._simulation.run(main)
        return self

    def _load(self, load: Callable[[LogWriter, float], None], seconds: float) -> None:
        with LogWriter.open_or_create(self._store, "a", options=self._options, runtime=self._process) as writer:
            load(writer, self._simulation.now_s + WARM_S)
            writer.flush()
            self._store.requests.clear()
            self._warm, began_s = True, self._simulation.now_s
            load(writer, began_s + seconds)
        self.lasted_s = self._simulation.now_s - began_s

    def _append(self, writer: LogWriter, call: Callable[[], None] = lambda: None) -> None:
        began_s = self._simulation.now_s

        def durable(future: Future[LogPosition]) -> None:
            future.result()
            if self._warm:
                self.waits_s.append(self._simulation.now_s - began_s)
            call()

        writer.submit(BODY).add_done_callback(durable)

    def closed(self, callers: int) -> Callable[[LogWriter, float], None]:
        """Return the load of so many callers, each with one append under way."""

        def load(writer: LogWriter, until_s: float) -> None:
            left = callers

            def again() -> None:
                nonlocal left
                if self._simulation.now_s < until_s:
                    self._append(writer, again)
                else:
                    left -= 1

            for _ in range(callers):
                self._append(writer, again)
            self._simulation.block(lambda: not left, None)

        return load

    def open(self, rate: float) -> Callable[[LogWriter, float], None]:
        """Return the load of appends that arrive at random, so many a second."""
        dice = self._simulation.dice("arrivals")

        def load(writer: LogWriter, until_s: float) -> None:
            while self._simulation.now_s < until_s:
                self._process.sleep(dice.expovariate(rate))
                self._append(writer)
            writer.flush()

        return load


def row(name: str, found: Measured) -> tuple[str, ...]:
    p50, p99 = found.percentile_ms(0.5), found.percentile_ms(0.99)
    return (
        name,
        f"{len(found.waits_s) / found.lasted_s:,.0f}",
        f"{p50:.0f}",
        f"{p50 / LIMIT_S / 1000:.2f}",
        f"{p99:.0f}",
        f"{found.requests_each:.3f}",
        f"{found.requests_each * len(found.waits_s) / found.lasted_s:.0f}",
        f"{found.usd_per_million:.2f}",
    )


def show(title: str, rows: list[tuple[str, ...]]) -> None:
    table = Table(title=title)
    table.add_column("")
    for name in ("appends/s", "p50 ms", "/ (PUT + CAS)", "p99 ms", "requests/append", "requests/s", "$ per million"):
        table.add_column(name, justify="right")
    for each in rows:
        table.add_row(*each)
    console.print(table)


def open_loop(rates: Iterable[float], ages_s: Iterable[float], spread: float, seconds: float) -> None:
    """Measure and show appends that arrive at random, for each rate and ``batch_age_s_max``."""
    rows = []
    for rate, age_s in product(rates, ages_s):
        measured = Measured(spread, age_s)
        # Enough of the slow ones, and no more of the fast ones than shows.
        run_s = min(max(seconds, 200 / rate), 100_000 / rate)
        rows.append(row(f"{rate:g}/s, batch_age_s_max {age_s:g}", measured.run(measured.open(rate), run_s)))
    show("Open loop (Poisson)", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spread", type=float, default=0.25)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ages", type=float, nargs="*", default=[0.01, 0.1, 1.0])
    parser.add_argument("--rates", type=float, nargs="*", default=[1, 10, 100, 1_000, 10_000])
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    given = parser.parse_args()
    for age_s in given.ages[:1]:
        rows = []
        for callers in given.callers:
            measured = Measured(given.spread, age_s)
            rows.append(row(f"{callers} callers", measured.run(measured.closed(callers), given.seconds)))
        show(f"Closed loops; PUT {PUT_S * 1e3:.0f} ms, CAS {CAS_S * 1e3:.0f} ms, sigma {given.spread}", rows)
    open_loop(given.rates, given.ages, given.spread, given.seconds)


if __name__ == "__main__":
    main()
