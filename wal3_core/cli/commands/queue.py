"""``wal3 queue``: delay queues, in the store or behind a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wal3_core.arguments import text
from wal3_core.cli.queues import (
    Enqueuing,
    Queues,
    json_and_queues,
    leases_of,
    lines_and_queues,
    prefix_option,
    queue_argument,
    stored,
)
from wal3_core.cli.shell.failures import Failure, InvalidFailure, plain
from wal3_core.cli.shell.output import (
    confirm,
    count,
    counted,
    print_json,
    quiet_pipe,
    report,
    show,
    show_table,
    size,
    time,
)
from wal3_core.cli.shell.session import Commands, Session, session_and_json
from wal3_core.cli.types import Decimal, Duration, Time, Whole, check_alone
from wal3_core.errors import CorruptError, InvalidRequestError, LogError, StaleTokenError
from wal3_core.runtime.extras import missing
from wal3_core.views.queue.operations import Bury, Extend, Kick, Purge, QueueDefinition, Reclaim, Release, Requeue

if TYPE_CHECKING:
    from wal3_core.cli.shell.session import F
    from wal3_core.queue_server.client import OfLease
    from wal3_core.queue_server.wire import Json

_DEFAULTS = QueueDefinition()
_COUNT_MAX = 2**31 - 1
_ITEMS_MAX, _KICKED_MAX = 1000, 10_000
_SHOWN_MAX = 20
_WAIT_S_MAX = 365 * 24 * 60 * 60
_PORT, _PORT_MAX = 8790, 65_535
_NONE = "no queues: `wal3 queue create QUEUE` creates one"
_COLUMNS = ("queue", "due", "scheduled", "leased", "dead", "bytes", "oldest due", "next")


@click.group(cls=Commands)
def queue() -> None:
    """Work with delay queues: in the store, or behind a server.

    A queue holds items, each due at a time of its own. The queue NAME is the log queues/NAME.

    A queue has one broker. Commands that change a queue on the store become that broker for a moment: a
    server, or another program, that had the queue is fenced and does nothing more with it. So where a
    server runs, name it: --server URL. `list`, `stats`, `peek` and `dead` only read and fence no process.

    \b
    Examples:
      wal3 queue create jobs --lease 5m
      wal3 queue enqueue jobs 'water the plants' --delay 10m
      wal3 queue dequeue jobs --wait 15m
      wal3 queue serve
    """


def _queue_command(name: str) -> Callable[[F], click.Command]:
    """Make a command with the argument QUEUE."""
    return lambda command: queue.command(name)(queue_argument()(command))


@_queue_command("create")
@click.option(
    "--lease", "lease_s", type=Duration(0.001), default=_DEFAULTS.lease_s, metavar="DURATION", help="Of an item; 60s."
)
@click.option("--max-deliveries", type=Whole(1, _COUNT_MAX), help="Then an item goes to the dead letters; no limit.")
@click.option(
    "--value-bytes-max", type=Whole(), default=_DEFAULTS.value_bytes_max, show_default=True, help="Of a value."
)
@click.option("--items-max", type=Whole(1, _COUNT_MAX), help="More items are refused; no limit.")
@json_and_queues
def create_queue(queues: Queues, *, name: str, as_json: bool, lease_s: float, **limits: int) -> None:
    """Create the empty queue QUEUE.

    \b
    Examples:
      wal3 queue create jobs
      wal3 queue create jobs --lease 5m --max-deliveries 5
    """
    definition = QueueDefinition(lease_s=lease_s, **limits)
    queues.create(name, definition)
    document = {"queue": name, "created": True, "definition": definition.to_json()}
    show(f"created {name}", document, as_json=as_json)


@queue.command("list")
@json_and_queues
def list_queues(queues: Queues, *, as_json: bool) -> None:
    """List the queues. Fences no process.

    \b
    Examples:
      wal3 queue list
      wal3 queue list --server http://127.0.0.1:8790
    """
    names = queues.names()
    for name in names:
        show(plain(name), {"queue": name}, as_json=as_json)
    if not names and not as_json:
        click.echo(_NONE)


@_queue_command("enqueue")
@click.argument("value", required=False)
@click.option("--delay", "delay_s", type=Duration(), metavar="DURATION", help="Due so long from now.")
@click.option("--deadline", "deadline_us", type=Time(), metavar="T", help="Due at T; without it and --delay: now.")
@click.option("--priority", type=Whole(0, 255), help="The smallest goes first; 100.")
@click.option("--dedupe-key", metavar="KEY", help="While QUEUE has an item with KEY, add no other.")
@click.option("--raw", is_flag=True, help="Take each line, unparsed, as a value.")
@json_and_queues
def enqueue(queues: Queues, *, name: str, value: str | None, raw: bool, as_json: bool, **fields: object) -> None:
    """Add the item VALUE to QUEUE; without VALUE, one for each line on standard input.

    A line is a JSON object: {"text": "…"}, or bytes as {"value": BASE64}, with "delay_s" or "deadline_us",
    "priority" and "dedupe_key" if need be; what it leaves out is as the options say. Items are in the queue
    once the command says so. Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue enqueue jobs 'water the plants' --delay 10m --dedupe-key plants
      echo '{"text": "a", "delay_s": 60}' | wal3 queue enqueue jobs
      seq 1000 | wal3 queue enqueue jobs --raw --server http://127.0.0.1:8790
    """
    key = fields.pop("dedupe_key")
    if value is None and key is not None:
        raise click.UsageError("--dedupe-key: expected VALUE beside it; a line has a key of its own")
    check_alone("--delay", "--deadline", fields["delay_s"], fields["deadline_us"])
    given = {field: each for field, each in fields.items() if each is not None}
    enqueuing = Enqueuing(queues, name, given)
    if value is not None:
        enqueuing.add_one(value, key)
    else:
        stopped = enqueuing.run(raw=raw)
        if stopped is not None:
            raise stopped
    unsaid = report(enqueuing.summary, {"queue": name, **enqueuing.to_json()} if as_json else None)
    if unsaid is not None:
        raise unsaid


@_queue_command("dequeue")
@click.option("-n", "--count", "wanted", type=Whole(1, _ITEMS_MAX), default=1, help="At most so many; 1.")
@click.option(
    "--wait", "wait_s", type=Duration(0, _WAIT_S_MAX), default=0.0, metavar="DURATION", help="For the first item; 0s."
)
@click.option("--lease", "lease_s", type=Duration(0.001), metavar="DURATION", help="As QUEUE is defined.")
@click.option("--release", "releases", is_flag=True, help="Remove the items once they are printed.")
@lines_and_queues
def dequeue(queues: Queues, *, name: str, wanted: int, wait_s: float, lease_s: float | None, releases: bool) -> None:
    """Lease due items of QUEUE, and print each as a line of JSON.

    A value is UTF-8 in "text", or base64 in "value". An item that is not released (`wal3 queue release`)
    before its lease ends comes back. Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue dequeue jobs --wait 1m --release | jq -r .text
      wal3 queue dequeue jobs -n 10 --lease 10m > items
      work items && wal3 queue release jobs < items
    """
    with quiet_pipe():
        items = queues.dequeue(name, wanted, timeout_s=wait_s, lease_s=lease_s)
        for item in items:
            print_json(item)
        sys.stdout.flush()
        if items and releases:
            queues.run(name, Release(tuple((item["id"], item["token"]) for item in items)))


@queue.command("stats")
@queue_argument(many=True)
@json_and_queues
def stats(queues: Queues, *, names: tuple[str, ...], as_json: bool) -> None:
    """Show how many items each QUEUE holds, or each queue there is. Fences no process.

    A queue that cannot be read hides no others: it is named after them.

    \b
    Examples:
      wal3 queue stats
      wal3 queue stats jobs --json | jq .due
    """
    found: dict[str, Json] = {}
    unread: list[CorruptError | InvalidRequestError] = []
    for name in names or queues.names():
        try:
            found[name] = queues.stats(name)
        except (CorruptError, InvalidRequestError) as error:
            unread.append(error)
    if as_json:
        for name, each in found.items():
            print_json({"queue": name, **each})
    elif found or not unread:
        _show_stats(found)
    if len(unread) == 1:
        raise unread[0]
    if unread:
        raise Failure(f"expected to read each queue, found {len(unread):,} that cannot be, the first one: {unread[0]}")


def _show_stats(found: Mapping[str, Json]) -> None:
    if not found:
        click.echo(_NONE)
        return
    rows = [
        (
            name,
            *(count(each[field]) for field in ("due", "scheduled", "leased", "dead")),
            size(each["bytes"]),
            time(each["oldest_due_us"] or 0),
            time(each["next_deadline_us"] or 0),
        )
        for name, each in found.items()
    ]
    show_table(_COLUMNS, rows, numbers=_COLUMNS[1:6])
    for name, each in found.items():
        if strays := each.get("strays"):
            at = each["stray_offset"]
            click.echo(f"{name}: {count(strays)} records of others in its log, the newest at offset {at}")
        if ended := each.get("ended"):
            since = time(each["oldest_ended_us"] or 0)
            click.echo(f"{name}: {counted(ended, 'lease')} ended, the first at {since}: a broker makes these items due")
        if damaged := each.get("damaged"):
            click.echo(f"{name}: {counted(damaged, 'damaged fragment')} of its log left out")


@_queue_command("peek")
@click.option("-n", "--count", "wanted", type=Whole(1, _ITEMS_MAX), default=1, help="At most so many; 1.")
@lines_and_queues
def peek(queues: Queues, *, name: str, wanted: int) -> None:
    """Print the items of QUEUE that come first, due or not, as `dequeue` does. Leases none, fences no process.

    \b
    Examples:
      wal3 queue peek jobs -n 10 | jq -r .text
    """
    with quiet_pipe():
        for item in queues.peek(name, wanted):
            print_json(item)


@_queue_command("purge")
@click.option("--leased", is_flag=True, help="Also leased items.")
@click.option("--dead", is_flag=True, help="Also dead letters.")
@click.option("--pending/--no-pending", default=True, help="Also, or not, the pending items; they are by default.")
@click.option("--dry-run", is_flag=True, help="Show how many items would be removed, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_and_queues
def purge(queues: Queues, *, name: str, dry_run: bool, yes: bool, as_json: bool, **states: bool) -> None:
    """Remove all pending items of QUEUE for good.

    Asks first; without a terminal, --yes is required. Without --server, this fences the queue's broker
    (`wal3 queue --help`); --dry-run does not.

    \b
    Examples:
      wal3 queue purge jobs --dry-run
      wal3 queue purge jobs --no-pending --dead --yes
    """
    if dry_run or not yes:
        held = queues.stats(name)
        items = sum(held[state] for state, wanted in states.items() if wanted)
    if not dry_run:
        if not yes:
            confirm(f"queue {name}", f"Remove {counted(items, 'item')} of {name} for good?")
        items = queues.run(name, Purge(**states))
    said = f"{'would remove' if dry_run else 'removed'} {counted(items, 'item')} of {name}"
    show(said, {"queue": name, "items": items, "dry_run": dry_run}, as_json=as_json)


@queue.command("serve")
@prefix_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=Whole(0, _PORT_MAX), default=_PORT, show_default=True, help="0: any free one.")
@click.option(
    "--tokens-file", type=click.Path(path_type=Path), help="Access tokens, one a line; WAL3_QUEUE_TOKENS by default."
)
@click.option("--insecure", is_flag=True, help="Listen on a public address without access tokens.")
@click.option("--requests-per-s", type=Decimal(0), default=1000.0, show_default=True, help="Of a client.")
@click.option("--body-bytes-max", type=Whole(1), default=2**24, show_default=True, help="Of a request.")
@click.option("--requests-max", type=Whole(1), default=2000, show_default=True, help="At a time.")
@click.option("--waiting-max", type=Whole(0), default=2000, show_default=True, help="Calls that wait, beside.")
@session_and_json
def serve(  # noqa: PLR0913 - its options
    session: Session,
    *,
    prefix: str,
    host: str,
    port: int,
    tokens_file: Path | None,
    insecure: bool,
    as_json: bool,
    **limits: Any,  # noqa: ANN401 - those of QueueServerOptions
) -> None:
    """Serve the store's queues over HTTP, until Ctrl-C or SIGTERM; URL/docs describes the requests.

    The server becomes the broker of each queue when it is first used. Without access tokens, it listens on
    this machine's own address only. It speaks plain HTTP: put a proxy with TLS before it where others listen.

    \b
    Examples:
      wal3 queue serve
      wal3 queue serve --host 0.0.0.0 --tokens-file /etc/wal3/tokens
    """
    try:
        from wal3_core.queue_server.service import QueueServerOptions  # noqa: PLC0415 - its packages are an extra
        from wal3_core.queue_server.serving import serve as serve_queues  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        if error.name not in {"fastapi", "pydantic", "starlette", "uvicorn"}:
            raise
        raise InvalidFailure(f"queue server: {missing(error.name, 'queue')}") from error
    serve_queues(
        session.store(),
        prefix,
        (host, port),
        options=QueueServerOptions(**limits),
        tokens_file=tokens_file,
        insecure=insecure,
        ready=lambda url: show(url, {"url": url}, as_json=as_json),
    )


# ---------------------------------------------------------------------- leases and dead letters


def _lease_arguments(command: F) -> F:
    """Add the arguments ID and TOKEN, of which there are both or neither."""
    token = click.argument("token", metavar="TOKEN]", required=False)
    return click.argument("item", metavar="[ID", type=Whole(), required=False)(token(command))


def _leases(item: int | None, token: str | None) -> list[tuple[int, str]]:
    """Return the lease that was named, or those on standard input."""
    if item is not None and token is None:
        raise click.UsageError("expected ID and TOKEN, or neither, found ID alone")
    return [(item, token)] if item is not None and token is not None else leases_of(sys.stdin)


@_queue_command("release")
@_lease_arguments
@json_and_queues
def release(queues: Queues, *, name: str, item: int | None, token: str | None, as_json: bool) -> None:
    """Remove the leased item ID from QUEUE; without ID, those on standard input: lines as `dequeue` prints them.

    All of them or none; none if the lease of one has ended. Without --server, this fences the queue's broker
    (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue release jobs 17 8f14e45fceea167a
      wal3 queue release jobs < items
    """
    leases = _leases(item, token)
    if leases:
        queues.run(name, Release(tuple(leases)))
    said = f"released {counted(len(leases), 'item')} of {name}"
    show(said, {"queue": name, "released": len(leases)}, as_json=as_json)


@_queue_command("requeue")
@_lease_arguments
@click.option("--delay", "delay_s", type=Duration(), metavar="DURATION", help="Due so long from now.")
@click.option("--deadline", "deadline_us", type=Time(), metavar="T", help="Due at T; without it and --delay: now.")
@click.option("--value", help="What the item holds from now on; only beside ID.")
@json_and_queues
def requeue(  # noqa: PLR0913 - its options
    queues: Queues,
    *,
    name: str,
    item: int | None,
    token: str | None,
    delay_s: float | None,
    deadline_us: int | None,
    value: str | None,
    as_json: bool,
) -> None:
    """Put the leased item ID of QUEUE back; without ID, those on standard input: lines as `dequeue` prints them.

    An item that was handed out as often as QUEUE allows goes to the dead letters instead. Items whose leases
    have ended are named, and left alone (exit code 1). Without --server, this fences the queue's broker
    (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue requeue jobs 17 8f14e45fceea167a --delay 10m
      wal3 queue requeue jobs < items
    """
    check_alone("--delay", "--deadline", delay_s, deadline_us)
    if value is not None and item is None:
        raise click.UsageError("--value: expected ID and TOKEN beside it")
    new = None if value is None else text(value, "--value").encode()
    operations = [Requeue(*lease, deadline_us, delay_s, new) for lease in _leases(item, token)]
    _change(queues, name, "requeued", operations, as_json=as_json)


@_queue_command("extend")
@_lease_arguments
@click.option(
    "--lease", "lease_s", type=Duration(0.001), metavar="DURATION", required=True, help="It ends so long from now."
)
@json_and_queues
def extend(queues: Queues, *, name: str, item: int | None, token: str | None, lease_s: float, as_json: bool) -> None:
    """Let the lease of item ID of QUEUE end later, or sooner; without ID, those of the items on standard input.

    Lines are as `dequeue` prints them. Items whose leases have ended are named, and left alone (exit code 1).
    Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue extend jobs 17 8f14e45fceea167a --lease 10m
      wal3 queue extend jobs --lease 10m < items
    """
    _change(queues, name, "extended", [Extend(*lease, lease_s) for lease in _leases(item, token)], as_json=as_json)


@_queue_command("bury")
@_lease_arguments
@json_and_queues
def bury(queues: Queues, *, name: str, item: int | None, token: str | None, as_json: bool) -> None:
    """Put the leased item ID of QUEUE among the dead letters; without ID, those on standard input.

    Lines are as `dequeue` prints them. Items whose leases have ended are named, and left alone (exit code 1).
    Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue bury jobs 17 8f14e45fceea167a
      wal3 queue bury jobs < items
    """
    _change(queues, name, "buried", [Bury(*lease) for lease in _leases(item, token)], as_json=as_json)


@_queue_command("reclaim")
@click.argument("ids", metavar="ID...", type=Whole(1), nargs=-1, required=True)
@json_and_queues
def reclaim(queues: Queues, *, name: str, ids: tuple[int, ...], as_json: bool) -> None:
    """Put the leased items with these IDs of QUEUE back, due now, though their workers have them: all or none.

    For items whose workers are gone: their tokens are refused from then on. Items that were handed out as often
    as QUEUE allows go to the dead letters. Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue reclaim jobs 17 23
    """
    found = queues.run(name, Reclaim(ids))
    buried = [each["id"] for each in found if each["dead"]]
    said = f"reclaimed {counted(len(found), 'item')} of {name}"
    if buried:
        said += f"\nburied {counted(len(buried), 'item')} of them{_listed(buried)}"
    show(said, {"queue": name, "items": found}, as_json=as_json)


@_queue_command("repair")
@click.option(
    "--without-damaged", is_flag=True, help="Let QUEUE go on, for good, without what damaged fragments of its log hold."
)
@json_and_queues
def repair(queues: Queues, *, name: str, without_damaged: bool, as_json: bool) -> None:
    """Set QUEUE's time back to the wall clock's, if it is ahead, as after a clock that was wrong by years.

    All leases end then, and items that are due too late by the later time get other deadlines. Damaged fragments
    of its log are better repaired from a copy first (`wal3 repair`). This fences the queue's broker
    (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue repair jobs
      wal3 queue repair jobs --without-damaged
    """
    found = stored(queues).repair(name, without_damaged=without_damaged)
    said = f"repaired {name}: {counted(found['retimed'], 'item')} with another time"
    if found["damaged"]:
        done = "goes on without them" if without_damaged else "lacks what they hold until they are repaired"
        said += f"\n{counted(found['damaged'], 'damaged fragment')}: {name} {done}"
    show(said, {"queue": name, **found}, as_json=as_json)


@_queue_command("dead")
@click.option("-n", "--count", "wanted", type=Whole(1, _ITEMS_MAX), default=100, help="At most so many; 100.")
@click.option("--after", type=Whole(), default=0, metavar="ID", help="Only those with ids above ID.")
@lines_and_queues
def dead(queues: Queues, *, name: str, wanted: int, after: int) -> None:
    """Print the dead letters of QUEUE by rising ids, each as a line of JSON, as `peek` does. Fences no process.

    Items go there after too many deliveries (`wal3 queue create --max-deliveries`), or by `wal3 queue bury`;
    `wal3 queue kick` brings them back, `wal3 queue purge --dead --no-pending` removes them.

    \b
    Examples:
      wal3 queue dead jobs | jq -r .text
      wal3 queue dead jobs -n 1000 --after 1000
    """
    with quiet_pipe():
        for item in queues.dead(name, wanted, after=after):
            print_json(item)


@_queue_command("kick")
@click.argument("ids", metavar="[ID]...", type=Whole(), nargs=-1)
@click.option("-n", "--count", "wanted", type=Whole(1, _KICKED_MAX), help="At most so many; 1.")
@json_and_queues
def kick(queues: Queues, *, name: str, ids: tuple[int, ...], wanted: int | None, as_json: bool) -> None:
    """Make dead letters of QUEUE pending, due now: those with these IDs, or the COUNT that were buried first.

    They count as not handed out yet. With IDs, all of them or none. Without --server, this fences the queue's
    broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue kick jobs 17 23
      wal3 queue kick jobs -n 10000
    """
    if ids and wanted is not None:
        raise click.UsageError("--count: expected no ID beside it")
    kicked = queues.run(name, Kick(wanted or 1, ids or None))
    said = f"kicked {counted(len(kicked), 'item')} of {name}{_listed(kicked)}"
    show(said, {"queue": name, "ids": kicked}, as_json=as_json)


def _listed(ids: Sequence[int]) -> str:
    """Show ids, unless there are many."""
    if not ids:
        return ""
    more = f" and {len(ids) - _SHOWN_MAX:,} more" if len(ids) > _SHOWN_MAX else ""
    return f": {', '.join(map(str, ids[:_SHOWN_MAX]))}{more}"


def _change(queues: Queues, name: str, word: str, operations: Sequence[OfLease], *, as_json: bool) -> None:
    """Do something with each of several leased items, and print of how many it was done: ``word``.

    Failure names the first item for which there is no answer, or those whose leases had ended.
    """
    answers: list[Any] = []
    ended: list[int] = []
    failed: list[tuple[int, LogError]] = []
    given = queues.change(name, operations) if operations else ()
    for operation, answer in zip(operations, given, strict=False):
        if isinstance(answer, StaleTokenError):
            ended.append(operation.id)
        elif isinstance(answer, LogError):
            failed.append((operation.id, answer))
        else:
            answers.append(answer)
    said = f"{word} {counted(len(answers), 'item')} of {name}"
    if failed:
        item_id, error = failed[0]
        left = len(operations) - len(answers) - len(ended)
        kind = InvalidFailure if isinstance(error, InvalidRequestError) else Failure
        raise kind(f"{said}; {counted(left, 'item')} not, or not for certain: item {item_id}: {error}") from error
    document = {"queue": name, word: len(answers), "ended": ended}
    if word == "extended":
        until_us = min(answers, default=None)
        said += f" to {time(until_us)}" if until_us is not None else ""
        document["lease_until_us"] = until_us
    show(said, document, as_json=as_json)
    if ended:
        raise Failure(f"expected leases that go on, found {len(ended):,} that had ended{_listed(ended)}")
