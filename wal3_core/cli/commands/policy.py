"""``wal3 policy``."""

from __future__ import annotations

import click

from wal3_core.cli.completing import log_argument
from wal3_core.cli.output import plain, print_json
from wal3_core.cli.session import Session, json_option, pass_session
from wal3_core.cli.times import WholeSeconds, duration_of
from wal3_core.log.read.reader import LogReader
from wal3_core.model.policy import RETENTION_S_MAX, Policy
from wal3_core.storage.documents.policy_store import PolicyStore


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
@json_option
@pass_session
def policy(session: Session, /, log: str, as_json: bool, no_retention: bool, **wanted: int | None) -> None:
    """Show or change the policy by which LOG is collected.

    A log is collected below its cursors. A log without cursors is not collected, unless its policy
    says that it has none and how long records are kept.

    \b
    Examples:
      wal3 policy audit
      wal3 policy audit --retention 7d --without-cursors
      wal3 policy orders --percent-max 100
    """
    if wanted["retention_s"] is not None and no_retention:
        message = "give --retention-s or --no-retention, not both"
        raise click.UsageError(message)
    store = session.store()
    LogReader.open(store, log)
    policies = PolicyStore(store, log)
    changes: dict[str, int | None] = {name: value for name, value in wanted.items() if value is not None}
    if no_retention:
        changes["retention_s"] = None
    found = policies.change(lambda before: _changed(before, changes)) if changes else policies.load()
    if as_json:
        print_json(
            {
                "log": log,
                "retention_s": found.retention_s,
                "without_cursors": found.without_cursors,
                "percent_max": found.percent_max,
                "writer": found.writer,
                "generation": found.generation,
            }
        )
        return
    retention_s = found.retention_s
    retention = "no retention" if retention_s is None else f"records are kept for at least {duration_of(retention_s)}"
    cursors = "by age alone" if found.without_cursors else "only below its cursors"
    most = (
        ""
        if found.percent_max is None
        else f"; at most {found.percent_max} % at a time, or the collector's limit if higher"
    )
    click.echo(plain(f"{log}: collected {cursors}; {retention}{most}"))


def _changed(before: Policy, changes: dict[str, int | None]) -> Policy:
    return Policy(
        generation=before.generation,
        writer=before.writer,
        retention_s=changes.get("retention_s", before.retention_s),
        without_cursors=bool(changes.get("without_cursors", before.without_cursors)),
        percent_max=changes.get("percent_max", before.percent_max),
    )
