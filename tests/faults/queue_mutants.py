"""Defects of delay queues that worlds with them must find, beside those that a model of one process finds."""

from __future__ import annotations

from tests.mutations import Mutation
from tests.queue.mutants import QUEUE_MUTANTS

QUEUE_WORLD_MUTANTS = (
    # Each turn of a world is compared with the time in its own records, and no other clock.
    *(mutant for mutant in QUEUE_MUTANTS if mutant.name != "time stands still while the wall clock is behind"),
    Mutation(
        "time counts from before a broker has taken the queue",
        "QueueClock.begin_at",
        "max(self._read_ms(), _1)",
        "max(self._now_ms, _1)",
    ),
    Mutation(
        "a broker appends wherever the log ends",
        "Broker._commit",
        "_1.append_many(_2, expect_next=_)",
        "_1.append_many(_2)",
    ),
    Mutation(
        "a broker goes on from its memory after a failed append",
        "Broker._commit",
        "self._sound = False",
        "self._sound = True",
    ),
    Mutation(
        "a broker loads the queue before the outcome of its append is known",
        "Broker._load_again",
        "acquire_again(...)",
        "pass",
    ),
    Mutation("any token is accepted", "QueueState.held", "lease is None or _", "lease is None"),
    Mutation(
        "what records of others displace is not written again", "Broker._finish_turn", "self._restore_displaced(...)"
    ),
    Mutation(
        "a checkpoint does not wait for what is to be written again",
        "Broker._begin_turn",
        "_1 and not self._displaced",
        "_1",
    ),
    Mutation("a lease ends early", "QueueState.end_leases", "_1 <= turn.now_ms", "_1 <= turn.now_ms + 100"),
    Mutation("the wall clock is believed whatever the store says", "QueueClock._read_ms", "min(wall_ms, _)", "wall_ms"),
    Mutation(
        "a queue is taken before it is loaded",
        "acquire",
        "loaded = _1\nfor _2 in _3: ...",
        "writer.append(token, key=BROKER_KEY)\nloaded = _1\nfor _2 in _3: ...",
    ),
    Mutation(
        "a record of others fences the broker",
        "Broker._commit",
        "self._undetermined = False\nraise",
        "raise fenced(self.url) from None",
    ),
    Mutation(
        "a turn is done again beside those who waited in it",
        "Line.undo_turn",
        "[*self._left, *self._waiters]",
        "[*self._waiters]",
    ),
    Mutation(
        "a broker goes on from its memory when records of others came between",
        "Broker._load_again",
        "self._begin(_1.load(), self.state)",
        "self._begin(replace(_1.load(), state=self.state), self.state)",
    ),
    Mutation("whatever lies under the key of the queue's state is it", "Meta.if_one", "return None", "raise"),
    Mutation(
        "the state of an item that was removed stays", "QueueState._remove", "turn.add(id_key(encoding.STATE, _), None)"
    ),
    Mutation(
        "a requeue with a value keeps the old one's place",
        "QueueState.requeue",
        "row = row._replace(..., offset=_1)",
        "_1",
    ),
    Mutation("dedupe keys are forgotten at a restart", "QueueLoader._add", "state.name(...)"),
    Mutation("a checkpoint counts as of its end", "Checkpointer.add_to", "self._begun_at.offset, _1", "turn.start, _1"),
    Mutation(
        "a checkpoint counts with its first part",
        "Checkpointer.add_to",
        "len(self._appended) == _",
        "len(self._appended) == 1",
    ),
    Mutation(
        "the oldest broker that took the queue since its last turn has it",
        "QueueLoader._find",
        "broker = broker or body",
        "broker = body",
    ),
    Mutation(
        "values are looked for where they were when they were read first", "ValueCache._load", "_1 or tried", "_1"
    ),
    Mutation(
        "what is left of a full turn is done first come, last served, and an answer is lost",
        "Inbox.put_back",
        "reversed(calls)",
        "reversed(calls[1:])",
    ),
)
