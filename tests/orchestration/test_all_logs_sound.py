"""A damaged log stays red on the first page of its asset, whatever is verified after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dagster import AssetCheckKey, AssetKey

from tests.stores import life_store
from wal3_orchestration.damaged_logs import DamagedLogs, KnownDamage
from wal3_orchestration.partitions import LOGS_NAME, run_request
from wal3_orchestration.scope import Scope

if TYPE_CHECKING:
    from conftest import Run, Write
    from dagster import DagsterInstance, ExecuteInProcessResult

    from wal3_core.storage.object_store import ObjectStore

ROOT = Path(__file__).parent.parent.parent
KEY = AssetCheckKey(AssetKey("verification"), "all_logs_sound")
# What the Overview of an asset asks.
_OVERVIEW = """{ assetNodes(assetKeys: [{path: ["verification"]}]) { assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status evaluation { partition severity description
    metadataEntries { label ... on TextMetadataEntry { text } ... on MarkdownMetadataEntry { mdStr } } } } } } } } }"""


@pytest.fixture
def fragment(known: list[str], fleet: ObjectStore) -> tuple[str, bytes]:
    """The path of a fragment of the log gamma, and its bytes; the file is gone."""
    assert "gamma" in known
    store = life_store(fleet, "gamma")
    path = next(meta.path for meta in store.list_objects("log/"))
    data = store.read(path)
    assert data is not None
    store.delete(path)
    return path, data


def _shown(folder: Path) -> dict[str, Any]:
    """Ask as Dagster's UI does."""
    program = "from dagster_graphql.cli import main; main()"
    query = ["--text", _OVERVIEW, "--output", str(folder / "shown.json")]
    done = subprocess.run(
        [sys.executable, "-c", program, "--workspace", "workspace.yaml", *query],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (node,) = json.loads((folder / "shown.json").read_text())["data"]["assetNodes"]
    return {each["name"]: each["executionForLatestMaterialization"] for each in node["assetChecksOrError"]["checks"]}


def _passed(result: ExecuteInProcessResult) -> bool:
    (found,) = [each for each in result.get_asset_check_evaluations() if each.asset_check_key == KEY]
    return found.passed


@pytest.mark.slow
@pytest.mark.usefixtures("fragment")
def test_sound_log_verified_after_a_damaged_one_leaves_the_overview_red(run: Run, tmp_path: Path) -> None:
    assert not run("verification_job", run_request("gamma", "gamma")).success
    assert run("verification_job", run_request("alpha", "alpha")).success

    shown = _shown(tmp_path)

    # Dagster shows one result of a check: the newest, of whichever log.
    assert shown["sound"]["status"] == "SUCCEEDED"
    assert shown["all_logs_sound"]["status"] == "FAILED"
    evaluation = shown["all_logs_sound"]["evaluation"]
    assert (evaluation["partition"], evaluation["severity"]) == (None, "ERROR")
    assert evaluation["description"] == "1 damaged: gamma; what to do: `remedy` below"
    shown = {each["label"]: each.get("text") or each.get("mdStr") for each in evaluation["metadataEntries"]}
    assert shown["problem"].startswith("1 problem: fragment 1 ")
    assert "repair gamma --from BACKUP_URL" in shown["remedy"]


@pytest.mark.slow
def test_overview_is_green_again_when_the_log_was_repaired_and_verified(
    fragment: tuple[str, bytes], fleet: ObjectStore, run: Run
) -> None:
    path, data = fragment
    damaged = run("verification_job", run_request("gamma", "gamma"))
    life_store(fleet, "gamma").create(path, data)

    others = run("verification_job", run_request("alpha", "beta/one"))
    repaired = run("verification_job", run_request("gamma", "gamma"))

    assert [_passed(each) for each in (damaged, others, repaired)] == [False, False, True]


@pytest.mark.slow
@pytest.mark.usefixtures("fragment")
def test_damaged_log_that_is_gone_is_not_counted(run: Run, instance: DagsterInstance) -> None:
    run("verification_job", run_request("gamma", "gamma"))
    instance.delete_dynamic_partition(LOGS_NAME, "gamma")

    assert _passed(run("verification_job", run_request("alpha", "alpha")))


@pytest.mark.slow
def test_damage_of_each_of_many_logs_is_remembered_by_itself(instance: DagsterInstance, write: Write) -> None:  # noqa: ARG001 - the store, by the environment
    logs = [f"log-{number:04}" for number in range(1_200)]
    instance.add_dynamic_partitions(LOGS_NAME, logs)
    one, other = (DamagedLogs(Scope(), instance) for _ in range(2))

    bad, worse = KnownDamage(problem="bad"), KnownDamage(problem="worse", file="file:///x")
    one.record(dict.fromkeys(logs[:700], bad))
    other.record({**dict.fromkeys(logs[700:], worse), logs[0]: None})
    one.record({logs[-1]: None})

    assert one.load() == {**dict.fromkeys(logs[1:700], bad), **dict.fromkeys(logs[700:-1], worse)}
    assert DamagedLogs(Scope(name="other"), instance).load() == {}
