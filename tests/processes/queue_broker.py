"""A process that is the broker of a queue, produces and consumes; its journal, and what must follow from all of them.

A line is written before a call and after its answer, unbuffered, so that a kill loses none.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.processes.workers import Teller
from tests.world import SMALL
from wal3_core import WriterOptions, open_store
from wal3_core.errors import StaleTokenError
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import Leased, NewItem, QueueOptions

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


LOG = "queue-under-test"
# Deadlines are those of a coarse clock, so that many items share one, also of different brokers.
GRID_US = 400_000
LEASE_S, DRAIN_LEASE_S = 0.7, 30.0
PRIORITIES = (10, 100)
DRAIN_S_MAX = 60.0
# So small that values are read back, and checkpoints are under way all the time.
OPTIONS = QueueOptions(
    cache_bytes_max=2**16, checkpoint_records=100, writer=WriterOptions(batch_age_s_max=0, snapshots=SMALL)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The work of one broker; one that ``drains`` enqueues nothing, and ends when the queue is empty."""

    url: str
    journals: Path
    number: int
    drains: bool = False


class _Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(self, kind: str, **fields: object) -> None:
        os.write(self._file, json.dumps({"kind": kind, **fields}).encode() + b"\n")


def serve(connection: Connection, service: Service) -> None:
    """Send ``open``, ``working`` when an item was released, and ``done``."""
    teller, journal = Teller(connection), _Journal(service.journals / f"{service.number:06d}")
    with DelayQueue.open(open_store(service.url), LOG, options=OPTIONS) as queue:
        teller.say_once("open")
        work = [lambda n=n: _consume(queue, journal, teller, service, n) for n in range(2)]
        if not service.drains:
            work += [lambda n=n: _produce(queue, journal, service, n) for n in range(2)]
        with ThreadPoolExecutor(len(work)) as pool:
            for ended in wait([pool.submit(each) for each in work], None, FIRST_EXCEPTION).done:
                ended.result()
    teller.say_once("done")


