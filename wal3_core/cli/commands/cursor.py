"""``wal3 cursor`` and ``wal3 pin``: what keeps records, at and after a named position, or as the log holds them now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from wal3_core.cli.shell.failures import plain, unreadable
from wal3_core.cli.shell.output import confirm, count, counted, print_json, second, show, show_each, show_table
from wal3_core.cli.shell.session import Commands, Session, session_and_json
from wal3_core.cli.types import CURSOR, PIN, LogOffset, log_argument
from wal3_core.errors import CorruptError, GarbageCollectedError, InvalidRequestError
from wal3_core.format.cursor import Cursor, Owner
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import cursor_name
from wal3_core.format.pin import Pin
from wal3_core.format.position import LogPosition
from wal3_core.log.maintain.copy.target import delete_cursor as delete_everywhere
from wal3_core.log.read.reader import LogReader
from wal3_core.options import Limits
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.feed.subscribed import Subscribed

CURSOR_COLUMNS = ("cursor", "offset", "time", "lag", "moved", "by")
_QUEUE_LOSES = (
    "the queue's whole log is then read when it is loaded, and until its broker makes the cursor again, a key"
    " compaction may drop an item, or the queue's definition, whose place a stray record has taken"
)


@click.group(cls=Commands)
def cursor() -> None:
    """Show and move a log's cursors.

    A cursor is a named offset. Garbage collection keeps every record at and after the lowest cursor,
    so a cursor records how far a reader has come and keeps the records it has yet to read.

    \b
    Examples:
      wal3 cursor list orders
      wal3 cursor set orders billing first
      wal3 cursor get orders billing
      wal3 cursor delete orders billing
    """


@cursor.command("list")
@log_argument()
@session_and_json
def list_cursors(session: Session, log: str, as_json: bool) -> None:
    """List the cursors of LOG; lag is how many offsets are at and after each.

    The exit code is 1 when a cursor cannot be read; the others are still listed.

    \b
    Examples:
      wal3 cursor list orders
      wal3 cursor list orders --json | jq -r 'select(.lag > 100000) | .cursor'
    """
    store = session.store()
    manifest = LogReader.open(store, log).manifest()
    cursors, damage = survey_cursors(store, log)
    show_cursors(cursors, manifest, as_json=as_json)
    if damage:
        raise unreadable(damage)


@cursor.command("get")
@log_argument()
@click.argument("name", type=CURSOR)
@session_and_json
def get_cursor(session: Session, log: str, name: str, as_json: bool) -> None:
    """Show the cursor NAME of LOG.

    \b
    Examples:
      wal3 cursor get orders billing
      wal3 cursor get orders billing --json | jq .offset
    """
    store = session.store()
    manifest = LogReader.open(store, log).manifest()
    witness = CursorStore(store, log).load(name)
    if witness is None:
        raise _none(log, "cursor", name)
    show_cursors({name: witness.cursor}, manifest, as_json=as_json)


@cursor.command("set")
@log_argument()
@click.argument("name", type=CURSOR)
@click.argument("offset", type=LogOffset())
@session_and_json
def set_cursor(session: Session, log: str, name: str, offset: str, as_json: bool) -> None:
    """Create the cursor NAME of LOG at OFFSET, or move it there.

    OFFSET is a number, `first` for the oldest record of the log, or `next` for the record that is
    appended next. If another process moves the cursor meanwhile, its move stands and the command fails.

    \b
    Examples:
      wal3 cursor set orders billing first
      wal3 cursor set orders billing 1000
      wal3 cursor set orders billing next
    """
    store = session.store()
    cursors = CursorStore(store, log)
    # Loaded before the position is looked up, so that a move in between is noticed.
    reader = LogReader.open(store, log)
    witness = cursors.load(name)
    try:
        position = _position(reader, offset)
    except (InvalidRequestError, GarbageCollectedError) as error:
        raise type(error)(f"log {log}, cursor {name}: {str(error).removeprefix('read: ')}") from error
    if witness is None:
        cursors.create(name, position, owner=None)
    else:
        cursors.save(name, position, witness)
    before = None if witness is None else witness.cursor.position.offset
    said = f"created {name} at" if before is None else f"moved {name} from {before} to"
    document = {"log": log, "cursor": name, "offset": position.offset, "previous_offset": before}
    show(f"{said} {position.offset}", document, as_json=as_json)


def _position(reader: LogReader, offset: str) -> LogPosition:
    manifest = reader.manifest()
    if offset == "first":
        return manifest.first.position
    if offset == "next" or offset == str(manifest.next.position.offset):
        return manifest.next.position
    for record in reader.records(int(offset), Limits(records=1)):
        return LogPosition(int(offset), record.timestamp_us)
    return LogPosition(int(offset), manifest.next.position.timestamp_us)


@cursor.command("delete")
@log_argument()
@click.argument("name", type=CURSOR)
@click.option("--yes", is_flag=True, help="Do not ask.")
@session_and_json
def delete_cursor(session: Session, log: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete the cursor NAME of LOG; the records that only it kept can then be collected.

    If LOG goes on in successors, the cursor that a migration has put there goes, too, unless its owner has moved it.
    Leave the cursor of a delay queue where it is: without it, items can be lost. Asks first; without a terminal, --yes
    is required.

    \b
    Examples:
      wal3 cursor delete orders billing
      wal3 cursor delete orders billing --yes
    """
    store = session.store()
    LogReader.open(store, log)
    offset, is_queue = None, False
    try:
        witness = CursorStore(store, log).load(name)
    except CorruptError:
        where = "at an offset that cannot be read"
    else:
        if witness is None:
            raise _none(log, "cursor", name)
        offset = witness.cursor.position.offset
        where = f"at {offset}"
        is_queue = witness.cursor.owner is Owner.QUEUE
    if not yes:
        then = f"although {_QUEUE_LOSES}" if is_queue else "and let the next collection prune what only it keeps"
        confirm(f"log {log}, cursor {name}", f"Delete {name} {where} of {log}, {then}?")
    also = delete_everywhere(store, log, name)
    said = f"deleted {name} {where}{''.join(f', and in {each}' for each in also)}"
    said += f": {_QUEUE_LOSES}" if is_queue else ""
    document = {"log": log, "cursor": name, "offset": offset, "deleted": True, "successors": also}
    show(said, document, as_json=as_json)


