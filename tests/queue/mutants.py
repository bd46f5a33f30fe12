"""Defects of a delay queue that random operations beside the model must find."""

from __future__ import annotations

from tests.mutations import Mutation

QUEUE_MUTANTS = (
    Mutation(
        "time goes back when a broker takes the queue",
        "QueueClock.begin_at",
        "max(self._read_ms(), _)",
        "self._read_ms()",
    ),
    Mutation(
        "time stands still while the wall clock is behind",
        "QueueClock._read_ms",
        "self._now_ms += _",
        "self._now_ms += 0.0",
    ),
    Mutation("leases end by the wall clock", "ItemIndex.end_ms", "math.ceil(_)", "math.ceil(0.0)"),
    Mutation(
        "an item that is put back keeps its deadline",
        "QueueState._put_back",
        "row._replace(..., deadline_ms=deadline_ms)",
        "row",
    ),
    Mutation(
        "deadlines before the last one that was handed out are taken as they are",
        "QueueState._deadline",
        "max(wanted, _)",
        "max(wanted, self.created_ms)",
    ),
    Mutation(
        "the deadlines that were handed out are forgotten at a restart",
        "QueueLoader._load",
        "dict(meta.floors_ms)",
        "{}",
    ),
    Mutation("ids are used again after a restart", "QueueLoader._load", "meta.last_id", "max(0, meta.last_id - 1)"),
    Mutation(
        "an item whose lease ends keeps its deadline",
        "QueueState.end_leases",
        "_1._replace(deadline_ms=_2)",
        "_1._replace(deadline_ms=min(_1.deadline_ms, _2))",
    ),
    Mutation(
        "an item that is given back counts as handed out",
        "QueueState.give_back",
        "row.deliveries - 1",
        "row.deliveries",
    ),
    Mutation("deliveries are not counted after a restart", "QueueLoader._add", "record.deliveries", "0"),
    Mutation(
        "a dead letter is pending after a restart",
        "QueueLoader._add",
        "_1 or record.kind == encoding.PENDING",
        "_1 or record.kind in (encoding.PENDING, encoding.DEAD)",
    ),
    Mutation(
        "the items of a checkpoint that were removed since come back",
        "QueueLoader._add",
        "changes.values.get(item_id, _1)",
        "changes.values.get(item_id) or _1",
    ),
)
