"""Each job, from a user's ``spark-submit`` on a cluster whose workers have the library from the job alone."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tests.cluster.conftest import Machines, submit
from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import JOBS
from tests.cluster.worker_python import make_worker_python
from wal3_core.store.object_store import ObjectStore


def test_all_jobs_submitted_to_workers_without_the_library_are_right(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, *JOBS)

    found = submit(machines, store, tmp_path, *JOBS)

    for job in JOBS:
        check(job, store, found[job])


def test_workers_take_their_python_with_all_packages_from_an_archive(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, "read", "verify")
    archive, packed = tmp_path / "environment.tar.gz", make_worker_python(tmp_path / "packed", "s3", "spark")
    environment = packed.parent.parent
    site = next(environment.glob("lib/*/site-packages"))
    with zipfile.ZipFile(machines.library) as library:
        library.extractall(site)
    with tarfile.open(archive, "w:gz") as file:
        file.add(environment, ".")
    # Reads are planned on the driver's machine, by the same Python.
    (tmp_path / "environment").symlink_to(environment)

    conf = {"spark.archives": f"{archive}#environment", "spark.submit.pyFiles": ""}
    python = {"spark.pyspark.python": "./environment/bin/python"}
    found = submit(machines, store, tmp_path, "read", "verify", **conf, **python)

    check("read", store, found["read"])
    check("verify", store, found["verify"])
