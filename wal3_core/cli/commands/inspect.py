"""``wal3 inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.tree import Tree

from wal3_core.cli.commands.cursor import CURSOR_COLUMNS, cursor_cells, cursor_json, survey_cursors, unreadable
from wal3_core.cli.completing import log_argument
from wal3_core.cli.output import console, count, counted, plain, print_json, second, size, table, time
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.tables import show_table
from wal3_core.log.read.reader import LogReader
from wal3_core.model.fragment import FragmentPointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wal3_core.model.cursor import Cursor
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer

# A long run of pointers is shown by its first and last ones.
_ENDS_SHOWN = 3


@click.command()
@log_argument()
@click.option("--full", is_flag=True, help="Show every snapshot and fragment; reads every snapshot.")
@json_option
@pass_session
def inspect(session: Session, log: str, full: bool, as_json: bool) -> None:
    """Show what LOG consists of: its manifest, snapshots, fragments, writers' epochs and cursors.

    Reads the manifest, the cursors, and with --full the snapshots; never a record. The exit code is 1
    when a cursor cannot be read; the rest is still shown.

    \b
    Examples:
      wal3 inspect orders
      wal3 inspect orders --full
      wal3 inspect orders --json | jq .manifest_bytes
    """
    store = session.store()
    reader = LogReader.open(store, log)
    manifest = reader.manifest()
    cursors, damage = survey_cursors(store, log)
    if as_json:
        print_json(_document(reader, log, manifest, cursors, full=full))
    else:
        _show(reader, log, manifest, cursors, full=full)
    if damage:
        raise unreadable(damage)


def _show(reader: LogReader, log: str, manifest: Manifest, cursors: Mapping[str, Cursor], *, full: bool) -> None:
    output = console()
    facts = table(("", ""), _facts(log, manifest))
    facts.show_header = False
    output.print(facts)
    output.print(_tree(reader, log, manifest, full=full))
    epochs = [(str(epoch.epoch), epoch.token, count(epoch.first_seq_no)) for epoch in manifest.epochs]
    columns = ("epoch", "writer", "first fragment")
    show_table(columns, epochs, numbers=("epoch", "first fragment"), output=output)
    rows = [cursor_cells(name, cursor, manifest) for name, cursor in cursors.items()]
    show_table(CURSOR_COLUMNS, rows, numbers=("offset", "lag"), output=output)


def _facts(log: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "log", log
    yield "log id", manifest.log_id
    yield "records", count(manifest.num_records)
    yield "bytes", f"{size(manifest.num_bytes)} in fragments, {size(len(manifest.to_bytes()))} in the manifest"
    for name, place in (("first", manifest.first), ("next", manifest.next)):
        position = place.position
        # Before the first collection, the first position has no time.
        at = f", {time(position.timestamp_us)}" if position.timestamp_us else ""
        yield name, f"offset {count(position.offset)}, fragment {place.seq_no}{at}"
    yield "manifest", f"generation {manifest.generation}, fence {manifest.fence}, written by {manifest.writer}"
    yield "setsum", manifest.setsum.hexdigest()
    yield "pruned", manifest.pruned.hexdigest()
    if manifest.announced is not None:
        yield "collecting", f"up to offset {count(manifest.first_kept.position.offset)}: {manifest.announced.garbage}"
    if manifest.destroying:
        yield "destroying", "announced: can no longer be pinned or copied"
    if manifest.seal is not None:
        seal = manifest.seal
        successor = f", goes on in {seal.successor}" if seal.successor else ""
        yield "sealed", f"{time(seal.timestamp_us)} by {seal.sealed_by}: {seal.reason}{successor}"


def _tree(reader: LogReader, log: str, manifest: Manifest, *, full: bool) -> Tree:
    kinds = f"{counted(len(manifest.snapshots), 'snapshot')}, {counted(len(manifest.fragments), 'fragment')}"
    root = Tree(f"{log}: {kinds} in the manifest")
    _grow(reader, root, manifest.pointers, full=full)
    return root


def _grow(reader: LogReader, branch: Tree, pointers: Sequence[Pointer], *, full: bool) -> None:
    hidden = 0 if full else max(0, len(pointers) - 2 * _ENDS_SHOWN)
    for index, pointer in enumerate(pointers):
        if hidden and _ENDS_SHOWN <= index < len(pointers) - _ENDS_SHOWN:
            if index == _ENDS_SHOWN:
                branch.add(f"… {count(hidden)} more: --full shows them")
            continue
        leaf = branch.add(plain(_described(pointer)))
        if full and not isinstance(pointer, FragmentPointer):
            _grow(reader, leaf, reader.load_snapshot(pointer).pointers, full=full)


def _described(pointer: Pointer) -> str:
    if isinstance(pointer, FragmentPointer):
        compacted = f", stands for {pointer.first_seq_no} to {pointer.seq_no}" if pointer.compacted else ""
        what = f"fragment {pointer.seq_no}{compacted}"
    else:
        kind = "fragments" if pointer.depth == 1 else "snapshots"
        run = f"fragments {pointer.first_seq_no} to {pointer.last_seq_no}"
        what = f"snapshot of {count(pointer.num_pointers)} {kind}, {run}"
    offsets = f"offsets {pointer.start.offset} to {pointer.limit.offset - 1}"
    held = f"{counted(pointer.num_records, 'record')}, {size(pointer.num_bytes)}"
    return f"{what}: {offsets}, {held}, {second(pointer.start.timestamp_us)}"


def _document(
    reader: LogReader, log: str, manifest: Manifest, cursors: Mapping[str, Cursor], *, full: bool
) -> dict[str, object]:
    return {
        "log": log,
        "log_id": manifest.log_id,
        "records": manifest.num_records,
        "bytes": manifest.num_bytes,
        "manifest_bytes": len(manifest.to_bytes()),
        "generation": manifest.generation,
        "fence": manifest.fence,
        "writer": manifest.writer,
        "first": manifest.first.to_json(),
        "next": manifest.next.to_json(),
        "setsum": manifest.setsum.hexdigest(),
        "pruned": manifest.pruned.hexdigest(),
        "epochs": [epoch.to_json() for epoch in manifest.epochs],
        "pointers": [_pointer_json(reader, pointer, full=full) for pointer in manifest.pointers],
        "seal": None if manifest.seal is None else manifest.seal.to_json(),
        "destroying": manifest.destroying,
        "collecting": None if manifest.announced is None else manifest.announced.to_json(),
        "cursors": [cursor_json(name, cursor, manifest) for name, cursor in cursors.items()],
    }


def _pointer_json(reader: LogReader, pointer: Pointer, *, full: bool) -> dict[str, object]:
    fields: dict[str, object] = dict(pointer.to_json())
    if full and not isinstance(pointer, FragmentPointer):
        below = reader.load_snapshot(pointer).pointers
        fields["pointers"] = [_pointer_json(reader, each, full=full) for each in below]
    return fields
