"""``wal3 queue``, on the store and through a server."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.queue_server.serving import serving
from wal3_core.cli.commands.queue import queue as queue_command
from wal3_core.cli.program import cli
from wal3_core.errors import FencedError
from wal3_core.store.open_store import open_store
from wal3_core.views.queue.delay_queue import DelayQueue

from .conftest import Command, on_terminal
from .test_completion import completed

if TYPE_CHECKING:
    from tests.programs import Program

    from .conftest import Process

TOKEN = "a-token-of-a-test"


@pytest.fixture(params=["store", "server"])
def queue(request: pytest.FixtureRequest, wal3: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command on the queue ``jobs``: in the store, or behind a server."""
    wal3.ok("queue", "create", "jobs")
    if request.param == "store":
        yield wal3
        return
    with serving(open_store(wal3.url), tokens=[TOKEN]) as server:
        monkeypatch.setenv("WAL3_QUEUE_SERVER", server.url)
        monkeypatch.setenv("WAL3_QUEUE_TOKEN", TOKEN)
        yield wal3


@pytest.mark.slow
def test_item_is_enqueued_shown_leased_and_released(queue: Command) -> None:
    done = queue.ok("queue", "enqueue", "jobs", "water the plants", "--priority", "7", "--dedupe-key", "plants")
    again = queue.ok("queue", "enqueue", "jobs", "again", "--dedupe-key", "plants")
    [peeked] = queue.json("queue", "peek", "jobs")
    [before] = queue.json("queue", "stats", "jobs", "--json")
    [leased] = queue.json("queue", "dequeue", "jobs", "--lease", "5m")
    released = queue.ok("queue", "release", "jobs", str(leased["id"]), str(leased["token"]))
    [after] = queue.json("queue", "stats", "--json")

    assert done == b"1 item enqueued to jobs (id 1)\n"
    assert again == b"0 items enqueued to jobs; 1 duplicate of items there\n"
    assert (peeked["text"], peeked["priority"], before["due"]) == ("water the plants", 7, 1)
    assert (leased["text"], leased["deliveries"]) == ("water the plants", 1)
    assert released == b"released 1 item of jobs\n"
    assert (after["queue"], after["pending"], after["leased"]) == ("jobs", 0, 0)
    assert queue.ok("queue", "dequeue", "jobs") == b""
    assert queue.ok("queue", "list") == b"jobs\n"


@pytest.mark.slow
def test_lines_are_enqueued_and_items_released_by_their_lines(queue: Command) -> None:
    lines = b'{"text": "a"}\n\n{"value": "/w==", "priority": 50}\n{"text": "later", "delay_s": 3600}\n'
    [done] = queue.json("queue", "enqueue", "jobs", "--json", stdin=lines)
    raw = queue.ok("queue", "enqueue", "jobs", "--raw", "--delay", "2h", stdin=b"1\n\n3")
    printed = queue.ok("queue", "dequeue", "jobs", "-n", "10", "--wait", "1m")
    items = [json.loads(line) for line in printed.splitlines()]
    [stats] = queue.json("queue", "stats", "jobs", "--json")

    assert done == {"queue": "jobs", "items": 3, "duplicates": 0, "lines": 4, "first_id": 1, "last_id": 3}
    assert raw == b"3 items enqueued to jobs (ids 4 to 6)\n"
    assert [item.get("text", item.get("value")) for item in items] == ["/w==", "a"]
    assert (stats["scheduled"], stats["leased"]) == (4, 2)
    assert queue.ok("queue", "release", "jobs", stdin=printed) == b"released 2 items of jobs\n"
    assert queue.json("queue", "release", "jobs", "--json", stdin=b"") == [{"queue": "jobs", "released": 0}]


@pytest.mark.slow
def test_items_before_a_bad_line_are_enqueued(queue: Command) -> None:
    bad = queue("queue", "enqueue", "jobs", stdin=b'{"text": "a"}\n{"text": "b"}\nnonsense\n{"text": "c"}\n')

    assert bad.exit_code == 2
    assert "2 items enqueued to jobs (ids 1 to 2); lines 1 to 2 are in the queue; line 3 is not" in bad.stderr
    assert queue.json("queue", "stats", "jobs", "--json")[0]["pending"] == 2


@pytest.mark.slow
def test_items_are_released_once_they_are_printed(queue: Command) -> None:
    queue.ok("queue", "enqueue", "jobs", "--raw", stdin=b"a\nb\n")

    items = queue.json("queue", "dequeue", "jobs", "-n", "2", "--release")

    assert [item["text"] for item in items] == ["a", "b"]
    assert queue.json("queue", "stats", "jobs", "--json")[0]["leased"] == 0


