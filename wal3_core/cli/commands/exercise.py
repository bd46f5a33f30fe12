"""``wal3 exercise``."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from wal3_core.cli.shell.failures import EXIT_FINDINGS, InvalidFailure, plain
from wal3_core.cli.shell.input import StopSignals
from wal3_core.cli.shell.output import count, counted, progress, show, show_table, size
from wal3_core.cli.shell.process import TAKEN_S_MAX
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import Decimal, Duration, Whole, wait_of
from wal3_core.errors import ConditionNotMetError
from wal3_core.exercise.ledger import AppendOutcome, ViolationKind
from wal3_core.exercise.load import LoadShape
from wal3_core.exercise.place import EXERCISES, LOGS_MAX, PROCESSES_MAX, leftovers, remove
from wal3_core.exercise.report import Summary, price_usd
from wal3_core.exercise.running import Exercise, ExercisePlan, ExerciseProgress
from wal3_core.options import MIB, WriterOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

_LINES_S = 10.0
# Bytes of a record for its key.
_KEY_BYTES = 128
_RECORD_BYTES_MAX = WriterOptions().record_bytes_max
_BYTES_PER_S = 2 * MIB
_BYTES_MAX = 2**62


@click.command()
@click.option(
    "--duration", "duration_s", type=Duration(1), default=60.0, metavar="DURATION", help="How long the load lasts; 60s."
)
@click.option("--soak", is_flag=True, help="Until Ctrl-C, which ends the load; then everything is checked.")
@click.option("--processes", type=Whole(1, PROCESSES_MAX), default=2, show_default=True, help="Processes that write.")
@click.option("--logs", type=Whole(1, LOGS_MAX), default=24, show_default=True, help="Logs that they write to.")
@click.option(
    "--rate",
    type=Decimal(0.1, 100_000),
    default=200.0,
    show_default=True,
    help="Records a second of all processes, on average.",
)
@click.option(
    "--record-bytes-max",
    type=Whole(_KEY_BYTES + 1, _RECORD_BYTES_MAX),
    default=_RECORD_BYTES_MAX,
    show_default=True,
    help="The largest record.",
)
@click.option("--bytes-max", type=Whole(1), help="Bytes to append; the load ends with them. 2 MiB for each second.")
@click.option("--kills/--no-kills", default=True, show_default=True, help="Kill writing processes.")
@click.option("--with-maintenance", is_flag=True, help="Collect and compact a third of the logs meanwhile.")
@click.option(
    "--late", "late_s", type=Duration(0), default=10.0, metavar="DURATION", help="When a record is seen late; 10s."
)
@click.option("--seed", type=Whole(0), help="Repeats the load of an earlier exercise.")
@click.option("--keep", is_flag=True, help="Keep the logs and the ledgers.")
@click.option("--clean", is_flag=True, help="Remove what exercises have left in the store, and do nothing else.")
@click.option("--summary", "summary_path", metavar="FILE", help="Also write the summary to FILE, as JSON.")
@session_and_json
def exercise(  # noqa: PLR0913, PLR0917 - a command's parameters are its options
    session: Session,
    duration_s: float,
    soak: bool,
    processes: int,
    logs: int,
    rate: float,
    record_bytes_max: int,
    bytes_max: int | None,
    kills: bool,
    with_maintenance: bool,
    late_s: float,
    seed: int | None,
    keep: bool,
    clean: bool,
    summary_path: str | None,
    as_json: bool,
) -> None:
    """Test a store under load: write many logs, kill the writers, and check every record.

    Several processes append records of 1 byte to 16 MiB, in steps, bursts and idle spells. Each record that is missing,
    altered, doubled, reordered or late is reported. Writes only into the folder exercise/ of the store, and removes
    its logs. The store bills the requests: the summary estimates their price.

    \b
    Examples:
      wal3 --store s3://bucket/new exercise
      wal3 exercise --duration 10m --with-maintenance --summary summary.json
      wal3 exercise --soak --rate 50
      wal3 exercise --clean

    The exit code is 0 if all is well, or only late, and 3 if anything else was found.
    """
    if clean:
        _clean(session.store())
        return
    load = LoadShape(
        seed=int(shared_runtime().token()[:6], 16) if seed is None else seed,
        rate_per_s=rate,
        logs=logs,
        processes=processes,
        body_bytes_max=record_bytes_max - _KEY_BYTES,
        bytes_per_s=_BYTES_PER_S if bytes_max is None or soak else bytes_max / duration_s,
    )
    plan = ExercisePlan(
        load,
        duration_s=None if soak else duration_s,
        bytes_max=bytes_max or _BYTES_MAX,
        kills=kills,
        maintenance=with_maintenance,
        late_s=late_s,
    )
    report = partial(_report, path=summary_path, as_json=as_json)
    summary = _exercise(session, plan, report, keep=keep)
    if not summary.sound:
        click.get_current_context().exit(EXIT_FINDINGS)
    summary.check_tried()


def _exercise(session: Session, plan: ExercisePlan, report: Callable[[Summary], None], *, keep: bool) -> Summary:
    """Exercise a store, report what was found, and remove the logs."""
    url = session.url_of()
    if url.startswith("memory:"):
        raise InvalidFailure("exercise: expected a store that processes share, found memory:")
    store = session.store()
    folder = Path(tempfile.mkdtemp(prefix="wal3-exercise-"))
    running = Exercise(store, url, plan, folder)
    label = f"exercise {running.run}"
    left = f"left {EXERCISES}{running.run} in the store; `wal3 exercise --clean` removes it; ledgers: {folder}"
    try:
        with StopSignals() as signals, _display(label, plan) as show:
            running.load(lambda: signals.stop, show, lambda: signals.at_once)
            if signals.stop:
                # Until it is certain that the signal was taken here: later, it would end the process.
                shared_runtime().sleep(2 * TAKEN_S_MAX)
        with progress("exercise: checking", plan.load.logs) as advance:
            summary = running.check(advance)
        kept = keep or not summary.sound
        # Before the removal, which takes long and may fail.
        report(replace(summary, kept=(f"{EXERCISES}{running.run}", str(folder))) if kept else summary)
        if kept:
            return summary
        with progress("exercise: removing", plan.load.logs) as advance:
            remove(store, running.run, advance)
    except BaseException:
        click.echo(left, err=True)
        raise
    shutil.rmtree(folder)
    return summary


def _clean(store: ObjectStore) -> None:
    found = leftovers(store)
    for run in found:
        with progress(f"removing {run}", None) as advance:
            removed = remove(store, run, advance)
        click.echo(f"removed {EXERCISES}{run}: {counted(removed, 'log')}")
    if not found:
        click.echo("no exercise has left anything")


# ---------------------------------------------------------------------- while it runs


@contextmanager
def _display(label: str, plan: ExercisePlan) -> Iterator[Callable[[ExerciseProgress], None]]:
    """Show the progress on stderr: a line that is replaced on a terminal, else one every ten seconds."""
    if sys.stderr.isatty():
        with Live(console=Console(stderr=True, markup=False), transient=True, refresh_per_second=4) as live:
            yield lambda now: live.update(Text(f"{label}\n{progress_line(now, plan)}"))
        return
    shown_s = [0.0]

    def show(now: ExerciseProgress) -> None:
        if now.at_s >= shown_s[0] + _LINES_S:
            shown_s[0] += _LINES_S
            click.echo(f"{label}  {progress_line(now, plan)}", err=True)

    yield show


def progress_line(now: ExerciseProgress, plan: ExercisePlan) -> str:
    """Say how far a load is; refusals of conditions that were not met are apart from failures."""
    counts = now.figures.counts
    lasts = "" if plan.duration_s is None else f" of {wait_of(plan.duration_s)}"
    unmet = counts[f"error {ConditionNotMetError.__name__}"]
    failed = counts[AppendOutcome.NOT_DURABLE] + counts[AppendOutcome.UNKNOWN] - unmet
    return (
        f"{wait_of(now.at_s)}{lasts}  target {now.rate_per_s:,.0f}/s  {count(counts[AppendOutcome.DURABLE])} durable,"
        f" {count(unmet)} refused by their condition, {count(failed)} failed or unknown  {size(counts['bytes'])}"
        f"  {count(now.figures.requests.total())} requests"
        f" (about ${price_usd(now.figures.requests):.3f})  {counts['killed']} kills"
    )


# ---------------------------------------------------------------------- the summary


def _report(summary: Summary, *, path: str | None, as_json: bool) -> None:
    if path is not None:
        Path(path).write_text(json.dumps(summary.to_json(), indent=2) + "\n")
    show(lambda: _show(summary), summary.to_json(), as_json=as_json)


def _show(summary: Summary) -> None:
    click.echo(plain(f"{summary.store}  {summary.run}  seed {summary.seed}"))
    show_table(("", "found"), _rows(summary), texts=("found",))
    for finding in summary.checked.shown:
        place = f"log {finding.log}, offset {finding.offset}, record {finding.record or '-'}"
        click.echo(f"{finding.kind.value}: {plain(place)}: {plain(finding.text)}")
    for each in summary.kept:
        click.echo(plain(f"kept: {each}"))
    click.echo(verdict_line(summary))
    if late := summary.checked.found[ViolationKind.LATE]:
        click.echo(f"{counted(late, 'record')} seen late: the store, or this machine, is slow under this load")


def verdict_line(summary: Summary) -> str:
    """Say how many records were acknowledged, where they are, and what that says of the store."""
    verdict = "kept every promise" if summary.sound else "BROKE a promise, or this program has a defect"
    if summary.sound and not summary.checked.outcomes[AppendOutcome.DURABLE]:
        verdict = "showed nothing"
    durable = counted(summary.checked.outcomes[AppendOutcome.DURABLE], "acknowledged record")
    collected = summary.figures.counts["records_collected"]
    gone = f" and {count(collected)} collected before" if collected else ""
    return f"{durable}, {count(summary.checked.sizes['read'])} read back at the end{gone}: the store {verdict}"


def _rows(summary: Summary) -> list[tuple[str, str]]:
    checked, counts, seconds = summary.checked, summary.figures.counts, summary.load_s
    durable, num_bytes = checked.outcomes[AppendOutcome.DURABLE], checked.sizes["bytes"]
    latencies = ", ".join(f"{name} {value} ms" for name, value in checked.latencies.to_json().items())
    requests = ", ".join(f"{count(number)} {kind}" for kind, number in summary.figures.requests.most_common())
    rows = [
        ("load", f"{seconds:.1f} s, {counted(summary.logs, 'log')}, {counted(counts['killed'], 'kill')}"),
        ("appends", ", ".join(f"{count(checked.outcomes[each])} {each.value}" for each in AppendOutcome)),
        ("rate", f"{durable / max(seconds, 1):,.1f} appends/s, {size(round(num_bytes / max(seconds, 1)))}/s"),
        ("bytes", f"{size(num_bytes)}, largest record {size(checked.sizes['largest'])}"),
        ("latency", latencies),
        ("requests", f"{requests}; {count(counts['unanswered'])} not answered, {count(counts['retries'])} retries"),
        ("throttled", f"{count(counts['throttled'])} requests; rate halved {count(counts['slow_downs'])} times"),
        ("price", f"about ${price_usd(summary.figures.requests):.4f} (estimate: list prices of S3 Standard)"),
    ]
    each = summary.per_million()
    if each is not None:
        rows.append(
            ("a million appends", f"{each['requests']:,.0f} requests, about ${each['price_usd_estimate']:,.2f}")
        )
    if counts["collections"]:
        collected = f"{count(counts['collections'])}, {count(counts['records_collected'])} records"
        rows.append(("collections", f"{collected}; {count(counts['snapshot_steps'])} steps of snapshot compaction"))
    return [*rows, *((kind.value, count(checked.found[kind])) for kind in ViolationKind)]
