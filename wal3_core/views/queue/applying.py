"""Applies one operation, or a question, to the state of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wal3_core.views.queue.operations import Bury, Define, Enqueue, Extend, GiveBack, Kick, Reclaim, Release, Requeue
from wal3_core.views.queue.waiting import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.views.queue.operations import Operation
    from wal3_core.views.queue.queue_state import QueueState, Turn

_APPLIED: dict[type, Callable[[QueueState, Any, Turn], Any]] = {
    Enqueue: lambda state, wanted, turn: state.enqueue(wanted.items, turn),
    Release: lambda state, wanted, turn: state.release(wanted.leases, turn),
    GiveBack: lambda state, wanted, turn: state.give_back(wanted.leases, turn),
    Requeue: lambda state, wanted, turn: state.requeue(wanted, turn),
    Extend: lambda state, wanted, turn: state.extend(wanted.id, wanted.token, wanted.lease_s, turn),
    Reclaim: lambda state, wanted, turn: state.reclaim(wanted.ids, turn),
    Bury: lambda state, wanted, turn: state.bury(wanted.id, wanted.token, turn),
    Kick: lambda state, wanted, turn: state.kick(wanted.count, wanted.ids, turn),
    Define: lambda state, wanted, turn: state.define(wanted.definition, turn),
    Look: lambda state, wanted, turn: wanted.ask(state, turn.now_ms),
}


def apply(state: QueueState, wanted: Operation | Look, turn: Turn) -> Any:  # noqa: ANN401 - each has its own result
    """Apply it; return its result. A LogError refuses it: nothing was changed."""
    return _APPLIED[type(wanted)](state, wanted, turn)
