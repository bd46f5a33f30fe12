"""Who may ask: access tokens, request rates, hosts, and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.serving import Rates, Tokens, check_exposure, read_tokens, split_tokens
from wal3_core.runtime import ThreadRuntime

from .serving import serving

if TYPE_CHECKING:
    from wal3_core import MemoryStore

FIRST, SECOND = "first-token-of-a-test", "second-token-of-a-test"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_only_a_known_token_passes(memory_store: MemoryStore) -> None:
    with serving(memory_store, tokens=[FIRST, SECOND]) as server:
        refused = [
            server.ask("GET", "/v1/queues", headers=headers)
            for headers in (
                {},
                bearer("unknown-token-of-a-test"),
                bearer(FIRST[:-1]),
                bearer(""),
                {"authorization": f"Basic {FIRST}"},
                {"authorization": FIRST},
                {"authorization": "Bearer \xff"},
            )
        ]
        passed = [server.ask("GET", "/v1/queues", headers=bearer(token)).status for token in (FIRST, SECOND)]
        health = server.ok("GET", "/health")
        hidden = server.ask("GET", "/v1/nothing")

    assert [answer.error for answer in refused] == [(401, "unauthorized")] * len(refused)
    assert refused[0].json["message"].endswith("found none")
    assert refused[1].json["message"].endswith("found another one")
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert passed == [200, 200]
    assert health == {"status": "ok"}
    # A path says nothing to a stranger.
    assert hidden.error == (401, "unauthorized")


def test_clients_have_rates_of_their_own(memory_store: MemoryStore) -> None:
    with serving(memory_store, tokens=[FIRST, SECOND], requests_per_s=0.001) as server:
        first = [server.ask("GET", "/v1/queues", headers=bearer(FIRST)) for _ in range(3)]
        second = server.ask("GET", "/v1/queues", headers=bearer(SECOND))
        strangers = [server.ask("GET", "/v1/queues") for _ in range(2)]

    assert [answer.status for answer in first] == [200, 429, 429]
    assert first[1].error == (429, "too_many_requests")
    assert 1 <= int(first[1].headers["retry-after"]) <= 1000
    assert second.status == 200
    assert [answer.status for answer in strangers] == [401, 429]


class Clock(ThreadRuntime):
    """A clock that a test puts forward."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_rate_gives_two_seconds_at_once_and_then_one_a_second() -> None:
    clock = Clock()
    rates = Rates(10, clock)

    assert [rates.wait_s("a") for _ in range(20)] == [0.0] * 20
    assert rates.wait_s("a") == pytest.approx(0.1)
    assert rates.wait_s("b") == 0
    clock.now_s += 0.5
    assert [rates.wait_s("a") > 0 for _ in range(6)] == [False] * 5 + [True]
    clock.now_s += 10**6
    assert sum(rates.wait_s("a") == 0 for _ in range(100)) == 20


def test_rates_of_many_clients_take_bounded_memory() -> None:
    rates = Rates(10, Clock())

    for client in range(30_000):
        rates.wait_s(client)

    assert len(rates._left) <= 10_000


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "127.0.0.1:1"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "wal3.example:80"}, 403),
        ({"host": "[nonsense"}, 403),
        ({"host": ""}, 403),
        ({"host": "localhost:80", "origin": "http://localhost:80"}, 200),
        ({"host": "localhost:80", "origin": "http://page.example"}, 403),
        ({"host": "localhost:80", "origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"host": "page.example@localhost"}, 403),
        ({"host": "localhost:80", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "localhost:80", "sec-fetch-site": "none"}, 200),
        # A picture of a page needs no origin.
        ({"host": "localhost:80", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "localhost:80", "sec-fetch-site": "same-site"}, 403),
    ],
)
def test_page_of_another_site_reaches_no_server_on_this_machine(
    memory_store: MemoryStore, headers: dict[str, str], status: int
) -> None:
    with serving(memory_store, hosts=("localhost", "127.0.0.1", "::1")) as server:
        answer = server.ask("GET", "/v1/queues", headers=headers)

    assert answer.status == status
    assert status == 200 or answer.error == (403, "forbidden")


def test_strange_origin_is_refused_whatever_names_the_server_has(memory_store: MemoryStore) -> None:
    with serving(memory_store, tokens=[FIRST]) as server:
        for origin in ("http://[", "null", "", "http://page.example"):
            answer = server.ask("GET", "/v1/queues", headers={**bearer(FIRST), "origin": origin})
            assert answer.error == (403, "forbidden")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "wal3.example"])
def test_public_address_without_tokens_is_refused_unless_that_is_said(host: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected access tokens"):
        check_exposure(host, Tokens([]), insecure=False)

    check_exposure(host, Tokens([]), insecure=True)
    check_exposure(host, Tokens([FIRST]), insecure=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_address_of_this_machine_alone_needs_no_tokens(host: str) -> None:
    check_exposure(host, Tokens([]), insecure=False)


def test_tokens_are_read_from_a_file_and_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# a comment\n\n{FIRST}\n  {SECOND}  \n")

    assert read_tokens(path) == [FIRST, SECOND]
    assert split_tokens(f"{FIRST},{SECOND} ") == [FIRST, SECOND]
    assert split_tokens("") == []


def test_tokens_that_every_user_reads_are_complained_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text(FIRST)
    said = []
    for mode in (0o600, 0o640, 0o644):
        path.chmod(mode)
        assert read_tokens(path) == [FIRST]
        said.append([record.getMessage() for record in caplog.records])

    assert said[:2] == [[], []]
    assert [message.startswith(f"{path}: expected") and "found mode 644" in message for message in said[2]] == [True]


@pytest.mark.parametrize("content", [b"", b"# none\n", b"\xff\xfe"])
def test_file_without_tokens_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)

    with pytest.raises(InvalidRequestError, match="expected"):
        read_tokens(path)
    with pytest.raises(InvalidRequestError, match="expected a file"):
        read_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    "token", ["short", "with a space in it, long", "mit-Umläuten-lang-genug", "x" * 15, "\x00" * 20]
)
def test_token_that_is_no_good_one_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="access token 2") as refused:
        Tokens([FIRST, token])

    assert token not in str(refused.value)
