"""A delay queue answers as a model in plain Python does: whatever is asked for, across restarts and compactions."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.mutations import Mutation, applied
from tests.queue.mutants import QUEUE_MUTANTS
from tests.queue.pair import Pair
from tests.queue.random_queue import DEFINITIONS, STEPS_MS, RandomOperations
from wal3_core.errors import LogError
from wal3_core.views.queue.operations import ItemState, NewItem, QueueDefinition

SEED = int(os.environ.get("WAL3_TEST_SEED", "1"))
OPERATIONS = int(os.environ.get("WAL3_TEST_OPERATIONS", "10000"))
SEEDS_FOR_A_MUTANT = 4


def campaign(seed: int, operations: int) -> RandomOperations:
    print(f"replay: WAL3_TEST_SEED={seed} WAL3_TEST_OPERATIONS={operations} pytest {__file__} -k campaign")
    dice = Random(seed)
    pair = Pair(dice.choice(DEFINITIONS))
    random = RandomOperations(pair, dice)
    try:
        for _ in range(operations):
            random.do_one()
        pair.restart(closes=True)
    finally:
        pair.close()
    return random


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_brief_campaign_of_random_operations_equals_the_model(seed: int) -> None:
    campaign(seed, 300)


@pytest.mark.repeat
@pytest.mark.slow
def test_campaign_of_random_operations_equals_the_model() -> None:
    random = campaign(SEED, OPERATIONS)

    print(dict(random.count), f"items {random.pair.model.last_id}")
    assert random.pair.restarts > OPERATIONS // 200
    assert random.pair.compactions > OPERATIONS // 200
    assert random.pair.restores > OPERATIONS // 1000
    # Compactions have dropped most of the records.
    assert random.pair.num_records() < random.pair.model.last_id


DEADLINES_MS = st.one_of(st.none(), st.integers(-3_000, 3_000))
DELAYS_S = st.one_of(st.none(), st.sampled_from((0.0, 0.001, 1.5)))
PRIORITIES = st.sampled_from((0, 100, 100, 255))
LEASES_S = st.one_of(st.none(), st.sampled_from((0.001, 1.0, 1000.0)))


class QueueMachine(RuleBasedStateMachine):
    """Short histories, of which hypothesis finds the shortest that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.pair: Pair | None = None
        self.leases: list[tuple[int, str]] = [(1, "00" * 8)]

    @initialize(definition=st.sampled_from(DEFINITIONS))
    def create(self, definition: QueueDefinition) -> None:
        self.pair = Pair(definition)

    @property
    def _pair(self) -> Pair:
        assert self.pair is not None
        return self.pair

    def teardown(self) -> None:
        if self.pair is not None:
            self.pair.look_at_all()
            self.pair.close()

    def _time_us(self, deadline_ms: int | None) -> int | None:
        return None if deadline_ms is None else (self._pair.model.now_ms + deadline_ms) * 1000

    @rule(
        count=st.integers(1, 3),
        deadline_ms=DEADLINES_MS,
        delay_s=DELAYS_S,
        priority=PRIORITIES,
        dedupe_key=st.sampled_from((None, None, b"a", b"b")),
    )
    def enqueue(
        self, count: int, deadline_ms: int | None, delay_s: float | None, priority: int, dedupe_key: bytes | None
    ) -> None:
        deadline_us = self._time_us(deadline_ms)
        item = NewItem(b"x" * count, deadline_us, delay_s if deadline_us is None else None, priority, dedupe_key)
        self._pair.enqueue_many([item] * count)

    @rule(count=st.integers(1, 4), lease_s=LEASES_S)
    def dequeue(self, count: int, lease_s: float | None) -> None:
        self.leases += [(each.id, each.token) for each in self._pair.dequeue(count, lease_s)]

    @rule(ages=st.lists(st.integers(0, 5), min_size=1, max_size=3))
    def release(self, ages: list[int]) -> None:
        chosen = [self.leases[-1 - age % len(self.leases)] for age in ages]
        self._pair.release_many(list({item_id: (item_id, token) for item_id, token in chosen}.values()))

    @rule(age=st.integers(0, 5), deadline_ms=DEADLINES_MS, value=st.one_of(st.none(), st.just(b"another")))
    def requeue(self, age: int, deadline_ms: int | None, value: bytes | None) -> None:
        lease = self.leases[-1 - age % len(self.leases)]
        self._pair.requeue(*lease, deadline_us=self._time_us(deadline_ms), value=value)

    @rule(age=st.integers(0, 5), lease_s=st.sampled_from((0.001, 1.0, 1000.0)))
    def extend(self, age: int, lease_s: float) -> None:
        self._pair.extend(*self.leases[-1 - age % len(self.leases)], lease_s)

    @rule(age=st.integers(0, 5))
    def bury(self, age: int) -> None:
        self._pair.bury(*self.leases[-1 - age % len(self.leases)])

    @rule(count=st.integers(1, 3))
    def kick(self, count: int) -> None:
        self._pair.kick(count)

    @rule(ids=st.lists(st.integers(0, 6), max_size=2))
    def kick_ids(self, ids: list[int]) -> None:
        self._pair.kick_ids(ids)

    @rule(states=st.sets(st.sampled_from(ItemState)), dry_run=st.booleans())
    def purge(self, states: set[ItemState], dry_run: bool) -> None:  # noqa: FBT001 - drawn
        self._pair.purge(states, dry_run=dry_run)

    @rule(ms=st.sampled_from((1, 1000, 5000)))
    def let_pass(self, ms: int) -> None:
        self._pair.let_pass(ms)

    @rule(ms=st.sampled_from(STEPS_MS))
    def step_clock(self, ms: int) -> None:
        self._pair.step_clock(ms)

    @rule()
    def checkpoint(self) -> None:
        self._pair.checkpoint()

    @rule(collects=st.booleans())
    def compact(self, collects: bool) -> None:  # noqa: FBT001 - drawn
        self._pair.compact()
        if collects:
            self._pair.collect()

    @rule(with_cursors=st.booleans())
    def back_up(self, with_cursors: bool) -> None:  # noqa: FBT001 - drawn
        self._pair.back_up(with_cursors=with_cursors)

    @rule(closes=st.booleans(), with_cursors=st.booleans())
    def restore(self, closes: bool, with_cursors: bool) -> None:  # noqa: FBT001 - drawn
        self._pair.restore(closes=closes, with_cursors=with_cursors)

    @rule(closes=st.booleans())
    def restart(self, closes: bool) -> None:  # noqa: FBT001 - drawn
        self._pair.restart(closes=closes)


QueueMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=25)


@pytest.mark.slow
class TestShortHistories(QueueMachine.TestCase):
    pass


@pytest.mark.repeat
@pytest.mark.slow
@pytest.mark.parametrize("mutant", QUEUE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_found_by_random_operations(mutant: Mutation) -> None:
    with applied(mutant), pytest.raises((AssertionError, LogError)):
        for seed in range(SEEDS_FOR_A_MUTANT):
            campaign(seed, 400)
