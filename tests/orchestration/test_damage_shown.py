"""From the check and the run alone, an operator finds the damaged file, the offsets lost, and the next command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from dagster import AssetCheckEvaluation, DagsterInstance, ExecuteInProcessResult, UrlMetadataValue

from tests.orchestration.run_requests import run_request
from tests.stores import life_store
from tests.world import World
from wal3_core import CursorStore, LogPosition, LogWriter, WriterOptions
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run


ROOT = Path(__file__).parent.parent.parent
SMALL = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1))


@pytest.fixture
def orders(fleet: ObjectStore, instance: DagsterInstance) -> str:
    """A log of several fragments and snapshots, known to Dagster."""
    with LogWriter.open_or_create(fleet, "team/orders", options=SMALL) as writer:
        for _ in range(12):
            writer.append_many([b"a", b"b", b"c"])
    instance.add_dynamic_partitions(LOGS_NAME, ["team/orders"])
    return "team/orders"


def _files(store: ObjectStore, log: str, pattern: str) -> list[Path]:
    return sorted(Path(urlsplit(life_store(store, log).url).path).rglob(pattern))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def _failed(result: ExecuteInProcessResult) -> AssetCheckEvaluation:
    (failed,) = [check for check in result.get_asset_check_evaluations() if not check.passed]
    return failed


def _shown(result: ExecuteInProcessResult) -> dict[str, Any]:
    return {label: value.value for label, value in _failed(result).metadata.items()}


def _sentence(result: ExecuteInProcessResult, step: str) -> str:
    failure = result.failure_data_for_node(step)
    assert failure is not None
    assert failure.user_failure_data is not None
    assert failure.error is not None
    # No chain of errors of a framework below it.
    assert failure.error.cause is None
    assert failure.error.context is None
    return str(failure.user_failure_data.description)


@pytest.mark.slow
def test_damaged_fragment_is_shown_with_its_file_offsets_and_next_command(
    orders: str, fleet: ObjectStore, run: Run
) -> None:
    fragment = _files(fleet, orders, "*FragmentSeqNo=0000000000000005.parquet")[0]
    _flip(fragment)

    result = run("verification_job", run_request(orders, orders))

    shown = _shown(result)
    command = shlex.join(["wal3", "--store", fleet.url, "scrub", orders])
    assert not result.success
    assert shown["log"] == orders
    assert shown["offsets"] == "13 to 15"
    assert Path(urlsplit(shown["file"]).path) == fragment
    assert shown["next_command"] == command
    assert shown["runbook"] == "docs/operations.md#a-check-turns-red-the-log-is-unsound"
    (problem,) = shown["problems"]
    assert (problem["file"], problem["start_offset"], problem["limit_offset"]) == (shown["file"], 13, 16)
    sentence = _sentence(result, "verification")
    assert sentence.startswith("1 of 1 logs: team/orders: sound: 1 problem: fragment 5, offsets 13 to 15 ")
    assert sentence.count(shown["file"]) == sentence.count("offsets") == 1
    assert f". Next: {command}. See {shown['runbook']}" in sentence


@pytest.mark.slow
def test_next_command_of_a_failed_check_finds_the_same_damage(orders: str, fleet: ObjectStore, run: Run) -> None:
    _flip(_files(fleet, orders, "*.parquet")[0])
    words = shlex.split(_shown(run("verification_job", run_request(orders, orders)))["next_command"])

    program = "import sys; sys.argv[0] = 'wal3'; from wal3_core.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )

    assert words[0] == "wal3"
    assert done.returncode == 1
    assert "fragment 1" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "has_offsets"), [("{snapshot}", True), ("cursor/*.json*", False)])
def test_damaged_document_is_shown_with_its_file(
    orders: str,
    fleet: ObjectStore,
    run: Run,
    pattern: str,
    has_offsets: bool,  # noqa: FBT001 - the table's column
) -> None:
    CursorStore(fleet, orders).create("reader", LogPosition(4, 0))
    # A snapshot that no manifest names any more may lie beside the others.
    (named, *_) = [pointer.path for pointer in World(fleet, orders).manifest().snapshots]
    document = next(path for path in _files(fleet, orders, pattern.format(snapshot=named)) if path.is_file())
    _flip(document)

    shown = _shown(run("verification_job", run_request(orders, orders)))

    assert Path(urlsplit(shown["file"]).path) == document
    assert ("offsets" in shown) is has_offsets


@pytest.mark.slow
def test_runbook_with_an_address_is_a_link(
    orders: str, fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL3_RUNBOOK", "https://wiki.example.com/wal3")
    _flip(_files(fleet, orders, "*.parquet")[0])

    link = _failed(run("verification_job", run_request(orders, orders))).metadata["runbook"]

    assert isinstance(link, UrlMetadataValue)
    assert link.url == "https://wiki.example.com/wal3#a-check-turns-red-the-log-is-unsound"


@pytest.mark.slow
def test_refused_plan_shows_its_next_command_and_ends_the_run_with_a_sentence(
    orders: str, fleet: ObjectStore, run: Run
) -> None:
    CursorStore(fleet, orders).create("reader", LogPosition(36, 0))
    CursorStore(fleet, orders).create("damaged", LogPosition(36, 0))
    _flip(_files(fleet, orders, "cursor/damaged.json*")[0])

    result = run("garbage_plan_job", run_request(orders, orders))

    shown = _shown(result)
    assert shown["next_command"] == shlex.join(["wal3", "--store", fleet.url, "gc", orders, "--dry-run"])
    assert shown["runbook"] == "docs/operations.md#a-cursor-is-damaged"
    steps = "\n".join(str(row.data["do"]) for row in shown["remedy"].records)
    assert shlex.join(["wal3", "--store", fleet.url, "cursor", "delete", orders, "damaged"]) in steps
    assert shlex.join(["wal3", "--store", fleet.url, "cursor", "set", orders, "damaged", "N"]) in steps
    assert shown["folder"] == f"{fleet.url}/{orders}/"
    sentence = _sentence(result, "garbage_plan")
    assert sentence.startswith("1 of 1 logs: team/orders: safe_to_collect: ")
    assert sentence.endswith(f"Next: {shown['next_command']}. See {shown['runbook']}")
