"""``wal3 pin``: the log's present content, kept under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wal3_core.cli.shell.output import confirm, count, counted, second, show, show_each
from wal3_core.cli.shell.session import Commands, Session, session_and_json
from wal3_core.cli.types import PIN, log_argument
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.log.read.reader import LogReader
from wal3_core.store.documents.pin_store import PinStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.format.pin import Pin

_COLUMNS: dict[str, Callable[[tuple[str, Pin]], str]] = {
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
    show(said, _to_json((name, made)), as_json=as_json)


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
    show_each(pins.items(), _to_json, _COLUMNS, as_json=as_json, numbers=numbers, texts=("reason",))


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
        raise InvalidRequestError(f"log {log}: expected a pin {name}, found none: `wal3 pin list {log}` lists them")
    if not yes:
        confirm(f"log {log}, pin {name}", f"Delete {name} of {log}, and let collections delete what only it keeps?")
    pins.delete(name)
    show(f"deleted {name}", {"log": log, "pin": name, "deleted": True}, as_json=as_json)


def _to_json(named: tuple[str, Pin]) -> dict[str, object]:
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
