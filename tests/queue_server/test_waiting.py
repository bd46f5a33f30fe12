"""Clients that wait for an item, and clients that go away."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.stores import FaultyStore
from wal3_core.views.queue.delay_queue import DelayQueue

from .serving import DEADLINE_S, answer_of, eventually, serving

if TYPE_CHECKING:
    from tests.queue_server.serving import Running
    from wal3_core import MemoryStore

QUEUE = "/v1/queues/jobs"


def stats(server: Running) -> dict[str, int]:
    found: dict[str, int] = server.ok("GET", f"{QUEUE}/stats")["stats"]
    return found


@pytest.mark.slow
def test_calls_that_wait_are_served_in_their_order(server: Running) -> None:
    waiting = []
    for number in range(3):
        waiting.append(server.begin("jobs", "dequeue", timeout_s=60, text=True))
        server.until_waiting("jobs", number + 1)
    for number in range(3):
        server.post("jobs", "enqueue", text=str(number))

    found = [answer_of(connection).json["items"][0]["text"] for connection in waiting]

    assert found == ["0", "1", "2"]
    for connection in waiting:
        connection.close()


@pytest.mark.slow
def test_wait_ends_without_an_item(server: Running) -> None:
    assert server.post("jobs", "dequeue", timeout_s=0.05) == {"items": []}


def test_wait_is_no_longer_than_the_server_allows(memory_store: MemoryStore) -> None:
    with serving(memory_store, wait_s_max=0.05) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        assert server.post("jobs", "dequeue", timeout_s=10**6) == {"items": []}


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["closed", "half closed"])
def test_client_that_goes_away_while_it_waits_leaves_the_line_and_loses_no_item(server: Running, *, half: bool) -> None:
    gone = server.begin("jobs", "dequeue", timeout_s=60)
    server.until_waiting("jobs", 1)
    other = server.begin("jobs", "dequeue", timeout_s=60, text=True)
    server.until_waiting("jobs", 2)

    if half:
        gone.sock.shutdown(socket.SHUT_WR)
    else:
        gone.close()
    server.until_waiting("jobs", 1)
    server.post("jobs", "enqueue", text="a")
    [item] = answer_of(other).json["items"]
    gone.close()
    other.close()

    assert (item["text"], item["deliveries"]) == ("a", 1)


@dataclass
class SlowStore(FaultyStore):
    """Keeps writes waiting on demand."""

    reached: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        self.before = self._wait

    def _wait(self, kind: str, _path: str) -> None:
        if kind in {"create", "replace"}:
            self.reached.set()
            assert self.free.wait(DEADLINE_S)

    def release(self) -> None:
        self.free.set()


@pytest.mark.slow
def test_items_leased_for_a_client_that_has_gone_come_back_at_once(memory_store: MemoryStore) -> None:
    """The client goes while its items are being made durable: when they are leased, no client is there."""
    DelayQueue.create(memory_store, "queues/jobs")
    slow = SlowStore(memory_store)
    with serving(slow) as server:
        server.post("jobs", "enqueue_many", items=[{"text": "a"}, {"text": "b"}])
        slow.hold()
        gone = server.begin("jobs", "dequeue", count=2, lease_s=3600)
        assert slow.reached.wait(DEADLINE_S)
        gone.close()
        # Until the server has seen it.
        eventually(lambda: not server.num_connections)
        slow.release()
        eventually(lambda: stats(server)["due"] == 2)
        items = server.post("jobs", "dequeue", count=2, text=True)["items"]

    assert [(item["text"], item["deliveries"]) for item in items] == [("a", 1), ("b", 1)]


@pytest.mark.slow
def test_stop_answers_calls_that_wait_refuses_new_ones_and_closes_the_queues(memory_store: MemoryStore) -> None:
    with serving(memory_store) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        waiting = [server.begin("jobs", "dequeue", timeout_s=60) for _ in range(3)]
        server.until_waiting("jobs", 3)

        server.stop()
        answers = [answer_of(connection) for connection in waiting]
        server.ended()
        for connection in waiting:
            connection.close()
        with pytest.raises(OSError, match="refused"):
            server.ask("GET", "/health")

    assert [(answer.status, answer.json) for answer in answers] == [(200, {"items": []})] * 3
    with DelayQueue.open(memory_store, "queues/jobs") as queue:
        assert queue.stats().pending == 0


@pytest.mark.slow
def test_calls_that_wait_at_a_fenced_server_are_answered(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty queue appends nothing: only a look at the log shows that another broker has it."""
    monkeypatch.setattr("wal3_core.views.queue.broker.FENCE_CHECK_S", 0.05)
    with serving(memory_store) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        waiting = server.begin("jobs", "dequeue", timeout_s=60)
        server.until_waiting("jobs", 1)
        with DelayQueue.open(memory_store, "queues/jobs") as other:
            answer = answer_of(waiting)
            waiting.close()
            other.enqueue(b"a")

    assert answer.error == (503, "fenced")
