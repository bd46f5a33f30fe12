"""Random operations on a queue and its model: what the campaign and the state machine share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from wal3_core.views.queue.operations import ItemState, NewItem, QueueDefinition

if TYPE_CHECKING:
    from random import Random

    from tests.queue.pair import Pair

DEFINITIONS = (
    QueueDefinition(lease_s=5.0),
    QueueDefinition(lease_s=2.0, max_deliveries=2),
    QueueDefinition(lease_s=30.0, max_deliveries=3, items_max=40),
)
# Much later than any other, so that few go on for ever.
STEPS_MS = (-3_600_000, -5_000, -1, 1, 700, 60_000)


class RandomOperations:
    """Draws operations, and applies them; ``count`` has how often each was done."""

    def __init__(self, pair: Pair, dice: Random) -> None:
        self.pair = pair
        self.dice = dice
        self.count: Counter[str] = Counter()
        # All leases that were ever given, as most are stale.
        self.leases: list[tuple[int, str]] = [(7, "00" * 8)]
        self._weights: dict[Callable[[], None], int] = {
            self.enqueue: 48,
            self.dequeue: 44,
            self.release: 48,
            self.requeue: 16,
            self.give_back: 6,
            self.extend: 8,
            self.bury: 8,
            self.reclaim: 3,
            self.kick: 6,
            self.let_pass: 20,
            self.step_clock: 4,
            self.look: 2,
            self.checkpoint: 1,
            self.compact: 2,
            self.restart: 2,
            self.back_up: 1,
            self.restore: 1,
            self.rarely: 1,
        }

    def do_one(self) -> None:
        """Do one operation."""
        (act,) = self.dice.choices(list(self._weights), list(self._weights.values()))
        self.count[act.__name__] += 1
        act()

    def new_item(self) -> NewItem:
        dice = self.dice
        kind, number = dice.random(), dice.randrange(-4_000, 20_000)
        times = {"deadline_us": (self.pair.model.now_ms + number) * 1000 + dice.choice((0, 0, 1, 999))}
        value = dice.randbytes(dice.choice((0, 1, 40, 300)))
        return NewItem(
            value,
            deadline_us=max(0, times["deadline_us"]) if kind < 0.4 else None,
            delay_s=dice.choice((0.0, 0.0004, 0.001, 0.25, 1.0, 20.0)) if kind > 0.7 else None,
            priority=dice.choice((0, 100, 100, 100, 255)),
            dedupe_key=dice.choice((None, None, None, b"a", b"b", b"c" * 255)),
        )

    def enqueue(self) -> None:
        dice = self.dice
        self.pair.enqueue_many([self.new_item() for _ in range(dice.choice((1, 1, 1, 2, 3, 30)))])

    def dequeue(self) -> None:
        dice = self.dice
        found = self.pair.dequeue(dice.choice((1, 1, 3, 50)), dice.choice((None, None, 0.0014, 0.5, 10.0, 1000.0)))
        self.leases += [(each.id, each.token) for each in found]

    def lease(self) -> tuple[int, str]:
        """Choose one that was given lately, or any."""
        return self.dice.choice(self.leases if self.dice.random() < 0.1 else self.leases[-20:])

    def release(self) -> None:
        chosen = {self.lease() for _ in range(self.dice.choice((1, 1, 2, 6)))}
        self.pair.release_many(list({item_id: (item_id, token) for item_id, token in chosen}.values()))

    def requeue(self) -> None:
        new, wanted = self.new_item(), dict[str, object]()
        if new.deadline_us is not None:
            wanted["deadline_us"] = new.deadline_us
        elif new.delay_s is not None:
            wanted["delay_s"] = new.delay_s
        if self.dice.random() < 0.4:
            wanted["value"] = new.value
        self.pair.requeue(*self.lease(), **wanted)

    def give_back(self) -> None:
        self.pair.give_back(self.lease())

    def extend(self) -> None:
        self.pair.extend(*self.lease(), self.dice.choice((0.0014, 1.0, 30.0)))

    def bury(self) -> None:
        self.pair.bury(*self.lease())

    def reclaim(self) -> None:
        self.pair.reclaim([self.lease()[0] for _ in range(self.dice.choice((1, 1, 3)))])

    def kick(self) -> None:
        dice, buried = self.dice, self.pair.model.buried
        if dice.random() < 0.5:
            self.pair.kick(dice.choice((1, 2, 100)))
        else:
            chosen = dice.sample(buried, min(len(buried), dice.randrange(3)))
            self.pair.kick_ids(chosen + ([self.pair.model.last_id + 1] if dice.random() < 0.2 else []))

    def let_pass(self) -> None:
        self.pair.let_pass(self.dice.choice((1, 1, 10, 500, 2_000, 12_000)))

    def look(self) -> None:
        self.pair.look_at_all()

    def step_clock(self) -> None:
        self.pair.step_clock(self.dice.choice(STEPS_MS))

    def checkpoint(self) -> None:
        self.pair.checkpoint()

    def compact(self) -> None:
        for _ in range(self.dice.choice((1, 1, 3))):
            self.pair.compact()
        if self.dice.random() < 0.7:
            self.pair.collect()

    def restart(self) -> None:
        self.pair.restart(closes=self.dice.random() < 0.5)

    def back_up(self) -> None:
        self.pair.back_up(with_cursors=self.dice.random() < 0.5)

    def restore(self) -> None:
        # Leases of after the backup are stale from now on.
        self.pair.restore(closes=self.dice.random() < 0.5, with_cursors=self.dice.random() < 0.5)

    def rarely(self) -> None:
        dice = self.dice
        if dice.random() < 0.5:
            states = [state for state in ItemState if dice.random() < 0.5]
            self.pair.purge(states, dry_run=dice.random() < 0.4)
        else:
            self.pair.define(dice.choice(DEFINITIONS))
