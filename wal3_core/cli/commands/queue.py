"""``wal3 queue``: delay queues, in the store or behind a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wal3_core.cli.asking import confirm
from wal3_core.cli.failures import Failure, InvalidFailure
from wal3_core.cli.output import count, counted, plain, print_json, quiet_pipe, report, size, time
from wal3_core.cli.queue_input import Enqueuing
from wal3_core.cli.queue_letters import bury, dead, extend, kick, reclaim, release, repair, requeue
from wal3_core.cli.queues import prefix_option, queue_argument, queues_options
from wal3_core.cli.session import Commands, Session, json_option, lines_option, pass_session
from wal3_core.cli.tables import show_table
from wal3_core.cli.times import Decimal, Duration, Time, Whole
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.runtime.extras import missing
from wal3_core.views.queue import QueueDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal3_core.cli.queues import Queues
    from wal3_core.queue_server.wire import Json

_DEFAULTS = QueueDefinition()
_COUNT_MAX = 2**31 - 1
_ITEMS_MAX = 1000
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


for _command in (release, requeue, extend, bury, reclaim, dead, kick, repair):
    queue.add_command(_command)


@queue.command("create")
@queue_argument()
@click.option(
    "--lease", "lease_s", type=Duration(0.001), default=_DEFAULTS.lease_s, metavar="DURATION", help="Of an item; 60s."
)
@click.option("--max-deliveries", type=Whole(1, _COUNT_MAX), help="Then an item goes to the dead letters; no limit.")
@click.option(
    "--value-bytes-max", type=Whole(), default=_DEFAULTS.value_bytes_max, show_default=True, help="Of a value."
)
@click.option("--items-max", type=Whole(1, _COUNT_MAX), help="More items are refused; no limit.")
@json_option
@queues_options
def create_queue(queues: Queues, *, name: str, as_json: bool, lease_s: float, **limits: int) -> None:
    """Create the empty queue QUEUE.

    \b
    Examples:
      wal3 queue create jobs
      wal3 queue create jobs --lease 5m --max-deliveries 5
    """
    definition = QueueDefinition(lease_s=lease_s, **limits)
    queues.create(name, definition)
    if as_json:
        print_json({"queue": name, "created": True, "definition": definition.to_json()})
    else:
        click.echo(f"created {name}")


@queue.command("list")
@json_option
@queues_options
def list_queues(queues: Queues, *, as_json: bool) -> None:
    """List the queues. Fences no process.

    \b
    Examples:
      wal3 queue list
      wal3 queue list --server http://127.0.0.1:8790
    """
    names = queues.names()
    for name in names:
        if as_json:
            print_json({"queue": name})
        else:
            click.echo(plain(name))
    if not names and not as_json:
        click.echo(_NONE)


@queue.command("enqueue")
@queue_argument()
@click.argument("value", required=False)
@click.option("--delay", "delay_s", type=Duration(), metavar="DURATION", help="Due so long from now.")
@click.option("--deadline", "deadline_us", type=Time(), metavar="T", help="Due at T; without it and --delay: now.")
@click.option("--priority", type=Whole(0, 255), help="The smallest goes first; 100.")
@click.option("--dedupe-key", metavar="KEY", help="While QUEUE has an item with KEY, add no other.")
@click.option("--raw", is_flag=True, help="Take each line, unparsed, as a value.")
@json_option
@queues_options
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
        message = "--dedupe-key: expected VALUE beside it; a line has a key of its own"
        raise click.UsageError(message)
    if fields["delay_s"] is not None and fields["deadline_us"] is not None:
        message = "--delay and --deadline: give only one of them"
        raise click.UsageError(message)
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


@queue.command("dequeue")
@queue_argument()
@click.option("-n", "--count", "wanted", type=Whole(1, _ITEMS_MAX), default=1, help="At most so many; 1.")
@click.option(
    "--wait", "wait_s", type=Duration(0, _WAIT_S_MAX), default=0.0, metavar="DURATION", help="For the first item; 0s."
)
@click.option("--lease", "lease_s", type=Duration(0.001), metavar="DURATION", help="As QUEUE is defined.")
@click.option("--release", "releases", is_flag=True, help="Remove the items once they are printed.")
@lines_option
@queues_options
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
            queues.release_many(name, [(int(str(item["id"])), str(item["token"])) for item in items])


@queue.command("stats")
@queue_argument(many=True)
@json_option
@queues_options
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
        message = f"expected to read each queue, found {len(unread):,} that cannot be, the first one: {unread[0]}"
        raise Failure(message)


def _show_stats(found: Mapping[str, Json]) -> None:
    if not found:
        click.echo(_NONE)
        return
    rows = [
        (
            name,
            *(count(_number(each, field)) for field in ("due", "scheduled", "leased", "dead")),
            size(_number(each, "bytes")),
            time(_number(each, "oldest_due_us")),
            time(_number(each, "next_deadline_us")),
        )
        for name, each in found.items()
    ]
    show_table(_COLUMNS, rows, numbers=_COLUMNS[1:6])
    for name, each in found.items():
        if strays := each.get("strays"):
            at = each.get("stray_offset")
            click.echo(f"{name}: {count(int(str(strays)))} records of others in its log, the newest at offset {at}")
        if damaged := each.get("damaged"):
            click.echo(f"{name}: {counted(int(str(damaged)), 'damaged fragment')} of its log left out")


def _number(fields: Json, name: str) -> int:
    """Return a count or a time; none is 0."""
    found = fields[name]
    return found if isinstance(found, int) else 0


@queue.command("peek")
@queue_argument()
@click.option("-n", "--count", "wanted", type=Whole(1, _ITEMS_MAX), default=1, help="At most so many; 1.")
@lines_option
@queues_options
def peek(queues: Queues, *, name: str, wanted: int) -> None:
    """Print the items of QUEUE that come first, due or not, as `dequeue` does. Leases none, fences no process.

    \b
    Examples:
      wal3 queue peek jobs -n 10 | jq -r .text
    """
    with quiet_pipe():
        for item in queues.peek(name, wanted):
            print_json(item)


@queue.command("purge")
@queue_argument()
@click.option("--leased", is_flag=True, help="Also leased items.")
@click.option("--dead", is_flag=True, help="Also dead letters.")
@click.option("--pending/--no-pending", default=True, help="Also, or not, the pending items; they are by default.")
@click.option("--dry-run", is_flag=True, help="Show how many items would be removed, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@queues_options
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
        items = queues.purge(name, **states, dry_run=True)
    if not dry_run:
        if not yes:
            confirm(f"queue {name}", f"Remove {counted(items, 'item')} of {name} for good?")
        items = queues.purge(name, **states, dry_run=False)
    if as_json:
        print_json({"queue": name, "items": items, "dry_run": dry_run})
    else:
        click.echo(f"{'would remove' if dry_run else 'removed'} {counted(items, 'item')} of {name}")


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
@json_option
@pass_session
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
        from wal3_core.queue_server.serving import QueueServerOptions  # noqa: PLC0415 - its packages are an extra
        from wal3_core.queue_server.serving import serve as serve_queues  # noqa: PLC0415
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
        ready=lambda url: print_json({"url": url}) if as_json else click.echo(url),
    )
