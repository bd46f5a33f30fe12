"""``store-id`` prints which store this is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.fleet.identity import store_identity
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from .conftest import Command


def test_store_without_identity_is_reported_and_not_given_one(wal3: Command) -> None:
    wal3.ok("init", "a")

    result = wal3("store-id")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: store {wal3.url}: expected an identity, found none: create one with --create\n"
    assert store_identity(open_store(wal3.url)) is None


def test_store_gets_one_identity_and_keeps_it(wal3: Command) -> None:
    made = wal3.ok("store-id", "--create").decode().removesuffix("\n")

    assert made == store_identity(open_store(wal3.url))
    assert wal3.ok("store-id", "--create").decode() == f"{made}\n"
    assert wal3.ok("store-id").decode() == f"{made}\n"
    assert wal3.json("store-id", "--json") == [{"store": wal3.url, "store_id": made}]
