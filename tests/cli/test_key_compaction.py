"""``wal3 compact``, and what the other commands say of a log that it compacted."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from tests.programs import Program
from tests.spec.compacting import LOG, append, compactor, keyed_log
from tests.stores import damage, life_store
from tests.world import World
from wal3_core import open_store
from wal3_core.format.paths import key_rollup_path
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

if TYPE_CHECKING:
    from .conftest import Command

CHANGES = [f'{{"key": "k{key}", "body": "{body}"}}\n' for body in "ab" for key in range(3)]
# Lists a process's threads before and after a list of dropped records is read.
THREADS = """
import os
from wal3_core.compaction.engine import DROPPED, dropped_from_bytes, dropped_to_bytes
data = bytes(dropped_to_bytes(DROPPED.empty_table()))
before = set(os.listdir("/proc/self/task"))
dropped_from_bytes(data, "a list")
started = len(set(os.listdir("/proc/self/task")) - before)
raise SystemExit(started)
"""


@pytest.fixture
def keyed(wal3: Command) -> Command:
    """A log of three keys, two records of each, that is to be compacted."""
    wal3.ok("append", "--create", "users", stdin="".join(CHANGES))
    wal3.ok("policy", "users", "--cleanup", "compact")
    return wal3


def test_dry_run_says_what_a_pass_drops_and_the_pass_drops_it(keyed: Command) -> None:
    planned = keyed.ok("compact", "users", "--dry-run").decode()
    kept = keyed.json("cat", "users")
    done = keyed.ok("compact", "users").decode()

    assert "3 superseded records, 0 expired tombstones" in planned
    assert "in 1 of 1 fragment" in planned
    assert planned.endswith("users: nothing was written\n")
    assert len(kept) == 6
    assert "users: compacted by pass " in done
    assert [row["offset"] for row in keyed.json("cat", "users")] == [4, 5, 6]


def test_pass_that_rewrites_nothing_says_so(keyed: Command) -> None:
    keyed.ok("compact", "users")

    assert "no fragment" in keyed.ok("compact", "users", "--force").decode()
    assert "users: no pass is due: 0 % of" in keyed.ok("compact", "users").decode()


def test_verification_and_receipt_name_the_log_and_what_they_compared(keyed: Command) -> None:
    assert keyed.json("compact", "users", "--verify", "--json")[0]["token"] is None
    assert "users: no pass is recorded" in keyed.ok("compact", "users", "--verify").decode()
    [done] = keyed.json("compact", "users", "--json")

    verified = keyed.ok("compact", "users", "--verify").decode()
    [receipt] = keyed.json("compact", "users", "--receipt", "k1", "--json")

    assert verified == f"users: pass {done['token']} holds: 3 dropped records compared with 3 records left\n"
    assert (receipt["offset"], receipt["pass"], receipt["stored"]) == (2, done["token"], True)
    assert b"users: no recorded pass has dropped a record" in keyed.ok("compact", "users", "--receipt", "k9")


def test_receipt_whose_list_is_gone_is_refused(keyed: Command) -> None:
    keyed.ok("compact", "users")
    objects = life_store(open_store(keyed.url), "users")
    [path] = [meta.path for meta in objects.list_objects("compaction/") if "DROPPED" in meta.path]
    objects.delete(path)

    result = keyed("compact", "users", "--receipt", "k1")

    assert result.exit_code == 1
    assert "expected the list of what pass" in result.stderr


def test_verification_and_receipt_refuse_options_of_a_pass(keyed: Command) -> None:
    result = keyed("compact", "users", "--verify", "--dry-run")

    assert result.exit_code == 2
    assert "--verify and --receipt compact nothing: give one of them alone" in result.stderr


def test_log_that_is_only_collected_is_refused_with_the_command_that_helps(keyed: Command) -> None:
    keyed.ok("policy", "users", "--cleanup", "collect")

    result = keyed("compact", "users")

    assert result.exit_code == 1
    assert "(`wal3 policy users --cleanup compact`)" in result.stderr


def test_inspect_shows_what_passes_have_done(keyed: Command) -> None:
    assert keyed.json("inspect", "users", "--json")[0]["compaction"] is None
    [done] = keyed.json("compact", "users", "--json")

    printed = keyed.ok("inspect", "users").decode()
    [document] = keyed.json("inspect", "users", "--json")

    assert f"last by pass {done['token']}, number 1; one record of each key below offset 7 since " in printed
    assert document["compaction"]["token"] == done["token"]
    assert document["compacting"] is None


def test_inspect_shows_a_pass_that_is_announced(keyed: Command) -> None:
    manifests = ManifestStore(log_store(open_store(keyed.url), "users"), shared_runtime())
    base = manifests.load()
    manifests.install(base.manifest.announce_compaction("0123456789abcdef", 7), base)

    [document] = keyed.json("inspect", "users", "--json")

    assert b"pass 0123456789abcdef is about to replace fragments below offset 7" in keyed.ok("inspect", "users")
    assert document["compacting"]["token"] == "0123456789abcdef"

    base = manifests.load()
    manifests.install(base.manifest.announce_compaction("0123456789abcdef", 0), base)

    printed = keyed.ok("inspect", "users")
    assert b"pass 0123456789abcdef is about to replace fragments, and drops no record" in printed


def large_fragments(store: ObjectStore, count: int) -> None:
    """Make a log of fragments that a pass does not merge, in small snapshots."""
    keyed_log(store, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    bodies = random.Random(0)
    append(store, *([(b"%d" % number, bodies.randbytes(5_000))] for number in range(count)))
    # A writer that is closed may leave rolls to the next one.
    World(store).roll()


def snapshots_of(pointers: list[dict[str, object]]) -> list[dict[str, object]]:
    """The snapshots of depth 1 in the output of ``inspect --json``."""
    below = [each for pointer in pointers for each in snapshots_of(pointer.get("pointers", []))]
    return [pointer for pointer in pointers if "key_rollup" in pointer] + below


def test_inspect_shows_which_snapshots_have_a_key_rollup_and_which_is_damaged(wal3: Command) -> None:
    store = open_store(wal3.url)
    large_fragments(store, 20)
    assert "key roll-up" not in wal3.ok("inspect", LOG, "--full").decode()
    compactor(store).compact(force=True)
    objects = life_store(store, LOG)
    first, second, *_ = sorted(objects.list_objects("keys/"), key=lambda meta: meta.path)
    objects.delete(first.path)
    damage(objects, second.path)

    printed = wal3.ok("inspect", LOG, "--full").decode()
    [document] = wal3.json("inspect", LOG, "--full", "--json")

    found = {key_rollup_path(each["path"]): each["key_rollup"] for each in snapshots_of(document["pointers"])}
    sizes = {meta.path: meta.size for meta in objects.list_objects("keys/")}
    assert found.pop(first.path) is None
    damaged = found.pop(second.path)
    assert (damaged["bytes"], damaged["keys"]) == (sizes.pop(second.path), None)
    assert second.path in damaged["damage"]
    assert found == {path: {"bytes": size, "keys": 2, "damage": None} for path, size in sizes.items()}
    assert found
    assert printed.count(", no key roll-up") == printed.count(", damaged key roll-up of") == 1
    assert printed.count(" with 2 keys") == len(found)


def test_inspect_of_the_manifest_alone_reads_no_key_rollup_but_shows_its_size(wal3: Command) -> None:
    store = open_store(wal3.url)
    large_fragments(store, 9)
    compactor(store).compact(force=True)

    printed = wal3.ok("inspect", LOG).decode()
    [document] = wal3.json("inspect", LOG, "--json")

    shown = [each["key_rollup"] for each in snapshots_of(document["pointers"])]
    sizes = {meta.size for meta in life_store(store, LOG).list_objects("keys/")}
    assert [each for each in shown if each["keys"] is None and each["bytes"] in sizes] == shown != []
    assert printed.count(", key roll-up of ") == len(shown)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc: run it on Linux")
def test_reading_a_list_of_dropped_records_starts_no_thread() -> None:
    """A thread of Arrow that outlives the interpreter aborts the process: `--receipt` then ended with SIGABRT."""
    assert Program([sys.executable, "-c", THREADS], deadline_s=60).wait(timeout=600) == 0