def _none(log: str, kind: str, name: str) -> InvalidRequestError:
    return InvalidRequestError(f"log {log}: expected a {kind} {name}, found none: `wal3 {kind} list {log}` lists them")


def survey_cursors(store: ObjectStore, log: str) -> tuple[dict[str, Cursor], dict[str, str]]:
    """Load the readable cursors, by name; return what is wrong with the others, by path."""
    cursors: dict[str, Cursor] = {}
    damage: dict[str, str] = {}
    for path, found in CursorStore(store, log).survey():
        if isinstance(found, CorruptError):
            damage[path] = str(found)
        else:
            cursors[cursor_name(path)] = found.cursor
    return cursors, damage


def show_cursors(cursors: Mapping[str, Cursor], manifest: Manifest, *, as_json: bool = False) -> None:
    """Show cursors as a table, and below it what those of subscriptions and of consumers by key have beside."""
    if as_json:
        for name, found in cursors.items():
            print_json(cursor_json(name, found, manifest))
        return
    rows = [
        (
            name,
            count(found.position.offset),
            second(found.position.timestamp_us),
            count(lag(found, manifest)),
            second(found.epoch_us),
            found.writer,
        )
        for name, found in cursors.items()
    ]
    show_table(CURSOR_COLUMNS, rows, numbers=("offset", "lag"))
    for name, found in cursors.items():
        beside = _beside(found)
        if found.owner is Owner.SUBSCRIPTION:
            topics, done = ", ".join(map(plain, beside["topics"])), counted(beside["done_ahead"], "offset")
            keeps = "" if found.pins else "; it keeps no records"
            click.echo(f"{name}: a subscription to {topics}, with {done} done ahead{keeps}")
        elif found.owner not in {None, Owner.CONSUMER}:
            ahead = f", with {counted(beside['keys_ahead'], 'key')} ahead" if beside else ""
            click.echo(f"{name}: {found.owner.described}{ahead}")


def cursor_json(name: str, found: Cursor, manifest: Manifest) -> dict[str, object]:
    """Show a cursor for programs."""
    return {
        "cursor": name,
        "owner": found.owner,
        "offset": found.position.offset,
        "timestamp_us": found.position.timestamp_us,
        "lag": lag(found, manifest),
        "epoch_us": found.epoch_us,
        "writer": found.writer,
        "generation": found.generation,
        "pins": found.pins,
        **_beside(found),
    }


