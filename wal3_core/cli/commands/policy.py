"""``wal3 policy``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from wal3_core.cli.shell.failures import InvalidFailure, plain
from wal3_core.cli.shell.output import count, show, size
from wal3_core.cli.shell.session import Session, session_and_json
from wal3_core.cli.types import Whole, WholeSeconds, duration_of, log_argument
from wal3_core.errors import InvalidRequestError
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN, RETENTION_S_MAX, Cleanup, Policy
from wal3_core.log.read.reader import LogReader
from wal3_core.options import FRAGMENT_BYTES_MAX, UNPROCESSED_MAX, UNPROCESSED_MIN, View
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.queue.loading import is_queue

if TYPE_CHECKING:
    from wal3_core.cli.shell.session import F

_NO = "no_"
_COLLECTING = frozenset({Cleanup.COLLECT, Cleanup.BOTH})
# Advice of a policy against a value that its cleanup does not use.
_CONTRADICTION = re.compile(r"remove (?P<name>\w+), or set cleanup to (?P<cleanup>compact|both|collect)")


def _value(name: str, kind: click.ParamType[Any], set_help: str, unset_help: str) -> Callable[[F], F]:
    """Make the option that sets a value of the policy, and the one that removes it."""
    given, metavar = _flag_of(name), None
    flags = [given]
    if isinstance(kind, WholeSeconds):
        flags, metavar = [f"{given}-s", given], "DURATION"

    def decorate(command: F) -> F:
        unset = click.option(f"--no-{given[2:]}", f"{_NO}{name}", is_flag=True, help=unset_help)
        return click.option(*flags, name, metavar=metavar, type=kind, help=set_help)(unset(command))

    return decorate


def _flag_of(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


@click.command("policy")
@log_argument()
@_value(
    "retention_s",
    WholeSeconds(1, RETENTION_S_MAX),
    "Keep every record for at least this many seconds, or 7d.",
    "Let cursors alone decide.",
)
@click.option(
    "--without-cursors/--with-cursors",
    default=None,
    help="Whether records can be collected by age alone, without a cursor past them; needs a retention.",
)
@_value(
    "percent_max",
    Whole(0, 100),
    "Allow one collection to prune this percentage of the log's bytes by age alone, if the collector's own limit is"
    " lower.",
    "Leave that to the collector.",
)
@_value(
    "unprocessed_max",
    Whole(UNPROCESSED_MIN, UNPROCESSED_MAX),
    "Let fleets refuse appends while more records than this are unprocessed; goes before their own limit.",
    "Leave that to the fleets.",
)
@click.option(
    "--cleanup",
    type=click.Choice([each.value for each in Cleanup]),
    help="What removes records: collections (the default), key compaction, both, or nothing. With compact and both,"
    " appends without a key are refused. The options below need one of these two, or --arrange-by-key.",
)
@click.option(
    "--keep-everything", is_flag=True, help="Let nothing remove records: `--cleanup nothing`. The log needs no cursor."
)
@_value(
    "min_compaction_lag_s",
    WholeSeconds(0, RETENTION_S_MAX),
    "Leave records this young as they are, superseded or not.",
    "Compact records of any age: the default.",
)
@_value(
    "max_compaction_lag_s",
    WholeSeconds(1, RETENTION_S_MAX),
    "Drop superseded records within this time, however little has changed.",
    "Wait until enough has changed: the default.",
)
@_value(
    "delete_retention_s",
    WholeSeconds(0, RETENTION_S_MAX),
    "Keep a tombstone for this long after the records below it were compacted.",
    "Keep it for a day: the default.",
)
@_value(
    "min_dirty_percent",
    Whole(0, 100),
    "Compact when this percentage of the log's bytes was not compacted yet.",
    "Compact at 50 %: the default.",
)
@_value(
    "compacted_fragment_bytes",
    Whole(COMPACTED_FRAGMENT_BYTES_MIN, FRAGMENT_BYTES_MAX),
    "Write compacted fragments of about this size.",
    "Write 8 MiB: the default.",
)
@_value(
    "receipt_retention_s",
    WholeSeconds(0, RETENTION_S_MAX),
    "Keep the lists of dropped records, which receipts are made of, for this long after these were deleted.",
    "Keep them as long as the log: the default.",
)
@click.option(
    "--arrange-by-key/--no-arrange-by-key",
    default=None,
    help="Whether key compaction lets the records of each key lie together, so that a key is read without the others."
    " With cleanup collect, that is all it does, and it drops nothing. Appends without a key are refused.",
)
@_value(
    "view",
    click.Choice([each.value for each in View]),
    "Take appends of this view alone: others, as those of `wal3 append`, are refused.",
    "Take appends of all: the default.",
)
@session_and_json
def policy(session: Session, /, log: str, *, as_json: bool, **given: int | str | bool | None) -> None:
    """Show or change the policy by which LOG is collected or compacted, and its limit of unprocessed records.

    A log is collected below its cursors. A log without cursors is not collected, unless its policy
    says that it has none and how long records are kept; `wal3 gc` says so each time, unless the policy keeps
    everything. A log that is compacted keeps the newest record of
    every key; it is not collected, unless its cleanup is both. A log that is arranged by key is cheap to read
    by key, also if it keeps all records of a key.

    \b
    Examples:
      wal3 policy audit
      wal3 policy audit --retention 7d --without-cursors
      wal3 policy ledger --keep-everything
      wal3 policy orders --unprocessed-max 1000000
      wal3 policy users --cleanup compact --delete-retention 7d
      wal3 policy users --cleanup collect --no-delete-retention
      wal3 policy carts --arrange-by-key --min-dirty-percent 10
      wal3 policy queues/mail --view queue
    """
    changes = _changes(given)
    store = session.store()
    LogReader.open(store, log)
    policies = PolicyStore(store, log)
    _check_queue(store, log, changes)
    try:
        found = policies.change(lambda before: replace(before, **changes)) if changes else policies.load()
    except InvalidRequestError as error:
        advised = _options_for(str(error))
        if advised is None:
            raise
        raise InvalidFailure(f"{error} ({advised})") from error
    show(plain(describe_policy(log, found)), policy_json(log, found), as_json=as_json)


def _check_queue(store: ObjectStore, log: str, changes: Mapping[str, Any]) -> None:
    """Refuse what would stop a queue, or take its items."""
    cleanup, view = changes.get("cleanup"), changes.get("view")
    if (cleanup not in _COLLECTING and view in {None, View.QUEUE}) or not is_queue(store, log):
        return
    message = f"log {log}: expected view queue, or none, as it is a delay queue, found {view}"
    if cleanup in _COLLECTING:
        message = (
            f"log {log}: expected cleanup compact, as it is a delay queue, found {cleanup}: collections"
            f" would remove items that are pending"
        )
    raise InvalidFailure(message)


def policy_json(log: str, found: Policy) -> dict[str, object]:
    """Show a log's policy for programs."""
    fields = asdict(found)
    del fields["log_id"]
    # Those last that say which version this is.
    version = {name: fields.pop(name) for name in ("writer", "generation")}
    return {"log": log, **fields, **version}


