"""``wal3 queue``: the commands that end leases or change them, and those for dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wal3_core.cli.failures import Failure, InvalidFailure
from wal3_core.cli.output import counted, print_json, quiet_pipe, time
from wal3_core.cli.queue_input import leases_of
from wal3_core.cli.queues import queue_argument, queues_options, stored
from wal3_core.cli.session import json_option, lines_option
from wal3_core.cli.times import Duration, Time, Whole
from wal3_core.errors import InvalidRequestError, LogError, StaleTokenError
from wal3_core.queue_server.wire import utf8
from wal3_core.views.queue import Bury, Extend, Requeue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from wal3_core.cli.queues import Queues
    from wal3_core.queue_server.client import OfLease
    from wal3_core.queue_server.wire import Json

    F = TypeVar("F", bound=Callable[..., object])

_ITEMS_MAX, _KICKED_MAX = 1000, 10_000
_SHOWN_MAX = 20


def _lease_arguments(command: F) -> F:
    """Add the arguments ID and TOKEN, of which there are both or neither."""
    token = click.argument("token", metavar="TOKEN]", required=False)
    return click.argument("item", metavar="[ID", type=Whole(), required=False)(token(command))


def _leases(item: int | None, token: str | None) -> list[tuple[int, str]]:
    """Return the lease that was named, or those on standard input."""
    if item is not None and token is None:
        message = "expected ID and TOKEN, or neither, found ID alone"
        raise click.UsageError(message)
    return [(item, token)] if item is not None and token is not None else leases_of(sys.stdin)


@click.command("release")
@queue_argument()
@_lease_arguments
@json_option
@queues_options
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
        queues.release_many(name, leases)
    if as_json:
        print_json({"queue": name, "released": len(leases)})
    else:
        click.echo(f"released {counted(len(leases), 'item')} of {name}")


@click.command("requeue")
@queue_argument()
@_lease_arguments
@click.option("--delay", "delay_s", type=Duration(), metavar="DURATION", help="Due so long from now.")
@click.option("--deadline", "deadline_us", type=Time(), metavar="T", help="Due at T; without it and --delay: now.")
@click.option("--value", help="What the item holds from now on; only beside ID.")
@json_option
@queues_options
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
    if delay_s is not None and deadline_us is not None:
        message = "--delay and --deadline: give only one of them"
        raise click.UsageError(message)
    if value is not None and item is None:
        message = "--value: expected ID and TOKEN beside it"
        raise click.UsageError(message)
    new = None if value is None else utf8(value, "--value")
    done = _Done(queues, name, "requeued")
    done.run([Requeue(*lease, deadline_us, delay_s, new) for lease in _leases(item, token)])
    done.show(as_json=as_json)


@click.command("extend")
@queue_argument()
@_lease_arguments
@click.option(
    "--lease", "lease_s", type=Duration(0.001), metavar="DURATION", required=True, help="It ends so long from now."
)
@json_option
@queues_options
def extend(queues: Queues, *, name: str, item: int | None, token: str | None, lease_s: float, as_json: bool) -> None:
    """Let the lease of item ID of QUEUE end later, or sooner; without ID, those of the items on standard input.

    Lines are as `dequeue` prints them. Items whose leases have ended are named, and left alone (exit code 1).
    Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue extend jobs 17 8f14e45fceea167a --lease 10m
      wal3 queue extend jobs --lease 10m < items
    """
    done = _Done(queues, name, "extended")
    answers = done.run([Extend(*lease, lease_s) for lease in _leases(item, token)])
    until_us = min((int(answer["lease_until_us"]) for answer in answers), default=None)
    done.show(as_json=as_json, lease_until_us=until_us)


@click.command("bury")
@queue_argument()
@_lease_arguments
@json_option
@queues_options
def bury(queues: Queues, *, name: str, item: int | None, token: str | None, as_json: bool) -> None:
    """Put the leased item ID of QUEUE among the dead letters; without ID, those on standard input.

    Lines are as `dequeue` prints them. Items whose leases have ended are named, and left alone (exit code 1).
    Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue bury jobs 17 8f14e45fceea167a
      wal3 queue bury jobs < items
    """
    done = _Done(queues, name, "buried")
    done.run([Bury(*lease) for lease in _leases(item, token)])
    done.show(as_json=as_json)


@click.command("reclaim")
@queue_argument()
@click.argument("ids", metavar="ID...", type=Whole(1), nargs=-1, required=True)
@json_option
@queues_options
def reclaim(queues: Queues, *, name: str, ids: tuple[int, ...], as_json: bool) -> None:
    """Put the leased items with these IDs of QUEUE back, due now, though their workers have them: all or none.

    For items whose workers are gone: their tokens are refused from then on. Items that were handed out as often
    as QUEUE allows go to the dead letters. Without --server, this fences the queue's broker (`wal3 queue --help`).

    \b
    Examples:
      wal3 queue reclaim jobs 17 23
    """
    found = queues.reclaim(name, ids)
    if as_json:
        print_json({"queue": name, "items": found})
        return
    buried = [int(str(each["id"])) for each in found if each["dead"]]
    click.echo(f"reclaimed {counted(len(found), 'item')} of {name}")
    if buried:
        click.echo(f"buried {counted(len(buried), 'item')} of them{_listed(buried)}")


@click.command("repair")
@queue_argument()
@click.option(
    "--without-damaged", is_flag=True, help="Let QUEUE go on, for good, without what damaged fragments of its log hold."
)
@json_option
@queues_options
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
    if as_json:
        print_json({"queue": name, **found})
        return
    retimed, damaged = int(str(found["retimed"])), int(str(found["damaged"]))
    click.echo(f"repaired {name}: {counted(retimed, 'item')} with another time")
    if damaged:
        done = "goes on without them" if without_damaged else "lacks what they hold until they are repaired"
        click.echo(f"{counted(damaged, 'damaged fragment')}: {name} {done}")


@click.command("dead")
@queue_argument()
@click.option("-n", "--count", "wanted", type=Whole(1, _ITEMS_MAX), default=100, help="At most so many; 100.")
@click.option("--after", type=Whole(), default=0, metavar="ID", help="Only those with ids above ID.")
@lines_option
@queues_options
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


@click.command("kick")
@queue_argument()
@click.argument("ids", metavar="[ID]...", type=Whole(), nargs=-1)
@click.option("-n", "--count", "wanted", type=Whole(1, _KICKED_MAX), help="At most so many; 1.")
@json_option
@queues_options
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
        message = "--count: expected no ID beside it"
        raise click.UsageError(message)
    kicked = queues.kick(name, wanted or 1, ids or None)
    if as_json:
        print_json({"queue": name, "ids": kicked})
    else:
        click.echo(f"kicked {counted(len(kicked), 'item')} of {name}{_listed(kicked)}")


def _listed(ids: Sequence[int]) -> str:
    """Show ids, unless there are many."""
    if not ids:
        return ""
    more = f" and {len(ids) - _SHOWN_MAX:,} more" if len(ids) > _SHOWN_MAX else ""
    return f": {', '.join(map(str, ids[:_SHOWN_MAX]))}{more}"


class _Done:
    """What was done with each of several leased items; ``word`` says what."""

    def __init__(self, queues: Queues, name: str, word: str) -> None:
        self._queues = queues
        self._name = name
        self._word = word
        self._num_items = 0
        self._ended: list[int] = []

    @property
    def _summary(self) -> str:
        return f"{self._word} {counted(self._num_items, 'item')} of {self._name}"

    def run(self, operations: Sequence[OfLease]) -> list[Json]:
        """Do each; return the answers of those that were done. A Failure says for how many there is none."""
        if not operations:
            return []
        answers: list[Json] = []
        first: tuple[int, LogError] | None = None
        for operation, answer in zip(operations, self._queues.change(self._name, operations), strict=False):
            if isinstance(answer, StaleTokenError):
                self._ended.append(operation.id)
            elif isinstance(answer, LogError):
                first = first or (operation.id, answer)
            else:
                answers.append(answer)
                self._num_items += 1
        if first is not None:
            item_id, error = first
            left = len(operations) - self._num_items - len(self._ended)
            kind = InvalidFailure if isinstance(error, InvalidRequestError) else Failure
            message = f"{self._summary}; {counted(left, 'item')} not, or not for certain: item {item_id}: {error}"
            raise kind(message) from error
        return answers

    def show(self, *, as_json: bool, **more: object) -> None:
        """Print it; Failure when the leases of some had ended."""
        if as_json:
            print_json({"queue": self._name, self._word: self._num_items, "ended": self._ended, **more})
        else:
            until_us = more.get("lease_until_us")
            click.echo(f"{self._summary}{f' to {time(until_us)}' if isinstance(until_us, int) else ''}")
        if self._ended:
            message = f"expected leases that go on, found {len(self._ended):,} that had ended{_listed(self._ended)}"
            raise Failure(message)
