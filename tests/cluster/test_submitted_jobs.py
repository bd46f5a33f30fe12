"""Each job, from a user's ``spark-submit`` on a cluster whose workers have the library from a zip alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.conftest import submit
from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import JOBS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.conftest import Machines
    from wal3_core.storage.object_store import ObjectStore


def test_all_jobs_submitted_to_workers_without_the_library_are_right(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, *JOBS)

    found = submit(machines, store, tmp_path, *JOBS)

    for job in JOBS:
        check(job, store, found[job])
