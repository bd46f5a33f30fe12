"""The demo: real input in a local store, discovered, collected, packed and verified by a real Dagster instance.

The store and Dagster's home are in .demo/ at the top of the checkout. ``--dev`` then opens Dagster's
UI on both.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from wal3_core import (
    Cleanup,
    CursorStore,
    Fleet,
    FleetOptions,
    LogPosition,
    LogReader,
    LogWriter,
    Policy,
    PolicyStore,
    WriterOptions,
    open_store,
)
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_orchestration.demo.input import read_input
from wal3_orchestration.demo.runs import Collected, Packed, Workflows
from wal3_orchestration.deployment import settings
from wal3_orchestration.framework.store import LogState
from wal3_orchestration.resources import INTERVAL_VARIABLE, STORE_VARIABLE, java_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core import Manifest, Message, Record
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.demo.runs import Finding
    from wal3_orchestration.framework.store import UnreadableLog

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
    with LogWriter.open_or_create(store, log) as writer:
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


ROOT = Path(__file__).parent.parent.parent
PARTS = 5
FRAGMENTS_PER_PART = 10
PORT = 3000
# No read of the demo's logs takes long.
INTERVAL_S = 1
COLUMNS = ("records", "bytes")
FLEET = tuple(f"devices/{number:02}" for number in range(80))
BUSY = FLEET[7::30]
SERVER = "demo"
RECORDS_OF_BUSY = 1_000
# Leaves many small snapshots for compaction to pack, as short-lived writers do.
_WRITER = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2))


@dataclass(frozen=True, slots=True)
class Places:
    """Where the demo keeps its files."""

    folder: Path

    @property
    def store(self) -> Path:
        """The store's folder."""
        return self.folder / "store"

    @property
    def home(self) -> Path:
        """Dagster's home."""
        return self.folder / "dagster"

    @property
    def lock(self) -> Path:
        """Held by the process that uses the demo."""
        return self.folder / "lock"

    def environment(self) -> dict[str, str]:
        """Return the variables that point Dagster here."""
        return {
            STORE_VARIABLE: self.store.absolute().as_uri(),
            INTERVAL_VARIABLE: str(INTERVAL_S),
            "DAGSTER_HOME": str(self.home.absolute()),
        }


@click.command()
@click.option("--dev", is_flag=True, help="Open Dagster's UI on the demo's store instead.")
@click.option("--sample", is_flag=True, help="Append the bundled sample instead of this checkout's git history.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=ROOT / ".demo",
    help="Where to keep the store and Dagster's home.",
)
@click.option("--port", default=PORT, show_default=True, help="The UI's port on 127.0.0.1.")
def main(*, dev: bool, sample: bool, folder: Path, port: int) -> None:
    """Show the whole system on this machine: append, discover, inspect, collect, pack snapshots, verify, compact."""
    java = java_problem()
    if java is not None:
        raise click.ClickException(java)
    if not (ROOT / "workspace.yaml").exists():
        message = (
            f"{ROOT}: expected the project's checkout with its workspace.yaml, found none: run the demo from there"
        )
        raise click.ClickException(message)
    places = Places(folder)
    hold(places)
    os.environ.update(places.environment())
    # Without it Spark looks up the machine's name, and warns when that fails.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if dev:
        serve(places, port)
    run(places, None if sample else ROOT, Console(highlight=False, soft_wrap=True))


def hold(places: Places) -> None:
    """Lock the demo's folder for as long as this process, or the one it becomes, lives."""
    places.folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(places.lock, os.O_RDWR | os.O_CREAT)
    os.set_inheritable(handle, True)  # noqa: FBT003 - takes no keywords
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"{places.folder}: in use by another demo, or by Dagster's UI on it: stop that first"
        raise click.ClickException(message) from error


def serve(places: Places, port: int) -> None:
    """Become ``dagster dev`` on the demo's store."""
    install_settings(places)
    os.chdir(ROOT)
    click.echo(f"The demo's runs: http://127.0.0.1:{port}", err=True)
    # Its successor is a package of its own, which starts the same processes.
    quiet = ("-W", "ignore:Function `dev_command` is superseded")
    arguments = (*quiet, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port))
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - no shell wanted


def install_settings(places: Places) -> None:
    """Make Dagster's home with the project's settings."""
    places.home.mkdir(parents=True, exist_ok=True)
    (places.home / "dagster.yaml").write_text(settings())


