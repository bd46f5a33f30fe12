"""``wal3 ls``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from wal3_core.cli.shell.failures import unreadable
from wal3_core.cli.shell.output import count, print_json, progress, show_table, size
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.shell.stores import NO_LOGS, check_store, similar_logs
from wal3_core.cli.types import LOG_PREFIX, Whole
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.fleet.dirty.back_pressure import measure_logs
from wal3_core.fleet.discovery import load_manifests
from wal3_core.model.manifest import BEING_DESTROYED
from wal3_core.model.paths import STORE_IDENTITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore

_COLUMNS = ("log", "records", "bytes", "fragments", "first", "next", "sealed")
_LAG_COLUMNS = ("lag", "farthest behind")
# Each takes a request.
_FOLDERS_LOOKED_AT_MAX = 16
_SORTS = ("log", "records", "bytes", "lag")


@click.command()
@click.argument("prefix", default="", type=LOG_PREFIX)
@click.option("--lag", is_flag=True, help="Also show how far the consumer that is farthest behind lags, and which.")
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default="log",
    show_default=True,
    help="What the order is by: names, or the largest first. With lag, as with --lag.",
)
@click.option("--limit", metavar="N", type=Whole(min=1), help="Show the first N logs; all by default.")
@session_and_json
def ls(session: Session, prefix: str, lag: bool, sort: str, limit: int | None, as_json: bool) -> None:
    """List the logs of the store, or PREFIX and the logs below it.

    Reads one manifest per log and no records: the cost depends on the number of logs, not on their
    size. --lag also reads each log's policy and cursors. A log without a consumer's cursor lags by all it holds.

    \b
    Examples:
      wal3 ls
      wal3 ls tenants/acme
      wal3 ls --sort lag --limit 10
      wal3 ls --json | jq -r 'select(.records > 1000000) | .log'
    """
    store = session.store()
    manifests: dict[str, Manifest] = {}
    damage: dict[str, object] = {}
    with progress("ls", None) as advance:
        for log, manifest in load_manifests(store, prefix):
            if isinstance(manifest, LogError):
                damage[log] = manifest
            else:
                manifests[log] = manifest
            advance(len(manifests), None)
    if not manifests and not damage:
        _none(store, prefix, as_json=as_json)
        return
    # Not the order of the listing, in which a folder's name ends with a slash.
    rows = [_row(log, manifest) for log, manifest in sorted(manifests.items())]
    if sort == "lag":
        damage |= _add_lags(store, rows)
    if sort != "log":
        rows.sort(key=lambda row: -(row[sort] or 0))
    shown = rows[:limit]
    if lag and sort != "lag":
        damage |= _add_lags(store, shown)
    _show(shown, len(rows) - len(shown), as_json=as_json)
    _note_stores(store, manifests)
    if damage:
        raise unreadable(damage)


def _add_lags(store: ObjectStore, rows: list[dict[str, Any]]) -> dict[str, object]:
    """Add to each row how far its log's consumers lag; return what cannot be read, by log."""
    damage: dict[str, object] = {}
    found = measure_logs(store, [row["log"] for row in rows], None)
    for row in rows:
        pressure = found[row["log"]]
        if isinstance(pressure, LogError):
            damage[row["log"]] = pressure
            row |= {"lag": None, "consumer": None}
        else:
            row |= {"lag": pressure.unprocessed, "consumer": pressure.consumer}
    return damage


def _note_stores(store: ObjectStore, logs: Iterable[str]) -> None:
    """Say on stderr which folders are stores of their own: the URL may be one folder too high."""
    folders = sorted({str(above) for log in logs for above in PurePosixPath(log).parents} - {"."})
    for folder in folders[:_FOLDERS_LOOKED_AT_MAX]:
        # To list the logs did not need it.
        with suppress(LogError):
            if store.head(f"{folder}/{STORE_IDENTITY}") is not None:
                click.echo(f"{folder}/ is a store of its own: is its URL {store.url}/{folder}?", err=True)


def _show(rows: list[dict[str, Any]], left_out: int, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        columns = _COLUMNS + (_LAG_COLUMNS if "lag" in rows[0] else ())
        show_table(columns, map(_cells, rows), numbers=(*_COLUMNS[1:6], "lag"))
        if left_out:
            click.echo(f"and {count(left_out)} more")


def _none(store: ObjectStore, prefix: str, *, as_json: bool) -> None:
    """Say that there are no logs; InvalidRequestError when they were asked for below a prefix, or in no store."""
    check_store(store)
    if prefix:
        message = f"store {store.url}: expected a log {prefix}, or logs below it, found none: `wal3 ls` lists all logs"
        message += similar_logs(store, prefix)
        raise InvalidRequestError(message)
    if not as_json:
        click.echo(NO_LOGS)


def _row(log: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "log": log,
        "records": manifest.num_records,
        "bytes": manifest.num_bytes,
        # From pointers alone: under snapshots of snapshots, a compacted fragment counts as those it replaces.
        "fragments": len(manifest.fragments)
        + sum(
            pointer.num_pointers if pointer.depth == 1 else pointer.last_seq_no - pointer.first_seq_no + 1
            for pointer in manifest.snapshots
        ),
        "first_offset": manifest.first.position.offset,
        "next_offset": manifest.next.position.offset,
        "sealed": manifest.seal is not None,
        "destroying": manifest.destroying,
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    lag: tuple[str, ...] = ()
    if "lag" in row:
        lag = ("?", "unreadable") if row["lag"] is None else (count(row["lag"]), row["consumer"] or "no cursor")
    return (
        row["log"],
        count(row["records"]),
        size(row["bytes"]),
        count(row["fragments"]),
        count(row["first_offset"]),
        count(row["next_offset"]),
        BEING_DESTROYED if row["destroying"] else "sealed" if row["sealed"] else "",
        *lag,
    )
