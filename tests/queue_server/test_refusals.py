"""What is refused: one shape for every error, and nothing is changed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.stores import FaultyStore
from wal3_core import CursorStore, InvalidRequestError, MemoryStore, destroy
from wal3_core.format.paths import QUEUE_CURSOR
from wal3_core.log.write.writer import LogWriter
from wal3_core.queue_server import routes
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import NewItem, QueueDefinition

from .serving import answer_of, eventually, serving

if TYPE_CHECKING:
    import http.client

    from .serving import Json, Running

QUEUE = "/v1/queues/jobs"


def half_sent(server: Running, count: int) -> http.client.HTTPConnection:
    """Begin a request whose body has ``count`` bytes so far, and is not whole."""
    connection = server.connection()
    connection.putrequest("POST", f"{QUEUE}/enqueue")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(count + 2))
    connection.endheaders(b"{" + b" " * (count - 1))
    return connection


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("POST", "/v1/queues", {"queue": "jobs"}, (409, "exists")),
        ("POST", "/v1/queues", {"queue": "a/b"}, (422, "invalid")),
        ("POST", "/v1/queues", {"queue": "log"}, (422, "invalid")),
        ("POST", "/v1/queues", {"queue": "other", "lease_s": 0}, (422, "invalid")),
        ("GET", "/v1/queues/none", None, (404, "unknown_queue")),
        ("GET", "/v1/queues/none/stats", None, (404, "unknown_queue")),
        ("GET", "/v1/queues/none/peek", None, (404, "unknown_queue")),
        ("POST", "/v1/queues/none/dequeue", {}, (404, "unknown_queue")),
        ("GET", f"{QUEUE}/items/9", None, (404, "unknown_item")),
        ("POST", f"{QUEUE}/enqueue", {}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "value": "YQ=="}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"value": "a"}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "\ud800"}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "surprise\ud800": 1}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "priority": 256}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "priority": "1"}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "priority": 2**70}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "delay_s": -1}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "delay_s": float("nan")}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "delay_s": 1, "deadline_us": 1}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a" * (2**20 + 1)}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", {"text": "a", "dedupe_key": "k" * 256}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue_many", {"items": []}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue_many", {"items": [{"text": "a"}] * 1001}, (422, "invalid")),
        ("POST", f"{QUEUE}/dequeue", {"count": 0}, (422, "invalid")),
        ("POST", f"{QUEUE}/dequeue", {"count": 1001}, (422, "invalid")),
        ("POST", f"{QUEUE}/dequeue", {"timeout_s": -1}, (422, "invalid")),
        ("POST", f"{QUEUE}/dequeue", {"lease_s": 0}, (422, "invalid")),
        ("POST", f"{QUEUE}/release", {"id": 1, "token": "0" * 16}, (409, "stale_token")),
        ("POST", f"{QUEUE}/release", {"id": 1, "token": "nonsense"}, (409, "stale_token")),
        ("POST", f"{QUEUE}/extend", {"id": 1, "token": "0" * 16}, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", b"{", (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", b"[" * 100_000, (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", b'{"text": "a", "priority": ' + b"1" * 5000 + b"}", (422, "invalid")),
        ("POST", f"{QUEUE}/enqueue", b"\xff", (422, "invalid")),
        ("GET", f"{QUEUE}/peek?count=x", None, (422, "invalid")),
        ("GET", f"{QUEUE}/peek?count=0", None, (422, "invalid")),
        ("GET", "/v2", None, (404, "unknown_path")),
        ("DELETE", QUEUE, None, (405, "unknown_method")),
    ],
)
def test_bad_request_is_refused_and_changes_nothing(
    server: Running, method: str, path: str, body: Json, error: tuple[int, str]
) -> None:
    server.post("jobs", "enqueue", text="there")

    answer = server.ask(method, path, body, headers={"content-type": "application/json"})

    assert answer.error == error, answer
    stats = server.ok("GET", f"{QUEUE}/stats")["stats"]
    assert (stats["pending"], stats["leased"], stats["last_id"]) == (1, 0, 1)


def test_refusals_say_what_helps(server: Running) -> None:
    said = [
        server.ask(method, path).json["message"]
        for method, path in (("GET", "/"), ("DELETE", QUEUE), ("GET", "/v1/queues/none/stats"))
    ]
    said.append(server.ask("POST", "/v1/queues/none/dequeue", {}).json["message"])

    assert said[:2] == [
        "request: expected one that /docs describes, found GET /",
        f"request: expected one that /docs describes, found DELETE {QUEUE}",
    ]
    for message in said[2:]:
        assert message.endswith("create the queue first (`wal3 queue create`, or DelayQueue.create)")


def test_body_that_is_not_called_json_is_refused(server: Running) -> None:
    """A web page of another site can send such a request without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = server.ask("POST", f"{QUEUE}/enqueue", b'{"text": "a"}', headers={"content-type": kind})
        assert answer.error == (422, "invalid")
        assert answer.json["message"].endswith(f"content-type: application/json beside its body, found {kind}")