def describe_policy(log: str, found: Policy) -> str:
    """Say in a line what a log's policy does."""
    parts = [*(_collected(found) if found.collects else ["not collected" if found.compacts else "keeps everything"])]
    if found.unprocessed_max is not None:
        parts.append(f"appends are refused beyond {count(found.unprocessed_max)} unprocessed records")
    if found.has_passes:
        parts += _compacted(found)
    if found.view is not None:
        parts.append(f"takes appends of the view {found.view} alone")
    return f"{log}: {'; '.join(parts)}"


def _collected(found: Policy) -> list[str]:
    retention_s = found.retention_s
    parts = [
        "collected by age alone" if found.without_cursors else "collected only below its cursors",
        "no retention" if retention_s is None else f"records are kept for at least {duration_of(retention_s)}",
    ]
    if found.percent_max is not None:
        parts.append(f"by age alone at most {found.percent_max} % at a time, or the collector's limit if higher")
    return parts


def _compacted(found: Policy) -> list[str]:
    limits = found.compaction_limits
    lag_s_max = limits.max_compaction_lag_s
    which, what = ("a superseded record", "compacted") if found.compacts else ("a record", "arranged")
    within = "" if lag_s_max is None else f", or {which} is older than {duration_of(lag_s_max)}"
    parts = [
        f"{what} by key when {limits.min_dirty_percent} % of its bytes are new{within}",
        f"records are left as they are for {duration_of(limits.min_compaction_lag_s)}",
    ]
    if found.compacts:
        parts.append(f"tombstones are kept for {duration_of(limits.delete_retention_s)}")
    if limits.receipt_retention_s is not None:
        parts.append(f"receipts are kept for {duration_of(limits.receipt_retention_s)} after the deletion")
    parts.append(f"{what} fragments have about {size(limits.compacted_fragment_bytes)}")
    if found.compacts and found.arrange_by_key:
        parts.append("they are arranged by key")
    return [*parts, "appends need keys"]


def _changes(given: Mapping[str, int | str | bool | None]) -> dict[str, Any]:
    """Return the values to be set, None for those to be removed."""
    options = dict(given)
    if options.pop("keep_everything"):
        if options["cleanup"] not in {None, Cleanup.NOTHING}:
            raise click.UsageError(f"give --keep-everything or --cleanup {options['cleanup']}, not both")
        options["cleanup"] = Cleanup.NOTHING
    changes: dict[str, Any] = {
        name: value for name, value in options.items() if not name.startswith(_NO) and value is not None
    }
    for name in (name.removeprefix(_NO) for name, flag in options.items() if name.startswith(_NO) and flag):
        if name in changes:
            option = name.replace("_", "-")
            raise click.UsageError(f"give --{option} or --no-{option.removesuffix('-s')}, not both")
        changes[name] = None
    return changes


def _options_for(advice: str) -> str | None:
    """Name the options that do what a policy's error advises; None when it advises something else."""
    found = _CONTRADICTION.search(advice)
    if found is None:
        return None
    name = found["name"]
    removed = "--with-cursors" if name == "without_cursors" else f"--no-{_flag_of(name)[2:]}"
    return f"`{removed}`, or `--cleanup {found['cleanup']}`"
