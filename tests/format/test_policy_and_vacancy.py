"""Policies and vacancies are stored as earlier versions wrote them, and no other document is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.format.manifest import Manifest
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.format.vacancy import Vacancy, VacancyKind, manifest_or_vacancy
from wal3_core.options import View

GOLDEN = Path(__file__).parent.parent / "golden"
POLICY = Policy(log_id=LOG_ID, generation=2, writer="w", retention_s=86_400, without_cursors=True, percent_max=100)
LIMITED = Policy(log_id=LOG_ID, generation=1, writer="w", unprocessed_max=1_000_000)
COMPACTED = Policy(
    log_id=LOG_ID,
    generation=3,
    writer="w",
    cleanup=Cleanup.BOTH,
    retention_s=604_800,
    min_compaction_lag_s=60,
    max_compaction_lag_s=86_400,
    delete_retention_s=172_800,
    min_dirty_percent=30,
    compacted_fragment_bytes=4_194_304,
)
ARRANGED = Policy(log_id=LOG_ID, generation=4, writer="w", arrange_by_key=True, min_dirty_percent=10)
OWNED = Policy(log_id=LOG_ID, generation=5, writer="w", view=View.QUEUE)
VACANCY = Vacancy(
    kind=VacancyKind.COPYING, log_id=LOG_ID, generation=4, writer="w", source="orders", terms="all", pin="copy-1"
)


def test_formats_are_what_earlier_versions_wrote() -> None:
    documents = {
        "policy": POLICY,
        "policy_with_a_limit": LIMITED,
        "policy_that_compacts": COMPACTED,
        "policy_that_arranges": ARRANGED,
        "policy_of_a_view": OWNED,
        "vacancy": VACANCY,
    }
    for name, document in documents.items():
        path = GOLDEN / f"{name}.json"
        assert path.read_bytes() == document.to_bytes(), f"the format changed: {path} holds what earlier versions wrote"
    assert Policy.from_bytes((GOLDEN / "policy.json").read_bytes(), what="policy") == POLICY
    assert Policy.from_bytes((GOLDEN / "policy_with_a_limit.json").read_bytes(), what="policy") == LIMITED
    assert Policy.from_bytes((GOLDEN / "policy_that_compacts.json").read_bytes(), what="policy") == COMPACTED
    assert Policy.from_bytes((GOLDEN / "policy_that_arranges.json").read_bytes(), what="policy") == ARRANGED
    assert Policy.from_bytes((GOLDEN / "policy_of_a_view.json").read_bytes(), what="policy") == OWNED
    assert manifest_or_vacancy((GOLDEN / "vacancy.json").read_bytes(), what="manifest") == VACANCY


def test_vacancy_and_manifest_are_distinguished() -> None:
    manifest = (GOLDEN / "manifest.json").read_bytes()

    assert isinstance(manifest_or_vacancy(manifest, what="manifest"), Manifest)
    with pytest.raises(CorruptError):
        Manifest.from_bytes(VACANCY.to_bytes())
