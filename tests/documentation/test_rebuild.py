"""The recipes that rebuild a log from its files, or keep what is left of a damaged one, do so as they are printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wal3_core import LogReader, LogWriter, Message, Record, open_store, scrub
from wal3_core.options import Limits
from wal3_core.store.object_store import ObjectStore

PAGE = Path(__file__).parent.parent.parent / "docs" / "production" / "backup.md"
BLOCK = re.compile(r"^   ```python\n(.*?)^   ```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(BLOCK.pattern.replace("python", "sh"), BLOCK.flags)
MANIFEST = "LOG/manifest/MANIFEST.json"


def append(store: ObjectStore, first: int, count: int) -> None:
    with LogWriter.open_or_create(store, "LOG") as writer:
        for number in range(first, first + count):
            writer.append_many([Message(b"%d" % number, key=b"k"), Message(None, key=b"gone")])


def records(store: ObjectStore, log: str, start: int | None = None, limit: int | None = None) -> list[Record]:
    return list(LogReader.open(store, log).records(start, Limits(offset=limit)))


@pytest.mark.parametrize("older", [True, False])
def test_log_is_rebuilt_as_printed(*, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing, appending, beginning = (
        textwrap.dedent(block) for block in BLOCK.findall(PAGE.read_text().partition("## Rebuild a log")[2])
    )
    url = (tmp_path / "store").as_uri()
    store = open_store(url)
    append(store, 0, 3)
    manifest = tmp_path / "store" / MANIFEST
    before = manifest.read_bytes()
    append(store, 3, 2)
    held = records(store, "LOG")
    [life] = (tmp_path / "store" / "LOG").glob("Life=*")
    shutil.copytree(life, tmp_path / "saved" / life.name)
    if older:
        manifest.write_bytes(before)
        for number in (1, 2, 3):
            [committed] = (tmp_path / "saved").rglob(f"FragmentSeqNo={number:016x}.parquet")
            committed.unlink()
    else:
        manifest.unlink()

    monkeypatch.chdir(tmp_path)
    program = listing + (appending if older else beginning)
    exec(compile(program.replace("STORE_URL", url), str(PAGE), "exec"), {})

    rebuilt = "LOG" if older else "NEW"
    found = records(store, rebuilt)
    assert [(each.offset, each.key, each.body) for each in found] == [
        (each.offset, each.key, each.body) for each in held
    ]
    assert older or [each.timestamp_us for each in found] == [each.timestamp_us for each in held]
    assert scrub(store, rebuilt).sound


def test_what_is_left_of_a_damaged_log_is_kept_as_printed(tmp_path: Path) -> None:
    [commands] = SHELL.findall(PAGE.read_text().partition("## Keep what is left")[2].partition("## Rebuild")[0])
    store = open_store((tmp_path / "store").as_uri())
    append(store, 0, 5)
    [third] = (tmp_path / "store").rglob(f"FragmentSeqNo={3:016x}.parquet")
    third.write_bytes(third.read_bytes()[:-9])
    [problem] = scrub(store, "LOG").problems
    assert problem.message.startswith("fragment 3, offsets 5 to 6 (")
    kept = records(store, "LOG", limit=5) + records(store, "LOG", start=7)

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "WAL3_STORE": store.url}
    subprocess.run(["bash", "-c", textwrap.dedent(commands)], env=environment, timeout=120, check=True)

    found = records(store, "NEW")
    assert [(each.key, each.body) for each in found] == [(each.key, each.body) for each in kept]
    assert [each.offset for each in found] == list(range(1, 9))
    assert scrub(store, "NEW").sound
