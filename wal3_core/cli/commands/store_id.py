"""``wal3 store-id``."""

from __future__ import annotations

import click

from wal3_core.cli.failures import Failure
from wal3_core.cli.output import print_json
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.targets import check_store
from wal3_core.fleet.identity import store_identity


@click.command("store-id")
@click.option("--create", is_flag=True, help="Give the store an identity if it has none.")
@json_option
@pass_session
def store_id(session: Session, create: bool, as_json: bool) -> None:
    """Print which store this is.

    A store's identity is created once and never changes, whatever the store's URL. Dagster remembers
    it, and refuses to work on any other store.

    \b
    Examples:
      wal3 store-id
      wal3 store-id --create
    """
    store = session.store()
    found = store_identity(store, create=create)
    if found is None:
        check_store(store)
        message = f"store {store.url}: expected an identity, found none: create one with --create"
        raise Failure(message)
    if as_json:
        print_json({"store": store.url, "store_id": found})
    else:
        click.echo(found)
