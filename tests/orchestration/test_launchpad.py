"""A run's launchpad shows the few fields of the resources that people turn, and takes all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.orchestration.checked import check_of, found_bad
from tests.orchestration.run_requests import run_request
from tests.stores import age_out
from wal3_orchestration.definitions import defs
from wal3_orchestration.resources import KNOBS

if TYPE_CHECKING:
    from conftest import Run
    from dagster import ConfigType

    from wal3_core.store.object_store import ObjectStore


def _fields(config_type: ConfigType, *path: str) -> dict[str, Any]:
    fields: dict[str, Any] = dict(config_type.fields)  # type: ignore[attr-defined]  # of a shape
    return _fields(fields[path[0]].config_type, *path[1:]) if path else fields


def test_launchpad_shows_three_knobs_and_no_other_field_of_a_resource() -> None:
    job = defs().resolve_job_def("collection_job")

    resources = _fields(job.run_config_schema.config_type, "resources")

    shown = {name: set(_fields(each.config_type, "config")) for name, each in resources.items() if name != "io_manager"}
    assert shown == {"store": set(), "spark": set(), "rollup": set(), "collection": set(KNOBS)}
    assert len(KNOBS) == 3


@pytest.mark.slow
def test_field_that_is_not_shown_can_be_set_and_one_that_is_none_fails_the_run(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    age_out(fleet, known[0])
    request = run_request(known[0], known[0])

    loose, wrong = (
        run("garbage_plan_job", request, {"resources": {"collection": {"config": {"fraction_max": 1.0, field: 1.0}}}})
        for field in ("fraction_alarm", "fraction_allarm")
    )

    assert (loose.success, wrong.success) == (True, False)
    assert check_of(loose, "little_garbage").passed
    assert found_bad(loose) == {}
