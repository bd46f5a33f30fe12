"""``wal3 ls``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import click

from wal3_core.cli.shell.failures import unreadable
from wal3_core.cli.shell.output import count, progress, show_each, size
from wal3_core.cli.shell.session import NO_LOGS, Session, check_store, session_and_json, similar_logs
from wal3_core.cli.types import LOG_PREFIX, Whole
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.fleet.discovery import load_manifests
from wal3_core.format.manifest import BEING_DESTROYED, Manifest
from wal3_core.format.paths import STORE_IDENTITY
from wal3_core.store.object_store import ObjectStore

Row = dict[str, Any]
Columns = dict[str, Callable[[Row], str]]

_COLUMNS: Columns = {
    "log": lambda row: str(row["log"]),
    "records": lambda row: count(row["records"]),
    "bytes": lambda row: size(row["bytes"]),
    "fragments": lambda row: count(row["fragments"]),
    "first": lambda row: count(row["first_offset"]),
    "next": lambda row: count(row["next_offset"]),
    "sealed": lambda row: BEING_DESTROYED if row["destroying"] else "sealed" if row["sealed"] else "",
}
_LAG_COLUMNS: Columns = {
    "lag": lambda row: "?" if row["lag"] is None else count(row["lag"]),
    "farthest behind": lambda row: "unreadable" if row["lag"] is None else row["consumer"] or "no cursor",
}
_NUMBERS = ("records", "bytes", "fragments", "first", "next", "lag")
# Folders that are examined: each takes a request.
_FOLDERS_MAX = 16


@click.command()
@click.argument("prefix", default="", type=LOG_PREFIX)
@click.option("--lag", is_flag=True, help="Also show how far the consumer that is farthest behind lags, and which.")
@click.option(
    "--sort",
    type=click.Choice(["log", "records", "bytes", "lag"]),
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
    found: dict[str, Manifest | LogError] = {}
    with progress("ls", None) as advance:
        for log, manifest in load_manifests(store, prefix):
            found[log] = manifest
            advance(len(found), None)
    if not found:
        _none(store, prefix, as_json=as_json)
        return
    damage: dict[str, object] = {log: each for log, each in found.items() if isinstance(each, LogError)}
    # Not the order of the listing, in which a folder's name ends with a slash.
    rows = [_row(log, each) for log, each in sorted(found.items()) if not isinstance(each, LogError)]
    if sort == "lag":
        damage |= _add_lags(store, rows)
    if sort != "log":
        rows.sort(key=lambda row: -(row[sort] or 0))
    shown = rows[:limit]
    if lag and sort != "lag":
        damage |= _add_lags(store, shown)
    _show(shown, len(rows) - len(shown), as_json=as_json)
    _note_stores(store, (row["log"] for row in rows))
    if damage:
        raise unreadable(damage)


def _add_lags(store: ObjectStore, rows: list[Row]) -> dict[str, object]:
    """Add to each row how far its log's consumers lag; return what cannot be read, by log."""
    from wal3_core.fleet.dirty.back_pressure import measure_logs  # noqa: PLC0415 - it imports numpy, the list does not

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
    for folder in folders[:_FOLDERS_MAX]:
        # To list the logs did not need it.
        with suppress(LogError):
            if store.head(f"{folder}/{STORE_IDENTITY}") is not None:
                click.echo(f"{folder}/ is a store of its own: is its URL {store.url}/{folder}?", err=True)


def _show(rows: list[Row], left_out: int, *, as_json: bool) -> None:
    if rows:
        columns = _COLUMNS | (_LAG_COLUMNS if "lag" in rows[0] else {})
        show_each(rows, lambda row: row, columns, as_json=as_json, numbers=_NUMBERS)
    if left_out and not as_json:
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


def _row(log: str, manifest: Manifest) -> Row:
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
