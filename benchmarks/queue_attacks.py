"""What a queue server takes while clients misuse it: a row of a table for each kind of misuse.

``PYTHONPATH=. python benchmarks/queue_attacks.py`` starts servers of its own, and takes four minutes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.queue_server.attacks import BEGUN, MIB, REQUEST, TOKEN, Attacked, attacked, bodies, flood

CONNECTIONS = 6000
WAITING = 2000
# Longer than a client may take nothing of an answer.
ENDED_S = 300
FLOOD_S = 20
POST = b"POST /v1/queues HTTP/1.1\r\nHost: localhost\r\n"
FLOODS = {
    "a header without end": [BEGUN, b"a" * MIB],
    "headers without end": [BEGUN + b"a\r\n", b"X: a\r\n" * 150_000],
    "a path without end": [b"GET /", b"a" * MIB],
    "a body of 10 GB": [POST + b"Content-Length: 10000000000\r\n\r\n", b"a" * MIB],
    "requests without end, no answer read": [b"", REQUEST * 2000],
}


def row(server: Attacked, name: str, attack: Callable[[], str]) -> None:
    """Print what an attack took, and how it ended."""
    with server.measured() as costs:
        outcome = attack()
    (cost,) = costs
    print(
        f"| {name} | {outcome} | {cost.seconds:.1f} | {cost.cpu_s:.1f} | {cost.mib:.0f} | {cost.health_s:.2f} |",
        flush=True,
    )


def ended_s(server: Attacked, num_files: int) -> float:
    """Return how long it takes until a server has no more than so many files."""
    begun_s = time.monotonic()
    while server.num_files() > num_files and time.monotonic() - begun_s < ENDED_S:
        time.sleep(0.1)
    return time.monotonic() - begun_s


def with_bodies(server: Attacked) -> None:
    """Send bodies of 16 MiB, one after another."""
    server.ok("POST", "/v1/queues", {"queue": "jobs"})
    server.post("jobs", "enqueue", text="a")
    for name, (operation, body) in bodies().items():

        def send(operation: str = operation, body: bytes = body) -> str:
            headers = {"content-type": "application/json"}
            return str(server.ask("POST", f"/v1/queues/jobs/{operation}", body, headers=headers).status)

        row(server, f"16 MiB: {name}", send)


def with_large_answers(server: Attacked) -> None:
    """Ask for more than an answer has."""
    server.ok("POST", "/v1/queues", {"queue": "large"})
    for _ in range(16):
        server.post("large", "enqueue_many", items=[{"text": "a" * MIB}] * 10)
    row(
        server,
        "an answer of 128 MiB",
        lambda: f"{len(server.ok('GET', '/v1/queues/large/peek?count=1000')['items'])} items",
    )


def with_connections(server: Attacked) -> None:
    """Send what needs no token, and open more connections than there may be."""
    for name, (first, then) in FLOODS.items():

        def send(first: bytes = first, then: bytes = then) -> str:
            before = server.num_files()
            sent_mib, connection = flood(server.address, itertools.chain([first], itertools.repeat(then)), FLOOD_S)
            after_s = ended_s(server, before)
            connection.close()
            return f"ended after {sent_mib:.0f} MiB and {after_s:.0f} s"

        row(server, name, send)

    def connect() -> str:
        before = server.num_files()
        connections = [server.connect() for _ in range(CONNECTIONS)]
        for connection in connections[::2]:
            with suppress(OSError):
                connection.sendall(BEGUN)
        most = server.num_files() - before
        after_s = ended_s(server, before + 1)
        for connection in connections:
            connection.close()
        return f"{most} at a time, ended after {after_s:.0f} s"

    row(server, f"{CONNECTIONS} idle connections", connect)


def with_waiting(server: Attacked) -> None:
    """Let as many wait as may, and more."""
    server.ok("POST", "/v1/queues", {"queue": "waited"})

    def wait() -> str:
        waiting = [server.begin("waited", "dequeue", timeout_s=300) for _ in range(WAITING)]
        server.until_waiting("waited", WAITING)
        more = server.ask("POST", "/v1/queues/waited/dequeue", {"timeout_s": 300}).status
        enqueued = server.ask("POST", "/v1/queues/waited/enqueue", {"text": "a"}).status
        for connection in waiting:
            connection.close()
        return f"one more {more}, enqueue {enqueued}"

    row(server, f"{WAITING} calls that wait", wait)


def main() -> None:
    """Print the table."""
    print("| attack | outcome | s | processor s | MiB more | `/health` s at most |\n|---|---|---|---|---|---|")
    with TemporaryDirectory() as made:
        folder = Path(made)
        with attacked(folder / "open") as server:
            with_bodies(server)
            with_large_answers(server)
            with_waiting(server)
        (folder / "tokens").write_text(TOKEN)
        (folder / "tokens").chmod(0o600)
        with attacked(folder / "guarded", "--tokens-file", f"{folder}/tokens") as server:
            with_connections(server)


if __name__ == "__main__":
    main()