@pytest.mark.slow
def test_purge_is_confirmed(queue: Command) -> None:
    queue.ok("queue", "enqueue", "jobs", "--raw", stdin=b"a\nb\n")
    queue.ok("queue", "dequeue", "jobs")

    planned = queue.ok("queue", "purge", "jobs", "--dry-run")
    refused = queue("queue", "purge", "jobs")
    code, shown = on_terminal(queue.url, b"n\n", "queue", "purge", "jobs")
    held = queue.json("queue", "stats", "jobs", "--json")
    purged = queue.ok("queue", "purge", "jobs", "--leased", "--yes")

    assert planned == b"would remove 1 item of jobs\n"
    assert refused.exit_code == 2
    assert refused.stderr == "Error: queue jobs: expected --yes, or a terminal to ask for a yes, found neither\n"
    assert code == 1
    assert "Remove 1 item of jobs for good?" in shown
    assert (held[0]["pending"], held[0]["leased"]) == (1, 1)
    assert purged == b"removed 2 items of jobs\n"
    assert queue.json("queue", "purge", "jobs", "--no-pending", "--dead", "--dry-run", "--json") == [
        {"queue": "jobs", "items": 0, "dry_run": True}
    ]


@pytest.mark.slow
def test_leased_items_are_buried_shown_kicked_requeued_and_extended(queue: Command) -> None:
    queue.ok("queue", "enqueue", "jobs", "--raw", stdin=b"a\nb\nc\n")
    printed = queue.ok("queue", "dequeue", "jobs", "-n", "3", "--lease", "10m")
    first, second, third = (json.loads(line) for line in printed.splitlines())

    assert queue.ok("queue", "bury", "jobs", str(first["id"]), first["token"]) == b"buried 1 item of jobs\n"
    assert queue.ok("queue", "dead", "jobs", "--after", "1") == b""
    [letter] = queue.json("queue", "dead", "jobs")
    assert (letter["id"], letter["text"], letter["deliveries"]) == (1, "a", 1)

    [extended] = queue.json("queue", "extend", "jobs", "2", second["token"], "--lease", "1h", "--json")
    assert (extended["extended"], extended["lease_until_us"] - second["lease_until_us"] > 10**9) == (1, True)
    lines = queue("queue", "extend", "jobs", "--lease", "1h", stdin=printed)
    assert lines.exit_code == 1
    assert lines.stdout.startswith("extended 2 items of jobs to 20")
    assert lines.stderr == "Error: expected leases that go on, found 1 that had ended: 1\n"

    again = queue.ok("queue", "requeue", "jobs", "3", third["token"], "--delay", "1h", "--value", "later")
    assert again == b"requeued 1 item of jobs\n"
    buried = queue("queue", "bury", "jobs", "--json", stdin=printed)
    assert (buried.exit_code, "found 2 that had ended: 1, 3" in buried.stderr) == (1, True)
    assert json.loads(buried.stdout) == {"queue": "jobs", "buried": 1, "ended": [1, 3]}
    assert [each["text"] for each in queue.json("queue", "peek", "jobs", "-n", "9")] == ["later"]

    assert queue.ok("queue", "kick", "jobs", "2", "1") == b"kicked 2 items of jobs: 2, 1\n"
    assert queue.json("queue", "kick", "jobs", "-n", "9", "--json") == [{"queue": "jobs", "ids": []}]
    assert [each["text"] for each in queue.json("queue", "dequeue", "jobs", "-n", "9")] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("bury", "jobs", "1"), "found ID alone"),
        (("extend", "jobs", "1", "0" * 16), "--lease"),
        (("requeue", "jobs", "--value", "x"), "expected ID and TOKEN"),
        (("requeue", "jobs", "1", "0" * 16, "--delay", "1m", "--deadline", "now"), "give only one of them"),
        (("kick", "jobs", "1", "-n", "2"), "expected no ID"),
        (("dead", "none"), "none"),
        (("create", "jobs"), "expected no log of that name"),
        (("create", "a/b"), "expected a name of"),
        (("create", "other", "--lease", "0s"), "--lease"),
        (("enqueue", "none", "a"), "none"),
        (("enqueue", "jobs", "a", "--delay", "1m", "--deadline", "now"), "give only one of them"),
        (("enqueue", "jobs", "--dedupe-key", "a"), "expected VALUE"),
        (("dequeue", "none"), "none"),
        (("release", "jobs", "1"), "found ID alone"),
        (("stats", "none"), "none"),
        (("peek", "none"), "none"),
        (("purge", "none", "--yes"), "none"),
    ],
)
def test_invalid_request_is_refused(queue: Command, arguments: tuple[str, ...], complaint: str) -> None:
    result = queue("queue", *arguments)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("cleanup", ["collect", "both"])
