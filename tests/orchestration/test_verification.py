from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import (
    AssetCheckSeverity,
    AssetKey,
    BackfillPolicy,
    DagsterInstance,
    DagsterRunStatus,
    ExecuteInProcessResult,
    RunRequest,
    SkipReason,
    asset,
    build_schedule_context,
    materialize,
)

from tests.orchestration.checked import check_of, found_bad
from tests.orchestration.run_requests import range_tags, run_request
from tests.stores import damage, life_store
from wal3_core import CursorStore, LogPosition, open_store
from wal3_core.log.read.scrub import Problem, ScrubReport
from wal3_core.spark.verify import verify_logs
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.discovery import MANIFEST
from wal3_orchestration.defs.verification import PROBLEMS_SHOWN_MAX, VERIFICATION, judge, scrub_log
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.step import HERE, ON_SPARK
from wal3_orchestration.resources import CollectionResource, StoreResource, spark_resource, spark_session

if TYPE_CHECKING:
    from conftest import Run, Write


KEY = AssetKey("verification")
LOGS = StoreScope().logs


@asset(deps=[KEY], partitions_def=LOGS, backfill_policy=BackfillPolicy.single_run())
def downstream() -> None:
    """A downstream asset that must not run for a damaged log."""


def _damage(store: ObjectStore, log: str) -> str:
    """Flip a bit at the end of a log's first fragment; return its name."""
    fragment = min((Path(urlsplit(life_store(store, log).url).path) / "log").rglob("*.parquet"))
    data = bytearray(fragment.read_bytes())
    data[-1] ^= 1
    fragment.chmod(0o644)
    fragment.write_bytes(data)
    return fragment.name


def _materialize(instance: DagsterInstance, logs: list[str], *, work_s_min: float = 60.0) -> ExecuteInProcessResult:
    return materialize(
        [MANIFEST.build(StoreScope()), VERIFICATION.build(StoreScope()), downstream],
        instance=instance,
        tags=range_tags(logs[0], logs[-1]),
        resources={
            "store": StoreResource.from_environment(),
            "spark": spark_resource(),
            "collection": CollectionResource(spark_work_s_min=work_s_min),
        },
        raise_on_error=False,
    )


def _recorded(result: ExecuteInProcessResult, label: str) -> dict[str | None, object]:
    return {
        event.partition: event.step_materialization_data.materialization.metadata[label].value
        for event in result.get_asset_materialization_events()
        if event.asset_key == KEY
    }


@pytest.mark.slow
def test_fleet_is_verified_in_one_run_and_each_log_has_its_outcome(
    known: list[str], run: Run, instance: DagsterInstance
) -> None:
    result = run("verification_job", run_request(known[0], known[-1]))

    assert result.success
    assert instance.get_materialized_partitions(KEY) == set(known)
    assert check_of(result, "sound").passed
    assert _recorded(result, "records") == dict.fromkeys(known, 6)
    assert _recorded(result, "done_by") == dict.fromkeys(known, HERE)


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_single_log_can_be_verified(run: Run) -> None:
    result = run("verification_job", run_request("beta/one", "beta/one"))

    assert result.success
    assert check_of(result, "sound").metadata["judged"].value == "1 of 3 logs"


@pytest.mark.slow
def test_sound_fleet_lets_downstream_assets_run(known: list[str], instance: DagsterInstance) -> None:
    result = _materialize(instance, known)

    assert result.success
    assert instance.get_materialized_partitions(AssetKey("downstream")) == set(known)


