"""``destroy`` deletes a log after a confirmation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from wal3_core.fleet.discovery import list_logs
from wal3_core.format.manifest import BEING_DESTROYED, Seal
from wal3_core.format.paths import MANIFEST
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import log_store
from wal3_core.store.open_store import open_store

from .conftest import on_terminal

if TYPE_CHECKING:
    from .conftest import Command


def appended(wal3: Command, log: str) -> None:
    wal3.ok("append", "--create", "--raw", log, stdin="1\n2\n")


def root(wal3: Command, log: str) -> Path:
    return Path(urlsplit(wal3.url).path) / log


def held(wal3: Command, log: str) -> list[Path]:
    return sorted(path for path in root(wal3, log).glob("**/*") if path.is_file())


def cells(printed: bytes) -> list[list[str]]:
    return [line.split() for line in printed.decode().splitlines() if line.strip(" ─")]


def test_dry_run_shows_what_would_be_deleted(wal3: Command) -> None:
    appended(wal3, "a")
    wal3.ok("cursor", "set", "a", "reader", "2")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")
    before = held(wal3, "a")

    rows = cells(wal3.ok("destroy", "a", "--dry-run"))
    [plan] = wal3.json("destroy", "a", "--dry-run", "--json")

    assert held(wal3, "a") == before
    [life] = {path.parts[len(root(wal3, "a").parts)] for path in before} - {"manifest"}
    num_bytes = {
        path.relative_to(root(wal3, "a")).as_posix().removeprefix(f"{life}/").split("/")[0]: path.stat().st_size
        for path in before
    }
    assert [row[:2] for row in rows[1:-2]] == [["manifest", "1"], ["fragment", "1"], ["cursor", "1"], ["pin", "1"]]
    assert rows[-2][:2] == ["total", "4"]
    assert rows[-1][-1] == "audit"
    assert plan == {
        "log": "a",
        "log_id": life.removeprefix("Life="),
        "num_objects": 4,
        "num_bytes": sum(num_bytes.values()),
        "parts": [
            {"kind": kind, "num_objects": 1, "num_bytes": num_bytes[folder]}
            for kind, folder in (("manifest", "manifest"), ("fragment", "log"), ("cursor", "cursor"), ("pin", "pin"))
        ],
        "pins": ["audit"],
        "destroying": False,
    }
    assert not wal3.json("ls", "--json")[0]["sealed"]


def test_destroy_without_a_terminal_requires_yes(wal3: Command) -> None:
    appended(wal3, "a")
    before = held(wal3, "a")

    result = wal3("destroy", "a", stdin="a\n")

    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert held(wal3, "a") == before


def test_destroyed_log_is_gone(wal3: Command) -> None:
    appended(wal3, "a")
    appended(wal3, "a/b")

    assert wal3.ok("destroy", "a", "--yes") == b"destroyed a: 2 objects deleted\n"

    assert [row["log"] for row in wal3.json("ls", "--json")] == ["a/b"]
    assert [row["log"] for row in wal3.json("scrub", "--all", "--json")] == ["a/b"]
    assert list(list_logs(open_store(wal3.url))) == ["a/b"]
    assert wal3("cat", "a").exit_code == 2
    assert wal3("destroy", "a", "--yes").exit_code == 2
    assert wal3.json("destroy", "a/b", "--yes", "--json") == [{"log": "a/b", "num_objects": 2}]


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_destroy_stops_at_an_unknown_object(wal3: Command, arguments: tuple[str, ...]) -> None:
    appended(wal3, "a")
    stranger = Path(urlsplit(wal3.url).path) / "a" / "notes.txt"
    stranger.write_text("mine")
    before = held(wal3, "a")

    result = wal3("destroy", "a", "--yes", *arguments)

    assert result.exit_code == 2
    assert "found notes.txt: move or delete" in result.stderr
    assert held(wal3, "a") == before


def test_pins_are_destroyed_only_with_also_pinned(wal3: Command) -> None:
    appended(wal3, "a")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")

    result = wal3("destroy", "a", "--yes")

    assert result.exit_code == 2
    assert "expected no pins, found audit" in result.stderr
    assert result.stderr.endswith("(`wal3 pin delete LOG NAME`, or `wal3 destroy LOG --also-pinned`)\n")
    assert wal3.ok("destroy", "a", "--yes", "--also-pinned") == b"destroyed a: 3 objects deleted\n"
    # The vacancy stays: a later log of that name begins where this one ends.
    assert held(wal3, "a") == [root(wal3, "a") / MANIFEST]


def test_reading_a_destroyed_log_names_the_commands_that_create_it_again(wal3: Command) -> None:
    appended(wal3, "a")
    wal3.ok("destroy", "a", "--yes")

    result = wal3("cat", "a")

    assert result.exit_code == 2
    assert result.stderr.endswith(
        ": create it again (`wal3 init a`, or `wal3 append --create a`; `wal3 ls` lists the logs)\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [(b"a\n", 0), (b"y\n", 1)])
def test_destroy_on_a_terminal_asks_for_the_log_s_name(wal3: Command, answer: bytes, code: int) -> None:
    appended(wal3, "a")

    returned, shown = on_terminal(wal3.url, answer, "destroy", "a")

    assert returned == code
    assert "total" in shown
    assert "Type the log's name to destroy it" in shown
    assert (held(wal3, "a") == [root(wal3, "a") / MANIFEST]) == (code == 0)


def test_destroy_that_was_cut_short_is_shown_and_taken_back(wal3: Command) -> None:
    appended(wal3, "a")
    manifests = ManifestStore(log_store(open_store(wal3.url), "a"), shared_runtime())
    manifests.install(manifests.load().manifest.announce_destroy(), manifests.load())

    assert wal3.json("ls", "--json")[0]["destroying"]
    assert b"being destroyed" in wal3.ok("ls")
    assert b"wal3 destroy LOG --undo" in wal3.ok("inspect", "a")
    assert b"--undo takes that back" in wal3.ok("destroy", "a", "--dry-run")
    assert wal3("destroy", "a", "--undo", "--yes").exit_code == 2
    assert "wal3 destroy LOG --undo" in wal3("pin", "create", "a", "p", "--reason", "a test").stderr
    assert wal3.ok("destroy", "a", "--undo") == b"a is not being destroyed any more: it can be pinned and copied\n"
    assert not wal3.json("ls", "--json")[0]["destroying"]
    sealed = Seal(reason=BEING_DESTROYED, sealed_by="a test", timestamp_us=1)
    manifests.install(manifests.load().manifest.announce_destroy().apply_seal(sealed), manifests.load())
    [row] = wal3.json("destroy", "a", "--undo", "--json")
    assert row == {"log": "a", "destroying": False, "seal": sealed.to_json()}
    assert b"it stays sealed, for good: being destroyed: `wal3 copy` makes an open log of it" in wal3.ok(
        "destroy", "a", "--undo"
    )
