"""The documentation site builds, each link and anchor leads somewhere, and the API page is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wal3_core

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_site_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    built = subprocess.run(
        [Path(sys.executable).parent / "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        check=False,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert built.returncode == 0, built.stderr
    assert {"index.html", "guide.html", "api.html", "changelog.html"} <= {path.name for path in tmp_path.iterdir()}


def test_api_page_shows_every_public_name_once() -> None:
    shown = re.findall(r"^::: wal3_core\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)

    assert sorted(shown) == sorted(wal3_core.__all__)
