"""``wal3 doctor``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import click

from wal3_core.cli.failures import EXIT_UNSOUND
from wal3_core.cli.output import console, print_json, progress
from wal3_core.cli.session import Session, json_option, open_named
from wal3_core.cli.tables import show_table
from wal3_core.hashing.lanes import LANES
from wal3_core.runtime import US_PER_S
from wal3_core.storage.doctor import examine

if TYPE_CHECKING:
    from wal3_core.storage.doctor import DoctorReport

_US_PER_MS = 1000


@click.command()
@click.argument("url", required=False)
@json_option
@click.pass_context
def doctor(context: click.Context, url: str | None, as_json: bool) -> None:
    """Test whether a store can hold logs, and how fast it is.

    Tests what logs depend on: conditional PUTs, alone and in a race; conditional and ranged GETs;
    listings; deletes. Writes a few hundred small objects into a folder of its own, and deletes it.
    The exit code is 1 when a promise is broken. URL replaces --store.

    \b
    Examples:
      wal3 doctor s3://bucket/prefix
      wal3 --store /var/lib/wal3 doctor
      wal3 doctor 's3://bucket?endpoint=http://127.0.0.1:9000' --json
    """
    session = context.find_object(Session)
    assert session is not None
    store = session.store() if url is None else open_named(url, timeout_s=session.timeout_s)
    steps = itertools.count(1)
    with progress("doctor", None) as advance:
        report = examine(store, progress=lambda _: advance(next(steps), None))
    # It finds the compiled code, or has it compiled for the processes to come.
    LANES.look()
    hashing = LANES.hashing()
    if as_json:
        print_json({**report.to_json(), "hashing": {"by": hashing.by, "because": hashing.because}})
    else:
        _show_examination(report)
        console().print(f"this process hashes records by {hashing.by}: {hashing.because}", markup=False)
    if not report.suitable:
        context.exit(EXIT_UNSOUND)


def _show_examination(report: DoctorReport) -> None:
    output = console()
    output.print(report.url)
    rows = [("ok" if check.passed else "FAILED", check.name, check.found) for check in report.checks]
    show_table(("", "promise", "found"), rows, texts=("promise", "found"), output=output)
    if report.put_us:
        _show_times(report)
    output.print("this store can hold logs" if report.suitable else "this store CANNOT hold logs")
    for advice in report.advice:
        output.print(f"advice: {advice}")


def _show_times(report: DoctorReport) -> None:
    output = console()
    times = zip(("PUT", "GET", "swap"), (report.put_us, report.get_us, report.cas_us), strict=True)
    output.print("median " + ", ".join(f"{name} {time_us / _US_PER_MS:.1f} ms" for name, time_us in times))
    output.print(f"store's clock is {report.clock_difference_us / US_PER_S:+.1f} s from the local clock")
