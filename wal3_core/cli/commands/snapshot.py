"""``wal3 snapshot``: shows the shape of a log's tree, and repacks it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wal3_core.cli.shell.output import count, counted, progress, show, show_facts, show_table, size
from wal3_core.cli.shell.session import Commands, Session, session_and_json
from wal3_core.cli.types import log_argument
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactionReport, SnapshotCompactor, SnapshotPlan
from wal3_core.log.tree.shape import Level, Shape

_LEVEL_COLUMNS = ("snapshots of", "snapshots", "pointers", "of at most", "fill", "smallest", "largest", "wasted")
_FINDING_COLUMNS = ("what", "where", "nodes", "pointers")


@click.group(cls=Commands)
def snapshot() -> None:
    """Show the shape of a log's tree of snapshots, and repack it.

    Writers keep the tree in shape. They do not fix nodes that collections and compactions left nearly
    empty, pointers that a dead writer did not roll, and nodes made with another size setting.

    \b
    Examples:
      wal3 snapshot show orders
      wal3 snapshot compact orders --dry-run
    """


@snapshot.command("show")
@log_argument()
@click.option("--full", is_flag=True, help="Count exactly; reads every snapshot of snapshots.")
@session_and_json
def show_snapshots(session: Session, log: str, full: bool, as_json: bool) -> None:
    """Show the shape of LOG's tree: how many snapshots, how full, and how many more than needed.

    Reads only the manifest. Each compacted fragment then counts as the fragments it replaces, so the
    tree looks fuller than it is; --full counts exactly.

    \b
    Examples:
      wal3 snapshot show orders
      wal3 snapshot show orders --full
      wal3 snapshot show orders --json | jq .needs_compaction
    """
    shape = SnapshotCompactor(session.store(), log).shape(exact=full)
    show(lambda: _show(log, shape), {"log": log, **shape.to_json()}, as_json=as_json)


@snapshot.command("compact")
@log_argument()
@click.option("--dry-run", is_flag=True, help="Show what would be repacked, and why; change nothing.")
@session_and_json
def compact_snapshots(session: Session, log: str, dry_run: bool, as_json: bool) -> None:
    """Repack LOG's tree of snapshots where it is lopsided; appends and reads continue meanwhile.

    Can be stopped at any time and started again; leaves a well-shaped tree unchanged. The snapshots it
    replaces are deleted by a later collection.

    \b
    Examples:
      wal3 snapshot compact orders --dry-run
      wal3 snapshot compact orders
      wal3 snapshot compact orders --json | jq .bytes_written
    """
    compactor = SnapshotCompactor(session.store(), log)
    if dry_run:
        plan = compactor.plan()
        show(lambda: _show_plan(plan), plan.to_json(), as_json=as_json)
        return
    with progress(f"compact the snapshots of {log}", None) as advance:
        done = compactor.compact(advance)
    what = "; ".join(_described(done)) if done.num_steps else "nothing to pack"
    show(f"{done.log}: {what}", done.to_json(), as_json=as_json)


def _show(log: str, shape: Shape) -> None:
    about = "" if shape.exact else "about "
    facts = [
        ("log", log),
        ("fragments", about + count(shape.num_fragments)),
        ("manifest", f"{size(shape.manifest_bytes)}, {counted(shape.root_pointers, 'pointer')}"),
        ("shape", "lopsided: `wal3 snapshot compact` repacks it" if shape.needs_compaction else "good"),
    ]
    show_facts(facts)
    rows = [_level_cells(level) for level in shape.levels]
    show_table(_LEVEL_COLUMNS, rows, numbers=_LEVEL_COLUMNS[1:])


def _level_cells(level: Level) -> tuple[str, ...]:
    return (
        "fragments" if level.depth == 1 else f"snapshots of depth {level.depth - 1}",
        count(level.num_nodes),
        count(level.num_pointers),
        count(level.capacity),
        f"{level.fill:.0%}" if level.num_nodes else "",
        "" if level.smallest is None else count(level.smallest),
        "" if level.largest is None else count(level.largest),
        count(level.num_wasted),
    )


def _show_plan(plan: SnapshotPlan) -> None:
    _show(plan.log, plan.shape)
    if plan.empty:
        click.echo("nothing to pack")
        return
    rows = [(f.reason, f.where, count(f.num_nodes), count(f.num_pointers)) for f in plan.findings]
    show_table(_FINDING_COLUMNS, rows, numbers=_FINDING_COLUMNS[2:], texts=("where",))


def _described(done: SnapshotCompactionReport) -> Iterator[str]:
    before, after = (shape.num_snapshots for shape in (done.before, done.after))
    yield f"{counted(before, 'snapshot')} became {count(after)}"
    yield f"a manifest of {size(done.before.manifest_bytes)} became {size(done.after.manifest_bytes)}"
    written = f"{counted(done.num_written, 'snapshot')} of {size(done.num_bytes)}"
    yield f"{counted(done.num_pointers, 'pointer')} packed into {written}"
