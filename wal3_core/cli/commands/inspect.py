"""``wal3 inspect``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import click

from wal3_core.cli.commands.cursor import cursor_json, show_cursors, survey_cursors
from wal3_core.cli.shell.failures import plain, unreadable
from wal3_core.cli.shell.output import count, counted, print_json, second, show_facts, show_table, size, time
from wal3_core.cli.shell.process import has_all
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import log_argument
from wal3_core.errors import CorruptError
from wal3_core.format.cursor import Cursor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import key_rollup_path
from wal3_core.format.snapshot import Pointer, SnapshotPointer
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.reader import LogReader
from wal3_core.options import UNROLLED_POINTERS, RetryOptions
from wal3_core.runtime import shared_runtime

Json = dict[str, Any]

# A long run of pointers is shown by its first and last ones.
_ENDS_SHOWN = 3
# Before a pointer, and before those below it: where more of its own follow, and for the last one.
_BRANCH, _LAST = ("├── ", "│   "), ("└── ", "    ")
_ASCII = str.maketrans("├─│└", "+-|`")


@click.command()
@log_argument()
@click.option("--full", is_flag=True, help="Show every snapshot and fragment; reads every snapshot and key roll-up.")
@session_and_json
def inspect(session: Session, log: str, full: bool, as_json: bool) -> None:
    """Show what LOG consists of: its manifest, snapshots, fragments, writers' epochs and cursors.

    Reads the manifest, the cursors, and with --full the snapshots and their key roll-ups; never a record.
    The exit code is 1 when a cursor cannot be read; the rest is still shown.

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
    stores = None
    if manifest.compaction.passes:
        runtime, retry = shared_runtime(), RetryOptions()
        stores = LogStores(store, log, runtime=runtime, retry=retry, snapshots_loaded_max=0, log_id=manifest.log_id)
    found = _Inspection(reader, manifest, stores, full)
    if as_json:
        print_json(_document(found, log, cursors))
    else:
        _show(found, log, cursors)
    if damage:
        raise unreadable(damage)


@dataclass(frozen=True, slots=True)
class _Inspection:
    """What is shown; ``stores`` is None for a log without passes of key compaction, which has no key roll-ups."""

    reader: LogReader
    manifest: Manifest
    stores: LogStores | None
    full: bool

    def below(self, pointer: Pointer) -> Sequence[Pointer]:
        """Return what a snapshot holds, if all is to be shown."""
        return self.reader.load_snapshot(pointer).pointers if self.full and isinstance(pointer, SnapshotPointer) else ()

    def may_have_key_rollup(self, pointer: Pointer) -> bool:
        """Tell whether a pass could have left a key roll-up of it."""
        return self.stores is not None and isinstance(pointer, SnapshotPointer) and pointer.depth == 1

    def key_rollup(self, pointer: Pointer) -> Json | None:
        """Show a snapshot's key roll-up; a key counts in each fragment that holds it. Without --full only the bytes."""
        assert self.stores is not None
        assert isinstance(pointer, SnapshotPointer)
        stored = self.stores.objects.head(key_rollup_path(pointer.path))
        if stored is None:
            return None
        found: Json = {"bytes": stored.size, "keys": None, "damage": None}
        try:
            rollup = self.stores.key_rollups.read(pointer) if self.full else None
        except CorruptError as error:
            return found | {"damage": str(error)}
        if rollup is None:
            return None if self.full else found
        return found | {"keys": rollup.num_hashes}

    def tree(self, pointers: Sequence[Pointer]) -> Iterator[str]:
        """Yield a line for each pointer, and for those below it."""
        hidden = range(_ENDS_SHOWN, len(pointers) - _ENDS_SHOWN) if not self.full else range(0)
        for index, pointer in enumerate(pointers):
            own, below = _LAST if index == len(pointers) - 1 else _BRANCH
            if index not in hidden:
                keys = _with_keys(self.key_rollup(pointer)) if self.may_have_key_rollup(pointer) else ""
                yield own + plain(_described(pointer) + keys)
                yield from (below + line for line in self.tree(self.below(pointer)))
            elif index == _ENDS_SHOWN:
                yield f"{own}… {count(len(hidden))} more: --full shows them"

    def pointer_json(self, pointer: Pointer) -> Json:
        """Show a pointer, and those below it, for programs."""
        more: Json = {"key_rollup": self.key_rollup(pointer)} if self.may_have_key_rollup(pointer) else {}
        if self.full and isinstance(pointer, SnapshotPointer):
            more["pointers"] = list(map(self.pointer_json, self.below(pointer)))
        return {**pointer.to_json(), **more}