@pytest.mark.parametrize(
    ("work_s_min", "way"),
    [pytest.param(60.0, HERE, marks=pytest.mark.slow), pytest.param(0.0, ON_SPARK, marks=pytest.mark.spark)],
)
def test_damaged_fragment_fails_only_its_log_and_stops_downstream_assets(
    known: list[str], fleet: ObjectStore, instance: DagsterInstance, work_s_min: float, way: str
) -> None:
    fragment = _damage(fleet, "beta/one")

    result = _materialize(instance, known, work_s_min=work_s_min)

    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.status is DagsterRunStatus.FAILURE
    assert result.retry_attempts_for_node("verification") == 0
    assert set(_recorded(result, "done_by").values()) == {way}
    assert instance.get_materialized_partitions(KEY) == {"alpha", "gamma"}
    assert instance.get_materialized_partitions(AssetKey("downstream")) == set()
    failed = check_of(result, "sound")
    assert set(found_bad(result)) == {("beta/one", "sound")}
    assert (failed.passed, failed.severity) == (False, AssetCheckSeverity.ERROR)
    assert fragment in str(failed.metadata["problems"].value)
    assert failed.description is not None
    assert failed.description.startswith("beta/one: 1 problem: fragment 1, offsets 1 to 3 ")


@pytest.mark.slow
def test_log_damaged_after_it_was_sound_fails_the_check_until_it_is_sound_again(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    whole = run_request(known[0], known[-1])
    results = [run("verification_job", whole)]
    _damage(fleet, "alpha")

    results.append(run("verification_job", whole))
    _damage(fleet, "alpha")
    results.append(run("verification_job", whole))

    assert [check_of(each, "sound").passed for each in results] == [True, False, True]
    assert [set(found_bad(each)) for each in results] == [set(), {("alpha", "sound")}, set()]


@pytest.mark.spark
def test_log_read_in_the_run_s_process_gets_the_report_that_spark_gives(
    known: list[str], fleet: ObjectStore, write: Write
) -> None:
    _damage(fleet, "alpha")
    CursorStore(fleet, "beta/one").create("reader", LogPosition(4, 0))
    damage(life_store(fleet, "beta/one"), "cursor/reader.json")
    manifest = next((Path(urlsplit(fleet.url).path) / "gamma").glob("manifest/MANIFEST*"))
    manifest.write_bytes(manifest.read_bytes()[:-9])
    write("sound", fragments=40)
    logs = [*known, "sound", "never-there"]

    here = [scrub_log(fleet, log) for log in logs]

    on_spark = verify_logs(spark_session(spark_resource()), fleet.url, logs)
    for one, other in zip(here, on_spark, strict=True):
        # A damaged log's range and balance are its reader's: only the sound parts are added up alike.
        assert (one.log, one.sound, one.problems) == (other.log, other.sound, other.problems)
        assert (one.num_records, one.num_bytes, one.num_fragments) == (
            other.num_records,
            other.num_bytes,
            other.num_fragments,
        )
    assert [one.sound for one in here] == [False, False, False, True, False]
    assert here[3].to_json() == on_spark[3].to_json()


def test_long_list_of_problems_is_cut_but_counted() -> None:
    problems = tuple(Problem(f"log/{number}", "gone") for number in range(PROBLEMS_SHOWN_MAX + 7))
    report = ScrubReport(
        log="alpha", setsum="", num_records=0, num_bytes=0, num_fragments=0, num_snapshots=0, problems=problems
    )

    outcome = judge(open_store("memory:none"), report)

    assert outcome.details["num_problems"] == PROBLEMS_SHOWN_MAX + 7
    assert len(outcome.details["problems"].value) == PROBLEMS_SHOWN_MAX
    assert outcome.problem is not None
    assert outcome.problem.startswith(f"{PROBLEMS_SHOWN_MAX + 7} problems: gone (file ")
    assert outcome.problem.endswith(f"; and {PROBLEMS_SHOWN_MAX + 4} more")


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_schedule_requests_the_whole_fleet_in_one_run(known: list[str], instance: DagsterInstance) -> None:
    with build_schedule_context(instance) as context:
        request = defs().resolve_schedule_def("nightly_verification")(context)

    assert known
    assert isinstance(request, RunRequest)
    # A sweep without a list of logs goes over all that are known when it starts.
    assert (request.partition_key, request.run_config) == (None, {})


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_schedule_skips_while_no_log_is_known(instance: DagsterInstance, write: Write) -> None:
    write("not-yet-discovered")

    with build_schedule_context(instance) as context:
        assert isinstance(defs().resolve_schedule_def("nightly_verification")(context), SkipReason)
