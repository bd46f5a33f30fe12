"""Append a repository's history to a log: ``python -m examples.git_history REPO STORE LOG``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from examples.git_history.history import ingest, replay
from wal3_core import InvalidRequestError, LogError, LogReader, LogWriter, open_store


def main() -> int:
    """Append what the log lacks of the history; return the exit code, 2 for a folder that is no repository."""
    parser = argparse.ArgumentParser(prog="python -m examples.git_history", description=__doc__)
    parser.add_argument("repo", type=Path)
    parser.add_argument("store", help="its URL, file:///tmp/wal3-git for instance")
    parser.add_argument("log", help="created if it does not exist")
    parser.add_argument("--folder", default="", help="ingest only this folder of the repository")
    given = parser.parse_args()
    try:
        # Refuse a folder that is not a repository before a log is created for it.
        replay(given.repo, folder=given.folder)
        store = open_store(given.store)
        with LogWriter.open_or_create(store, given.log) as writer:
            report = ingest(given.repo, writer, folder=given.folder, reader=LogReader.open(store, given.log))
    except LogError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidRequestError) else 1
    print(
        f"{report.num_records} records, {report.num_bytes} bytes, of {report.num_commits} commits up to"
        f" {report.head[:12]} appended to {given.log}; already there: {report.num_present} records"
    )
    for path in report.submodules:
        print(f"skipped the submodule {os.fsdecode(path)!r}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
