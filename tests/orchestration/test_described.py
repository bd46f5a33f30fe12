"""Every definition says what it is, whose it is, and which store it looks after."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wal3_orchestration.definitions import defs
from wal3_orchestration.framework.checks import checks_of
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.scope import OWNERS

ROOT = Path(__file__).parent.parent.parent


def _anchors() -> set[str]:
    """Return the anchors of the runbook's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_definition_has_a_description() -> None:
    repository = defs().get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    checks = [spec for each in repository.assets_defs_by_key.values() for spec in each.check_specs]
    assets = list(defs().resolve_all_asset_specs())

    described = {
        each.name if hasattr(each, "name") else each.key.to_user_string(): each.description
        for each in (*jobs, *repository.sensor_defs, *repository.schedule_defs, *checks, *assets)
    }

    assert {"manifest_job", "discovery", "nightly_verification", "sound", "verification"} <= described.keys()
    assert [name for name, description in described.items() if not description] == []


def test_every_definition_names_its_store_and_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL3_STORE", "s3://key:secret@bucket/logs")
    repository = defs().get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]

    for each in (*jobs, *repository.sensor_defs, *repository.schedule_defs):
        shown = {label: value.value for label, value in each.metadata.items()}
        assert (shown["store"], shown["owners"]) == ("s3://bucket/logs", ", ".join(OWNERS)), each.name
    for spec in defs().resolve_all_asset_specs():
        assert spec.metadata["store"] == "s3://bucket/logs"
        assert list(spec.owners) == list(OWNERS)
        assert spec.kinds >= {"parquet", "s3"}
        assert spec.tags["wal3/store"] == "default"


def test_every_check_has_a_section_of_the_runbook_and_a_command() -> None:
    repository = defs().get_repository_def()
    keys = {key for each in repository.assets_defs_by_key.values() for key in each.check_keys}
    assets = {key.asset_key.to_user_string() for key in keys}

    built = [check for asset in assets for check in checks_of(asset)]

    assert {(check.asset, check.name) for check in built} == {
        (key.asset_key.to_user_string(), key.name) for key in keys
    }
    assert all({"LOG", "SERVER"} & set(check.next_command) for check in built)


@pytest.mark.parametrize("section", Section)
def test_runbook_has_the_section_that_is_linked_to(section: Section) -> None:
    assert section in _anchors()


def test_nothing_private_of_dagster_is_imported_but_what_it_exports_nowhere() -> None:
    sources = [*(ROOT / "wal3_orchestration").rglob("*.py"), *(ROOT / "wal3_core").rglob("*.py")]

    found = {str(path.relative_to(ROOT)) for path in sources if re.search(r"\bdagster\w*\._", path.read_text())}

    # How a sensor's ticks ended, and whether a code server still has a run.
    assert found == {"wal3_orchestration/defs/alerts.py", "wal3_orchestration/defs/lost_runs.py"}
