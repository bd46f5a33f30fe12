"""The example message server, as real processes: nothing acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from examples.message_server.client import Follower, Publisher, Received
from wal3_core import FeedReader, FeedWriter, open_store

from .server_process import DEADLINE_S, ServerProcess, publish

TOPICS = ("doors/front", "doors/back", "sensors/kitchen", "sensors/hall")
GLOBS = (["*"], ["doors/*"], ["*/kitchen", "*/back"], ["sensors/h?ll"])
KILLS = 3
PUBLISHERS = ("ann", "bob")


@pytest.fixture
def server(local_url: str) -> Iterator[ServerProcess]:
    process = ServerProcess(local_url)
    process.start()
    yield process
    process.stop()


class Client:
    """Follows some topics, and disconnects and comes back now and then; keeps what it got."""

    def __init__(self, url: str, topics: list[str], chance: random.Random) -> None:
        self.topics = topics
        self.received: list[Received] = []
        self.more = asyncio.Condition()
        self.stays = False
        self._url = url
        self._chance = chance

    def matches(self, topic: str) -> bool:
        return any(fnmatchcase(topic, glob) for glob in self.topics)

    async def follow(self) -> None:
        token = "beginning"
        while True:
            # What one has seen is forgotten with it: doubles would show.
            follower = Follower(self._url, self.topics, token)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.stays else self._chance.uniform(0.1, 1.5)):
                    async for message in follower:
                        self.received.append(message)
                        async with self.more:
                            self.more.notify_all()
            token = follower.token
            await asyncio.sleep(self._chance.uniform(0, 0.3))


async def publish_all(url: str, name: str, chance: random.Random, enough: asyncio.Event) -> dict[str, list[int]]:
    """Publish from one client, many messages at a time; return the numbers acknowledged under each topic."""
    acknowledged: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    async with Publisher(url) as publisher:

        async def publish(number: int, topic: str) -> None:
            await publisher.publish(topic, [name, number])
            acknowledged[topic].append(number)

        async with asyncio.TaskGroup() as tasks:
            for number in count():
                tasks.create_task(publish(number, chance.choice(TOPICS)))
                await asyncio.sleep(chance.uniform(0, 0.02))
                if enough.is_set():
                    break
        assert publisher.num_connections > 1, "no kill met this publisher"
    return acknowledged


async def kill_often(server: ServerProcess, chance: random.Random) -> None:
    for kill in range(KILLS + 1):
        async with Publisher(server.url) as publisher:
            await publisher.publish("ping", kill)
        await asyncio.sleep(chance.uniform(0.3, 0.6))
        if kill < KILLS:
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(chance.uniform(0, 0.2))
            await asyncio.to_thread(server.start)


@pytest.mark.slow
def test_messages_are_received_once_and_in_order_while_the_server_is_killed(
    server: ServerProcess, local_url: str
) -> None:
    seed = int(os.environ.get("WAL3_TEST_SEED", random.randrange(2**32)))
    print(f"replay: WAL3_TEST_SEED={seed}")
    chance = random.Random(seed)
    clients = [Client(server.url, topics, random.Random(chance.random())) for topics in GLOBS]
    acknowledged: dict[tuple[str, str], list[int]] = {}

    async def publish(name: str, enough: asyncio.Event) -> None:
        found = await publish_all(server.url, name, random.Random(chance.random()), enough)
        acknowledged.update({(name, topic): numbers for topic, numbers in found.items()})

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            following = [asyncio.create_task(client.follow()) for client in clients]
            enough = asyncio.Event()
            publishing = asyncio.gather(*(publish(name, enough) for name in PUBLISHERS))
            await kill_often(server, chance)
            enough.set()
            await publishing
            for client in clients:
                # On a slow machine it might leave before it got anything, each time.
                client.stays = True
            for client in clients:
                expected = sum(len(numbers) for (_, topic), numbers in acknowledged.items() if client.matches(topic))
                async with client.more:
                    await client.more.wait_for(partial(has_received, client, expected))
            for task in following:
                task.cancel()

    asyncio.run(run())

    logged = in_the_log(local_url)
    for name in PUBLISHERS:
        numbers = sorted(number for topic in TOPICS for number in acknowledged[name, topic])
        assert (
            [number for _, (publisher, number) in logged if publisher == name] == numbers == list(range(len(numbers)))
        )
    for client in clients:
        assert bodies(client) == [body for topic, body in logged if client.matches(topic)]
    print(len(logged), "messages")


def has_received(client: Client, number: int) -> bool:
    return len(bodies(client)) >= number


def bodies(client: Client) -> list[list[object]]:
    return [message.body for message in client.received if message.topic != "ping"]


def in_the_log(url: str) -> list[tuple[str, list[object]]]:
    reader = FeedReader.open(open_store(url), "messages", topics=list(TOPICS))
    found = []
    while (message := reader.recv(0)) is not None:
        found.append((message.topic, message.message["body"]))
    return found


# ---------------------------------------------------------------------- in a browser

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
CHROMIUM_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for each in (*CHROMIUM_OPTIONS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(each)
    running = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    running.set_page_load_timeout(DEADLINE_S)
    yield running
    running.quit()


def shown(browser: webdriver.Chrome, listed: str = "messages") -> list[list[str]]:
    """The messages on the page, the newest first, with the class of each."""
    script = (
        f"return [...document.querySelectorAll('#{listed} li')].map(li => [li.lastChild.textContent, li.className])"
    )
    found: list[list[str]] = browser.execute_script(script)
    return found


def wait_until_shown(browser: webdriver.Chrome, expected: dict[str, str], listed: str = "messages") -> None:
    items = [list(item) for item in expected.items()]
    WebDriverWait(browser, DEADLINE_S, 0.05).until(lambda _: shown(browser, listed) == items, f"expected {items}")


@pytest.mark.slow
def test_page_marks_what_was_missed_while_it_or_the_server_was_away(
    server: ServerProcess, local_url: str, browser: webdriver.Chrome
) -> None:
    publish(server.url, "before")
    browser.get(server.page)
    wait_until_shown(browser, {"before": ""})
    publish(server.url, "<b>live</b>")
    wait_until_shown(browser, {"<b>live</b>": "", "before": ""})

    server.stop()
    with FeedWriter.open(open_store(local_url), "messages") as writer:
        writer.publish("chat/lobby", "while the server was away")
    browser.find_element(By.ID, "text").send_keys("from the page\n")
    wait_until_shown(browser, {"from the page": "waiting"}, "waiting")
    server.start()
    back = {"from the page": "", "while the server was away": "missed", "<b>live</b>": "", "before": ""}
    wait_until_shown(browser, back)
    wait_until_shown(browser, {}, "waiting")

    browser.get("about:blank")
    publish(server.url, "while the page was away")
    browser.get(server.page)
    wait_until_shown(browser, {"while the page was away": "missed", **back})
    publish(server.url, "live again")
    wait_until_shown(browser, {"live again": "", "while the page was away": "missed", **back})
