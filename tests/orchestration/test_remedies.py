"""A failed check shows the first steps of the runbook for its log and file, and they repair the log."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from tests.orchestration.run_requests import run_request
from tests.stores import life_store
from wal3_core import (
    CursorStore,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    copy,
    open_store,
    scrub,
    update_copy,
)
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.runbook import REMEDIES, Remedy, remedy
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance


ROOT = Path(__file__).parent.parent.parent
PROGRAM = "import sys; sys.argv[0] = 'wal3'; from wal3_core.cli import main; main()"


def _plain(text: str) -> str:
    """Return a text without links, and with the same spaces and capitals everywhere."""
    return " ".join(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).split()).casefold()


def _section(anchor: str) -> str:
    page = (ROOT / "docs" / "operations.md").read_text()
    for part in re.split(r"^## ", page, flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == anchor:
            return _plain(text)
    raise AssertionError(anchor)


@pytest.mark.parametrize("given", REMEDIES, ids=lambda given: f"{given.check}: {given.when}")
def test_every_sentence_of_a_remedy_is_in_its_section_of_the_runbook(given: Remedy) -> None:
    section = _section(given.section)

    for step in given.steps:
        assert _plain(step).rstrip(".") in section


def test_commands_name_the_store_the_log_and_the_file() -> None:
    scope = StoreScope(store_url="s3://bucket/prefix")
    file = "s3://bucket/prefix/orders/Life=1/log/Bucket=0/FragmentSeqNo=5.parquet"

    steps = remedy(scope, "sound", "orders", "1 problem: fragment 5 (x): expected bytes", file)

    assert steps is not None
    assert "`wal3 --store s3://bucket/prefix scrub orders`" in steps
    assert "`wal3 --store s3://bucket/prefix repair orders --from BACKUP_URL`" in steps
    assert f"`{file}`" in steps
    assert steps.endswith("More: docs/operations.md#a-check-turns-red-the-log-is-unsound")
    assert re.search(r"\b(LOG|FILE)\b", steps) is None


@pytest.mark.slow
def test_commands_against_a_damaged_manifest_restore_what_a_copy_holds(tmp_path: Path, fleet: ObjectStore) -> None:
    backup = open_store((tmp_path / "back up").as_uri())
    with LogWriter.open_or_create(fleet, "orders") as writer:
        writer.append_many([b"a", b"b"])
        CursorStore(fleet, "orders").create("billing", LogPosition(2, 0))
        copy(LogAt(fleet, "orders"), LogAt(backup, "orders"), with_cursors=True)
        writer.append(b"lost")
    Path(unquote(urlsplit(fleet.url).path), "orders/manifest/MANIFEST.json").unlink()

    steps = remedy(StoreScope(store_url=fleet.url), "sound", "orders", "expected manifest/MANIFEST.json beside Life=1")

    assert steps is not None
    commands = [span for span in re.findall(r"`([^`]+)`", steps) if " destroy orders" in span or " copy " in span]
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.replace("BACKUP_URL", shlex.quote(backup.url)))
        yes = ["--yes"] if "destroy" in words else []
        subprocess.run([sys.executable, "-c", PROGRAM, *words[1:], *yes], cwd=ROOT, check=True, timeout=600)
    assert scrub(fleet, "orders").sound
    assert [record.body for record in LogReader.open(fleet, "orders").records()] == [b"a", b"b"]
    assert CursorStore(fleet, "orders").offsets() == {"billing": 2}


@pytest.mark.slow
def test_commands_against_a_damaged_cursor_set_it_again(fleet: ObjectStore) -> None:
    with LogWriter.open_or_create(fleet, "orders") as writer:
        writer.append_many([b"a", b"b"])
    CursorStore(fleet, "orders").create("billing", LogPosition(2, 0))
    (damaged,) = Path(unquote(urlsplit(fleet.url).path)).rglob("billing.json*")
    damaged.write_bytes(b"torn")
    (problem,) = scrub(fleet, "orders").problems

    steps = remedy(StoreScope(store_url=fleet.url), "sound", "orders", f"1 problem: {problem.message}")

    assert steps is not None
    for command in [span for span in re.findall(r"`([^`]+)`", steps) if span.startswith("wal3 ")]:
        words = [{"OTHER": "other", "N": "2"}.get(word, word) for word in shlex.split(command)]
        yes = ["--yes"] if "delete" in words else []
        subprocess.run([sys.executable, "-c", PROGRAM, *words[1:], *yes], cwd=ROOT, check=True, timeout=600)
    assert CursorStore(fleet, "orders").offsets() == {"billing": 2}
    assert scrub(fleet, "orders").sound


@pytest.mark.slow
@pytest.mark.parametrize("change", ["gone", "changed", "the copy's file"])
@pytest.mark.parametrize("updated", [False, True])
def test_command_that_a_failed_check_shows_repairs_all_damaged_files_from_a_copy(
    tmp_path: Path,
    fleet: ObjectStore,
    instance: DagsterInstance,
    run: Run,
    change: str,
    updated: bool,  # noqa: FBT001 - the table's column
) -> None:
    log = "team/orders"
    backup = open_store((tmp_path / "back up").as_uri())
    LogWriter.create(fleet, log)
    if updated:
        copy(LogAt(fleet, log), LogAt(backup, log))
    with LogWriter.open(fleet, log) as writer:
        for _ in range(4):
            writer.append_many([b"a", b"b"])
    update_copy(LogAt(fleet, log), LogAt(backup, log)) if updated else copy(LogAt(fleet, log), LogAt(backup, log))
    instance.add_dynamic_partitions(LOGS_NAME, [log])
    files, copied = (_fragments(store, log) for store in (fleet, backup))
    for number in (1, 3):
        bad = files[number]
        data = copied[number].read_bytes() if change == "the copy's file" and updated else bad.read_bytes()[:-1]
        bad.unlink()
        if change != "gone":
            bad.write_bytes(data)

    result = run("verification_job", run_request(log, log))

    (failed,) = [each for each in result.get_asset_check_evaluations() if "log" in each.metadata]
    steps = str(failed.metadata["remedy"].value)
    assert ("someone put the file of a copy there" in steps.casefold()) == (updated and change == "the copy's file")
    (command,) = [span for span in re.findall(r"`([^`]+)`", steps) if " repair " in span]
    words = shlex.split(command.replace("BACKUP_URL", shlex.quote(backup.url)))
    subprocess.run([sys.executable, "-c", PROGRAM, *words[1:]], cwd=ROOT, check=True, timeout=600)
    assert scrub(fleet, log).sound


def _fragments(store: ObjectStore, log: str) -> list[Path]:
    """List the files of a log's fragments, oldest first."""
    root = Path(unquote(urlsplit(life_store(store, log).url).path))
    return sorted(root.rglob("*.parquet"), key=lambda file: file.name)
