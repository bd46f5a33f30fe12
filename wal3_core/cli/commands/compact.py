"""``wal3 compact``: keeps the newest record of every key, proves it, and says what became of a key's records."""

from __future__ import annotations

import os

import click

from wal3_core.cli.shell.failures import exit_unless
from wal3_core.cli.shell.output import count, counted, print_json, progress, show, show_facts, show_table, size, time
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import Whole, log_argument
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.reports import KeyCompactionReport
from wal3_core.compaction.verifying import Erased, Receipt, Verification
from wal3_core.options import KeyCompactorOptions

_RECEIPT_COLUMNS = ("offset", "reason", "pass", "planned", "object")


@click.command()
@log_argument()
@click.option("--dry-run", is_flag=True, help="Read and merge, but write nothing; show what a pass would drop.")
@click.option("--force", is_flag=True, help="Run a pass even if none is due.")
@click.option("--to-offset", type=Whole(min=1), help="Compact only records below this offset.")
@click.option("--bytes-per-s", type=Whole(min=1024), help="Read and write at most so many bytes a second.")
@click.option("--verify", is_flag=True, help="Verify the last pass from storage instead; exit status 1 if it fails.")
@click.option("--receipt", metavar="KEY", help="List the dropped records of KEY instead, and what became of them.")
@session_and_json
def compact(  # noqa: PLR0913, PLR0917 - a command's parameters are its arguments and options
    session: Session,
    log: str,
    dry_run: bool,
    force: bool,
    to_offset: int | None,
    bytes_per_s: int | None,
    verify: bool,
    receipt: str | None,
    as_json: bool,
) -> None:
    """Compact LOG by key: keep the newest record of every key; appends and reads continue meanwhile.

    The log's policy must say so (`wal3 policy LOG --cleanup compact`), and says when a pass is due. If it says
    `--arrange-by-key`, the records of each key lie together then; with cleanup collect, nothing is dropped. Offsets
    and times of the records that stay do not change. Records that a cursor has not passed stay. `wal3 gc LOG` deletes
    the replaced files, from a day after the pass on. A pass can be stopped at any time and started again.

    \b
    Examples:
      wal3 compact users --dry-run
      wal3 compact users
      wal3 compact users --verify
      wal3 compact users --receipt user-17 --json
    """
    if sum((dry_run or force or to_offset is not None, verify, receipt is not None)) > 1:
        raise click.UsageError("--verify and --receipt compact nothing: give one of them alone")
    compactor = KeyCompactor(session.store(), log, options=KeyCompactorOptions(bytes_per_s_max=bytes_per_s))
    if verify:
        found = compactor.verify()
        _show_verified(log, found, as_json=as_json)
        exit_unless(found is None or found.holds)
    elif receipt is not None:
        _show_receipt(log, compactor.erased(os.fsencode(receipt)), as_json=as_json)
    else:
        with progress(f"compact {log}", None) as advance:
            done = compactor.compact(limit_offset=to_offset, force=force, dry_run=dry_run, progress=advance)
        show(lambda: _show_done(done, dry_run=dry_run), done.to_json(), as_json=as_json)


def _show_done(done: KeyCompactionReport, *, dry_run: bool) -> None:
    plan = done.plan
    if plan.due is None:
        click.echo(
            f"{plan.log}: no pass is due: {plan.dirty_percent} % of {size(plan.held_bytes)} and"
            f" {plan.dirty_records_percent} % of {counted(plan.held_records, 'record')} are dirty; {plan.bound}"
        )
        return
    dropped = f"{counted(done.num_superseded, 'superseded record')}, {counted(done.num_expired, 'expired tombstone')}"
    merged = f"{counted(plan.num_rewritten, 'fragment')} of {size(done.bytes_read)} became"
    written = f"{merged} {counted(done.num_written, 'fragment')} of {size(done.bytes_written)}"
    facts = [
        ("log", plan.log),
        ("due", plan.due),
        ("offsets", f"{count(plan.first)} to {count(plan.limit)}; {plan.bound}"),
        ("dropped", dropped),
        ("keys read", f"in {count(plan.num_read)} of {counted(plan.num_fragments, 'fragment')}"),
        ("rewritten", written if plan.num_rewritten else "no fragment"),
        ("setsum before", str(done.proof.before)),
        ("after", str(done.proof.after)),
        ("superseded", str(done.proof.superseded)),
        ("expired", str(done.proof.expired)),
    ]
    show_facts(facts)
    click.echo(f"{plan.log}: nothing was written" if dry_run else f"{plan.log}: compacted by pass {done.token}")


def _show_verified(log: str, found: Verification | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"log": log, "token": None, "holds": True, "findings": []} if found is None else found.to_json())
        return
    if found is None:
        click.echo(f"{log}: no pass is recorded: none was made, or only over the log of which this is a copy")
        return
    gone = f"; {counted(found.num_gone, 'new fragment')} not compared, as files are gone" if found.num_gone else ""
    held = "holds" if found.holds else "DOES NOT HOLD"
    left = counted(found.num_records, "record")
    compared = f"{counted(found.num_dropped, 'dropped record')} compared with {left} left"
    click.echo(f"{log}: pass {found.token} {held}: {compared}{gone}")
    for finding in found.findings:
        click.echo(f"  {finding}")


def _show_receipt(log: str, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        for row in [*(each.to_json() for each in receipt.records), *(each.to_json() for each in receipt.lists_gone)]:
            print_json(row)
        if receipt.num_passes_unknown:
            print_json({"passes": receipt.num_passes_unknown, "list": "elsewhere"})
        return
    rows = [(count(e.offset), e.reason.name.lower(), e.token, time(e.planned_us), _fate(e)) for e in receipt.records]
    if rows:
        show_table(_RECEIPT_COLUMNS, rows, numbers=_RECEIPT_COLUMNS[:1])
    else:
        click.echo(f"{log}: no recorded pass has dropped a record of this key, as far as their lists are kept")
    for gone in receipt.lists_gone:
        click.echo(
            f"not known: which keys had {counted(gone.num_dropped, 'record')} that pass {gone.token} dropped: its list"
            f" is gone, by a receipt retention that the policy has or had"
        )
    if receipt.num_passes_unknown:
        last = count(receipt.num_passes_unknown)
        click.echo(f"not known: what passes 1 to {last} dropped: {log} is a copy made later, without their lists")


def _fate(erased: Erased) -> str:
    if erased.stored:
        return f"still stored: {erased.path}"
    return "deleted" if erased.deleted_us is None else f"deleted, at the latest {time(erased.deleted_us)}"
