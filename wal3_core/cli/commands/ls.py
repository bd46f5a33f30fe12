"""``wal3 ls``."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import click

from wal3_core.cli.completing import complete_logs
from wal3_core.cli.failures import Failure
from wal3_core.cli.output import count, print_json, progress, size
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.tables import show_table
from wal3_core.cli.targets import NO_LOGS, check_store
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.fleet.manifests import load_manifests
from wal3_core.model.manifest_parts import BEING_DESTROYED

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore

_COLUMNS = ("log", "records", "bytes", "fragments", "first", "next", "sealed")


@click.command()
@click.argument("prefix", default="", shell_complete=complete_logs)
@json_option
@pass_session
def ls(session: Session, prefix: str, as_json: bool) -> None:
    """List the logs of the store, or PREFIX and the logs below it.

    Reads one manifest per log and no records: the cost depends on the number of logs, not on their
    size.

    \b
    Examples:
      wal3 ls
      wal3 ls tenants/acme
      wal3 ls --json | jq -r 'select(.records > 1000000) | .log'
    """
    store = session.store()
    found: list[tuple[str, Manifest]] = []
    unreadable: list[str] = []
    with progress("ls", None) as advance:
        for log, manifest in load_manifests(store, prefix):
            if isinstance(manifest, LogError):
                unreadable.append(f"{log}: {manifest}")
            else:
                found.append((log, manifest))
            advance(len(found), None)
    # Not the order of the listing, in which a folder's name ends with a slash.
    found.sort(key=itemgetter(0))
    if not found and not unreadable:
        _none(store, prefix, as_json=as_json)
    elif as_json:
        for log, manifest in found:
            print_json(_row(log, manifest))
    else:
        rows = [_cells(log, manifest) for log, manifest in found]
        show_table(_COLUMNS, rows, numbers=_COLUMNS[1:6])
    if unreadable:
        raise Failure(f"{len(unreadable)} unreadable: {'; '.join(unreadable)}")


def _none(store: ObjectStore, prefix: str, *, as_json: bool) -> None:
    """Say that there are no logs; InvalidRequestError when they were asked for below a prefix, or in no store."""
    check_store(store)
    if prefix:
        message = f"store {store.url}: expected a log {prefix}, or logs below it, found none: `wal3 ls` lists all logs"
        raise InvalidRequestError(message)
    if not as_json:
        click.echo(NO_LOGS)


def _row(log: str, manifest: Manifest) -> dict[str, object]:
    return {
        "log": log,
        "records": manifest.num_records,
        "bytes": manifest.num_bytes,
        "fragments": _count_fragments(manifest),
        "first_offset": manifest.first.position.offset,
        "next_offset": manifest.next.position.offset,
        "sealed": manifest.seal is not None,
        "destroying": manifest.destroying,
    }


def _cells(log: str, manifest: Manifest) -> tuple[str, ...]:
    return (
        log,
        count(manifest.num_records),
        size(manifest.num_bytes),
        count(_count_fragments(manifest)),
        count(manifest.first.position.offset),
        count(manifest.next.position.offset),
        BEING_DESTROYED if manifest.destroying else "sealed" if manifest.seal else "",
    )


def _count_fragments(manifest: Manifest) -> int:
    """Count from pointers alone: under snapshots of snapshots, a compacted fragment counts as those it replaces."""
    return len(manifest.fragments) + sum(
        pointer.num_pointers if pointer.depth == 1 else pointer.last_seq_no - pointer.first_seq_no + 1
        for pointer in manifest.snapshots
    )
