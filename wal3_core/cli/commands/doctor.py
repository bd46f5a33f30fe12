"""``wal3 doctor`` and ``wal3 store-id``."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import click

from wal3_core.cli.shell.failures import Failure, exit_unless, plain
from wal3_core.cli.shell.output import print_json, progress, show, show_table
from wal3_core.cli.shell.session import Session, check_store, session_and_json
from wal3_core.fleet.identity import store_identity
from wal3_core.hashing.lanes import LANES
from wal3_core.runtime import US_PER_S
from wal3_core.store.doctor import DoctorReport, examine

_US_PER_MS = 1000


@click.command()
@click.argument("url", required=False)
@session_and_json
def doctor(session: Session, url: str | None, as_json: bool) -> None:
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
    store = session.store(url)
    steps = itertools.count(1)
    with progress("doctor", None) as advance:
        report = examine(store, progress=lambda _: advance(next(steps), None))
    # It finds the compiled code, or has it compiled for the processes to come.
    LANES.load()
    hashing = LANES.hashing()
    if as_json:
        print_json({**report.to_json(), "hashing": asdict(hashing)})
    else:
        _show_examination(report)
        click.echo(plain(f"this process hashes records by {hashing.by}: {hashing.because}"))
    exit_unless(report.suitable)


def _show_examination(report: DoctorReport) -> None:
    click.echo(plain(report.url))
    rows = [("ok" if check.passed else "FAILED", check.name, check.found) for check in report.checks]
    show_table(("", "promise", "found"), rows, texts=("promise", "found"))
    if report.put_us:
        times = zip(("PUT", "GET", "swap"), (report.put_us, report.get_us, report.cas_us), strict=True)
        click.echo("median " + ", ".join(f"{name} {time_us / _US_PER_MS:.1f} ms" for name, time_us in times))
        click.echo(f"store's clock is {report.clock_difference_us / US_PER_S:+.1f} s from the local clock")
    click.echo("this store can hold logs" if report.suitable else "this store CANNOT hold logs")
    for advice in report.advice:
        click.echo(plain(f"advice: {advice}"))


@click.command("store-id")
@click.option("--create", is_flag=True, help="Give the store an identity if it has none.")
@session_and_json
def store_id(session: Session, create: bool, as_json: bool) -> None:
    """Print which store this is.

    A store's identity is created once and never changes, whatever the store's URL. Dagster remembers
    it, and refuses to work on any other store.

    \b
    Examples:
      wal3 store-id
      wal3 store-id --create
    """
    store = session.store()
    found = store_identity(store, create=create)
    if found is None:
        check_store(store)
        raise Failure(f"store {store.url}: expected an identity, found none: create one with --create")
    show(found, {"store": store.url, "store_id": found}, as_json=as_json)
