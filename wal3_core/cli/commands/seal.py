"""``wal3 seal``."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from wal3_core.cli.failures import Failure
from wal3_core.cli.names import LOG, log_argument
from wal3_core.cli.output import plain, print_json, time
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.errors import LogError, SealedError
from wal3_core.log.maintain.sealer import seal as seal_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.model.manifest import Seal

reason_option = click.option("--reason", metavar="TEXT", required=True, help="Why, for those who find the log sealed.")


@click.command()
@log_argument()
@reason_option
@click.option("--successor", metavar="NAME", type=LOG, help="The log that will continue LOG; it must not exist yet.")
@json_option
@pass_session
def seal(session: Session, log: str, reason: str, successor: str | None, as_json: bool) -> None:
    """Close LOG for good: it can still be read, but not appended to.

    Later appends fail with the reason and the successor. A seal is never lifted. `wal3 migrate` seals
    LOG and begins the successor in one command.

    \b
    Examples:
      wal3 seal orders --reason "replaced by orders-2026" --successor orders-2026
      wal3 seal trial --reason "no longer used"
    """
    with sealed_before():
        found = seal_log(session.store(), log, reason=reason, successor=successor)
    show_seal(log, found, as_json=as_json)


@contextmanager
def sealed_before(way_on: Callable[[], str] = str) -> Iterator[None]:
    """Report that a log is sealed already, without the advice for appends, and add ``way_on()``."""
    try:
        yield
    except SealedError as error:
        message = str(error)
        with suppress(LogError):
            message += way_on()
        raise Failure(message) from error


def show_seal(log: str, found: Seal, *, as_json: bool) -> None:
    """Print the seal of a log."""
    if as_json:
        print_json({"log": log, **found.to_json()})
        return
    successor = f"; it goes on in {found.successor}" if found.successor else ""
    click.echo(plain(f"sealed {log} at {time(found.timestamp_us)}: {found.reason}{successor}"))
