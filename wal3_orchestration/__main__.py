"""``python -m wal3_orchestration init DIR``: the files of a Dagster deployment for a store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from wal3_core import InvalidRequestError, StoreDeniedError, open_store
from wal3_orchestration.deployment import Deployment, create_databases, write


@click.group()
def main() -> None:
    """Set up Dagster for a store of logs."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--store", envvar="WAL3_STORE", required=True, help="URL of the store. [env: WAL3_STORE]")
@click.option("--port", default=3000, show_default=True, help="The UI's port on 127.0.0.1.")
@click.option("--postgres", is_flag=True, help="Keep runs and events in Postgres, not in SQLite.")
@click.option("--systemd", is_flag=True, help="Add units for the webserver and the daemon.")
@click.option("--compose", is_flag=True, help="Add a Dockerfile and docker-compose.yml, with Postgres.")
@click.option("--kubernetes", is_flag=True, help="Add a Dockerfile and manifests; each run is a job.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def init(folder: Path, *, force: bool, **options: str | int | bool) -> None:
    """Write a Dagster deployment for a store into FOLDER, which becomes DAGSTER_HOME.

    It holds dagster.yaml (pools, limits, retention), workspace.yaml and wal3.env, where secrets go, and
    Dagster's databases, unless they are in Postgres.

    \b
    Example:
      python -m wal3_orchestration init ~/wal3-dagster --store s3://bucket/prefix
    """
    deployment = Deployment(home=folder.absolute(), **options)  # type: ignore[arg-type]  # click's options are its fields
    if deployment.compose and deployment.kubernetes:
        message = "--compose and --kubernetes need different dagster.yaml files: write them to two folders"
        raise click.UsageError(message)
    try:
        # Checks the URL alone: credentials may come from wal3.env, which is yet to be filled in.
        with suppress(StoreDeniedError):
            open_store(deployment.store)
        files = deployment.files()
        write(files, force=force)
    except InvalidRequestError as error:
        raise click.ClickException(str(error)) from error
    except FileExistsError as error:
        message = f"{error}: expected no such file; --force overwrites it. Nothing was written"
        raise click.ClickException(message) from error
    for path in files:
        click.echo(f"wrote {path}")
    if not deployment.in_postgres:
        create_databases(folder)
        click.echo(f"created Dagster's databases in {folder}")
    click.echo("\nNext: read wal3.env, fill in what is missing (WAL3_RUNBOOK, the address of your copy of")
    click.echo("docs/operations.md, makes the runbook in checks and alerts a link), and run")
    for command in deployment.commands():
        click.echo(f"  {command}")


if __name__ == "__main__":
    main(prog_name="python -m wal3_orchestration")
