"""The demo's key compaction: logs of the largest folders' history keep the newest version of every file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from wal3_core import Cleanup, LogReader, LogWriter, Policy, PolicyStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from wal3_core import Manifest, Message, Record
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.demo.runs import Workflows

_FOLDERS = 3
_FRAGMENTS = 10
_POLICY = Policy(cleanup=Cleanup.COMPACT)


def compact_folders(
    store: ObjectStore, workflows: Workflows, messages: Mapping[str, Sequence[Message]], console: Console
) -> None:
    """Append the largest folders' history to logs of their own, let Dagster compact them, and show what is left."""
    largest = sorted(messages, key=lambda log: (-len(messages[log]), log))[:_FOLDERS]
    written = {f"files/{log}": messages[log] for log in largest}
    for log, changes in written.items():
        _append(store, log, changes)
    workflows.discover()
    before = {log: LogReader.open(store, log).manifest() for log in written}
    workflows.compact_keys(list(written))
    table = Table(title="Key compaction: what is left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("log", overflow="fold")
    for column in ("records", "fragments", "kB", "files", "same tree"):
        table.add_column(column, justify="right", no_wrap=True)
    for log, changes in written.items():
        reader = LogReader.open(store, log)
        tree = _files(reader.records())
        same = "[green]yes[/]" if tree == _files(changes) else "[bold red]NO[/]"
        table.add_row(log, *_changes(before[log], reader.manifest()), f"{len(tree):,}", same)
    console.print(table)


def _files(changes: Iterable[Message | Record]) -> dict[bytes | None, bytes]:
    last = {change.key: change.body for change in changes}
    return {path: body for path, body in last.items() if body is not None}


def _append(store: ObjectStore, log: str, changes: Sequence[Message]) -> None:
    size = max(1, -(-len(changes) // _FRAGMENTS))
    with LogWriter.open_or_initialize(store, log) as writer:
        PolicyStore(store, log).change(lambda _: _POLICY)
        for start in range(0, len(changes), size):
            writer.append_many(changes[start : start + size])


def _changes(before: Manifest, after: Manifest) -> list[str]:
    numbers = (
        (before.num_records, after.num_records),
        (before.next.seq_no - before.first.seq_no, len(after.pointers)),
        # In bytes, the largest would not fit into 80 columns.
        (round(before.num_bytes / 1000), round(after.num_bytes / 1000)),
    )
    return [f"{first:,} to {last:,}" for first, last in numbers]
