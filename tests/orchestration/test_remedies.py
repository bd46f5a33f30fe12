"""A failed check shows the first steps of the runbook for its log and file, and they repair the log."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.stores import life_store
from wal3_core import LogAt, LogWriter, copy, open_store, scrub
from wal3_orchestration.partitions import LOGS_NAME, run_request
from wal3_orchestration.remedies import REMEDIES, RESTORE_FROM, Remedy, remedy
from wal3_orchestration.scope import Scope

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance

    from wal3_core.storage.object_store import ObjectStore

ROOT = Path(__file__).parent.parent.parent


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
        for sentence in RESTORE_FROM.values() if step == "RESTORE" else [step]:
            assert _plain(sentence).rstrip(".") in section


def test_commands_name_the_store_the_log_and_the_file() -> None:
    scope = Scope(store_url="s3://bucket/prefix")
    file = "s3://bucket/prefix/orders/Life=1/log/Bucket=0/FragmentSeqNo=5.parquet"

    steps = remedy(scope, "sound", "orders", "1 problem: fragment 5 (x): expected bytes", file)

    assert steps is not None
    assert "`wal3 --store s3://bucket/prefix scrub orders`" in steps
    assert "`aws s3 ls --recursive s3://BACKUP/ | grep FragmentSeqNo=5.parquet`" in steps
    assert f"`aws s3 cp s3://BACKUP/KEY {file}`" in steps
    assert steps.endswith("More: docs/operations.md#a-check-turns-red-the-log-is-unsound")
    assert re.search(r"\b(LOG|FILE|PATH|NAME)\b", steps) is None


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True])
def test_command_that_a_failed_check_shows_restores_the_file_from_a_copy(
    tmp_path: Path,
    fleet: ObjectStore,
    instance: DagsterInstance,
    run: Run,
    gone: bool,  # noqa: FBT001 - the table's column
) -> None:
    log = "team/orders"
    with LogWriter.open_or_initialize(fleet, log) as writer:
        for _ in range(3):
            writer.append_many([b"a", b"b"])
    instance.add_dynamic_partitions(LOGS_NAME, [log])
    backup = tmp_path / "back up"
    copy(LogAt(fleet, log), LogAt(open_store(backup.as_uri()), log))
    fragment = sorted(Path(urlsplit(life_store(fleet, log).url).path).rglob("*.parquet"))[1]
    if gone:
        fragment.unlink()
    else:
        fragment.chmod(0o644)
        fragment.write_bytes(fragment.read_bytes()[:-1])

    result = run("verification_job", run_request(log, log))

    (failed,) = [each for each in result.get_asset_check_evaluations() if each.partition == log]
    steps = str(failed.metadata["remedy"].value)
    (command,) = [span for span in re.findall(r"`([^`]+)`", steps) if span.startswith("cp -f ")]
    subprocess.run(["/bin/sh", "-c", command.replace("BACKUP", shlex.quote(str(backup)))], check=True, timeout=60)
    assert not scrub(open_store(backup.as_uri()), log).problems
    assert scrub(fleet, log).sound
