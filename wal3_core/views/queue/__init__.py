"""A durable delay queue on a log."""

from wal3_core.views.queue.definition import QueueDefinition, QueueOptions
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.items import Enqueued, ItemState, ItemStats, Leased, NewItem, Peeked, QueueRepair, QueueStats
from wal3_core.views.queue.operations import (
    Bury,
    Define,
    Dequeue,
    Enqueue,
    Extend,
    GiveBack,
    Kick,
    Operation,
    Purge,
    Reclaim,
    Release,
    Requeue,
    Retime,
)
from wal3_core.views.queue.queue_reading import (
    is_queue,
    read_queue_dead,
    read_queue_definition,
    read_queue_head,
    read_queue_item,
    read_queue_stats,
)

__all__ = [
    "Bury",
    "Define",
    "DelayQueue",
    "Dequeue",
    "Enqueue",
    "Enqueued",
    "Extend",
    "GiveBack",
    "ItemState",
    "ItemStats",
    "Kick",
    "Leased",
    "NewItem",
    "Operation",
    "Peeked",
    "Purge",
    "QueueDefinition",
    "QueueOptions",
    "QueueRepair",
    "QueueStats",
    "Reclaim",
    "Release",
    "Requeue",
    "Retime",
    "is_queue",
    "read_queue_dead",
    "read_queue_definition",
    "read_queue_head",
    "read_queue_item",
    "read_queue_stats",
]
