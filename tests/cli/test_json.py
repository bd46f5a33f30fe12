"""Every command prints JSON with --json: one object, or one on each line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import pytest

from tests.spec.rolling import grow
from wal3_core.cli.program import cli
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from .conftest import Command

# In an order in which each finds what it needs. The fields are a promise: docs/cli.md.
RUNS: dict[str, tuple[str, set[str]]] = {
    "init a": ("", {"log", "created"}),
    "append a": (
        '{"key": "k", "body": "b"}\n' * 3,
        {"log", "records", "bytes", "lines", "first_offset", "last_offset"},
    ),
    "cat a": ("", {"offset", "timestamp_us", "key", "body"}),
    "files a": ("", {"location", "url", "first_offset", "next_offset", "first_timestamp_us", "records", "bytes"}),
    "tail a": ("", {"offset", "timestamp_us", "key", "body"}),
    "ls": ("", {"log", "records", "bytes", "fragments", "first_offset", "next_offset", "sealed"}),
    "inspect a": ("", {"log", "log_id", "records", "bytes", "first", "next", "cursors", "pointers"}),
    "policy a --cleanup compact": ("", {"log", "cleanup", "generation"}),
    "compact a --dry-run": ("", {"plan", "proof", "token", "superseded", "expired", "bytes_read", "bytes_written"}),
    "compact a": ("", {"plan", "proof", "token", "superseded", "expired", "bytes_read", "bytes_written", "garbage"}),
    "compact a --verify": ("", {"log", "token", "holds", "findings", "gone", "records", "dropped"}),
    "compact a --receipt k": ("", {"offset", "reason", "pass", "path", "stored", "deleted_us"}),
    "policy a --cleanup collect": ("", {"log", "generation"}),
    "cursor set a c first": ("", {"log", "cursor", "offset", "previous_offset"}),
    "cursor get a c": ("", {"cursor", "offset", "timestamp_us", "lag", "epoch_us", "writer", "generation"}),
    "cursor list a": ("", {"cursor", "offset", "timestamp_us", "lag", "epoch_us", "writer", "generation"}),
    "pin create a p --reason r": ("", {"pin", "first_offset", "next_offset", "records", "bytes", "reason"}),
    "pin list a": ("", {"pin", "first_offset", "next_offset", "records", "bytes", "reason"}),
    "policy a": (
        "",
        {
            *("log", "retention_s", "without_cursors", "percent_max", "unprocessed_max", "writer", "generation"),
            *("cleanup", "min_compaction_lag_s", "max_compaction_lag_s", "delete_retention_s", "min_dirty_percent"),
            "compacted_fragment_bytes",
        },
    ),
    "snapshot show a": ("", {"log", "needs_compaction"}),
    "snapshot compact a --dry-run": ("", {"log"}),
    "snapshot compact a": ("", {"log", "bytes_written"}),
    "scrub a": ("", {"log", "sound", "problems"}),
    "gc a --dry-run": ("", {"log", "objects", "num_held", "pins", "orphans", "begun"}),
    "gc a": ("", {"log", "num_records", "num_orphans", "num_deleted", "num_held", "wait_s", "problems"}),
    "dirty show": ("", {"dirty_log", "log", "decision", "reason", "records", "bytes", "age_us", "over", "marker"}),
    "fleet status": ("", {"dirty_logs", "marked", "unprocessed", "age_us", "over", "gone", "unreadable", "logs"}),
    "fleet top --looks 1": ("", {"dirty_logs", "marked", "unprocessed", "age_us", "over", "unreadable", "logs"}),
    "dirty rollup x": ("", {"dirty_log", "log", "decision", "reason", "records", "bytes", "age_us", "handed_out"}),
    "copy a b": ("", {"source", "num_records", "setsum"}),
    "repair a --from STORE --from-log b": ("", {"log", "dry_run", "complete", "num_fragments", "repaired", "problems"}),
    "store-id --create": ("", {"store", "store_id"}),
    "doctor": ("", {"url", "checks", "advice", "hashing"}),
    "seal b --reason r": ("", {"log", "reason", "timestamp_us", "sealed_by"}),
    "migrate a s --reason r": ("", {"log", "reason", "successor"}),
    "destroy b --dry-run": ("", {"log", "pins"}),
    "destroy b --yes": ("", {"log", "num_objects"}),
    "cursor delete a c --yes": ("", {"log", "cursor", "offset", "deleted"}),
    "pin delete a p --yes": ("", {"log", "pin", "deleted"}),
    "exercise --duration 1s --processes 1 --logs 2": ("", {"sound", "appends", "findings", "latency_ms", "requests"}),
    "queue create jobs": ("", {"queue", "created", "definition"}),
    "queue enqueue jobs x": ("", {"queue", "items", "duplicates", "lines", "first_id", "last_id"}),
    "queue list": ("", {"queue"}),
    "queue stats": ("", {"queue", "pending", "due", "scheduled", "leased", "dead", "bytes", "last_id", "waiting"}),
    "queue peek jobs": ("", {"id", "text", "deadline_us", "priority", "deliveries", "enqueued_us", "requeued_us"}),
    "queue dequeue jobs": ("", {"id", "text", "token", "lease_until_us", "dedupe_key"}),
    # Without lines on standard input, nothing is done.
    "queue release jobs": ("", {"queue", "released"}),
    "queue requeue jobs": ("", {"queue", "requeued", "ended"}),
    "queue extend jobs --lease 1m": ("", {"queue", "extended", "ended", "lease_until_us"}),
    "queue bury jobs": ("", {"queue", "buried", "ended"}),
    "queue create letters --max-deliveries 1": ("", {"queue", "created", "definition"}),
    "queue enqueue letters x": ("", {"queue", "items"}),
    "queue dequeue letters --lease 1ms": ("", {"id", "text", "token"}),
    "queue enqueue letters y": ("", {"queue", "items"}),
    "queue dead letters": ("", {"id", "text", "deadline_us", "priority", "deliveries", "enqueued_us", "requeued_us"}),
    "queue kick letters": ("", {"queue", "ids"}),
    "queue create taken": ("", {"queue"}),
    "queue enqueue taken x": ("", {"queue", "items"}),
    "queue dequeue taken --lease 1h": ("", {"id", "text", "token"}),
    "queue reclaim taken 1": ("", {"queue", "items"}),
    "queue repair taken": ("", {"queue", "retimed", "damaged"}),
    "queue purge jobs --leased --yes": ("", {"queue", "items", "dry_run"}),
    "completion bash": ("", {"shell", "script"}),
}


def commands(group: click.Group, *above: str) -> Iterator[str]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, *above, name)
        else:
            yield " ".join((*above, name))


@pytest.mark.slow
def test_every_command_prints_json_with_its_fields(wal3: Command) -> None:
    # A server has marked a log.
    grow(open_store(wal3.url), "marked")
    for line, (stdin, fields) in RUNS.items():
        arguments = line.replace("STORE", wal3.url).split()
        documents = wal3.json(*arguments, "--json", stdin=stdin or None)

        assert documents, line
        for document in documents:
            assert fields <= document.keys(), line


def test_no_command_is_left_out_here() -> None:
    missing = [name for name in commands(cli) if not any(f"{line} ".startswith(f"{name} ") for line in RUNS)]

    assert missing == []
