"""The queues that a command works on, those of the store or of a server, and items as lines on standard input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from wal3_core.cli.shell.failures import NAMED_LOG, Failure, InvalidFailure
from wal3_core.cli.shell.input import StopSignals, line_batches, standard_input
from wal3_core.cli.shell.output import counted
from wal3_core.cli.shell.session import Session, json_option, lines_option, pass_session
from wal3_core.cli.types import LOG_PREFIX, Name, complete_names_below
from wal3_core.errors import InvalidRequestError, LogError, UnknownDurabilityError
from wal3_core.queue_server.client import QueueClient
from wal3_core.queue_server.wire import PREFIX, TOKEN_VARIABLE, Json, item_json, log_of, names_below, new_item
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.loading import read_queue_dead, read_queue_head, read_queue_stats
from wal3_core.views.queue.operations import Enqueue, Enqueued, NewItem, Operation, QueueDefinition

if TYPE_CHECKING:
    from wal3_core.cli.shell.session import F
    from wal3_core.queue_server.client import OfLease

_BATCH_LINES_MAX = 1000
# The values of a batch: well within what a server takes.
_BATCH_BYTES_MAX = 4 * 2**20
_TIMES = ("delay_s", "deadline_us")


class _StoredQueues:
    """The queues of a store, called as those of a server: see ``QueueClient``.

    What changes a queue makes this process its broker: a running one is fenced. What shows one only reads its log.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._open: dict[str, DelayQueue] = {}

    def close(self) -> None:
        for queue in self._open.values():
            queue.close()

    def _opened(self, name: str) -> DelayQueue:
        if name not in self._open:
            self._open[name] = DelayQueue.open(self._store, log_of(self._prefix, name))
        return self._open[name]

    def create(self, name: str, definition: QueueDefinition) -> None:
        DelayQueue.create(self._store, log_of(self._prefix, name), definition)

    def names(self) -> list[str]:
        return names_below(self._store, self._prefix)

    def run(self, name: str, operation: Operation) -> Any:  # noqa: ANN401 - each operation has its own result
        found = shared_runtime().wait(self._opened(name).submit(operation))
        if isinstance(found, list):
            return [asdict(each) if isinstance(each, Enqueued) else each for each in found]
        return found

    def change(self, name: str, operations: Iterable[OfLease]) -> Iterator[Any | LogError]:
        queue = self._opened(name)
        for future in [queue.submit(operation) for operation in operations]:
            try:
                yield shared_runtime().wait(future)
            except LogError as error:
                yield error

    def dequeue(self, name: str, count: int = 1, *, timeout_s: float = 0.0, lease_s: float | None = None) -> list[Json]:
        found = self._opened(name).dequeue(count, timeout_s=timeout_s, lease_s=lease_s)
        return [item_json(item, as_text=True) for item in found]

    def stats(self, name: str) -> Json:
        return read_queue_stats(self._store, log_of(self._prefix, name)).to_json()

    def peek(self, name: str, count: int = 1) -> list[Json]:
        found = read_queue_head(self._store, log_of(self._prefix, name), count)
        return [item_json(item, as_text=True) for item in found]

    def dead(self, name: str, count: int = 100, *, after: int = 0) -> list[Json]:
        found = read_queue_dead(self._store, log_of(self._prefix, name), count, after=after)
        return [item_json(item, as_text=True) for item in found]

    def repair(self, name: str, *, without_damaged: bool) -> Json:
        return DelayQueue.repair(self._store, log_of(self._prefix, name), without_damaged=without_damaged).to_json()


# The queues that commands work on. Items are JSON objects, as those of a server.
Queues = _StoredQueues | QueueClient


def stored(queues: Queues) -> _StoredQueues:
    """Return the queues of the store; refuse those of a server."""
    if not isinstance(queues, _StoredQueues):
        raise click.UsageError("--server: expected none, as this is done to the queue in its store: leave it out")
    return queues


prefix_option = click.option(
    "--prefix",
    type=LOG_PREFIX,
    default=PREFIX,
    show_default=True,
    metavar="LOG",
    help="The queue NAME is the log LOG/NAME.",
)