def _beside(found: Cursor) -> dict[str, Any]:
    """Read what the owner keeps beside the position."""
    if found.owner is Owner.SUBSCRIPTION:
        subscribed = Subscribed.of(found, "cursor")
        done_ahead = sum(limit - start for start, limit in subscribed.progress.done.ranges)
        dead = list(subscribed.progress.dead.offsets())
        return {"topics": list(map(str, subscribed.topics)), "done_ahead": done_ahead, "dead_letters": dead}
    keys = found.extension.ahead.get("keys")
    return {"keys_ahead": len(keys)} if isinstance(keys, dict) else {}


def lag(found: Cursor, manifest: Manifest) -> int:
    """Count the offsets from a cursor to the end of the log."""
    # The cursor is read after the manifest, so it may be past the manifest's end.
    return max(0, manifest.next.position.offset - found.position.offset)


# ---------------------------------------------------------------------- pins

_PIN_COLUMNS: dict[str, Callable[[tuple[str, Pin]], str]] = {
    "pin": lambda each: each[0],
    "first": lambda each: count(each[1].manifest.first.position.offset),
    "next": lambda each: count(each[1].manifest.next.position.offset),
    "records": lambda each: count(each[1].manifest.num_records),
    "made": lambda each: second(each[1].epoch_us),
    "by": lambda each: each[1].writer,
    "reason": lambda each: (
        f"{each[1].reason}{'' if each[1].complete else ' (unfinished: create it again, or delete it)'}"
    ),
}


@click.group(cls=Commands)
def pin() -> None:
    """Create, show and delete a log's pins.

    A pin keeps everything the log holds when the pin is created, whatever is collected later, so that
    it can be read, copied and compared: wal3 cat LOG --pin NAME. It costs storage until it is deleted.

    \b
    Examples:
      wal3 pin create orders audit-2026 --reason "the audit of 2026"
      wal3 cat orders --pin audit-2026
      wal3 pin list orders
      wal3 pin delete orders audit-2026
    """


@pin.command("create")
@log_argument()
@click.argument("name", type=PIN)
@click.option("--reason", metavar="TEXT", required=True, help="What the pin is for.")
@session_and_json
def create_pin(session: Session, log: str, name: str, reason: str, as_json: bool) -> None:
    """Pin what LOG holds now under NAME.

    \b
    Examples:
      wal3 pin create orders audit-2026 --reason "the audit of 2026"
    """
    made = PinStore(session.store(), log).create(name, reason=reason)
    manifest = made.manifest
    said = (
        f"pinned {counted(manifest.num_records, 'record')} of {log} as {name}"
        f" (from offset {manifest.first.position.offset}, next {manifest.next.position.offset})"
    )
    show(said, _pin_json((name, made)), as_json=as_json)


@pin.command("list")
@log_argument()
@session_and_json
def list_pins(session: Session, log: str, as_json: bool) -> None:
    """List the pins of LOG, and what each keeps.

    \b
    Examples:
      wal3 pin list orders
      wal3 pin list orders --json | jq -r .pin
    """
    store = session.store()
    LogReader.open(store, log)
    numbers = ("first", "next", "records")
    pins = PinStore(store, log).list()
    show_each(pins.items(), _pin_json, _PIN_COLUMNS, as_json=as_json, numbers=numbers, texts=("reason",))


@pin.command("delete")
@log_argument()
@click.argument("name", type=PIN)
@click.option("--yes", is_flag=True, help="Do not ask.")
@session_and_json
def delete_pin(session: Session, log: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete the pin NAME of LOG; what only it keeps can then be collected.

    Asks first; without a terminal, --yes is required.

    \b
    Examples:
      wal3 pin delete orders audit-2026
      wal3 pin delete orders audit-2026 --yes
    """
    store = session.store()
    LogReader.open(store, log)
    pins = PinStore(store, log)
    try:
        missing = pins.load(name) is None
    except CorruptError:
        # A pin that cannot be read can still be deleted.
        missing = False
    if missing:
        raise _none(log, "pin", name)
    if not yes:
        confirm(f"log {log}, pin {name}", f"Delete {name} of {log}, and let collections delete what only it keeps?")
    pins.delete(name)
    show(f"deleted {name}", {"log": log, "pin": name, "deleted": True}, as_json=as_json)


def _pin_json(named: tuple[str, Pin]) -> dict[str, object]:
    name, found = named
    manifest = found.manifest
    return {
        "pin": name,
        "first_offset": manifest.first.position.offset,
        "next_offset": manifest.next.position.offset,
        "records": manifest.num_records,
        "bytes": manifest.num_bytes,
        "epoch_us": found.epoch_us,
        "writer": found.writer,
        "reason": found.reason,
        "complete": found.complete,
    }
