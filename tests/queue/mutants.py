"""Defects of a delay queue that random operations beside the model must find."""

from __future__ import annotations

from tests.mutations import Mutation

QUEUE = "wal3_core.views.queue."

QUEUE_MUTANTS = (
    Mutation(
        "time goes back when a broker takes the queue",
        QUEUE + "broker:QueueClock.begin_at",
        "max(self._read_ms(), now_ms)",
        "self._read_ms()",
    ),
    Mutation(
        "time stands still while the wall clock is behind",
        QUEUE + "broker:QueueClock._read_ms",
        "self._now_ms += passed_s * MS_PER_S",
        "self._now_ms += 0.0",
    ),
    Mutation(
        "leases end by the wall clock",
        QUEUE + "queue_state:HeldItems.end_ms",
        "math.ceil(round(self.jumped_ms - lease.jumped_ms, 3))",
        "math.ceil(0.0)",
    ),
    Mutation(
        "an item that is put back keeps its deadline",
        QUEUE + "queue_state:QueueState._put_back",
        "row._replace(deadline_ms=deadline_ms, requeued_ms=turn.now_ms)",
        "row",
    ),
    Mutation(
        "deadlines before the last one that was handed out are taken as they are",
        QUEUE + "queue_state:QueueState._deadline",
        "return max(wanted, floor), wanted < floor",
        "return max(wanted, self.created_ms), wanted < floor",
    ),
    Mutation(
        "the deadlines that were handed out are forgotten at a restart",
        QUEUE + "loading:QueueLoader._load",
        "dict(meta.floors_ms)",
        "{}",
    ),
    Mutation(
        "ids are used again after a restart",
        QUEUE + "loading:QueueLoader._load",
        "meta.last_id, dict",
        "max(0, meta.last_id - 1), dict",
    ),
    Mutation(
        "an item whose lease ends keeps its deadline",
        QUEUE + "queue_state:QueueState.end_leases",
        "deadline_ms=due_ms",
        "deadline_ms=min(lease.row.deadline_ms, due_ms)",
    ),
    Mutation(
        "an item that is given back counts as handed out",
        QUEUE + "queue_state:QueueState.give_back",
        "row.deliveries - 1",
        "row.deliveries",
    ),
    Mutation(
        "deliveries are not counted after a restart",
        QUEUE + "loading:QueueLoader._add",
        "deliveries=record.deliveries",
        "deliveries=0",
    ),
    Mutation(
        "a dead letter is pending after a restart",
        QUEUE + "loading:QueueLoader._add",
        "if record is None or record.kind == encoding.PENDING:",
        "if record is None or record.kind in (encoding.PENDING, encoding.DEAD):",
    ),
    Mutation(
        "the items of a checkpoint that were removed since come back",
        QUEUE + "loading:_item",
        "    if value is None:\n        return None\n",
        "    if value is None:\n        return known\n",
    ),
)
