"""``wal3 policy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wal3_core.cli.completing import log_argument
from wal3_core.cli.output import count, plain, print_json
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.times import WholeSeconds, duration_of
from wal3_core.log.read.reader import LogReader
from wal3_core.model.policy import RETENTION_S_MAX, UNPROCESSED_MAX, UNPROCESSED_MIN, Policy
from wal3_core.storage.documents.policy_store import PolicyStore

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("policy")
@log_argument()
@click.option(
    "--retention-s",
    "--retention",
    "retention_s",
    metavar="DURATION",
    type=WholeSeconds(1, RETENTION_S_MAX),
    help="Keep every record for at least this many seconds, or 7d.",
)
@click.option("--no-retention", is_flag=True, help="Let cursors alone decide.")
@click.option(
    "--without-cursors/--with-cursors",
    default=None,
    help="Whether records can be collected by age alone, without a cursor past them; needs a retention.",
)
@click.option(
    "--percent-max",
    type=click.IntRange(0, 100),
    help="Allow one collection to prune this percentage of the log's bytes, if the collector's own limit is lower.",
)
@click.option(
    "--unprocessed-max",
    type=click.IntRange(UNPROCESSED_MIN, UNPROCESSED_MAX),
    help="Let fleets refuse appends while more records than this are unprocessed; goes before their own limit.",
)
@click.option("--no-unprocessed-max", is_flag=True, help="Leave that to the fleets.")
@json_option
@pass_session
def policy(
    session: Session,
    /,
    log: str,
    *,
    as_json: bool,
    no_retention: bool,
    no_unprocessed_max: bool,
    **wanted: int | None,
) -> None:
    """Show or change the policy by which LOG is collected, and its limit of unprocessed records.

    A log is collected below its cursors. A log without cursors is not collected, unless its policy
    says that it has none and how long records are kept.

    \b
    Examples:
      wal3 policy audit
      wal3 policy audit --retention 7d --without-cursors
      wal3 policy orders --percent-max 100
      wal3 policy orders --unprocessed-max 1000000
    """
    removed = {"retention_s": no_retention, "unprocessed_max": no_unprocessed_max}
    changes = _changes(wanted, removed)
    store = session.store()
    LogReader.open(store, log)
    policies = PolicyStore(store, log)
    found = policies.change(lambda before: _changed(before, changes)) if changes else policies.load()
    if as_json:
        print_json(
            {
                "log": log,
                "retention_s": found.retention_s,
                "without_cursors": found.without_cursors,
                "percent_max": found.percent_max,
                "unprocessed_max": found.unprocessed_max,
                "writer": found.writer,
                "generation": found.generation,
            }
        )
    else:
        click.echo(plain(_described(log, found)))


def _described(log: str, found: Policy) -> str:
    retention_s = found.retention_s
    retention = "no retention" if retention_s is None else f"records are kept for at least {duration_of(retention_s)}"
    cursors = "by age alone" if found.without_cursors else "only below its cursors"
    most = (
        ""
        if found.percent_max is None
        else f"; at most {found.percent_max} % at a time, or the collector's limit if higher"
    )
    unprocessed = (
        ""
        if found.unprocessed_max is None
        else f"; appends are refused beyond {count(found.unprocessed_max)} unprocessed records"
    )
    return f"{log}: collected {cursors}; {retention}{most}{unprocessed}"


def _changes(wanted: Mapping[str, int | None], removed: Mapping[str, bool]) -> dict[str, int | None]:
    """Return the values to be set, None for those to be removed."""
    changes = {name: value for name, value in wanted.items() if value is not None}
    for name in (name for name, asked in removed.items() if asked):
        if name in changes:
            option = name.replace("_", "-")
            message = f"give --{option} or --no-{option.removesuffix('-s')}, not both"
            raise click.UsageError(message)
    return {**changes, **{name: None for name, asked in removed.items() if asked}}


def _changed(before: Policy, changes: dict[str, int | None]) -> Policy:
    return Policy(
        generation=before.generation,
        writer=before.writer,
        retention_s=changes.get("retention_s", before.retention_s),
        without_cursors=bool(changes.get("without_cursors", before.without_cursors)),
        percent_max=changes.get("percent_max", before.percent_max),
        unprocessed_max=changes.get("unprocessed_max", before.unprocessed_max),
    )
