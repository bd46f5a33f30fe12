"""``wal3 init``."""

from __future__ import annotations

import click

from wal3_core.cli.names import log_argument
from wal3_core.cli.output import print_json
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.log.write.writer import LogWriter


@click.command()
@log_argument()
@json_option
@pass_session
def init(session: Session, log: str, as_json: bool) -> None:
    """Create the empty log LOG.

    A log's name has parts of letters, digits, _ and -, joined by /. Fails if LOG exists, and leaves it
    unchanged.

    \b
    Examples:
      wal3 init orders
      wal3 init tenants/acme/orders
    """
    LogWriter.initialize(session.store(), log)
    if as_json:
        print_json({"log": log, "created": True})
    else:
        click.echo(f"created {log}")
