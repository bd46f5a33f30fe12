"""What the documentation site adds to the pages of docs/: the README and its neighbours, and links to the source."""

from __future__ import annotations

import hashlib
import logging
import posixpath
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Pages of the site that are files outside docs/.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Reads Markdown as GitHub does.
GITHUB = MarkdownIt("commonmark").enable("table")
INTERRUPTING = {"bullet_list_open", "ordered_list_open", "table_open", "fence"}
MARKER = re.compile(r"\s*([-*+]|\d+[.)])\s+")
NUMBER = re.compile(r"^(\s*\d+)([.)]\s)")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DIAGRAMS = "images/diagrams"
BASES = re.compile(r'<p class="doc doc-class-bases">.*?</p>', re.DOTALL)
LOGGER = logging.getLogger("mkdocs.hooks.site")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write a page's links, diagrams and lists for the site."""
    return as_on_github(drawn(linked(markdown, page, config), page, files))


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Leave private bases out of the reference."""
    if page.file.src_uri == "api.md":
        return BASES.sub(lambda found: found[0] if "<a " in found[0] or "Enum" in found[0] else "", html)
    return html


def linked(markdown: str, page: Page, config: MkDocsConfig) -> str:
    """Let each link lead to a page of the site; a link to source code leads to the repository, where one is named."""
    names = {page: name for name, page in PAGES.items()}
    here = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def changed(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if not (ROOT / path).exists():
            return match[0]
        found = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if found is not None:
            return f"{text}({relative(found, page)}{anchor})"
        return f"{text}({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})" if config.repo_url else text[1:-1]

    return LINK.sub(changed, markdown)


def relative(target: str, page: Page) -> str:
    """Return the path of another file of the site, as a link on this page names it."""
    return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")


def drawn(markdown: str, page: Page, files: Files) -> str:
    """Replace each diagram by its picture, which loads no script; GitHub draws the diagrams itself."""

    def picture(match: re.Match[str]) -> str:
        found = f"{DIAGRAMS}/{diagram_name(match[1])}"
        if files.get_file_from_path(found) is None:
            first = match[1].strip().splitlines()[1].strip()
            LOGGER.warning("%s: no picture of the diagram with %r: run make diagrams", page.file.src_uri, first)
            return match[0]
        _, _, heading = markdown[: match.start()].rpartition("\n#")
        return f"![Diagram: {heading.partition(chr(10))[0].strip('# ')}]({relative(found, page)}){{ .diagram }}"

    return DIAGRAM.sub(picture, markdown)


def diagram_name(text: str) -> str:
    """Name the picture of a diagram: another name for each text, so that no picture is older than its text."""
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"


def as_on_github(markdown: str) -> str:
    """Write lists so that Python-Markdown reads them as GitHub does.

    It wants a blank line before a list, a table or a fence that follows text, and between items of paragraphs; four
    columns for each list around a line; and it takes a wrapped line that begins with any number for an item.
    """
    lines, tokens = markdown.split("\n"), GITHUB.parse(markdown)
    spaced = set()
    # Of each line: how many lists are around it, and the column where the text of the innermost one's item begins.
    places = [(0, 0)] * len(lines)
    for token, inner in pairwise(tokens):
        first, end = token.map or (0, 0)
        if token.type == "list_item_open" and (marker := MARKER.match(lines[first])):
            places[first + 1 : end] = [(token.level // 2 + 1, marker.end())] * (end - first - 1)
        elif token.type == "paragraph_open":
            lines[first + 1 : end] = [NUMBER.sub(r"\1\\\2", line) for line in lines[first + 1 : end]]
        of_paragraphs = token.type == "list_item_open" and inner.type == "paragraph_open" and not inner.hidden
        if of_paragraphs or (token.type in INTERRUPTING and token.level == 0):
            spaced.add(first)
    lines = [indented(line, *place) for line, place in zip(lines, places, strict=True)]
    for first in sorted(spaced - {0}, reverse=True):
        if lines[first - 1].strip():
            lines.insert(first, "")
    return "\n".join(lines)


def indented(line: str, depth: int, column: int) -> str:
    """Indent a line by four columns for each list around it, instead of up to the column of the item's text."""
    text = line.lstrip()
    return "    " * depth + line[min(column, len(line) - len(text)) :] if depth and text else line
