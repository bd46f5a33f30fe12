"""``wal3 ingest-git``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from wal3_core.cli.names import log_argument
from wal3_core.cli.output import counted, plain, print_json, progress, size
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.log.read.reader import LogReader
from wal3_core.log.write.writer import LogWriter
from wal3_core.views.git_history import ingest, replay

_SUBMODULES_NAMED_MAX = 10


@click.command("ingest-git")
@click.argument("repo", type=click.Path(path_type=Path))
@log_argument()
@click.option("--folder", default="", help="Ingest only this folder of the repository.")
@json_option
@pass_session
def ingest_git(session: Session, repo: Path, log: str, folder: str, as_json: bool) -> None:
    """Append the history of the git repository REPO to LOG, which is created if it does not exist.

    Appends one record for each file that a commit on the first-parent line of HEAD changed, oldest
    first: the key is the path, the body the file's bytes; a deletion is a tombstone. The last record
    of each key is then what `git ls-tree -r HEAD` lists. A rename is a deletion and an addition;
    submodules are skipped and named. LOG is for this history alone: a second run, or one after an
    interruption, checks that LOG holds the beginning of the history and appends only the rest.

    \b
    Examples:
      wal3 ingest-git ~/src/project project
      wal3 ingest-git ~/src/project docs --folder docs
    """
    # Refuse a folder that is not a repository before a log is created for it.
    replay(repo, folder=folder)
    store = session.store()
    with LogWriter.open_or_initialize(store, log) as writer, progress(f"ingest {repo.name}", None) as advance:
        report = ingest(repo, writer, folder=folder, reader=LogReader.open(store, log), progress=advance)
    submodules = [os.fsdecode(path) for path in report.submodules]
    if as_json:
        print_json(
            {
                "log": log,
                "head": report.head,
                "commits": report.num_commits,
                "records": report.num_records,
                "bytes": report.num_bytes,
                "present": report.num_present,
                "submodules": submodules,
            }
        )
        return
    present = f"; already there: {counted(report.num_present, 'record')}" if report.num_present else ""
    click.echo(
        f"{counted(report.num_records, 'record')}, {size(report.num_bytes)}, of {counted(report.num_commits, 'commit')}"
        f" up to {report.head[:12]} appended to {log}{present}"
    )
    if submodules:
        named = ", ".join(map(plain, submodules[:_SUBMODULES_NAMED_MAX]))
        more = ", …" if len(submodules) > _SUBMODULES_NAMED_MAX else ""
        click.echo(f"skipped {counted(len(submodules), 'submodule')}: {named}{more}", err=True)
