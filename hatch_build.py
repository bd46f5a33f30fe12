"""The package's long description and addresses, which the checkout alone does not know: where it is published.

They come from the two variables that mkdocs.yml reads: WAL3_REPO_URL, the repository, and WAL3_SITE_URL, the
documentation. Relative links and pictures of README.md lead into the repository at the version's tag. Without
WAL3_REPO_URL, the links are plain text, there are no pictures, and the package names no address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A picture, or a link whose text may be code, emphasis or text in brackets.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# Of a picture alone in its paragraph, the line goes, too.
_PICTURE_LINE = re.compile(r"^!\[[^\]]*\]\((?!\w+:)[^)\s]+\)\n\n?", re.MULTILINE)


class Published(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``, which pyproject.toml declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields, by the variables and README.md."""
        repository, site = (os.environ.get(name, "").rstrip("/") for name in ("WAL3_REPO_URL", "WAL3_SITE_URL"))
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": long_description(text, repository, f"v{metadata['version']}"),
        }
        metadata["urls"] = urls(repository, site)


def long_description(text: str, repository: str, tag: str) -> str:
    """Return README.md as a page outside of the repository shows it."""

    def absolute(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if re.match(r"\w+:", target) or target.startswith("#"):
            return match[0]
        if not repository:
            return label
        return f"{picture}[{label}]({repository}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return _LINK.sub(absolute, text if repository else _PICTURE_LINE.sub("", text))


def urls(repository: str, site: str) -> dict[str, str]:
    """Return the addresses that an index shows beside the description."""
    found = {"Documentation": site} if site else {}
    if repository:
        found |= {
            "Source": repository,
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
    return found
