"""What the documentation site adds to the pages of docs/: the README and its neighbours, and links to the source."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Pages of the site that are files outside docs/.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Let each link lead to a page of the site; a link to source code leads to the repository, where one is named."""
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

    return LINK.sub(linked, markdown)
