"""A program: one writer on a small file system that is filled, freed, made read-only and writable again.

``python -m tests.processes.full_disk MOUNTED_FOLDER JOURNALS_FOLDER`` prints the outcome of each append.
It runs where the mount is visible, and checks the log there.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from tests.processes.journal import Journal, check_promises, read_journals
from tests.processes.workers import LOG
from wal3_core import LogWriter, open_store

BALLAST_BYTES = 4096
# About 60 kB, incompressible.
BULK = 200


def fill(ballast: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(BALLAST_BYTES)):
            pass


def main() -> None:
    mounted, journals = Path(sys.argv[1]), Path(sys.argv[2])
    store, journal, ballast = open_store((mounted / "store").as_uri()), Journal(journals / "only"), mounted / "ballast"
    with LogWriter.open_or_create(store, LOG) as writer:

        def append(phase: str) -> None:
            for index in range(3):
                journal.append(f"{phase}/{index}", BULK, writer.append_many)

        append("before")
        fill(ballast)
        append("full")
        ballast.unlink()
        append("freed")
        subprocess.run(["mount", "-o", "remount,ro", mounted], check=True, timeout=600)
        append("read-only")
        subprocess.run(["mount", "-o", "remount,rw", mounted], check=True, timeout=600)
        append("after")
    attempts = read_journals(journals)
    check_promises(store, LOG, attempts)
    print(json.dumps({name: [attempt.outcome, attempt.why] for name, attempt in attempts.items()}))


if __name__ == "__main__":
    main()
