"""Callbacks of a queue's futures run in its broker's thread: what would wait for that thread is refused there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from wal3_core import DelayQueue, Enqueue, InvalidRequestError, MemoryStore, NewItem

LIMIT_S = 10


@pytest.mark.parametrize(
    "ask", [lambda queue: queue.enqueue(b"more"), lambda queue: queue.stats(), lambda queue: queue.checkpoint()]
)
def test_call_that_would_wait_for_its_own_thread_is_refused(
    memory_store: MemoryStore, ask: Callable[[DelayQueue], object]
) -> None:
    queue = DelayQueue.open_or_create(memory_store, "q")
    found: list[BaseException | object] = []
    over = threading.Event()

    def call(_: Future[object]) -> None:
        try:
            found.append(ask(queue))
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            found.append(error)
        over.set()

    # The callback is there before the broker comes to the operation.
    entered = threading.Event()
    queue.submit(Enqueue((NewItem(b"first"),))).add_done_callback(lambda _: entered.wait(LIMIT_S))
    queue.submit(Enqueue((NewItem(b"a"),))).add_done_callback(call)
    entered.set()

    assert over.wait(LIMIT_S)
    [error] = found
    assert isinstance(error, InvalidRequestError)
    assert "expected a call that does not wait" in str(error)
    # It was not done, and the queue goes on.
    assert [item.value for item in queue.dequeue(5)] == [b"first", b"a"]
    queue.close()
