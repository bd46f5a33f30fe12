"""Every route, over HTTP."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.queue.delay_queue import DelayQueue

from .serving import serving

if TYPE_CHECKING:
    from .serving import Running

QUEUE = "/v1/queues/jobs"


def texts(items: list[dict[str, object]]) -> list[object]:
    return [item["text"] for item in items]


@pytest.mark.slow
def test_item_goes_through_its_life_on_every_store(store: ObjectStore) -> None:
    with serving(store) as server:
        made = server.ok("POST", "/v1/queues", {"queue": "jobs", "lease_s": 30, "max_deliveries": 3})
        done = server.post("jobs", "enqueue", text="plants", priority=7, dedupe_key="k")
        again = server.post("jobs", "enqueue", text="other", dedupe_key="k")
        [leased] = server.post("jobs", "dequeue", text=True)["items"]
        stats = server.ok("GET", f"{QUEUE}/stats")["stats"]
        released = server.post("jobs", "release", id=leased["id"], token=leased["token"])
        after = server.ok("GET", f"{QUEUE}/stats")["stats"]

    assert made["definition"] == {"lease_s": 30, "max_deliveries": 3, "value_bytes_max": 2**20, "items_max": None}
    assert (done["id"], done["duplicate"], again["id"], again["duplicate"]) == (1, False, 1, True)
    expected = {"id": 1, "text": "plants", "priority": 7, "deliveries": 1, "dedupe_key": "k", "requeued_us": None}
    assert {name: leased[name] for name in expected} == expected
    assert leased["lease_until_us"] > leased["enqueued_us"]
    assert (stats["pending"], stats["leased"]) == (0, 1)
    assert released == {"released": 1}
    assert (after["pending"], after["leased"], after["last_id"]) == (0, 0, 1)


def test_queues_are_listed_and_shown(server: Running) -> None:
    server.ok("POST", "/v1/queues", {"queue": "mail", "items_max": 5})

    listed = server.ok("GET", "/v1/queues")
    shown = server.ok("GET", "/v1/queues/mail")

    assert listed == {"queues": [{"queue": "jobs", "open": False}, {"queue": "mail", "open": False}]}
    assert shown["definition"]["items_max"] == 5
    assert not shown["open"]
    server.post("mail", "enqueue", text="a")
    assert server.ok("GET", "/v1/queues/mail")["open"]
    assert server.ok("GET", "/v1/queues")["queues"][1] == {"queue": "mail", "open": True}


def test_definition_is_kept_by_the_queue_s_log(memory_store: ObjectStore) -> None:
    with serving(memory_store) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        server.ok("PUT", f"{QUEUE}/definition", {"lease_s": 5, "items_max": 1})
        server.post("jobs", "enqueue", text="1")
        assert server.refused("jobs", "enqueue", text="2") == (503, "queue_full")

    with serving(memory_store) as server:
        assert server.ok("GET", QUEUE)["definition"]["lease_s"] == 5
    with DelayQueue.open(memory_store, "queues/jobs") as queue:
        assert queue.definition.items_max == 1


def test_batches_are_all_or_none(server: Running) -> None:
    done = server.post("jobs", "enqueue_many", items=[{"text": "a"}, {"text": "b"}, {"value": "/w=="}])
    leased = server.post("jobs", "dequeue", count=3, text=True)["items"]
    leases = [{"id": item["id"], "token": item["token"]} for item in leased]

    bad = [*leases[:2], {"id": 3, "token": "0" * 16}]
    assert [each["id"] for each in done["items"]] == [1, 2, 3]
    assert [item.get("text", item.get("value")) for item in leased] == ["a", "b", "/w=="]
    assert server.refused("jobs", "release_many", leases=bad) == (409, "stale_token")
    assert server.ok("GET", f"{QUEUE}/stats")["stats"]["leased"] == 3
    assert server.post("jobs", "release_many", leases=leases) == {"released": 3}


def test_values_are_base64_unless_text_is_asked_for(server: Running) -> None:
    value = base64.b64encode(bytes(range(256))).decode()
    server.post("jobs", "enqueue_many", items=[{"value": value}, {"text": "Grüße \x00"}])

    plain = server.post("jobs", "dequeue", count=2, lease_s=0.001)["items"]
    peeked = server.ok("GET", f"{QUEUE}/peek?count=2&text=true")["items"]

    assert [item["value"] for item in plain] == [value, base64.b64encode("Grüße \x00".encode()).decode()]
    assert all("text" not in item for item in plain)
    assert {item.get("text", item.get("value")) for item in peeked} <= {value, "Grüße \x00"}


def test_item_waits_for_its_deadline_and_is_seen_before(server: Running) -> None:
    deadline_us = (shared_runtime().now_us() // 1000 + 3_600_000) * 1000
    server.post("jobs", "enqueue", text="later", deadline_us=deadline_us)
    server.post("jobs", "enqueue", text="much later", delay_s=7200)

    assert server.post("jobs", "dequeue") == {"items": []}
    peeked = server.ok("GET", f"{QUEUE}/peek?count=5&text=true")["items"]
    stats = server.ok("GET", f"{QUEUE}/stats")["stats"]

    assert texts(peeked) == ["later", "much later"]
    assert peeked[0]["deadline_us"] == deadline_us
    assert peeked[1]["deadline_us"] > shared_runtime().now_us() + 7000 * US_PER_S
    assert (stats["due"], stats["scheduled"], stats["next_deadline_us"]) == (0, 2, deadline_us)


def test_lease_is_extended_and_the_item_put_back_with_another_value(server: Running) -> None:
    server.post("jobs", "enqueue", text="a")
    [first] = server.post("jobs", "dequeue")["items"]
    lease = {"id": first["id"], "token": first["token"]}

    until_us = server.post("jobs", "extend", **lease, lease_s=500)["lease_until_us"]
    back = server.post("jobs", "requeue", **lease, text="b")
    [second] = server.post("jobs", "dequeue", text=True)["items"]

    assert until_us > first["lease_until_us"]
    assert back["id"] == second["id"] == first["id"]
    assert (second["text"], second["deliveries"]) == ("b", 2)
    assert second["requeued_us"] is not None
    assert server.refused("jobs", "release", **lease) == (409, "stale_token")


def test_leased_items_are_reclaimed_without_their_tokens(server: Running) -> None:
    server.post("jobs", "enqueue_many", items=[{"text": "a"}, {"text": "b"}])
    first, _ = server.post("jobs", "dequeue", count=2)["items"]

    assert server.refused("jobs", "reclaim", ids=[1, 9]) == (404, "unknown_item")
    assert server.refused("jobs", "reclaim", ids=[]) == (422, "invalid")
    assert [(item["id"], item["dead"]) for item in server.post("jobs", "reclaim", ids=[2, 1])["items"]] == [
        (2, False),
        (1, False),
    ]
    assert server.refused("jobs", "release", id=1, token=first["token"]) == (409, "stale_token")


def test_dead_letters_are_buried_shown_and_kicked(server: Running) -> None:
    server.post("jobs", "enqueue_many", items=[{"text": str(number)} for number in range(3)])
    for item in server.post("jobs", "dequeue", count=3)["items"]:
        assert server.post("jobs", "bury", id=item["id"], token=item["token"]) == {"buried": item["id"]}

    dead = server.ok("GET", f"{QUEUE}/dead?count=2&text=true")["items"]
    rest = server.ok("GET", f"{QUEUE}/dead?after=2")["items"]
    state = server.ok("GET", f"{QUEUE}/items/2")

    assert texts(dead) == ["0", "1"]
    assert [item["id"] for item in rest] == [3]
    assert (state["state"], state["deliveries"], state["value_bytes"]) == ("dead", 1, 1)
    assert server.post("jobs", "kick") == {"ids": [1]}
    assert server.post("jobs", "kick", ids=[3, 2]) == {"ids": [3, 2]}
    assert server.ok("GET", f"{QUEUE}/items/2")["state"] == "pending"
    assert server.refused("jobs", "kick", ids=[99]) == (404, "unknown_item")


def test_purge_only_counts_unless_it_is_confirmed(server: Running) -> None:
    server.post("jobs", "enqueue_many", items=[{"text": "a"}, {"text": "b"}, {"text": "c"}])
    server.post("jobs", "dequeue")

    counted = server.post("jobs", "purge", leased=True)
    held = server.ok("GET", f"{QUEUE}/stats")["stats"]
    purged = server.post("jobs", "purge?confirm=true")
    left = server.ok("GET", f"{QUEUE}/stats")["stats"]

    assert counted == {"items": 3, "dry_run": True}
    assert (held["pending"], held["leased"]) == (2, 1)
    assert purged == {"items": 2, "dry_run": False}
    assert (left["pending"], left["leased"]) == (0, 1)


def test_api_describes_itself(server: Running) -> None:
    described = server.ok("GET", "/openapi.json")

    paths = {path.removeprefix("/v1/queues") for path in described["paths"]}
    assert {"", "/{queue}/enqueue", "/{queue}/dequeue", "/{queue}/items/{item_id}", "/health"} <= paths
    enqueue = described["paths"]["/v1/queues/{queue}/enqueue"]["post"]
    assert {"200", "401", "404", "409", "413", "422", "429", "503"} <= enqueue["responses"].keys()
    assert server.ok("GET", "/health") == {"status": "ok"}
