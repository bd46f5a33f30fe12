"""The documentation site builds, its pages show what GitHub shows and load nothing from elsewhere; the API is whole."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import wal3_core

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
# Pages of the site, and the files that they are made of.
BESIDE = {"index.html": "README.md", "contributing.html": "CONTRIBUTING.md", "changelog.html": "CHANGELOG.md"}
PAGES = {page: ROOT / name for page, name in BESIDE.items()} | {
    re.sub(r"README\.md$|md$", lambda end: "index.html" if end[0] == "README.md" else "html", name): DOCS / name
    for name in sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
}
GITHUB = MarkdownIt("commonmark").enable("table")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A line of text that was meant as an item of a list, or as a row of a table.
UNREAD = re.compile(r"^\s*([-*+] |1\. |\|.*\|)", re.MULTILINE)
CONTAINERS = {"ul", "ol", "li", "table", "tr", "blockquote"}
LEAVES = {"p", "pre", "h1", "h2", "h3", "h4", "h5", "h6"}
VOID = {"br", "img", "hr", "input", "link", "meta"}


class _Page(HTMLParser):
    """What a page's text consists of: its blocks in order, the text of each paragraph and item, what is loaded."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.loaded: list[str] = []
        self._open: list[str] = []
        self._texts: list[tuple[str, list[str]]] = []
        self.feed(html)

    @property
    def texts(self) -> Iterator[str]:
        return ("".join(parts) for kind, parts in self._texts if kind in {"p", "li", "dd"})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in {"script", "img", "iframe", "source"} or (tag == "link" and found.get("rel") == "stylesheet"):
            self.loaded.append(found.get("src") or found.get("href") or "")
        if tag in CONTAINERS | LEAVES:
            self._texts.append((tag, []))
            if tag != "p":
                self.blocks.append(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in CONTAINERS:
            self.blocks.append(f"/{tag}")
            self._texts.append(("after", []))
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._texts and not {"code", "pre", "script", "style"} & set(self._open):
            self._texts[-1][1].append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [Path(sys.executable).parent / "mkdocs", "build", "--strict", "--site-dir", folder],
        check=False,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert built.returncode == 0, built.stderr
    return folder


def text_of(page: Path) -> str:
    """What is between a page's header and its footer."""
    html = page.read_text()
    start, end = html.index("<article"), html.index("</article>")
    return html[start:end]


# In one worker: the site is built once.
pytestmark = pytest.mark.xdist_group("site")


@pytest.mark.slow
def test_site_has_every_page(site: Path) -> None:
    assert {page.relative_to(site).as_posix() for page in site.rglob("*.html")} >= set(PAGES)


@pytest.mark.slow
def test_no_list_and_no_table_is_shown_as_running_text(site: Path) -> None:
    unread = [
        f"{page}: {line[0]}"
        for page in PAGES
        for text in _Page(text_of(site / page)).texts
        if (line := UNREAD.search(text)) is not None
    ]

    assert unread == []


@pytest.mark.slow
def test_page_has_the_blocks_that_github_shows(site: Path) -> None:
    # The page of the API is made of docstrings.
    for page in PAGES.keys() - {"api.html"}:
        expected = _Page(GITHUB.render(DIAGRAM.sub("", PAGES[page].read_text()))).blocks

        assert _Page(text_of(site / page)).blocks == expected, page


@pytest.mark.slow
def test_reference_links_its_types_and_names_nothing_private(site: Path) -> None:
    html = text_of(site / "api.html")
    shown = re.findall(r'<h[34] id="wal3_core\.([\w.]+)" class="doc', html)
    unlinked = set(re.findall(r'<span class="n"><span title="(wal3_core\.[\w.]+)"', html))

    assert len(shown) == len({*shown})
    assert [name for name in shown if re.search(r"(^|\.)_", name)] == []
    assert {name.rpartition(".")[2] for name in unlinked} & {*wal3_core.__all__} == set()


@pytest.mark.slow
def test_page_loads_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text()
        loaded = _Page(html).loaded

        # For this class, the theme loads a script.
        assert 'class="mermaid"' not in html, page
        assert [each for each in loaded if each.startswith(("http:", "https:", "//"))] == [], page


def test_every_diagram_has_a_picture_of_its_text_and_no_picture_is_left() -> None:
    texts = [text for page in PAGES.values() for text in DIAGRAM.findall(page.read_text())]

    expected = {f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg" for text in texts}
    assert {path.name for path in (DOCS / "images" / "diagrams").iterdir()} == expected, "run make diagrams"


def test_api_page_shows_every_public_name_once() -> None:
    shown = re.findall(r"^::: wal3_core\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)

    assert sorted(shown) == sorted(wal3_core.__all__)