def _with_keys(rollup: Json | None) -> str:
    if rollup is None:
        return ", no key roll-up"
    held = f"key roll-up of {size(rollup['bytes'])}"
    if rollup["damage"] is not None:
        return f", damaged {held}"
    return f", {held}" if rollup["keys"] is None else f", {held} with {counted(rollup['keys'], 'key')}"


def _show(found: _Inspection, log: str, cursors: Mapping[str, Cursor]) -> None:
    manifest = found.manifest
    show_facts(_facts(log, manifest))
    kinds = f"{counted(len(manifest.snapshots), 'snapshot')}, {counted(len(manifest.fragments), 'fragment')}"
    for line in chain([f"{log}: {kinds} in the manifest"], found.tree(manifest.pointers)):
        click.echo(line if has_all(sys.stdout.encoding) else line.translate(_ASCII), file=sys.stdout)
    epochs = [(str(epoch.epoch), epoch.token, count(epoch.first_seq_no)) for epoch in manifest.epochs]
    show_table(("epoch", "writer", "first fragment"), epochs, numbers=("epoch", "first fragment"))
    show_cursors(cursors, manifest)


def _facts(log: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "log", log
    yield "log id", manifest.log_id
    yield "records", count(manifest.num_records)
    yield "bytes", f"{size(manifest.num_bytes)} in fragments, {size(len(manifest.to_bytes()))} in the manifest"
    if len(manifest.pointers) > UNROLLED_POINTERS:
        found = f"{count(len(manifest.pointers))} pointers"
        yield "not rolled", f"{found}: rolls into snapshots fail, and the writers' log lines say why"
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
    if manifest.keyed:
        yield "keyed", "takes only records with keys, since its policy compacts it"
    if manifest.view is not None:
        yield "view", f"takes appends of the view {manifest.view} alone"
    yield from _compaction_facts(manifest)
    if manifest.destroying:
        yield "destroying", "announced: cannot be pinned or copied until that is taken back (wal3 destroy LOG --undo)"
    if manifest.seal is not None:
        seal = manifest.seal
        successor = f", goes on in {seal.successor}" if seal.successor else ""
        yield "sealed", f"{time(seal.timestamp_us)} by {seal.sealed_by}: {seal.reason}{successor}"


def _compaction_facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    compaction, announced = manifest.compaction, manifest.compacting
    if compaction.passes:
        below = "nothing is clean yet"
        if compaction.clean:
            clean = compaction.clean[-1]
            below = f"one record of each key below offset {count(clean.limit)} since {second(clean.timestamp_us)}"
        yield "compacted", f"last by pass {compaction.token}, number {count(compaction.passes)}; {below}"
    if compaction.arranged:
        yield "arranged", f"by key below offset {count(compaction.arranged)}"
    if announced is not None:
        # One that drops nothing goes beyond cursors, and announces no limit.
        where = f" below offset {count(announced.limit)}" if announced.limit else ", and drops no record"
        yield "compacting", f"pass {announced.token} is about to replace fragments{where}"


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


def _document(found: _Inspection, log: str, cursors: Mapping[str, Cursor]) -> dict[str, object]:
    manifest = found.manifest
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
        "pointers": list(map(found.pointer_json, manifest.pointers)),
        "seal": None if manifest.seal is None else manifest.seal.to_json(),
        "destroying": manifest.destroying,
        "keyed": manifest.keyed,
        "view": manifest.view,
        "collecting": None if manifest.announced is None else manifest.announced.to_json(),
        "compaction": manifest.compaction.to_json() if manifest.compaction.passes else None,
        "compacting": None if manifest.compacting is None else manifest.compacting.to_json(),
        "cursors": [cursor_json(name, cursor, manifest) for name, cursor in cursors.items()],
    }
