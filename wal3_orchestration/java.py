"""The machine's Java, without which Spark does not start."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

JAVA_MIN = 17
_INSTALL = (
    f"Spark needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless (Debian, Ubuntu),"
    " dnf install java-17-openjdk-headless (Fedora), brew install openjdk@17 (macOS), or set JAVA_HOME to where it is"
)


def java_problem() -> str | None:
    """Say what is wrong with the machine's Java; None when it is fine."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        printed = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - the user's Java, as Spark itself will run it
    except OSError:
        return f"{program}: expected Java, found none. {_INSTALL}"
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is None or int(found[1]) < JAVA_MIN:
        version = printed.splitlines()[0] if printed else "nothing"
        return f"{program}: expected Java {JAVA_MIN} or newer, found {version}. {_INSTALL}"
    return None