JSONS = st.recursive(
    st.none() | st.integers() | st.text('a\\"/,:[]{}\n\x00ä😀'),
    lambda each: st.lists(each) | st.dictionaries(st.text('a\\",:[]{}'), each),
)


@given(JSONS, st.booleans(), st.integers(2, 9))
@settings(max_examples=some(50), deadline=None)
def test_signs_of_a_body_are_counted_outside_of_its_texts(fields: Json, escaped: bool, piece_bytes: int) -> None:  # noqa: FBT001 - drawn
    text = json.dumps(fields, ensure_ascii=escaped)
    outside = re.sub(r'"(\\.|[^"\\])*"', "", text)
    signs = sum(map(outside.count, ",:[{"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "_PIECE_BYTES", piece_bytes)
        routes._check_size(bytearray(text.encode()), signs)
        if signs:
            with pytest.raises(InvalidRequestError, match="expected at most"):
                routes._check_size(bytearray(text.encode()), signs - 1)


def test_body_that_is_too_large_is_refused_however_it_comes(memory_store: MemoryStore) -> None:
    with serving(memory_store, body_bytes_max=1000) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        announced = server.ask("POST", f"{QUEUE}/enqueue", {"text": "a" * 1000})
        connection = server.connection()
        connection.request(
            "POST",
            f"{QUEUE}/enqueue",
            (b"a" * 100 for _ in range(11)),
            {"content-type": "application/json"},
            encode_chunked=True,
        )
        chunked = answer_of(connection)
        connection.close()
        connection = server.connection()
        connection.request(
            "POST",
            f"{QUEUE}/enqueue",
            iter([b'{"text": ', b'"a"}']),
            {"content-type": "application/json"},
            encode_chunked=True,
        )
        small = answer_of(connection)
        connection.close()

    assert announced.error == (413, "too_large")
    assert chunked.error == (413, "too_large")
    assert small.status == 200


def test_bodies_of_all_requests_are_limited_together(memory_store: MemoryStore) -> None:
    with serving(memory_store, body_bytes_max=1000, held_bytes_max=1000) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        # What it brings is held no longer once it waits.
        waiting = server.begin("jobs", "dequeue", timeout_s=60, text=True)
        server.until_waiting("jobs", 1)
        begun = half_sent(server, 40)
        eventually(lambda: server.ask("POST", f"{QUEUE}/enqueue", {"text": "a" * 975}).status == 503)
        refused = server.ask("POST", f"{QUEUE}/enqueue", {"text": "a" * 975})
        begun.send(b"}" + bytes(1))
        begun.close()
        eventually(lambda: server.num_connections == 1)
        server.post("jobs", "enqueue", text="b")
        served = answer_of(waiting)
        waiting.close()
        taken = server.ask("POST", f"{QUEUE}/enqueue", {"text": "a" * 975})

    assert refused.error == (503, "busy")
    assert refused.headers["retry-after"] == "1"
    assert (served.status, taken.status) == (200, 200)


@pytest.mark.slow
def test_body_that_never_ends_is_refused(memory_store: MemoryStore) -> None:
    with serving(memory_store, body_s_max=0.1) as server:
        connection = server.connection()
        connection.putrequest("POST", f"{QUEUE}/enqueue")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "100")
        connection.endheaders(b"{")
        answer = answer_of(connection)
        connection.close()

    assert answer.error == (408, "too_slow")


def test_requests_under_way_are_limited(memory_store: MemoryStore) -> None:
    with serving(memory_store, requests_max=2) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        # Those that wait for an item are none of them.
        waiting = server.begin("jobs", "dequeue", timeout_s=60)
        server.until_waiting("jobs", 1)
        begun = [half_sent(server, 40) for _ in range(2)]
        eventually(lambda: server.ask("GET", "/v1/queues").status == 503)
        refused = server.ask("GET", "/v1/queues")
        # The health is shown all the same.
        assert server.ok("GET", "/health") == {"status": "ok"}
        for connection in begun:
            connection.close()
        eventually(lambda: server.ask("GET", "/v1/queues").status == 200)
        waiting.close()

    assert refused.error == (503, "busy")
    assert refused.headers["retry-after"] == "1"


def test_log_that_is_no_queue_is_refused_and_not_listed(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "queues/events") as writer:
        writer.append(b"a record")
    with serving(memory_store) as server:
        assert server.ok("GET", "/v1/queues") == {"queues": []}
        assert server.refused("events", "enqueue", text="a") == (422, "invalid")
        assert server.ask("POST", "/v1/queues", {"queue": "events"}).error == (409, "exists")
    with LogWriter.open(memory_store, "queues/events") as writer:
        writer.append(b"another")