def run(places: Places, repo: Path | None, console: Console) -> None:
    """Run the demo, from an empty store to the table of results."""
    if places.store.exists() or places.home.exists():
        console.print(f"Starting over: removing the store and Dagster's home of an earlier run in {places.folder}")
        shutil.rmtree(places.store, ignore_errors=True)
        shutil.rmtree(places.home, ignore_errors=True)
    install_settings(places)
    found = read_input(repo)
    total = sum(map(len, found.messages.values()))
    console.print(f"Input: {found.origin}: {total:,} file changes, a log for each of {len(found.messages)} folders")
    store = open_store(places.environment()[STORE_VARIABLE])
    with Workflows.open() as workflows:
        for number, part in enumerate(parts(found.messages), start=1):
            for log, messages in part.items():
                append(store, log, messages)
            runs = workflows.discover()
            console.print(
                f"Part {number} of {PARTS}: appended, and moved each log's cursors;"
                f" Dagster discovered the changes and looked at the logs in {runs} run{'s' if runs > 1 else ''}"
            )
        console.print(
            "Garbage collection: records below every cursor are planned, verified, pruned, and after an interval of"
            f" {INTERVAL_S} s deleted (Spark starts, which takes a few seconds and prints a few warnings)"
        )
        collected = workflows.collect()
        console.print("Snapshot compaction: lopsided trees are repacked, in one run each")
        packed = workflows.compact()
        console.print("Orphans: objects that packing left unreferenced are marked, and deleted later")
        orphans = workflows.sweep()
        workflows.discover()
        console.print("Verification: every log is read back, in one run on Spark")
        show(console, workflows.verify(), collected, packed)
        console.print(f"Orphans deleted: {orphans:,} objects")
        console.print("Key compaction: the largest folders' logs keep the newest version of every file")
        compact_folders(store, workflows, found.messages, console)
        run_fleet(store, workflows, console)
        problem = workflows.place(ROOT)
        if problem is not None:
            console.print(f"Not on the first page of Dagster's UI, only under Runs: {problem}")
    if workflows.failures:
        raise click.ClickException("\n".join(workflows.failures))
    console.print(f"\nSee runs, assets and plots in Dagster's UI: [bold]make dev[/], then open http://127.0.0.1:{PORT}")


def run_fleet(store: ObjectStore, workflows: Workflows, console: Console) -> None:
    """Write many logs from one process; the sensor on the dirty logs finds those that have grown."""
    with Fleet.open(store, server=SERVER, options=FleetOptions(creates=True)) as fleet:
        for first in [fleet.submit(log, b"switched on") for log in FLEET]:
            first.result()
        found = workflows.roll_up()
        console.print(
            f"A fleet: {len(FLEET)} logs written by one process, each append marked in the dirty log of its server;"
            f" Dagster read the marks and found {len(found) or 'none'} to be due"
        )
        for log in BUSY:
            for part in range(4):
                fleet.append_many(log, [b"%d" % (part + number) for number in range(RECORDS_OF_BUSY // 4)])
            move(store, log, "demo", RECORDS_OF_BUSY // 2)
        found = workflows.roll_up()
        console.print(
            f"{len(BUSY)} of them grew by {RECORDS_OF_BUSY:,} records, and were half read: Dagster found"
            f" {', '.join(found) or 'none'}, and collected no other"
        )


def parts(messages: Mapping[str, Sequence[Message]]) -> Iterator[dict[str, Sequence[Message]]]:
    """Split every log's messages into parts; a log may have none in one of them."""
    for part in range(PARTS):
        yield {log: some[len(some) * part // PARTS : len(some) * (part + 1) // PARTS] for log, some in messages.items()}


def append(store: ObjectStore, log: str, messages: Sequence[Message]) -> None:
    """Append messages in several fragments; cursor ``tail`` moves to their start, ``demo`` to the log's middle."""
    size = max(1, -(-len(messages) // FRAGMENTS_PER_PART))
    with LogWriter.open_or_create(store, log, options=_WRITER) as writer:
        reader = LogReader.open(store, log)
        move(store, log, "tail", reader.manifest().next.position.offset)
        for start in range(0, len(messages), size):
            writer.append_many(messages[start : start + size])
        middle = reader.manifest().next.position.offset // 2
    move(store, log, "demo", max(1, middle))


def move(store: ObjectStore, log: str, name: str, offset: int) -> None:
    """Put a cursor at an offset, wherever it was before."""
    cursors = CursorStore(store, log)
    # The timestamp is a hint for people: only the offset places the cursor.
    position = LogPosition(offset, shared_runtime().now_us())
    witness = cursors.load(name)
    if witness is None:
        cursors.create(name, position)
    else:
        cursors.save(name, position, witness)


def show(
    console: Console, findings: Sequence[Finding], collected: Mapping[str, Collected], packed: Mapping[str, Packed]
) -> None:
    """Print the table of findings, and what collection and compaction did."""
    # No vertical lines: the table fits into 80 columns.
    table = Table(title="What Dagster found and did", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("log", overflow="fold")
    for column in (*COLUMNS, "records\npruned", "objects\ndeleted", "snapshots\npacked", "sound"):
        table.add_column(column, justify="right", no_wrap=True)
    for finding in findings:
        log = finding.state.log
        taken = collected.get(log, Collected())
        table.add_row(
            log,
            *_numbers(finding.state),
            f"{taken.records:,}",
            f"{taken.objects:,}",
            f"{packed[log].before} to {packed[log].after}" if log in packed else "",
            _verdict(finding),
        )
    console.print(table)
    total = sum(taken.num_bytes for taken in collected.values())
    objects = sum(taken.objects for taken in collected.values())
    console.print(f"Collected: {total:,} bytes in {objects:,} objects; the records at and after every cursor are kept.")


def _numbers(state: LogState | UnreadableLog) -> Iterator[str]:
    seen = state.numbers() if isinstance(state, LogState) else {}
    for name in COLUMNS:
        yield f"{seen[name]:,}" if name in seen else "?"


def _verdict(finding: Finding) -> str:
    if finding.sound is None:
        return "[yellow]not verified[/]"
    return "[green]yes[/]" if finding.sound else "[bold red]NO[/]"


if __name__ == "__main__":
    main()
