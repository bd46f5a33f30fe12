"""Defects of delay queues that worlds with them must find, beside those that a model of one process finds."""

from __future__ import annotations

from tests.mutations import Mutation
from tests.queue.mutants import QUEUE_MUTANTS

QUEUE = "wal3_core.views.queue."
BROKER = QUEUE + "broker:Broker."
STATE = QUEUE + "queue_state:QueueState."

QUEUE_WORLD_MUTANTS = (
    # Each turn of a world is compared with the time in its own records, and no other clock.
    *(mutant for mutant in QUEUE_MUTANTS if mutant.name != "time stands still while the wall clock is behind"),
    Mutation(
        "time counts from before a broker has taken the queue",
        QUEUE + "broker:QueueClock.begin_at",
        "max(self._read_ms(), now_ms)",
        "max(self._now_ms, now_ms)",
    ),
    Mutation(
        "a broker appends wherever the log ends",
        BROKER + "_commit",
        "append_many(records, expect_next=turn.start)",
        "append_many(records)",
    ),
    Mutation(
        "a broker goes on from its memory after a failed append",
        BROKER + "_commit",
        "self._sound = False",
        "self._sound = True",
    ),
    Mutation(
        "a broker loads the queue before the outcome of its append is known",
        BROKER + "_load_again",
        "                take_again(self._writer, self._token, self._loader, self.url)\n",
        "                pass\n",
    ),
    Mutation(
        "any token is accepted",
        STATE + "held",
        "if lease is None or lease.token.hex() != token:",
        "if lease is None:",
    ),
    Mutation(
        "what records of others displace is not written again",
        BROKER + "_finish_turn",
        "        self._restore_displaced(turn)\n",
        "",
    ),
    Mutation(
        "a checkpoint does not wait for what is to be written again",
        BROKER + "_begin_turn",
        "if self._sealed is None and not self._displaced:",
        "if self._sealed is None:",
    ),
    Mutation(
        "a lease ends early",
        STATE + "end_leases",
        "until_ms <= turn.now_ms:",
        "until_ms <= turn.now_ms + 100:",
    ),
    Mutation(
        "the wall clock is believed whatever the store says",
        QUEUE + "broker:QueueClock._read_ms",
        "min(wall_ms, self._limit_ms(read_s))",
        "wall_ms",
    ),
    Mutation(
        "a queue is taken before it is loaded",
        QUEUE + "broker:take",
        "    loaded = loader.load()\n    for",
        "    writer.append(token, key=BROKER_KEY)\n    loaded = loader.load()\n    for",
    ),
    Mutation(
        "a record of others fences the broker",
        BROKER + "_commit",
        "            self._undetermined = False\n            raise\n",
        "            raise fenced(self.url) from None\n",
    ),
    Mutation(
        "a turn is done again beside those who waited in it",
        QUEUE + "waiting:Line.undo_turn",
        "[*self._left, *self._waiters]",
        "[*self._waiters]",
    ),
    Mutation(
        "a broker goes on from its memory when records of others came between",
        BROKER + "_load_again",
        "        self._begin(self._loader.load(), self.state)\n",
        "        self._begin(replace(self._loader.load(), state=self.state), self.state)\n",
    ),
    Mutation(
        "whatever lies under the key of the queue's state is it",
        QUEUE + "encoding:Meta.if_one",
        "            return None\n",
        "            raise\n",
    ),
    Mutation(
        "a state before its item is believed",
        QUEUE + "loading:_take_item",
        "            tail.states.pop(item_id, None)\n    except",
        "    except",
    ),
    Mutation(
        "the state of an item that was removed stays",
        STATE + "_remove",
        "        turn.add(id_key(encoding.STATE, row.id), None)\n",
        "",
    ),
    Mutation(
        "a requeue with a value keeps the old one's place",
        STATE + "requeue",
        "row = row._replace(offset=turn.add(id_key(encoding.VALUE, row.id), body), length=len(wanted.value))",
        "turn.add(id_key(encoding.VALUE, row.id), body)",
    ),
    Mutation(
        "dedupe keys are forgotten at a restart",
        QUEUE + "loading:QueueLoader._add",
        "            state.name(row, dedupe_key)\n",
        "",
    ),
    Mutation(
        "a checkpoint counts as of its end",
        QUEUE + "checkpoint:Checkpointer.add_to",
        "self._begun_at.offset, tuple(self._appended)",
        "turn.start, tuple(self._appended)",
    ),
    Mutation(
        "a checkpoint counts with its first part",
        QUEUE + "checkpoint:Checkpointer.add_to",
        "if len(self._appended) == len(parts):",
        "if len(self._appended) == 1:",
    ),
    Mutation(
        "the oldest broker that took the queue since its last turn has it",
        QUEUE + "loading:QueueLoader._find",
        "broker = broker or body",
        "broker = body",
    ),
    Mutation(
        "values are looked for where they were when they were read first",
        QUEUE + "answering:Values._load",
        " or tried:",
        ":",
    ),
    Mutation(
        "what is left of a full turn is done first come, last served, and an answer is lost",
        QUEUE + "waiting:Inbox.put_back",
        "self._calls.extendleft(reversed(calls))",
        "self._calls.extendleft(reversed(calls[1:]))",
    ),
)