def test_fenced_queue_stays_with_the_other_broker(memory_store: MemoryStore) -> None:
    with serving(memory_store) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        server.post("jobs", "enqueue", text="a")
        with DelayQueue.open(memory_store, "queues/jobs") as other:
            answers = [server.ask("POST", f"{QUEUE}/enqueue", {"text": "b"}) for _ in range(3)]
            looked = server.ok("GET", f"{QUEUE}/stats")
            peeked = server.ok("GET", f"{QUEUE}/peek?text=true")["items"]
            other.enqueue(b"c")
            assert other.stats().pending == 2

    assert [answer.error for answer in answers] == [(503, "fenced")] * 3
    assert "restart this server" in answers[0].json["message"]
    assert answers[0].headers["retry-after"] == "60"
    assert (looked["open"], looked["stats"]["pending"]) == (False, 1)
    assert peeked[0]["text"] == "a"


def test_looks_alone_fence_no_other_broker(memory_store: MemoryStore) -> None:
    DelayQueue.create(memory_store, "queues/jobs")
    with DelayQueue.open(memory_store, "queues/jobs") as other:
        other.enqueue_many([NewItem(b"letter", priority=1), NewItem(b"a")])
        (item,) = other.dequeue()
        other.bury(item.id, item.token)
        with serving(memory_store) as server:
            assert server.ok("GET", f"{QUEUE}/stats")["stats"]["pending"] == 1
            assert server.ok("POST", f"{QUEUE}/purge", {"dead": True}) == {"items": 2, "dry_run": True}
            assert server.ok("GET", f"{QUEUE}/dead?text=true")["items"][0]["text"] == "letter"
            assert server.ok("GET", f"{QUEUE}/peek?text=true")["items"][0]["text"] == "a"
            assert server.ok("GET", "/v1/queues") == {"queues": [{"queue": "jobs", "open": False}]}
            assert not server.ok("GET", QUEUE)["open"]
            assert server.ok("GET", f"{QUEUE}/items/{item.id}")["state"] == "dead"
            assert server.ask("GET", f"{QUEUE}/items/9").error == (404, "unknown_item")
        other.enqueue(b"b")


def test_answer_keeps_to_its_size_whatever_the_definition_says_by_now(memory_store: MemoryStore) -> None:
    """Also that of a queue that is not open, whose definition is not known before it is read."""
    DelayQueue.create(memory_store, "queues/jobs")
    with DelayQueue.open(memory_store, "queues/jobs") as queue:
        queue.enqueue_many([NewItem(bytes(100)) for _ in range(9)])
        queue.define(QueueDefinition(value_bytes_max=10))
    with serving(memory_store, answer_bytes_max=350) as server:
        found = [len(server.ok("GET", f"{QUEUE}/peek?count=9")["items"])]
        found += [len(server.post("jobs", "dequeue", count=9)["items"]) for _ in range(4)]
        server.ok("POST", "/v1/queues", {"queue": "small"})
        server.post("small", "enqueue_many", items=[{"text": "a"}] * 300)
        # With the default of a MiB, the definition alone would allow one item.
        found.append(len(server.post("small", "dequeue", count=300)["items"]))

    assert found == [3, 3, 3, 3, 0, 300]


def test_dead_letter_with_the_same_key_is_said(server: Running) -> None:
    server.post("jobs", "enqueue", text="a", dedupe_key="k")
    [item] = server.post("jobs", "dequeue")["items"]
    server.post("jobs", "bury", id=item["id"], token=item["token"])

    again = server.post("jobs", "enqueue", text="b", dedupe_key="k")
    assert (again["id"], again["duplicate"], again["dead"]) == (item["id"], True, True)


def test_open_queue_is_listed_without_its_cursor_and_not_once_it_is_gone(
    server: Running, memory_store: MemoryStore
) -> None:
    server.post("jobs", "enqueue", text="a")
    CursorStore(memory_store, "queues/jobs").delete(QUEUE_CURSOR)
    listed = server.ok("GET", "/v1/queues")
    destroy(memory_store, "queues/jobs")
    refused = server.ask("POST", f"{QUEUE}/enqueue", {"text": "b"})

    assert listed == {"queues": [{"queue": "jobs", "open": True}]}
    assert refused.error == (404, "unknown_queue")
    assert refused.json["message"].endswith("create the queue first (`wal3 queue create`, or DelayQueue.create)")
    assert server.ok("GET", "/v1/queues") == {"queues": []}


def test_store_that_refuses_is_unavailable_and_the_queue_goes_on_afterwards(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    with serving(store) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        server.post("jobs", "enqueue", text="a")
        store.fail("create", "queues/jobs", "denied", times=10)
        refused = server.ask("POST", f"{QUEUE}/enqueue", {"text": "b"})
        store.heal()
        server.post("jobs", "enqueue", text="c")
        held = server.ok("GET", f"{QUEUE}/peek?count=9&text=true")["items"]

    assert refused.error == (503, "unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert [item["text"] for item in held] == ["a", "c"]
