"""``wal3 scrub``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

import click

from wal3_core.cli.shell.failures import exit_unless, explain, plain, section_of
from wal3_core.cli.shell.output import count, output_width, print_json, progress, show_each, size
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import Whole, log_argument
from wal3_core.errors import LogError
from wal3_core.log.read.scrub import Problem, ScrubReport, place_of_object
from wal3_core.log.read.scrub import scrub as scrub_log
from wal3_core.options import Limits
from wal3_core.store.object_store import ObjectStore

# Without a terminal, longer lines are broken, but for the names of objects.
_LINE_WIDTH_MAX = 100
_COLUMNS: dict[str, Callable[[ScrubReport], str]] = {
    "log": lambda report: report.log,
    "result": lambda report: "sound" if report.sound else f"{len(report.problems)} BAD",
    "records": lambda report: count(report.num_records),
    "bytes": lambda report: size(report.num_bytes),
    "fragments": lambda report: count(report.num_fragments),
    "snapshots": lambda report: count(report.num_snapshots),
}


@click.command()
@log_argument("logs", many=True)
@click.option("--all", "all_logs", is_flag=True, help="Scrub every log of the store.")
@click.option("--from-offset", metavar="N", type=Whole(min=1), help="Begin with the fragment that holds N.")
@click.option("--bytes", "num_bytes", metavar="N", type=Whole(min=1), help="Stop after N bytes of fragments.")
@session_and_json
def scrub(
    session: Session,
    logs: tuple[str, ...],
    all_logs: bool,
    from_offset: int | None,
    num_bytes: int | None,
    as_json: bool,
) -> None:
    """Read whole logs back and check every object: manifest, snapshots, fragments, cursors.

    Names each bad object, what was expected and what was found, and the section of docs/operations.md that
    says what to do. Counts include only sound objects. The exit code is 1 when an object is bad.

    --from-offset and --bytes select a range of a log; the output says where the next range begins.
    Cursors are checked with the range that reaches the log's end.

    \b
    Examples:
      wal3 scrub orders
      wal3 scrub --all
      wal3 scrub orders --bytes 10000000000
      wal3 scrub orders --bytes 10000000000 --from-offset 250001
      wal3 scrub --all --json | jq -c 'select(.sound | not) | .problems[]'
    """
    if from_offset is not None and len(logs) != 1:
        raise click.UsageError("--from-offset: name one log")
    store, named = session.named_logs(logs, all_logs=all_logs, verb="scrub", as_json=as_json)
    reports = []
    for report in _scrubbed(store, named, from_offset, Limits(num_bytes=num_bytes)):
        reports.append(report)
        if as_json:
            print_json(report.to_json())
    if reports and not as_json:
        _show_scrubs(store, reports)
    exit_unless(all(report.sound for report in reports))


def _scrubbed(store: ObjectStore, logs: Sequence[str], start: int | None, limits: Limits) -> Iterator[ScrubReport]:
    for number, log in enumerate(logs, start=1):
        with progress(f"scrub {log} ({number} of {len(logs)})", None) as advance:
            try:
                report = scrub_log(store, log, start, limits, progress=advance)
            except LogError as error:
                if len(logs) == 1:
                    raise
                # A log that cannot be read must not hide what is wrong with the others.
                problem = Problem("", f"not read to the end: {explain(error)}")
                report = ScrubReport(log=log, setsum="", problems=(problem,))
        yield report


def _show_scrubs(store: ObjectStore, reports: list[ScrubReport]) -> None:
    show_each(reports, ScrubReport.to_json, _COLUMNS, as_json=False, numbers=tuple(_COLUMNS)[2:])
    for report in reports:
        if report.sound and not report.finished:
            click.echo(
                f"{report.log}: read up to {report.next_offset} of {report.end_offset}; continue with"
                f" --from-offset {report.next_offset}"
            )
    for report in reports:
        for problem in report.problems:
            _show_problem(report.log, place_of_object(store, report, problem), problem)


def _show_problem(log: str, place: str, problem: Problem) -> None:
    """Print a block of lines: which object is bad, what is wrong, and what to do."""
    # The message names the object as the log knows it; the line above names the stored one.
    named = rf" ?\(?\S*{re.escape(problem.path)}\)?(?=:)" if problem.path else "^$"
    message = re.sub(named, "", problem.message, count=1).removeprefix(": ")
    width = min(output_width() or _LINE_WIDTH_MAX, _LINE_WIDTH_MAX)
    click.echo(f"{plain(log)}: {'bad object' if problem.path else 'not sound'}")
    if problem.path:
        click.echo(f"  {plain(place)}")
    for line in wrap(plain(" ".join(message.split())), width - 2, break_long_words=False, break_on_hyphens=False):
        click.echo(f"  {line}")
    if problem.path:
        click.echo(f"  next: {section_of(problem.path)}")
    click.echo()