def _queues_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --server and --prefix; the command gets ``queues`` in their place, and that of its first argument."""

    @wraps(command)
    def with_queues(session: Session, *, server: str | None, prefix: str, **others: object) -> None:
        if server is not None:
            command(QueueClient(server, os.environ.get(TOKEN_VARIABLE) or None), **others)
            return
        with closing(_StoredQueues(session.store(), prefix)) as queues:
            command(queues, **others)

    server_option = click.option(
        "--server",
        metavar="URL",
        envvar="WAL3_QUEUE_SERVER",
        help=f"A queue server, with its access token in {TOKEN_VARIABLE}; WAL3_QUEUE_SERVER by default.",
    )
    return pass_session(server_option(prefix_option(with_queues)))


def json_and_queues(command: Callable[..., None]) -> Callable[..., None]:
    """Add --json, --server and --prefix."""
    return json_option(_queues_options(command))


def lines_and_queues(command: Callable[..., None]) -> Callable[..., None]:
    """Add --server, --prefix, and a --json that changes nothing."""
    return lines_option(_queues_options(command))


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


class Enqueuing:
    """Adds items to a queue, and counts those that are in it. ``given`` are the fields that a line may leave out."""

    def __init__(self, queues: Queues, name: str, given: Mapping[str, Any]) -> None:
        self._queues = queues
        self._name = name
        self._given = given
        self._lines = 0
        self._num_items = 0
        self._num_duplicates = 0
        self._first_id: object = None
        self._last_id: object = None

    @property
    def summary(self) -> str:
        """Describe what is in the queue."""
        added = self._num_items - self._num_duplicates
        ids = ""
        if added:
            ids = f" (id {self._first_id})" if added == 1 else f" (ids {self._first_id} to {self._last_id})"
        there = f"; {counted(self._num_duplicates, 'duplicate')} of items there" if self._num_duplicates else ""
        return f"{counted(added, 'item')} enqueued to {self._name}{ids}{there}"

    def to_json(self) -> Json:
        """Describe it for programs: the first ``lines`` lines of the input are in the queue."""
        return {
            "items": self._num_items - self._num_duplicates,
            "duplicates": self._num_duplicates,
            "lines": self._lines,
            "first_id": self._first_id,
            "last_id": self._last_id,
        }

    def add_one(self, text: str, dedupe_key: object) -> None:
        """Add one item."""
        self._add([new_item({**self._given, "text": text, "dedupe_key": dedupe_key})])

    def run(self, *, raw: bool) -> Failure | None:
        """Add an item for each line of standard input; return the failure that ended it early, or None."""
        stream = standard_input()
        if stream is None:
            return InvalidFailure("standard input: expected items, found it closed")
        with StopSignals() as signals:
            try:
                for lines in line_batches(stream):
                    self._add_lines(lines, raw=raw)
                    if signals.stop:
                        return type(signals.failure)(f"{self.summary}; {signals.failure.message}{self._so_far}")
            except LogError as error:
                kind = InvalidFailure if isinstance(error, InvalidRequestError) else Failure
                next_line = f"line {self._lines + 1}"
                said = f"{next_line} is not, nor is any line after it: {error}"
                if isinstance(error, UnknownDurabilityError):
                    said = f"{next_line} and those sent with it may or may not be, no line after them is: {error}"
                return kind(f"{self.summary}{self._so_far}; {said}")
            except OSError as error:
                return Failure(f"{self.summary}{self._so_far}; standard input: {error}")
        return None

    @property
    def _so_far(self) -> str:
        return f"; lines 1 to {self._lines} are in the queue" if self._lines else ""

    def _add_lines(self, lines: list[bytes], *, raw: bool) -> None:
        """Add the items of lines; those before a bad line, too."""
        items: list[NewItem] = []
        num_bytes = taken = 0
        bad: InvalidRequestError | None = None
        for line in lines:
            try:
                item = self._item(line, raw=raw)
            except InvalidRequestError as error:
                bad = error
                break
            taken += 1
            if item is None:
                continue
            items.append(item)
            num_bytes += len(item.value)
            if len(items) == _BATCH_LINES_MAX or num_bytes > _BATCH_BYTES_MAX:
                self._add(items)
                self._lines += taken
                items, num_bytes, taken = [], 0, 0
        if items:
            self._add(items)
        self._lines += taken
        if bad is not None:
            raise bad

    def _item(self, line: bytes, *, raw: bool) -> NewItem | None:
        if raw:
            return NewItem(line, **self._given)
        if not line.strip():
            return None
        fields = _object(line)
        given = dict(self._given)
        if any(fields.get(name) is not None for name in _TIMES):
            for name in _TIMES:
                given.pop(name, None)
        return new_item({**given, **fields})

    def _add(self, items: list[NewItem]) -> None:
        for done in self._queues.run(self._name, Enqueue(tuple(items))):
            self._num_items += 1
            if done["duplicate"]:
                self._num_duplicates += 1
            else:
                self._first_id = done["id"] if self._first_id is None else self._first_id
                self._last_id = done["id"]


def leases_of(lines: Iterable[str] | None) -> list[tuple[int, str]]:
    """Return the ids and tokens of lines of JSON. InvalidRequestError names a line that is none."""
    if lines is None:
        raise InvalidRequestError("standard input: expected items, found it closed")
    found: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = _object(line.encode(errors="surrogateescape"))
        item_id, token = fields.get("id"), fields.get("token")
        if not isinstance(item_id, int) or isinstance(item_id, bool) or not isinstance(token, str):
            message = f"line {number}: expected an object with id and token, found {ascii(line.strip())[:40]}"
            raise InvalidRequestError(message)
        found.append((item_id, token))
    return found


def _object(line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        message = f"expected a JSON object, found {ascii(line)[:40]}: {error} (--raw takes each line as it is)"
        raise InvalidRequestError(message) from error
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"expected a JSON object, found {ascii(line)[:40]} (--raw takes each line as it is)")
    return fields
