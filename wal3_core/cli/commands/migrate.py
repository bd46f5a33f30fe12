"""``wal3 migrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wal3_core.cli.commands.policy import describe_policy
from wal3_core.cli.commands.seal import reason_option, sealed_before, show_seal
from wal3_core.cli.names import LOG, log_argument
from wal3_core.cli.output import counted, plain
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.log.maintain.sealer import migrate as migrate_log
from wal3_core.log.read.reader import LogReader
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.documents.policy_store import PolicyStore

if TYPE_CHECKING:
    from wal3_core.storage.object_store import ObjectStore


@click.command()
@log_argument()
@click.argument("successor", type=LOG)
@reason_option
@json_option
@pass_session
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
        policy, taken = (
            PolicyStore(store, successor).load(),
            counted(len(CursorStore(store, successor).list()), "cursor"),
        )
        click.echo(plain(f"its policy and {taken} went along: {describe_policy(successor, policy)}"))


def _way_on(store: ObjectStore, log: str) -> str:
    """Say how to continue a log that was sealed without a successor, or with another one."""
    found = LogReader.open(store, log).manifest().seal
    if found is not None and found.successor is not None:
        return f" (`wal3 migrate {log} {found.successor} --reason …` begins that one)"
    return f"; a seal is never lifted, and this one names no successor: `wal3 copy {log} TARGET` makes an unsealed copy"
