"""Workers are shared fairly: a store or log that hangs does not take them from the others."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from wal3_core.runtime.threads import _TOPICS_KEPT_MAX, WORKERS_MAX, ThreadRuntime
from wal3_core.workers import COMMON, Caps, Share, TaskQueue

DONE_S_MAX = 60
TASKS = 3000
TOPICS = 5000
CAPS = Caps.of(8)


def nothing() -> None:
    """Do nothing."""


def may_run(share: Share, running: Counter[Share]) -> bool:
    """Return whether a log's next task may run: a second, simple statement of the rules."""
    of_store = sum(count for each, count in running.items() if each.store == share.store)
    if running.total() >= CAPS.threads_max:
        return False
    if share.store.startswith("file:") and of_store >= CAPS.local_threads_max:
        return False
    if not running[share]:
        return of_store < CAPS.store_threads_max
    below_log_cap = not share.log or running[share] < CAPS.log
    return below_log_cap and of_store < CAPS.store and running.total() < CAPS.whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.repeat) for seed in range(5, 20))])
def test_queued_tasks_run_within_the_caps_and_as_soon_as_they_allow(seed: int) -> None:
    chance = random.Random(seed)
    shares = [Share(f"store{chance.randrange(4)}", chance.choice(["", "a", "b", "c"])) for _ in range(40)]
    shares += [Share(store, f"log{number}") for store in ("store0", "file:///local") for number in range(40)]
    queue, waiting, running = TaskQueue(CAPS), Counter[Share](), Counter[Share]()

    for _ in range(TASKS):
        if chance.random() < 0.5:
            share = chance.choice(shares)
            queue.add(share, nothing)
            waiting[share] += 1
        elif running and chance.random() < 0.6:
            share = chance.choice(sorted(running.elements(), key=repr))
            queue.finish(share)
            running -= Counter([share])
        able = {share for share in waiting if may_run(share, running)}
        assert queue.has_next() == bool(able)
        taken = queue.take()
        if taken is not None:
            assert taken[0] in able
            waiting -= Counter([taken[0]])
            running[taken[0]] += 1
    while waiting or running:
        share = next(running.elements())
        queue.finish(share)
        running -= Counter([share])
        while (taken := queue.take()) is not None:
            waiting -= Counter([taken[0]])
            running[taken[0]] += 1

    # Logs and stores without tasks are forgotten.
    assert (len(queue), queue.running) == (0, 0)


def test_stores_and_their_logs_take_turns() -> None:
    queue = TaskQueue(CAPS)
    for share in [Share("a", "1")] * 3 + [Share("a", "2")] * 3 + [Share("b", "1")] * 2:
        queue.add(share, nothing)

    turns = []
    while (taken := queue.take()) is not None:
        turns.append((taken[0].store, taken[0].log))
        queue.finish(taken[0])

    assert turns[:4] == [("a", "1"), ("b", "1"), ("a", "2"), ("b", "1")]
    assert Counter(turns) == {("a", "1"): 3, ("a", "2"): 3, ("b", "1"): 2}


class Hanging:
    """Tasks that hang until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self) -> None:
        self.begun.release()
        assert self.gate.wait(DONE_S_MAX)

    def await_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=DONE_S_MAX)


@pytest.mark.parametrize(
    ("hanging", "begun", "healthy"),
    [
        ([Share("dead", "a")] * 200, Caps.of(WORKERS_MAX).log, Share("dead", "b")),
        ([Share("dead", f"{n % 8}") for n in range(400)], Caps.of(WORKERS_MAX).store, Share("dead", "x")),
        ([Share("dead", f"{n}") for n in range(400)], Caps.of(WORKERS_MAX).store_threads_max, Share("well", "x")),
        ([Share("dead", f"{n % 9}") for n in range(400)], Caps.of(WORKERS_MAX).store, COMMON),
        ([COMMON] * 200, Caps.of(WORKERS_MAX).store, Share("well", "x")),
        ([Share(f"dead{n % 3}", "a") for n in range(400)], WORKERS_MAX, Share("dead0", "b")),
    ],
    ids=["one log", "eight logs", "very many logs", "a store", "tasks of no log", "three stores"],
)
def test_task_runs_at_once_whichever_other_tasks_hang(hanging: list[Share], begun: int, healthy: Share) -> None:
    tasks, done = Hanging(), threading.Event()
    with ThreadRuntime() as runtime:
        try:
            for share in hanging:
                runtime.spawn(tasks, share=share)
            tasks.await_begun(begun)
            runtime.spawn(done.set, share=healthy)
            assert done.wait(DONE_S_MAX)
            assert not tasks.begun.acquire(timeout=0.05)
            assert runtime._workers._begun <= 4 * WORKERS_MAX + 1
        finally:
            tasks.gate.set()
        tasks.await_begun(len(hanging) - begun)


def test_every_task_runs_once_and_queued_ones_when_the_runtime_is_closed() -> None:
    chance, counted, lock = random.Random(0), Counter[int](), threading.Lock()

    def counting(number: int) -> Callable[[], None]:
        def count() -> None:
            with lock:
                counted[number] += 1

        return count

    with ThreadRuntime(workers_max=4) as runtime:
        for number in range(TASKS):
            runtime.spawn(counting(number), share=Share(f"{chance.randrange(3)}", f"{chance.randrange(5)}"))

    assert counted == Counter(range(TASKS))


@pytest.mark.slow
def test_thousands_of_topics_without_waiters_are_forgotten() -> None:
    with ThreadRuntime() as runtime:
        for number in range(TOPICS):
            runtime.await_topic(f"log{number}", -1, 0.0)
        gc.collect()

        assert len(runtime._topics) <= _TOPICS_KEPT_MAX
        assert len(runtime._recent_topics) <= _TOPICS_KEPT_MAX


@pytest.mark.slow
def test_publication_while_a_topic_was_forgotten_is_not_missed() -> None:
    with ThreadRuntime() as runtime:
        seen = runtime.await_topic("log", -1, 0.0)
        for number in range(TOPICS):
            runtime.await_topic(f"log{number}", -1, 0.0)
        gc.collect()
        runtime.publish("log")

        assert runtime.await_topic("log", seen, 0.0) > seen


@pytest.mark.slow
def test_waiter_for_a_topic_is_woken_after_thousands_of_other_topics() -> None:
    woken: list[int] = []
    with ThreadRuntime() as runtime:
        seen = runtime.await_topic("log", -1, 0.0)
        thread = threading.Thread(target=lambda: woken.append(runtime.await_topic("log", seen, DONE_S_MAX)))
        thread.start()
        for number in range(TOPICS):
            runtime.await_topic(f"log{number}", -1, 0.0)
        gc.collect()
        runtime.publish("log")
        thread.join(DONE_S_MAX / 2)

    assert woken
    assert woken[0] > seen
