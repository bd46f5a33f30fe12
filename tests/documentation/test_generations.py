"""The recipe for generations of a backup, as it is printed, restores logs that are collected, compacted or arranged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wal3_core import LogReader, LogWriter, Policy, PolicyStore, open_store, scrub
from wal3_core.format.policy import Cleanup
from wal3_core.store.object_store import ObjectStore

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "production" / "backup.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
POLICIES = {
    "none": None,
    "collected": Policy(percent_max=100),
    "compacted": Policy(cleanup=Cleanup.BOTH, min_dirty_percent=0),
    "arranged": Policy(arrange_by_key=True, min_dirty_percent=0),
}


def append(store: ObjectStore, first: int, count: int) -> None:
    with LogWriter.open_or_create(store, "orders") as writer:
        for number in range(first, first + count):
            writer.append(b"v%d" % number, key=b"k%d" % (number % 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["compacted", *(pytest.param(kind, marks=pytest.mark.repeat) for kind in POLICIES if kind != "compacted")]
)
def test_generations_are_restored_as_printed_whatever_the_policy_does(kind: str, tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Generations\n")[2].partition("\n## ")[0]
    begin, full, part, restore = BLOCK.findall(section)
    urls = {name: f"file://{tmp_path / name}" for name in ("live", "backup", "restored")}
    live = open_store(urls["live"])

    def run(script: str, *, target: str = "live") -> None:
        names = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
        environment = {**names, "PYTHONPATH": str(ROOT), "WAL3_STORE": urls[target], "BACKUP": urls["backup"]}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def maintain() -> None:
        if policy is not None:
            run("wal3 gc orders" if kind == "collected" else "wal3 compact orders")

    policy = POLICIES[kind]
    append(live, 0, 6)
    if policy is not None:
        PolicyStore(live, "orders").change(lambda _: policy)
    if kind in {"compacted", "arranged"}:
        # Without the cursor, a pass goes to the log's end.
        maintain()
    run(begin)
    maintain()
    run(full)
    maintain()
    append(live, 6, 6)
    maintain()
    run(part)
    maintain()
    run(restore, target="restored")

    restored, held = open_store(urls["restored"]), LogReader.open(live, "orders")
    found = list(LogReader.open(restored, "orders").records())
    assert [record.offset for record in found] == [*((4, 5) if kind == "compacted" else range(1, 6)), *range(6, 13)]
    left = list(held.records())
    assert [record for record in found if record.offset in {each.offset for each in left}] == left
    assert len(left) == {"none": 12, "collected": 0, "compacted": 3, "arranged": 12}[kind]
    assert LogReader.open(restored, "orders").manifest().setsum == held.manifest().setsum
    assert scrub(restored, "orders").sound
