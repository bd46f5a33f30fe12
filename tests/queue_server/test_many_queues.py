"""A server of more queues than it may have open at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.stores import FaultyStore
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.views.queue.delay_queue import DelayQueue

from .serving import DEADLINE_S, answer_of, serving

if TYPE_CHECKING:
    from wal3_core import MemoryStore

    from .serving import Running

NAMES = [f"q{number}" for number in range(6)]


@pytest.fixture
def server(memory_store: MemoryStore) -> Iterator[Running]:
    """Have at most two queues open."""
    for name in NAMES:
        DelayQueue.create(memory_store, f"queues/{name}")
    with serving(memory_store, queues_max=2) as server:
        yield server


def num_open(server: Running) -> int:
    return sum(each["open"] for each in server.ok("GET", "/v1/queues")["queues"])


def test_each_queue_is_served_though_few_can_be_open(server: Running) -> None:
    for name in NAMES:
        server.post(name, "enqueue", text=name, dedupe_key="k")
    leased = {name: server.post(name, "dequeue", text=True)["items"][0] for name in NAMES}
    assert num_open(server) == 2

    for name, item in leased.items():
        assert item["text"] == name
        assert server.post(name, "enqueue", text="again", dedupe_key="k")["duplicate"]
        assert server.refused(name, "release", id=item["id"], token="0" * 16) == (409, "stale_token")
        server.post(name, "release", id=item["id"], token=item["token"])


@pytest.mark.slow
def test_queues_in_use_stay_open_and_one_more_is_busy_until_they_are_not(server: Running) -> None:
    waiting = [server.begin(name, "dequeue", timeout_s=60, text=True) for name in NAMES[:2]]
    for name in NAMES[:2]:
        server.until_waiting(name, 1)

    assert server.refused(NAMES[2], "enqueue", text="a") == (503, "busy")
    server.post(NAMES[0], "enqueue", text="a")
    assert answer_of(waiting[0]).json["items"][0]["text"] == "a"
    server.post(NAMES[2], "enqueue", text="b")
    server.post(NAMES[1], "enqueue", text="c")
    assert answer_of(waiting[1]).json["items"][0]["text"] == "c"


def test_queue_that_was_taken_is_not_taken_back_by_making_room(server: Running, memory_store: MemoryStore) -> None:
    server.post(NAMES[0], "enqueue", text="a")
    with DelayQueue.open(memory_store, f"queues/{NAMES[0]}") as other:
        assert server.refused(NAMES[0], "enqueue", text="b") == (503, "fenced")
        for name in NAMES[1:]:
            server.post(name, "enqueue", text="c")
        assert server.refused(NAMES[0], "enqueue", text="d") == (503, "fenced")
        assert other.enqueue(b"e").id == 2


@pytest.mark.slow
def test_many_clients_of_many_queues_lose_and_repeat_nothing(server: Running) -> None:
    got: list[str] = []
    errors: list[object] = []

    def work(name: str) -> None:
        try:
            for number in range(3):
                asked_again(server, name, "enqueue", text=f"{name}/{number}", dedupe_key=str(number))
                for item in asked_again(server, name, "dequeue", text=True)["items"]:
                    asked_again(server, name, "release", id=item["id"], token=item["token"])
                    got.append(item["text"])
        except BaseException as error:  # noqa: BLE001 - it is shown
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert errors == []
    assert sorted(got) == sorted(f"{name}/{number}" for name in NAMES for number in range(3))


def test_queue_that_was_destroyed_is_unknown_until_it_is_created_again(
    server: Running, memory_store: MemoryStore
) -> None:
    server.post("q0", "enqueue", text="old")
    destroy(memory_store, "queues/q0")
    # The first append finds it: it is unknown at once, or unavailable, and then unknown.
    assert server.refused("q0", "enqueue", text="b")[0] in (404, 503)
    for method, path, body in (
        ("GET", "/v1/queues/q0/stats", None),
        ("POST", "/v1/queues/q0/dequeue", {}),
        ("GET", "/v1/queues/q0", None),
    ):
        assert server.ask(method, path, body).error == (404, "unknown_queue")
    assert server.ask("GET", "/v1/queues/q0").json["message"].endswith("(`wal3 queue create`, or DelayQueue.create)")

    server.ok("POST", "/v1/queues", {"queue": "q0"})
    assert server.post("q0", "enqueue", text="new")["id"] == 1
    assert server.post("q0", "dequeue", text=True)["items"][0]["text"] == "new"


@pytest.mark.slow
def test_few_queues_are_read_at_a_time_by_looks(memory_store: MemoryStore) -> None:
    for name in NAMES:
        DelayQueue.create(memory_store, f"queues/{name}")
    store, free, begun = FaultyStore(memory_store), threading.Event(), threading.Semaphore(0)
    with serving(store) as server:
        queues = "/v1/queues"

        def hang(kind: str, _path: str) -> None:
            if kind == "get" and not free.is_set():
                begun.release()
                free.wait(DEADLINE_S)

        store.before = hang
        asking = [
            threading.Thread(target=server.ok, args=("GET", f"{queues}/{name}/stats"), daemon=True) for name in NAMES
        ]
        for thread in asking:
            thread.start()
        for _ in range(4):
            assert begun.acquire(timeout=DEADLINE_S)
        # None of the others has begun, however long they are given.
        assert not begun.acquire(timeout=0.2)
        free.set()
        for thread in asking:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def asked_again(server: Running, name: str, operation: str, **body: object) -> dict[str, list[dict[str, str]]]:
    """Ask until the server is not too busy with other queues."""
    for _ in range(int(DEADLINE_S * 50)):
        answer = server.ask("POST", f"/v1/queues/{name}/{operation}", body)
        if answer.status == 200:
            found: dict[str, list[dict[str, str]]] = answer.json
            return found
        assert answer.error == (503, "busy"), answer
        threading.Event().wait(0.02)
    raise AssertionError("it was busy for ever")
