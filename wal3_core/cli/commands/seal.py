"""``wal3 seal`` and ``wal3 migrate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from wal3_core.cli.commands.policy import describe_policy
from wal3_core.cli.shell.failures import Failure, plain
from wal3_core.cli.shell.output import counted, show, time
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import LOG, log_argument
from wal3_core.errors import LogError, SealedError
from wal3_core.format.manifest import Seal
from wal3_core.log.maintain.sealer import migrate as migrate_log
from wal3_core.log.maintain.sealer import seal as seal_log
from wal3_core.log.read.reader import LogReader
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

reason_option = click.option("--reason", metavar="TEXT", required=True, help="Why, for those who find the log sealed.")


@click.command()
@log_argument()
@reason_option
@click.option("--successor", metavar="NAME", type=LOG, help="The log that will continue LOG; it must not exist yet.")
@session_and_json
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
    successor = f"; it goes on in {found.successor}" if found.successor else ""
    said = plain(f"sealed {log} at {time(found.timestamp_us)}: {found.reason}{successor}")
    show(said, {"log": log, **found.to_json()}, as_json=as_json)


@click.command()
@log_argument()
@click.argument("successor", type=LOG)
@reason_option
@session_and_json
def migrate(session: Session, log: str, successor: str, reason: str, as_json: bool) -> None:
    """Seal LOG and begin the log SUCCESSOR where it ends.

    Offsets continue in SUCCESSOR. It gets the policy of LOG, and each cursor, at its own beginning. A concurrent append
    either is in LOG or fails and names SUCCESSOR.
    After an interruption, run the command again: it finishes the migration.

    \b
    Examples:
      wal3 migrate orders orders-2026 --reason "a log a year"
    """
    store = session.store()
    with sealed_before(lambda: _way_on(store, log)):
        found = migrate_log(store, log, successor, reason=reason)
    show_seal(log, found, as_json=as_json)
    if not as_json:
        cursors = counted(len(CursorStore(store, successor).list()), "cursor")
        policy = describe_policy(successor, PolicyStore(store, successor).load())
        click.echo(plain(f"its policy and {cursors} went along: {policy}"))


def _way_on(store: ObjectStore, log: str) -> str:
    """Say how to continue a log that was sealed without a successor, or with another one."""
    found = LogReader.open(store, log).manifest().seal
    if found is not None and found.successor is not None:
        return f" (`wal3 migrate {log} {found.successor} --reason …` begins that one)"
    return f"; a seal is never lifted, and this one names no successor: `wal3 copy {log} TARGET` makes an unsealed copy"