def test_policy_that_would_remove_pending_items_is_refused(wal3: Command, cleanup: str) -> None:
    wal3.ok("queue", "create", "jobs")

    refused = wal3("policy", "queues/jobs", "--cleanup", cleanup, "--no-delete-retention")
    wal3.ok("policy", "queues/jobs", "--cleanup", "compact", "--arrange-by-key")

    assert refused.exit_code == 2
    assert "expected cleanup compact, as it is a delay queue" in refused.stderr


@pytest.mark.slow
def test_item_is_reclaimed_without_its_token(queue: Command) -> None:
    queue.ok("queue", "enqueue", "jobs", "--raw", stdin=b"a\nb\n")
    queue.json("queue", "dequeue", "jobs", "-n", "2")

    assert queue("queue", "reclaim", "jobs", "1", "7").exit_code == 1
    assert queue.ok("queue", "reclaim", "jobs", "1", "1") == b"reclaimed 1 item of jobs\n"
    [back] = queue.json("queue", "reclaim", "jobs", "2", "--json")
    assert [(item["id"], item["dead"]) for item in back["items"]] == [(2, False)]
    assert [each["text"] for each in queue.json("queue", "dequeue", "jobs", "-n", "9")] == ["a", "b"]


@pytest.mark.slow
def test_item_is_reclaimed_and_a_queue_repaired_in_its_store(wal3: Command) -> None:
    wal3.ok("queue", "create", "jobs", "--max-deliveries", "1")
    wal3.ok("queue", "enqueue", "jobs", "x")
    wal3.json("queue", "dequeue", "jobs")
    wal3.ok("append", "queues/jobs", stdin='{"key": "k", "body": "stray"}\n')

    assert b"1 records of others in its log, the newest at offset" in wal3.ok("queue", "stats", "jobs")
    assert wal3.ok("queue", "reclaim", "jobs", "1") == b"reclaimed 1 item of jobs\nburied 1 item of them: 1\n"
    assert wal3.ok("queue", "repair", "jobs") == b"repaired jobs: 0 items with another time\n"
    refused = wal3("queue", "repair", "jobs", "--server", "http://127.0.0.1:9")
    assert (refused.exit_code, "--server: expected none" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_queue_s_log_is_given_to_no_other_view(wal3: Command) -> None:
    wal3.ok("queue", "create", "jobs")
    assert "expected view queue, or none" in wal3("policy", "queues/jobs", "--view", "feed").stderr
    assert b"takes appends of the view queue alone" in wal3.ok("policy", "queues/jobs", "--view", "queue")
    assert b"the view queue alone" in wal3.ok("inspect", "queues/jobs")
    wal3.ok("queue", "enqueue", "jobs", "x")
    refused = wal3("append", "queues/jobs", stdin='{"key": "k", "body": "stray"}\n')
    assert refused.exit_code
    assert "--no-view" in refused.stderr


def test_lease_that_has_ended_is_refused(queue: Command) -> None:
    result = queue("queue", "release", "jobs", "1", "0" * 16)
    bad = queue("queue", "release", "jobs", stdin='{"id": 1}\n')

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert bad.exit_code == 2
    assert "line 1: expected an object with id and token" in bad.stderr


def test_list_stats_peek_dead_and_a_dry_run_fence_no_broker_and_enqueue_does(wal3: Command) -> None:
    store = open_store(wal3.url)
    wal3.ok("queue", "create", "jobs", "--max-deliveries", "5", "--items-max", "9")
    with DelayQueue.open(store, "queues/jobs") as broker:
        broker.enqueue(b"a")
        for arguments in (["list"], ["stats"], ["peek", "jobs"], ["dead", "jobs"], ["purge", "jobs", "--dry-run"]):
            wal3.ok("queue", *arguments)
        broker.enqueue(b"b")
        assert (broker.definition.max_deliveries, broker.definition.items_max) == (5, 9)

        wal3.ok("queue", "enqueue", "jobs", "c")
        with pytest.raises(FencedError):
            broker.enqueue(b"d")


def test_stats_are_a_table(wal3: Command) -> None:
    assert wal3.ok("init", "a") == b"created a\n"
    for command in ("list", "stats"):
        assert wal3.ok("queue", command) == b"no queues: `wal3 queue create QUEUE` creates one\n"
    wal3.ok("queue", "create", "jobs")
    wal3.ok("queue", "enqueue", "jobs", "a")

    shown = wal3.ok("queue", "stats").decode()

    assert shown.split()[:9] == ["queue", "due", "scheduled", "leased", "dead", "bytes", "oldest", "due", "next"]
    assert shown.splitlines()[-2].split()[:6] == ["jobs", "1", "0", "0", "0", "1"]


def test_queue_that_cannot_be_read_hides_no_other(queue: Command, wal3: Command) -> None:
    wal3.ok("init", "queues/broken")
    wal3.ok("cursor", "set", "queues/broken", "queue", "first")

    result = queue("queue", "stats", "--json")
    none = queue("queue", "stats", "none")

    assert [json.loads(line)["queue"] for line in result.stdout.splitlines()] == ["jobs"]
    assert result.exit_code == 2
    assert "queues/broken: expected a queue" in result.stderr
    assert none.exit_code == 2
    assert "create the queue first (`wal3 queue create`" in none.stderr


def test_prefix_says_where_the_queues_are(wal3: Command) -> None:
    wal3.ok("queue", "create", "jobs", "--prefix", "teams/a")

    assert wal3.json("queue", "list", "--prefix", "teams/a", "--json") == [{"queue": "jobs"}]
    assert wal3.json("ls", "--json")[0]["log"] == "teams/a/jobs"


def test_names_of_queues_are_completed(wal3: Command) -> None:
    for name in ("jobs", "mail"):
        wal3.ok("queue", "create", name)
    wal3.ok("init", "events")

    assert completed(wal3.url, "queue", "enqueue", "") == ["jobs", "mail"]
    assert completed(wal3.url, "queue", "stats", "jobs", "m") == ["mail"]


@pytest.mark.parametrize("name", sorted(queue_command.commands))
def test_help_of_every_queue_command_shows_examples(name: str) -> None:
    shown = CliRunner().invoke(cli, ["queue", name, "--help"]).stdout

    assert f"  wal3 queue {name}" in shown or f"| wal3 queue {name}" in shown


# ---------------------------------------------------------------------- serve


def test_public_address_without_tokens_is_refused(wal3: Command) -> None:
    result = wal3("queue", "serve", "--host", "0.0.0.0", "--port", "0")

    assert result.exit_code == 2
    assert "expected access tokens" in result.stderr
    assert "(--tokens-file), set WAL3_QUEUE_TOKENS, or let every program in (--insecure)" in result.stderr


@contextmanager
def started(wal3_process: Process, *arguments: str) -> Iterator[Program]:
    """Start a server; it has ended afterwards, also when the test fails."""
    with wal3_process.start("queue", "serve", *arguments) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_server_prints_its_address_serves_and_ends_by_sigterm(wal3_process: Process) -> None:
    wal3_process("queue", "create", "jobs")
    with started(wal3_process, "--port", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().decode().strip()
        done = wal3_process("queue", "enqueue", "jobs", "a", "--server", url)
        item = json.loads(wal3_process("queue", "dequeue", "jobs", "--server", url).stdout)
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            assert json.load(answer) == {"status": "ok"}
        process.terminate()
        complaint = process.stderr.read()

    assert done.stdout == b"1 item enqueued to jobs (id 1)\n"
    assert item["text"] == "a"
    assert (process.returncode, complaint) == (-signal.SIGTERM, b"")
    # Items survive the server.
    assert json.loads(wal3_process("queue", "stats", "jobs", "--json").stdout)["leased"] == 1


@pytest.mark.slow
@pytest.mark.repeat_on("s3")
def test_server_ends_by_ctrl_c_as_other_commands_do(wal3_process: Process) -> None:
    with started(wal3_process, "--port", "0", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        complaint = process.stderr.read()

    assert (process.returncode, complaint) == (130, b"Interrupted.\n")


@pytest.mark.slow
def test_question_about_a_queue_s_cursor_says_what_the_queue_loses(wal3: Command) -> None:
    wal3.ok("queue", "create", "jobs")

    code, shown = on_terminal(wal3.url, b"n\n", "cursor", "delete", "queues/jobs", "queue")
    deleted = wal3.ok("cursor", "delete", "queues/jobs", "queue", "--yes").decode()

    assert code == 1
    for said in (shown, deleted):
        assert "a key compaction may drop an item" in " ".join(said.split())
    assert "prune" not in shown