def _produce(queue: DelayQueue, journal: _Journal, service: Service, producer: int) -> None:
    chance, index = random.Random(f"{service.number}/{producer}"), 0
    while True:
        count = chance.choice((1, 1, 3, 20))
        names = [f"{service.number}/{producer}/{index}/{part}" for part in range(count)]
        deadline_us = (time.time_ns() // 1000 // GRID_US + chance.choice((0, 0, 1, 2))) * GRID_US
        priority = chance.choice(PRIORITIES)
        journal.write("enqueue", names=names)
        items = [NewItem(name.encode() + b" " * chance.randrange(400), deadline_us, None, priority) for name in names]
        journal.write("enqueued", names=names, ids=[each.id for each in queue.enqueue_many(items)])
        index += 1


def _consume(queue: DelayQueue, journal: _Journal, teller: Teller, service: Service, consumer: int) -> None:
    chance, until_s = random.Random(f"{service.number}/consumer {consumer}"), time.monotonic() + DRAIN_S_MAX
    lease_s = DRAIN_LEASE_S if service.drains else LEASE_S
    while True:
        leased = queue.dequeue(500 if service.drains else chance.choice((1, 4, 30)), timeout_s=0.1, lease_s=lease_s)
        for each in leased:
            journal.write("lease", **_lease(each, lease_s))
        if not leased and service.drains:
            stats = queue.stats()
            if stats.pending + stats.leased == 0:
                return
            assert time.monotonic() < until_s, f"expected an empty queue, found {stats}"
        _finish(queue, journal, chance, leased, spares=service.drains)
        if leased:
            teller.say_once("working")


def _lease(leased: Leased, lease_s: float) -> dict[str, object]:
    return {
        "id": leased.id,
        "token": leased.token,
        "name": leased.value.decode().rstrip(),
        "since_us": leased.lease_until_us - round(lease_s * 1_000_000),
        "until_us": leased.lease_until_us,
        "deadline_us": leased.deadline_us,
        "priority": leased.priority,
        "deliveries": leased.deliveries,
    }


def _finish(
    queue: DelayQueue, journal: _Journal, chance: random.Random, leased: Iterable[Leased], *, spares: bool
) -> None:
    """Release most items, some in one call; put some back, and leave some until their leases end."""
    releases = []
    for each in leased:
        kind = 1.0 if spares else chance.random()
        if kind < 0.05:
            continue
        if kind < 0.1:
            journal.write("requeue", id=each.id)
            try:
                queue.requeue(each.id, each.token)
            except StaleTokenError:
                continue
        else:
            releases.append(each)
    together = len(releases) if spares else 5
    for some in filter(None, (releases[:together], *([each] for each in releases[together:]))):
        leases = [(each.id, each.token) for each in some]
        journal.write("release", leases=leases)
        try:
            queue.release_many(leases)
        except StaleTokenError:
            # On a slow machine a lease may have ended; all or none.
            journal.write("refused", leases=leases)
        else:
            journal.write("released", leases=leases)


# ---------------------------------------------------------------------- what must follow


@dataclass
class Account:
    """What all journals say together, in the order of the brokers' lives."""

    # What was asked to be enqueued together, by names; and the ids of what was acknowledged.
    batches: list[list[str]] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    leases: list[dict[str, Any]] = field(default_factory=list)
    put_back: set[int] = field(default_factory=set)
    # Releases that were answered, and those that were not: token by id, and ids.
    released: dict[int, str] = field(default_factory=dict)
    unanswered: Counter[int] = field(default_factory=Counter)
    _earlier: int = 0

    def read(self, path: Path) -> None:
        """Add one broker's journal."""
        self._earlier = max(self.names, default=0)
        # A line cut short by a kill was never complete.
        for line in path.read_bytes().split(b"\n")[:-1]:
            fields = json.loads(line)
            getattr(self, f"_{fields.pop('kind')}")(**fields)

    def _enqueue(self, names: list[str]) -> None:
        self.batches.append(names)

    def _enqueued(self, names: list[str], ids: list[int]) -> None:
        assert min(ids) > self._earlier, f"ids of an earlier broker again: {ids}"
        for name, item_id in zip(names, ids, strict=True):
            self._name(item_id, name)
            self.ids[name] = item_id

    def _lease(self, **lease: Any) -> None:  # noqa: ANN401 - the fields of a line
        self._name(lease["id"], lease["name"])
        self.leases.append(lease)

    def _requeue(self, id: int) -> None:  # noqa: A002 - the field of a line
        self.put_back.add(id)

    def _release(self, leases: list[tuple[int, str]]) -> None:
        self.unanswered.update(item_id for item_id, _ in leases)

    def _refused(self, leases: list[tuple[int, str]]) -> None:
        self.unanswered.subtract(item_id for item_id, _ in leases)

    def _released(self, leases: list[tuple[int, str]]) -> None:
        self._refused(leases)
        for item_id, token in leases:
            assert item_id not in self.released, f"id {item_id}: released twice"
            self.released[item_id] = token

    def _name(self, item_id: int, name: str) -> None:
        assert self.names.setdefault(item_id, name) == name, f"id {item_id}: {self.names[item_id]}, and then {name}"

    def check(self) -> None:
        """Check it after the queue was drained."""
        seen = {lease["name"] for lease in self.leases}
        strange = seen.difference(*self.batches)
        assert not strange, f"handed out and never enqueued: {strange}"
        assert len(set(self.names.values())) == len(self.names), "an item has two ids"
        lost = [name for name, item_id in self.ids.items() if not self._is_over(item_id)]
        assert not lost, f"acknowledged and never released: {lost}"
        for batch in self.batches:
            found = [name for name in batch if name in seen]
            assert len(found) in {0, len(batch)}, f"enqueued in part: {found} of {batch}"
        self._check_leases()
        for priority in PRIORITIES:
            self._check_order([lease for lease in self.leases if lease["priority"] == priority])

    def _is_over(self, item_id: int) -> bool:
        """Whether an item was released, or may have been by a call that a kill left without an answer."""
        return item_id in self.released or self.unanswered[item_id] > 0

    def _check_leases(self) -> None:
        ends_us, over = dict[int, int](), set[int]()
        for lease in sorted(self.leases, key=lambda each: each["since_us"]):
            item_id = lease["id"]
            early = lease["since_us"] < ends_us.get(item_id, 0)
            assert not early or item_id in self.put_back, f"handed out before its lease ended: {lease}"
            ends_us[item_id] = lease["until_us"]
            assert item_id not in over, f"handed out after its release: {lease}"
            if self.released.get(item_id) == lease["token"]:
                over.add(item_id)
        assert over == self.released.keys()

    @staticmethod
    def _check_order(leases: list[dict[str, Any]]) -> None:
        """Deadlines never run back; of one deadline, ids rise, but for items that come back."""
        turns: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for lease in leases:
            turns[lease["since_us"]].append(lease)
        latest_us, last_of = 0, dict[int, int]()
        for since_us in sorted(turns):
            least_us = min(lease["deadline_us"] for lease in turns[since_us])
            assert least_us >= latest_us, f"deadlines run back at {since_us}: {least_us} after {latest_us}"
            for lease in turns[since_us]:
                if lease["deliveries"] == 1:
                    earlier = last_of.get(lease["deadline_us"], 0)
                    assert lease["id"] > earlier, f"{lease}: handed out after id {earlier} of the same deadline"
            for lease in turns[since_us]:
                latest_us = max(latest_us, lease["deadline_us"])
                if lease["deliveries"] == 1:
                    last_of[lease["deadline_us"]] = max(last_of.get(lease["deadline_us"], 0), lease["id"])


def read_account(folder: Path) -> Account:
    """Read the journals of all brokers, in the order of their lives."""
    account = Account()
    for path in sorted(folder.iterdir()):
        account.read(path)
    return account
