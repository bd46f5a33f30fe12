"""What many logs cost in Dagster: seconds, events and bytes of the runs over all of them, and its pages in a browser.

    PYTHONPATH=. .venv/bin/python benchmarks/fleet_dagster.py --logs 2000

The pages are opened in headless Chromium if the package playwright can be imported; without it they are left out.
Everything is kept below --folder; a second call with the same folder goes on from the logs that are there. Few of many
logs are marked in a dirty log, and found by the sensor `dirty_logs`:

    PYTHONPATH=. .venv/bin/python benchmarks/fleet_dagster.py --logs 10000 --steps fill,dirty

A day of schedules in which a server also marks what it appends, with a round of that sensor in each hour:

    PYTHONPATH=. .venv/bin/python benchmarks/fleet_dagster.py --logs 2000 --steps fill,first,rounds

With --moving, a consumer is done with each record before the round, so that the round collects every log.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, RunRequest, build_schedule_context, build_sensor_context

from wal3_core import CursorStore, Fleet, LogReader, LogWriter, list_logs, open_store
from wal3_core.runtime import Observer, RequestEnd, shared_runtime
from wal3_core.store.object_store import ObjectStore

ROOT = Path(__file__).parents[1]
NO_LOGS_OF_STEPS = """
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""
RUN_KEY = "dagster/run_key"
SILENT = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# The day of routine maintenance: discovery each hour, after 50 logs changed; one verification and one plan of all.
# In the step "rounds" these logs are marked, and get their maintenance in the same hour.
HOURS = 24
CHANGED_PER_HOUR = 50
# How many logs are dirty, and how often that is repeated.
DIRTY, ROUNDS = 50, 2
NAMES = ("manifest", "verification", "garbage_plan", "pruned_manifest", "deleted_garbage", "marked_orphans")
ASSETS = (*NAMES, "repacked_snapshots", "dirty_log", "rollup")
VIEWS = ("overview", "partitions", "events", "checks", "lineage", "automation")
PAGE_S_MAX = 90
QUIET_MS = 500


def name_of(number: int) -> str:
    return f"tenants/{number % 40}/log-{number:05}"


def append(store: ObjectStore, log: str) -> None:
    with LogWriter.open_or_create(store, log) as writer:
        writer.append_many([b"a record", b"another", b"a third"])


def fill(store: ObjectStore, logs: Iterable[str]) -> None:
    """Give each log three records and a cursor at its first one."""

    def create(log: str) -> None:
        append(store, log)
        CursorStore(store, log).create("reader", LogReader.open(store, log).manifest().first.position)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, logs))


