"""The demo: real input in a local store, discovered, collected, packed and verified by a real Dagster instance.

The store and Dagster's home are in .demo/ at the top of the checkout. ``--dev`` then opens Dagster's
UI on both.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dagster import DagsterInstance, RunRequest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from examples.demo.input import read_input
from examples.demo.runs import DemoRuns, recorded
from wal3_core import (
    Cleanup,
    CursorStore,
    Fleet,
    FleetOptions,
    LogPosition,
    LogReader,
    LogWriter,
    Message,
    Policy,
    PolicyStore,
    Record,
    WriterOptions,
    open_store,
)
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.snapshot_compaction import find_lopsided
from wal3_orchestration.deployment import settings
from wal3_orchestration.framework.scope import LOG_TAG
from wal3_orchestration.framework.store import LogState, UnreadableLog, read_states
from wal3_orchestration.resources import INTERVAL_VARIABLE, STORE_VARIABLE, java_problem

if TYPE_CHECKING:
    # What runs recorded of an asset, by log.
    Recorded = Mapping[str, Mapping[str, Any]]

ROOT = Path(__file__).parent.parent.parent
PARTS = 3
FRAGMENTS = 10
PORT = 3000
# No read of the demo's logs takes long.
INTERVAL_S = 1
FLEET = tuple(f"devices/{number:02}" for number in range(80))
BUSY = FLEET[7::30]
RECORDS_OF_BUSY = 1_000
_COMPACTED_FOLDERS = 3
# Leaves many small snapshots for compaction to pack, as short-lived writers do.
_SHORT_LIVED = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2))


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
    hold(folder)
    store, home = folder.absolute() / "store", folder.absolute() / "dagster"
    os.environ.update({STORE_VARIABLE: store.as_uri(), INTERVAL_VARIABLE: str(INTERVAL_S), "DAGSTER_HOME": str(home)})
    # Without it Spark looks up the machine's name, and warns when that fails.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    console = Console(highlight=False, soft_wrap=True)
    if not dev and (store.exists() or home.exists()):
        console.print(f"Starting over: removing the store and Dagster's home of an earlier run in {folder}")
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(settings())
    if dev:
        serve(home, port)
    with DagsterInstance.get() as instance:
        runs = DemoRuns(instance)
        maintain(open_store(store.as_uri()), runs, None if sample else ROOT, console)
        problem = runs.place(ROOT)
        if problem is not None:
            console.print(f"Not on the first page of Dagster's UI, only under Runs: {problem}")
    if runs.failures:
        raise click.ClickException("\n".join(runs.failures))
    console.print(f"\nAll of it is in Dagster's UI: [bold]make dev[/], then open http://127.0.0.1:{PORT}")


def hold(folder: Path) -> None:
    """Lock the demo's folder for as long as this process, or the one it becomes, lives."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(handle, True)  # noqa: FBT003 - takes no keywords
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"{folder}: in use by another demo, or by Dagster's UI on it: stop that first"
        raise click.ClickException(message) from error


def serve(home: Path, port: int) -> None:
    """Become ``dg dev`` on the demo's store."""
    # Where the checkout's dagster.yaml lies, it would warn that it does not use that one.
    os.chdir(home)
    click.echo(f"The demo's runs: http://127.0.0.1:{port}", err=True)
    program = str(Path(sys.executable).with_name("dg"))
    arguments = ("dev", "-w", str(ROOT / "workspace.yaml"), "-h", "127.0.0.1", "-p", str(port))
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell wanted


