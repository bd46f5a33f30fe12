"""The queues that a command works on: those of the store, or those of a server."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING

import click

from wal3_core.cli.failures import NAMED_LOG
from wal3_core.cli.names import LOG_PREFIX, Name, complete_names_below
from wal3_core.cli.session import Session, pass_session
from wal3_core.errors import LogError
from wal3_core.queue_server.client import QueueClient
from wal3_core.queue_server.wire import PREFIX, TOKEN_VARIABLE, leased_json, log_of, names_below, peeked_json
from wal3_core.runtime import shared_runtime
from wal3_core.views.queue import DelayQueue, Kick, read_queue_dead, read_queue_head, read_queue_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from wal3_core.queue_server.client import OfLease
    from wal3_core.queue_server.wire import Json
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.queue import NewItem, QueueDefinition

    F = TypeVar("F", bound=Callable[..., object])


class StoredQueues:
    """The queues of a store. What changes one makes this process its broker: a running one is fenced."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._open: dict[str, DelayQueue] = {}

    def close(self) -> None:
        """Close what was opened."""
        for queue in self._open.values():
            queue.close()

    def _opened(self, name: str) -> DelayQueue:
        if name not in self._open:
            self._open[name] = DelayQueue.open(self._store, log_of(self._prefix, name))
        return self._open[name]

    def create(self, name: str, definition: QueueDefinition) -> None:
        """Make a queue. LogExistsError when there is a log of that name."""
        DelayQueue.create(self._store, log_of(self._prefix, name), definition)

    def names(self) -> list[str]:
        """Return the names of the queues."""
        return names_below(self._store, self._prefix)

    def enqueue_many(self, name: str, items: Sequence[NewItem]) -> list[Json]:
        """Add items, all or none."""
        return [asdict(each) for each in self._opened(name).enqueue_many(items)]

    def dequeue(self, name: str, count: int = 1, *, timeout_s: float = 0.0, lease_s: float | None = None) -> list[Json]:
        """Lease items; wait for the first one."""
        found = self._opened(name).dequeue(count, timeout_s=timeout_s, lease_s=lease_s)
        return [leased_json(item, as_text=True) for item in found]

    def release_many(self, name: str, leases: Sequence[tuple[int, str]]) -> None:
        """Remove leased items, all or none."""
        self._opened(name).release_many(leases)

    def stats(self, name: str) -> Json:
        """Return what a queue holds, by reading alone."""
        return read_queue_stats(self._store, log_of(self._prefix, name)).to_json()

    def peek(self, name: str, count: int = 1) -> list[Json]:
        """Return the pending items that come first, by reading alone."""
        found = read_queue_head(self._store, log_of(self._prefix, name), count)
        return [peeked_json(item, as_text=True) for item in found]

    def dead(self, name: str, count: int = 100, *, after: int = 0) -> list[Json]:
        """Return dead letters by rising ids, those above ``after``, by reading alone."""
        found = read_queue_dead(self._store, log_of(self._prefix, name), count, after=after)
        return [peeked_json(item, as_text=True) for item in found]

    def kick(self, name: str, count: int = 1, ids: Sequence[int] | None = None) -> list[int]:
        """Make dead letters pending: those with these ids, all or none, or the ``count`` that were buried first."""
        operation = Kick(count, None if ids is None else tuple(ids))
        found: list[int] = shared_runtime().wait(self._opened(name).submit(operation))
        return found

    def change(self, name: str, operations: Iterable[OfLease]) -> Iterator[Json | LogError]:
        """Do something with each of several leased items; give each answer, or the error that refused it."""
        queue = self._opened(name)
        for future in [queue.submit(operation) for operation in operations]:
            try:
                answer = shared_runtime().wait(future)
            except LogError as error:
                yield error
            else:
                yield {"lease_until_us": answer} if isinstance(answer, int) else {}

    def reclaim(self, name: str, ids: Sequence[int]) -> list[Json]:
        """Put leased items back without their tokens, all or none."""
        return [asdict(each) for each in self._opened(name).reclaim(ids)]

    def repair(self, name: str, *, without_damaged: bool) -> Json:
        """Put a queue's time right, and, if that is said, let it go on without damaged fragments."""
        return DelayQueue.repair(self._store, log_of(self._prefix, name), without_damaged=without_damaged).to_json()

    def purge(self, name: str, *, pending: bool, leased: bool, dead: bool, dry_run: bool) -> int:
        """Remove items for good; return their number. With ``dry_run``, count them, by reading alone."""
        if dry_run:
            stats = read_queue_stats(self._store, log_of(self._prefix, name))
            return pending * stats.pending + leased * stats.leased + dead * stats.dead
        return self._opened(name).purge(pending=pending, leased=leased, dead=dead)


# What the commands work on. Items are JSON objects, as those of a server.
Queues = StoredQueues | QueueClient


def stored(queues: Queues) -> StoredQueues:
    """Return the queues of the store; refuse those of a server."""
    if not isinstance(queues, StoredQueues):
        message = "--server: expected none, as this is done to the queue in its store: leave it out"
        raise click.UsageError(message)
    return queues


@contextmanager
def queues_of(session: Session, server: str | None, prefix: str) -> Iterator[Queues]:
    """Give the queues of a server if one is named, else those of the store below a prefix."""
    if server is not None:
        yield QueueClient(server, os.environ.get(TOKEN_VARIABLE) or None)
        return
    found = StoredQueues(session.store(), prefix)
    try:
        yield found
    finally:
        found.close()


def prefix_option(command: F) -> F:
    """Add --prefix."""
    return click.option(
        "--prefix",
        type=LOG_PREFIX,
        default=PREFIX,
        show_default=True,
        metavar="LOG",
        help="The queue NAME is the log LOG/NAME.",
    )(command)


def queues_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --server and --prefix; the command gets ``queues`` in their place, and that of its first argument."""

    @wraps(command)
    def with_queues(session: Session, *, server: str | None, prefix: str, **others: object) -> None:
        with queues_of(session, server, prefix) as queues:
            command(queues, **others)

    server_option = click.option(
        "--server",
        metavar="URL",
        envvar="WAL3_QUEUE_SERVER",
        help=f"A queue server, with its access token in {TOKEN_VARIABLE}; WAL3_QUEUE_SERVER by default.",
    )
    return pass_session(server_option(prefix_option(with_queues)))


def queue_argument(*, many: bool = False) -> Callable[[F], F]:
    """Make an argument that completes the names of queues."""
    if many:
        return click.argument("names", metavar="[QUEUE]...", nargs=-1, type=_QUEUE, shell_complete=_complete_queues)
    return click.argument("name", metavar="QUEUE", type=_QUEUE, shell_complete=_complete_queues, callback=_note_log)


def _check_name(value: object, _: str) -> str:
    name = str(value)
    log_of("", name)
    return name


_QUEUE = Name("queue", _check_name)


def _complete_queues(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    del parameter
    if context.params.get("server"):
        return []
    return complete_names_below(context, str(context.params.get("prefix") or PREFIX), begun)


def _note_log(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Let a failure of the command name its log."""
    del parameter
    context.meta[NAMED_LOG] = f"{context.params.get('prefix') or PREFIX}/{name}"
    return name
