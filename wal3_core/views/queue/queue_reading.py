"""Looks at a queue without taking it: its broker goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.arguments import checked, integer, optional
from wal3_core.errors import CorruptError
from wal3_core.model.cursor import Owner
from wal3_core.model.paths import QUEUE_CURSOR, check_log_name
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Runtime, shared_runtime, wall_us
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.object_store import a_store
from wal3_core.views.queue.answering import Values, fitting, peeked
from wal3_core.views.queue.items import positive
from wal3_core.views.queue.loading import QueueLoader, expecting_a_queue
from wal3_core.views.queue.queue_state import US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.queue.definition import QueueDefinition
    from wal3_core.views.queue.items import ItemStats, Peeked, QueueStats
    from wal3_core.views.queue.queue_state import QueueState
    from wal3_core.views.queue.runs import Row

_CACHE_BYTES = 64 * 2**20


@checked(store=a_store, log=check_log_name)
def is_queue(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> bool:
    """Tell whether a log is a queue, by its cursor: one GET."""
    witness = CursorStore(store, log, runtime=runtime).load(QUEUE_CURSOR)
    return witness is not None and witness.cursor.may_be_of(Owner.QUEUE)


@checked(store=a_store, log=check_log_name)
def read_queue_stats(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> QueueStats:
    """Return what a queue holds, by its log as of now; no call is known to wait. LogNotFoundError, as ``open``.

    Reads the newest checkpoint and all that came after it. An item whose lease has ended counts as leased until its
    broker takes it back.
    """
    runtime = runtime or shared_runtime()
    with expecting_a_queue():
        loaded = QueueLoader(store, log, ReaderOptions(), runtime).load()
    return loaded.state.stats(max(loaded.meta.now_ms, wall_us(runtime) // US_PER_MS), 0)


@checked(store=a_store, log=check_log_name)
def read_queue_definition(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> QueueDefinition:
    """Return what holds for a queue's items, by its log as of now."""
    return _load(store, log, runtime).definition


@checked(store=a_store, log=check_log_name, item_id=integer)
def read_queue_item(store: ObjectStore, log: str, item_id: int, *, runtime: Runtime | None = None) -> ItemStats:
    """Return what is known of an item, as ``DelayQueue.item`` does, by the queue's log as of now."""
    return _load(store, log, runtime).item_stats(item_id)


def _load(store: ObjectStore, log: str, runtime: Runtime | None) -> QueueState:
    with expecting_a_queue():
        return QueueLoader(store, log, ReaderOptions(), runtime or shared_runtime()).load().state


@checked(store=a_store, log=check_log_name, count=positive, bytes_max=optional(positive))
def read_queue_head(
    store: ObjectStore, log: str, count: int = 1, *, bytes_max: int | None = None, runtime: Runtime | None = None
) -> list[Peeked]:
    """Return the pending items that come first, as ``DelayQueue.peek`` does, by the queue's log as of now."""
    return _read_items(store, log, lambda state: fitting(state.head(count), bytes_max), runtime)


@checked(store=a_store, log=check_log_name, count=positive, after=integer, bytes_max=optional(positive))
def read_queue_dead(
    store: ObjectStore,
    log: str,
    count: int = 100,
    *,
    after: int = 0,
    bytes_max: int | None = None,
    runtime: Runtime | None = None,
) -> list[Peeked]:
    """Return dead letters by rising ids, as ``DelayQueue.dead`` does, by the queue's log as of now."""
    return _read_items(store, log, lambda state: fitting(state.letters(count, after), bytes_max), runtime)


def _read_items(
    store: ObjectStore, log: str, choose: Callable[[QueueState], list[tuple[Row, int]]], runtime: Runtime | None
) -> list[Peeked]:
    runtime = runtime or shared_runtime()
    loader = QueueLoader(store, log, ReaderOptions(), runtime)
    found = ""
    while True:
        with expecting_a_queue():
            state = loader.load().state
        wanted = peeked(choose(state))
        values = Values(loader.reader, _CACHE_BYTES, runtime, f"{store.url}/{log}")
        try:
            result: list[Peeked] = wanted.make(enumerate(values.read(wanted.rows, state.created_ms)))
        except CorruptError as error:
            # An item may have been released meanwhile, and its value compacted away. Damage is found again.
            if str(error) == found:
                raise
            found = str(error)
        else:
            return result