def maintain(store: ObjectStore, runs: DemoRuns, repo: Path | None, console: Console) -> None:
    """Append the input to an empty store, let Dagster look after it, and show what it found and did."""
    origin, changes = read_input(repo)
    total = sum(map(len, changes.values()))
    say = partial(_say, console, itertools.count(1))
    say("Append", f"{total:,} file changes ({origin}), to a log for each of {len(changes)} folders")
    count = 0
    for part in parts(changes):
        for log, messages in part.items():
            append(store, log, messages, _SHORT_LIVED)
            limit = LogReader.open(store, log).manifest().next.position.offset
            move(store, log, "tail", limit - len(messages))
            move(store, log, "demo", max(1, limit // 2))
        count += runs.discover()
    say("Discover", f"a sensor found the logs, and looked at those that grew, in {count} runs")
    runs.start_for_all("collection_job")
    collected = _deleted(runs)
    num_bytes, objects = (sum(taken[label] for taken in collected.values()) for label in ("bytes", "objects"))
    say("Collect", f"what every consumer has read: {objects:,} objects, {num_bytes / 1e6:,.1f} MB; the rest is kept")
    packed: Recorded = {}
    for request in runs.tick(find_lopsided):
        packed = {**packed, **recorded(runs.start(request), "repacked_snapshots")}
    say("Pack", f"the snapshot trees of {len(packed)} logs, which many short-lived writers left lopsided")
    # Only objects older than the interval are considered.
    shared_runtime().sleep(INTERVAL_S)
    runs.start_for_all("orphans_job")
    orphans = sum(log["objects"] for log in _deleted(runs).values())
    runs.discover()
    say("Orphans", f"{orphans:,} objects that the packing left, found and deleted")
    console.print("(Spark starts for the next step, and prints a few lines of its own)", style="dim")
    verified = runs.verify()
    sound = recorded(verified, "verification") if verified.get_asset_check_evaluations() else None
    say("Verify", "every log is read back on Spark, and compared with its checksum")
    show(console, read_states(store, runs.logs()), sound, collected, packed)
    compact_folders(store, runs, changes, say)
    run_fleet(store, runs, say)


def _say(console: Console, numbers: Iterator[int], step: str, text: str) -> None:
    """Print what a step did."""
    console.print(f"{next(numbers)} [bold]{step:<9}[/] {text}")


def _deleted(runs: DemoRuns) -> Recorded:
    """Delete garbage once the interval is over: the deletion sensor would tick again later instead."""
    shared_runtime().sleep(INTERVAL_S)
    return recorded(runs.start_for_all("deletion_job"), "deleted_garbage")


def parts(messages: Mapping[str, Sequence[Message]]) -> Iterator[dict[str, Sequence[Message]]]:
    """Split every log's messages into parts; a log may have none in one of them."""
    for part in range(PARTS):
        yield {log: some[len(some) * part // PARTS : len(some) * (part + 1) // PARTS] for log, some in messages.items()}


def append(store: ObjectStore, log: str, messages: Sequence[Message], options: WriterOptions | None = None) -> None:
    """Append messages to a log, which is created first if need be, in several fragments."""
    size = max(1, -(-len(messages) // FRAGMENTS))
    with LogWriter.open_or_create(store, log, options=options) as writer:
        for start in range(0, len(messages), size):
            writer.append_many(messages[start : start + size])


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
    console: Console,
    states: Iterable[LogState | UnreadableLog],
    sound: Collection[str] | None,
    collected: Recorded,
    packed: Recorded,
) -> None:
    """Print a row for each log, and what collection took; without ``sound``, the logs were not verified."""
    # No vertical lines: the table fits into 80 columns.
    table = Table(title="What Dagster found and did", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("log", overflow="fold")
    for column in ("records", "bytes", "records\npruned", "objects\ndeleted", "snapshots\npacked", "sound"):
        table.add_column(column, justify="right", no_wrap=True)
    verdicts = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: "[yellow]not verified[/]"}
    for state in states:
        log, numbers = state.log, state.numbers() if isinstance(state, LogState) else {}
        taken, tree = collected.get(log, {}), packed.get(log)
        table.add_row(
            log,
            *(f"{numbers[label]:,}" if numbers else "?" for label in ("records", "bytes")),
            *(f"{taken.get(label, 0):,}" for label in ("records", "objects")),
            "" if tree is None else f"{tree['snapshots_before']} to {tree['snapshots']}",
            verdicts[None if sound is None else log in sound],
        )
    console.print(table)


def compact_folders(
    store: ObjectStore, runs: DemoRuns, messages: Mapping[str, Sequence[Message]], say: Callable[[str, str], None]
) -> None:
    """Append the largest folders' history to logs of their own, let Dagster compact them, and show what is left."""
    largest = sorted(messages, key=lambda log: (-len(messages[log]), log))[:_COMPACTED_FOLDERS]
    written = {f"files/{log}": messages[log] for log in largest}
    for log, changes in written.items():
        append(store, log, changes)
        PolicyStore(store, log).change(lambda _: Policy(cleanup=Cleanup.COMPACT))
    runs.discover()
    for log, changes in written.items():
        reader = LogReader.open(store, log)
        before = reader.manifest()
        runs.start(RunRequest(job_name="compaction_job", partition_key=log, tags={LOG_TAG: log}))
        after, tree = reader.manifest(), _files(reader.records())
        same = "the same files" if tree == _files(changes) else "[bold red]OTHER FILES[/]"
        say(
            "Compact",
            f"{log}: the newest version of each file stays: {before.num_records:,} records to {after.num_records:,},"
            f" {before.num_bytes / 1e6:,.1f} MB to {after.num_bytes / 1e6:,.1f}; {same}",
        )


def _files(changes: Iterable[Message | Record]) -> dict[bytes | None, bytes]:
    last = {change.key: change.body for change in changes}
    return {path: body for path, body in last.items() if body is not None}


def run_fleet(store: ObjectStore, runs: DemoRuns, say: Callable[[str, str], None]) -> None:
    """Write many logs from one process; the sensor on the dirty logs finds those that have grown."""
    with Fleet.open(store, server="demo", options=FleetOptions(creates=True)) as fleet:
        for first in [fleet.submit(log, b"switched on") for log in FLEET]:
            first.result()
        found = runs.roll_up()
        text = f"one process appended to {len(FLEET)} more logs, and marked each in its dirty log"
        say("Fleet", f"{text}: {len(found) or 'none'} to be maintained")
        for log in BUSY:
            for part in range(4):
                fleet.append_many(log, [b"%d" % (part + number) for number in range(RECORDS_OF_BUSY // 4)])
            move(store, log, "demo", RECORDS_OF_BUSY // 2)
        found = runs.roll_up()
        text = f"{len(BUSY)} of them grew by {RECORDS_OF_BUSY:,} records, half of which were read"
        say("Roll up", f"{text}: a sensor found {', '.join(found) or 'none'}, and collected no other")


if __name__ == "__main__":
    main()
