"""A check is about the whole store: red while any known log is bad, whatever other logs' runs find."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.orchestration.checked import check_of, found_bad
from tests.orchestration.run_requests import run_request
from tests.stores import age_out, life_store
from wal3_core import CursorStore, LogPosition
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.verification import sound
from wal3_orchestration.framework.checks import CheckFindings, CheckResult, evaluate
from wal3_orchestration.framework.log_records import KnownProblem, LogRecord, LogRecords
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance, ExecuteInProcessResult


ROOT = Path(__file__).parent.parent.parent
# What the Overview of an asset asks.
_OVERVIEW = """{ assetNodes(assetKeys: [{path: ["verification"]}]) { assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status evaluation { partition severity description
    metadataEntries { label ... on TextMetadataEntry { text }
      ... on TableMetadataEntry { table { records } } } } } } } } } }"""


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
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    (node,) = json.loads((folder / "shown.json").read_text())["data"]["assetNodes"]
    return {each["name"]: each["executionForLatestMaterialization"] for each in node["assetChecksOrError"]["checks"]}


def _passed(result: ExecuteInProcessResult) -> bool:
    return check_of(result, "sound").passed


@pytest.mark.slow
@pytest.mark.usefixtures("fragment")
@pytest.mark.usefixtures("dagster_home")
def test_sound_log_verified_after_a_damaged_one_leaves_the_overview_red(run: Run, tmp_path: Path) -> None:
    assert not run("verification_job", run_request("gamma", "gamma")).success
    assert run("verification_job", run_request("alpha", "alpha")).success

    (check,) = _shown(tmp_path).values()

    evaluation = check["evaluation"]
    assert check["status"] == "FAILED"
    assert (evaluation["partition"], evaluation["severity"]) == (None, "ERROR")
    assert evaluation["description"].startswith("gamma: 1 problem: fragment 1, offsets 1 to 3 ")
    assert shlex.split(evaluation["description"].partition(". Next: ")[2])[-2:] == ["scrub", "gamma"]
    shown = {each["label"]: each.get("text") or each.get("table") for each in evaluation["metadataEntries"]}
    assert shown["problem"].startswith("1 problem: fragment 1, offsets 1 to 3 ")
    assert "repair gamma --from BACKUP_URL" in str(shown["remedy"]["records"])
    (row,) = map(json.loads, shown["bad logs"]["records"])
    assert row["problem"].startswith("1 problem: fragment 1, offsets 1 to 3 ")
    assert (row["log"], shlex.split(row["next command"])[-2:]) == ("gamma", ["scrub", "gamma"])


@pytest.mark.slow
def test_check_is_green_again_when_the_log_was_repaired_and_verified(
    fragment: tuple[str, bytes], fleet: ObjectStore, run: Run
) -> None:
    path, data = fragment
    damaged = run("verification_job", run_request("gamma", "gamma"))
    life_store(fleet, "gamma").create(path, data)

    others = run("verification_job", run_request("alpha", "beta/one"))
    repaired = run("verification_job", run_request("gamma", "gamma"))

    assert [_passed(each) for each in (damaged, others, repaired)] == [False, False, True]
    assert [set(found_bad(each)) for each in (damaged, others, repaired)] == [{("gamma", "sound")}, set(), set()]


@pytest.mark.slow
@pytest.mark.usefixtures("fragment")
def test_damaged_log_that_is_gone_is_not_counted(run: Run, instance: DagsterInstance) -> None:
    run("verification_job", run_request("gamma", "gamma"))
    instance.delete_dynamic_partition(LOGS_NAME, "gamma")

    assert _passed(run("verification_job", run_request("alpha", "alpha")))


@pytest.mark.slow
def test_checks_of_one_asset_fail_each_for_its_own_logs(known: list[str], fleet: ObjectStore, run: Run) -> None:
    # Gamma's plan takes the whole log; alpha's takes half of it, and beta has no cursor, which is no failure.
    CursorStore(fleet, "alpha").create("reader", LogPosition(4, 0))
    age_out(fleet, "gamma")

    results = [run("garbage_plan_job", run_request(log, log)) for log in ("gamma", "alpha")]

    assert known == ["alpha", "beta/one", "gamma"]
    assert [check_of(each, "safe_to_collect").passed for each in results] == [False, False]
    assert [check_of(each, "little_garbage").passed for each in results] == [False, False]
    assert [check_of(each, "cursors_move").passed for each in results] == [True, True]
    assert [each.success for each in results] == [False, True]
    assert check_of(results[1], "safe_to_collect").metadata["bad"].value == 1


@pytest.mark.slow
def test_each_of_many_logs_is_remembered_by_itself(instance: DagsterInstance) -> None:
    logs = [f"log-{number:04}" for number in range(1_200)]
    one, other = (LogRecords(StoreScope(), instance, "verification") for _ in range(2))

    bad = LogRecord(problems={"sound": KnownProblem(problem="bad")})
    worse = LogRecord(number=2, problems={"sound": KnownProblem(problem="worse", blocking=True, file="file:///x")})
    good = LogRecord(state="seen", due_s=1.5, due_from="life/7")
    one.save(dict.fromkeys(logs[:700], bad))
    other.save({**dict.fromkeys(logs[700:], worse), logs[0]: good})
    one.save({logs[-1]: good})

    assert one.load(logs) == {
        logs[0]: good,
        **dict.fromkeys(logs[1:700], bad),
        **dict.fromkeys(logs[700:-1], worse),
        logs[-1]: good,
    }
    assert LogRecords(StoreScope(name="other"), instance, "verification").load(logs) == {}
    assert LogRecords(StoreScope(), instance, "manifest").load(logs) == {}


def test_check_of_thousands_of_bad_logs_counts_all_and_shows_the_first() -> None:
    found = CheckFindings(check=sound)
    for number in range(2_000):
        found.judge(
            CheckResult(check=sound, log=f"log-{number:04}", problem="torn", blocking=True, details={"n": number})
        )
    torn = LogRecord(problems={sound.name: KnownProblem(problem="torn", blocking=True)})
    for number in range(3_000):
        found.know(f"log-{number:04}", torn if number < 2_500 else LogRecord())

    check = evaluate(StoreScope(store_url="file:///store"), found)

    assert (len(found.here), len(found.bad)) == (50, 50)
    shown = [check.metadata[label].value for label in ("judged", "bad", "n")]
    assert shown == ["2,000 of 3,000 logs", 2_500, "0"]
    assert check.description == (
        "log-0000: torn; log-0001: torn; log-0002: torn; and 2497 more. Next: wal3 --store file:///store scrub log-0000"
    )
    assert check.metadata["bad logs"].records[-1].data["log"] == "and 2450 more"
    assert sum(len(str(value.value)) for value in check.metadata.values()) < 20_000


def test_log_is_remembered_although_another_run_begins_to_remember_its_neighbour(instance: DagsterInstance) -> None:
    """Regression: SQLite's storage drops new keys that come with one that exists, as the neighbour's did by then."""
    records, other = (LogRecords(StoreScope(), instance, "verification") for _ in range(2))
    bad = LogRecord(problems={"sound": KnownProblem(problem="bad")})
    storage = instance.daemon_cursor_storage
    load, begun = storage.get_cursor_values, []

    def overtaken(keys: set[str]) -> Mapping[str, str]:
        found = load(keys)
        if not begun:
            begun.append(True)
            other.save({"a": bad})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "get_cursor_values", overtaken)
        records.save({"a": bad, "b": bad})

    assert records.load(["a", "b"]) == {"a": bad, "b": bad}
