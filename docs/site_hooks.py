"""What the documentation site adds to the pages of docs/: the README and its neighbours, and links to the source."""

from __future__ import annotations

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
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Let each link lead to a page of the site, or of the repository where one is named; let lists begin as on GitHub."""
    names = {page: name for name, page in PAGES.items()}
    here = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def linked(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if not (ROOT / path).exists():
            return match[0]
        found = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if found is not None:
            return f"{text}({posixpath.relpath(found, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"
        return f"{text}({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})" if config.repo_url else text[1:-1]

    return as_on_github(LINK.sub(linked, markdown))


def as_on_github(markdown: str) -> str:
    """Write lists so that Python-Markdown reads them as GitHub does.

    It wants a blank line before a list, a table or a fence that follows text, and between items of paragraphs; four
    columns for each list around a line; and it takes a wrapped line that begins with any number for an item.
    """
    lines, tokens = markdown.split("\n"), GITHUB.parse(markdown)
    # Of each line: how many lists are around it, and the column where the text of the innermost one's item begins.
    depths, columns = [0] * len(lines), [0] * len(lines)
    spaced = set()
    for token, inner in pairwise(tokens):
        first, end = token.map or (0, 0)
        if token.type == "list_item_open" and (marker := MARKER.match(lines[first])):
            depths[first + 1 : end] = [token.level // 2 + 1] * (end - first - 1)
            columns[first + 1 : end] = [marker.end()] * (end - first - 1)
        elif token.type == "paragraph_open":
            lines[first + 1 : end] = [NUMBER.sub(r"\1\\\2", line) for line in lines[first + 1 : end]]
        of_paragraphs = token.type == "list_item_open" and inner.type == "paragraph_open" and not inner.hidden
        if of_paragraphs or (token.type in INTERRUPTING and token.level == 0):
            spaced.add(first)
    for number, (depth, column) in enumerate(zip(depths, columns, strict=True)):
        text = lines[number].lstrip()
        if depth and text:
            lines[number] = "    " * depth + lines[number][min(column, len(lines[number]) - len(text)) :]
    for first in sorted(spaced - {0}, reverse=True):
        if lines[first - 1].strip():
            lines.insert(first, "")
    return "\n".join(lines)