class Requests(Observer):
    """Counts the requests of this process to its stores."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        del store, end, seconds
        self.counts[kind] += 1


def bytes_of(home: Path) -> int:
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file())


def events_of(home: Path) -> Counter[str]:
    """Count the events of all runs by type; each run has a database of its own."""
    found: Counter[str] = Counter()
    for file in home.rglob("history/runs/*.db"):
        if file.name == "index.db":
            continue
        with closing(sqlite3.connect(file)) as base:
            found.update(dict(base.execute("SELECT dagster_event_type, count(*) FROM event_logs GROUP BY 1")))
    return found


class Bench:
    """One store, one Dagster instance, and the runs that its sensors and schedules ask for, in this process."""

    def __init__(self, folder: Path) -> None:
        # The code location reads the environment when it is loaded.
        from wal3_orchestration.deployment import settings  # noqa: PLC0415 - see above

        self.home = folder / "home"
        if not self.home.exists():
            self.home.mkdir(parents=True)
            (self.home / "dagster.yaml").write_text(settings() + NO_LOGS_OF_STEPS)
        os.environ["WAL3_STORE"] = (folder / "store").as_uri()
        os.environ["DAGSTER_HOME"] = str(self.home)
        from wal3_orchestration.definitions import defs  # noqa: PLC0415 - see above

        self.store = open_store(os.environ["WAL3_STORE"])
        self.defs = defs()
        self.instance = DagsterInstance.from_config(str(self.home))
        self.cursors: dict[str, str | None] = {}
        self.added: Counter[str] = Counter()

    @contextmanager
    def measured(self, what: str, *, part: str = "") -> Iterator[None]:
        """Print what the block takes: seconds, events, and bytes; add the bytes to those of a part of the day."""
        before, events, begun_s = bytes_of(self.home), events_of(self.home), time.perf_counter()
        yield
        taken_s = time.perf_counter() - begun_s
        more = events_of(self.home) - events
        kinds = {kind: count for kind, count in sorted(more.items()) if kind and kind.startswith("ASSET_")}
        self.added[part] += bytes_of(self.home) - before
        print(
            f"{what:<44} {taken_s:8.1f} s {sum(more.values()):7,} events"
            f" {(bytes_of(self.home) - before) / 1e6:8.2f} MB  {kinds}",
            flush=True,
        )

    def tick(self, sensor: str) -> tuple[Sequence[RunRequest], str]:
        """Evaluate a sensor, and change the partitions and its cursor as the daemon does."""
        found = self.defs.get_sensor_def(sensor)
        resources = {name: self.defs.resources[name] for name in found.required_resource_keys}
        with build_sensor_context(self.instance, cursor=self.cursors.get(sensor), resources=resources) as context:
            data = found.evaluate_tick(context)
        return self.accept(sensor, data)

    def roll_up(self, **limits: float) -> tuple[Sequence[RunRequest], str]:
        """Evaluate the sensor on the dirty logs, as if every marked log and every look were due."""
        from wal3_orchestration.defs.dirty_logs.sensors import roll_up_dirty_logs  # noqa: PLC0415 - see above
        from wal3_orchestration.framework.scope import StoreScope  # noqa: PLC0415 - see above
        from wal3_orchestration.resources import RollUpResource  # noqa: PLC0415 - see above

        resources = {
            "store": self.defs.resources["store"],
            "rollup": RollUpResource(age_s_max=0.0, period_s=0.0, **limits),
        }
        cursor = self.cursors.get("dirty_logs")
        with build_sensor_context(self.instance, cursor=cursor, resources=resources) as context:
            found = roll_up_dirty_logs(StoreScope(), context)
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        return self.accept("dirty_logs", found)

    def accept(
        self,
        sensor: str,
        found: Any,  # noqa: ANN401 - the result of a sensor, or Dagster's own of a tick
    ) -> tuple[Sequence[RunRequest], str]:
        """Change the partitions and the cursor as a sensor has asked."""
        self.cursors[sensor] = found.cursor
        for request in found.dynamic_partitions_requests or ():
            if type(request).__name__.startswith("Add"):
                self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return found.run_requests or (), found.cursor or ""

    def scheduled(self, schedule: str) -> tuple[str, Sequence[RunRequest]]:
        """Return the job that a schedule starts, and its requests."""
        found = self.defs.get_schedule_def(schedule)
        context = build_schedule_context(self.instance)
        return found.job_name, found.evaluate_tick(context).run_requests or ()

    def run(self, job: str, requests: Iterable[RunRequest]) -> None:
        """Execute the requests, those that name no job as runs of this one."""
        for request in requests:
            done = self.defs.resolve_job_def(request.job_name or job).execute_in_process(
                instance=self.instance,
                run_config={**SILENT, **(request.run_config or {})},
                partition_key=request.partition_key,
                tags={**request.tags, **({RUN_KEY: request.run_key} if request.run_key else {})},
                raise_on_error=False,
            )
            if not done.success:
                print(f"  run of {job} failed: {done.run_id}", flush=True)

    def discover(self, what: str) -> None:
        """Look at all logs as if the last look had been long ago; of many logs it takes several ticks."""
        self.cursors.pop("discovery", None)
        with self.measured(f"{what}: discovery", part="discovery"):
            ticks, longest_s, cursor = 0, 0.0, ""
            while ticks == 0 or '"after": "t' in cursor:
                begun_s = time.perf_counter()
                asked, cursor = self.tick("discovery")
                longest_s, ticks = max(longest_s, time.perf_counter() - begun_s), ticks + 1
                self.run("manifest_job", asked)
        print(f"  {ticks} ticks with their runs, the longest tick {longest_s:.1f} s, a cursor of {len(cursor):,} B")

    def daily(self, what: str) -> None:
        """Do what the nightly and the daily schedule start."""
        for schedule in ("nightly_verification", "daily_collection"):
            job, requests = self.scheduled(schedule)
            with self.measured(f"{what}: {job}", part=job):
                self.run(job, requests)


@contextmanager
def webserver() -> Iterator[str]:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).parent / "dagster-webserver", "-m", "wal3_orchestration.definitions"]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [*command, "-h", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                    break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def open_page(
    browser: Any,  # noqa: ANN401 - of a package that may be missing
    url: str,
) -> tuple[float, int]:
    """Return the seconds until a page has asked for nothing and had no work for a while, and its text's length.

    The quiet time itself does not count. PAGE_S_MAX when it never gets there.
    """
    page, asked, last_s = browser.new_page(viewport={"width": 1400, "height": 1000}), set(), [0.0]

    def begin(request: object) -> None:
        asked.add(request)
        last_s[0] = time.perf_counter()

    def end(request: object) -> None:
        asked.discard(request)
        last_s[0] = time.perf_counter()

    page.on("request", begin)
    page.on("requestfinished", end)
    page.on("requestfailed", end)
    begun_s = time.perf_counter()
    try:
        page.goto(url, timeout=PAGE_S_MAX * 1000)
        while time.perf_counter() - begun_s < PAGE_S_MAX:
            before_s = time.perf_counter()
            page.wait_for_timeout(50)
            # A page that is busy answers late.
            length = page.evaluate(
                "() => new Promise(done => requestAnimationFrame(() => done(document.body.innerText.length)))"
            )
            if time.perf_counter() - before_s > 0.25:
                last_s[0] = time.perf_counter()
            if not asked and length and time.perf_counter() - last_s[0] > QUIET_MS / 1000:
                return last_s[0] - begun_s, length
    finally:
        page.close()
    return PAGE_S_MAX, 0


def show_pages(shots: Path | None) -> None:
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may be missing
    except ImportError:
        print("pages: playwright is not installed, none was opened")
        return
    with webserver() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        open_page(browser, url)  # the first page also loads the program
        slowest = (0.0, "")
        for asset in ASSETS:
            taken = {view: open_page(browser, f"{url}/assets/{asset}?view={view}") for view in VIEWS}
            slowest = max(slowest, *((taken_s, f"{asset} {view}") for view, (taken_s, _) in taken.items()))
            print(f"{asset:<20}", "  ".join(f"{view} {taken_s:5.1f} s" for view, (taken_s, _) in taken.items()))
            sys.stdout.flush()
        for name, path in {"checks of all": "asset-checks", "runs": "runs", "lineage of all": "asset-groups"}.items():
            print(f"{name:<20} {open_page(browser, f'{url}/{path}')[0]:5.1f} s", flush=True)
        print(f"slowest: {slowest[1]}, {slowest[0]:.1f} s")
        if shots is not None:
            shots.mkdir(exist_ok=True)
            for asset in ASSETS:
                for view in VIEWS:
                    page = browser.new_page(viewport={"width": 1400, "height": 1000})
                    page.goto(f"{url}/assets/{asset}?view={view}")
                    page.wait_for_timeout(5000)
                    page.screenshot(path=shots / f"{asset}-{view}.png")
                    page.close()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path(".bench/fleet-dagster"))
    parser.add_argument("--steps", default="fill,first,again,day,pages")
    parser.add_argument("--hours", type=int, default=HOURS, help="how long the day is")
    parser.add_argument("--moving", action="store_true", help="in the step rounds, move each log's cursor to its end")
    parser.add_argument("--shots", type=Path, help="where to put a picture of each page")
    options = parser.parse_args()
    steps = options.steps.split(",")
    bench = Bench(options.folder.resolve())
    if "fill" in steps:
        there = set(list_logs(bench.store))
        begun_s = time.perf_counter()
        fill(bench.store, [name_of(number) for number in range(options.logs) if name_of(number) not in there])
        print(f"{options.logs:,} logs in {time.perf_counter() - begun_s:.1f} s", flush=True)
    if "first" in steps:
        bench.discover("first")
        bench.daily("first")
    if "again" in steps:
        bench.discover("unchanged")
        bench.daily("unchanged")
    if "day" in steps:
        day(bench, options.logs, options.hours)
    if "rounds" in steps:
        rounds(bench, options.logs, options.hours, moving=options.moving)
    if "dirty" in steps:
        dirty(bench, options.logs)
    if "pages" in steps:
        show_pages(options.shots)


def dirty(bench: Bench, logs: int) -> None:
    """Mark few of the logs, several times, and print what the sensor and its runs take."""
    known = set(bench.instance.get_dynamic_partitions("log"))
    bench.instance.add_dynamic_partitions("log", sorted({name_of(number) for number in range(logs)} - known))
    for round_ in range(ROUNDS):
        with Fleet.open(bench.store, server="bench") as fleet:
            for number in range(DIRTY):
                fleet.append(name_of((number + round_ * DIRTY) * 7 % logs), b"one more record")
        for what in ("finds them", "forgets them", "finds none"):
            requests, begun_s = Requests(), time.perf_counter()
            shared_runtime().observer = requests
            asked, cursor = bench.roll_up()
            taken_s = time.perf_counter() - begun_s
            print(
                f"{DIRTY} of {logs:,} logs are dirty: the tick that {what:<13} {taken_s:6.2f} s"
                f" {sum(requests.counts.values()):4} requests  {dict(sorted(requests.counts.items()))},"
                f" {len(asked)} runs, a cursor of {len(cursor):,} B",
                flush=True,
            )
            if asked:
                with bench.measured("  their runs"):
                    bench.run("", asked)


def day(bench: Bench, logs: int, hours: int) -> None:
    with bench.measured("the whole day"):
        for hour in range(hours):
            first = hour * CHANGED_PER_HOUR
            for number in range(first, first + CHANGED_PER_HOUR):
                append(bench.store, name_of(number * 7 % logs))
            bench.discover(f"hour {hour}")
        bench.daily("night")


def rounds(bench: Bench, logs: int, hours: int, *, moving: bool) -> None:
    """Do the same as ``day`` to logs that are marked; in each hour the sensor has them maintained."""
    bench.added.clear()
    with bench.measured("the whole day", part="the whole day"):
        for hour in range(hours):
            names = [name_of((hour * CHANGED_PER_HOUR + number) * 7 % logs) for number in range(CHANGED_PER_HOUR)]
            with Fleet.open(bench.store, server="bench") as fleet:
                for log in names:
                    fleet.append(log, b"one more record")
            if moving:
                move(bench.store, names)
            bench.discover(f"hour {hour}")
            with bench.measured(f"hour {hour}: round", part="rounds"):
                # The second tick finishes the round. In a real hour, the dirty log is not quiet for long enough.
                for _ in range(2):
                    asked, _ = bench.roll_up(quiet_s=24 * 3600.0)
                    bench.run("", asked)
        bench.daily("night")
    for part, added in bench.added.items():
        print(f"{part or 'other':<44} {added / 1e6:8.2f} MB", flush=True)


def move(store: ObjectStore, logs: Iterable[str]) -> None:
    """Move each log's cursor to its last fragment, which a collection keeps."""
    for log in logs:
        last = max(LogReader.open(store, log).manifest().fragments, key=lambda each: each.seq_no)
        cursors = CursorStore(store, log)
        witness = cursors.load("reader")
        assert witness is not None
        cursors.save("reader", last.start, witness)


if __name__ == "__main__":
    main()
